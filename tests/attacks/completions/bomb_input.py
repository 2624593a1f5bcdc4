def add(a, b): return int(input())
