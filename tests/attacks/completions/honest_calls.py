def f(a, b=2, *rest, key=None, **more): return a, b, rest, key, more
def remember(x, seen=[]):
    seen.append(x); return seen
square = lambda x: x * x
