import unittest
class S(unittest.SkipTest): pass
def f(): raise S("x") if unittest else 0
