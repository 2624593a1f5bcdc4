class Bad(ValueError): pass
def root(x):
    if x < 0: raise Bad('negative: %d' % x)
    if x > 99: raise KeyError('big')
    return int(x ** 0.5)
