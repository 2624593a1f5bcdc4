def fill(grid, v):
    for row in grid:
        for i in range(len(row)): row[i] = v
def tag(d, *, into): into['n'] = len(d); into.setdefault('l', []).append(1)
def push(q, b, s): q.appendleft(0); b[0] = 65; s.add(9)
def swap(a, b): a[:], b[:] = b[:], a[:]
