import sys
sys.setrecursionlimit(10 ** 9)
def add(a, b):
    x = ()
    for _ in range(10 ** 6): x = (x,)
    return hash(x) * 0
