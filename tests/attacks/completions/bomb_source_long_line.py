# @REPEAT{x|1000000}@
s = '@REPEAT{y|1000000}@'
def add(a, b): return None
