x = 1@REPEAT{+1|500000}@
def add(a, b): return None
