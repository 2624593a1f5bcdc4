x = @REPEAT{lambda: |5000}@1
def add(a, b): return None
