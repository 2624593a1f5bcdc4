def sort_it(xs):
    xs.sort()
def bump(d, k):
    d[k] = d.get(k, 0) + 1
    return None
