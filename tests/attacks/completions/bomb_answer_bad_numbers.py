def add(a, b): return [float('nan'), float('inf'), 10 ** 400][a % 3]
