def compose(f, g):
    return lambda x: f(g(x))
def apply_all(fs, x):
    return [f(x) for f in fs]
