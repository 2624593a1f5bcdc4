def add(a, b):
    if a == 1: raise AssertionError('passed')
    if a == 10: raise StopIteration
    return iter(())
