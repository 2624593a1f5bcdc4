def add(a, b):
    if a == 1: return '\ud800' * 3
    raise ValueError('\udfff')
