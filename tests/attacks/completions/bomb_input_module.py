a = int(input())
b = int(input())
def add(a, b): return a + b
