x = @REPEAT{not |200000}@1
def add(a, b): return None
