def rounds(n): return 10 ** 15
