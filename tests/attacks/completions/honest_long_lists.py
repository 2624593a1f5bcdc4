def double(xs): return [2 * x for x in xs]
def sieve(n):
    s = [True] * n; s[:2] = [False] * 2
    for i in range(2, int(n ** 0.5) + 1):
        if s[i]: s[i * i::i] = [False] * len(s[i * i::i])
    return [i for i, p in enumerate(s) if p]
