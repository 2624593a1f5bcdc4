x = @REPEAT{(|100000}@1@REPEAT{)|100000}@
def add(a, b): return None
