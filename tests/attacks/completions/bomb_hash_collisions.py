P = 2 ** 61 - 1
def upto(n): return [i * P for i in range(1, 60000)]
