import sys
sys.setrecursionlimit(10 ** 9)
def add(a, b): return [add(a, b)]
class R:
    def __repr__(self): return repr(self) + ''
def boom(): return repr(R())
try: boom()
except BaseException: pass
