def bisect(xs, x):
    lo = 0
    while lo < len(xs) and xs[lo] <= x: lo += 1
    return lo
