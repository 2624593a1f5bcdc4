def add(a, b):
    x = []; x.append(x); return x
