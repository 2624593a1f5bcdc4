def add(a, b):
    for i in range(2000): print('step', i, a, b)
    return a + b
