def apply(f): return f(apply)
