def add(a, b):
    while True: print('x' * 100000)
