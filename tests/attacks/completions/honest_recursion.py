def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
def ack(m, n): return n + 1 if m == 0 else ack(m - 1, 1) if n == 0 else ack(m - 1, ack(m, n - 1))
