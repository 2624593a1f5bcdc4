class O: pass
def add(a, b):
    d = {}; d['d'] = [d]; return d
