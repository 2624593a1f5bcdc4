def add(a, b): return 1 << 30_000_000
