def fib():
    a, b = 0, 1
    while True:
        yield a
        a, b = b, a + b
def chunks(xs, n):
    for i in range(0, len(xs), n): yield xs[i:i + n]
def echo():
    got = yield 'ready'
    while True: got = yield got * 2
