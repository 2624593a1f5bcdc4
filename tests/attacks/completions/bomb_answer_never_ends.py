def add(a, b):
    while True: yield 1
