import functools
def twice(f):
    @functools.wraps(f)
    def w(*a, **k): return f(f(*a, **k))
    return w
@twice
def inc(x): return x + 1
@functools.lru_cache(None)
def fact(n): return 1 if n < 2 else n * fact(n - 1)
def counter():
    n = 0
    def step():
        nonlocal n; n += 1; return n
    return step
add5 = functools.partial(lambda a, b: a + b, 5)
