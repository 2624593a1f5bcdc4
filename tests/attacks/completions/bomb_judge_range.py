def size(n): return 10 ** 18
