def walk(xs, visit):
    for x in xs: visit(x)
    return len(xs)
def guard(f, default):
    try: return f()
    except ZeroDivisionError: return default
def reduce(f, xs, s):
    for x in xs: s = f(s, x)
    return s
def total(it): return sum(it)
