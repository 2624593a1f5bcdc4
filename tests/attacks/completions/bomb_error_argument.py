def add(a, b):
    x = []
    for _ in range(5000): x = [x]
    raise ValueError('x' * 100_000_000, x) if a < 9 else ValueError(x)
