class S:
    _one = None
    def __new__(cls):
        cls._one = cls._one or super().__new__(cls); return cls._one
def same(x): return x
