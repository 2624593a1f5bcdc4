class Empty(Exception):
    def __init__(self, name, size=0): super().__init__(f'{name} is empty'); self.size = size
class Worse(Empty): pass
def pop(xs):
    if not xs: raise Empty('list')
    return xs.pop()
def worse(): raise Worse('x')
def typed(x):
    if not isinstance(x, int): raise TypeError('int wanted')
    if x < 0: raise ValueError('negative')
    return [1, 2][x]
