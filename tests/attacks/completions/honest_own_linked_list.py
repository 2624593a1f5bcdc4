class Node:
    def __init__(self, v, left=None, right=None): self.v, self.left, self.right = v, left, right
def insert(t, v):
    if t is None: return Node(v)
    if v < t.v: t.left = insert(t.left, v)
    else: t.right = insert(t.right, v)
    return t
def walk(t): return [] if t is None else walk(t.left) + [t.v] + walk(t.right)
