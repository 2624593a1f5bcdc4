def upto(n): return range(10 ** 12)
