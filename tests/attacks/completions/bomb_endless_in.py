def evens(n):
    while True: yield 0
