def add(a, b):
    x = 0
    for i in range(300): x = (x,) if i % 3 else {'k': x}
    return x
