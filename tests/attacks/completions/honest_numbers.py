import math
def nan(): return float('nan')
def inf(): return [math.inf, -math.inf]
def zero(): return -0.0
def big(n): return 10 ** n + 7
def tenth(): return 0.1 + 0.2
