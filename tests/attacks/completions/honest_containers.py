from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
P = namedtuple('P', 'x y')
def counter(): return Counter('abca')
def groups():
    d = defaultdict(list); d['a'].append(1); return d
def ordered(): return OrderedDict([('b', 1), ('a', 2)])
def queue(): return deque([1, 2, 3], maxlen=3)
def point(): return P(1, y=2)
def money(): return Decimal('1.10') + Decimal('2.20')
def third(): return Fraction(2, 6)
def misc(): return {1, 2}, frozenset([3]), b'ab', bytearray(b'c'), 1 + 2j, range(0, 6, 2), None, True, {(1, 2): [3.5]}, 'é\u4e2d\U0001f600'
