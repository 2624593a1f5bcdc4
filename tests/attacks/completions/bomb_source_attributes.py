x = a@REPEAT{.a|100000}@
def add(a, b): return None
