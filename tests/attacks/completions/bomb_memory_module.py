x = bytearray(3 << 30)
def add(a, b): return a + b
