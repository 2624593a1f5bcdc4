class Out(BaseException): pass
def add(a, b):
    if a == 'x': raise KeyboardInterrupt
    if a == 'y': raise Out
    return 0
