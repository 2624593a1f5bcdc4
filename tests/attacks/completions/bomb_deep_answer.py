def add(a, b):
    x = 0
    for _ in range(10 ** 5): x = [x]
    return x
