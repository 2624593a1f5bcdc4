class V:
    def __init__(self, *c): self.c = c
    def __add__(self, o): return V(*(a + b for a, b in zip(self.c, o.c)))
    def __sub__(self, o): return V(*(a - b for a, b in zip(self.c, o.c)))
    def __mul__(self, o): return sum(a * b for a, b in zip(self.c, o.c))
    def __eq__(self, o): return isinstance(o, V) and self.c == o.c
    def __hash__(self): return hash(self.c)
    def __neg__(self): return V(*(-a for a in self.c))
    def __abs__(self): return sum(a * a for a in self.c) ** 0.5
    def __lt__(self, o): return abs(self) < abs(o)
    def __getitem__(self, i): return self.c[i]
    def __setitem__(self, i, x): self.c = self.c[:i] + (x,) + self.c[i + 1:]
    def __len__(self): return len(self.c)
    def __repr__(self): return 'V' + repr(self.c)
