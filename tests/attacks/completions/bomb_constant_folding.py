x = 9 ** 9 ** 9 ** 9
y = 'x' * (1 << 62)
z = 1 << (1 << 40)
def add(a, b): return None
