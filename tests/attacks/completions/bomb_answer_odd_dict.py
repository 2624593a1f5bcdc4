class K:
    def __hash__(self): return 1
    def __eq__(self, o): return False
def add(a, b): return {K(): 1, K(): 2, float('nan'): 3, (1, (2, [3].__len__())): 4}
