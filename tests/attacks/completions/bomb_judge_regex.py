def pattern(n): return '(a+)+$'
