import sys
print('loading')
def add(a, b):
    print('adding', a, b); print('err', file=sys.stderr); sys.stdout.flush()
    return a + b
