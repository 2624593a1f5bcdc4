class A:
    made = 0
    def __init__(self, n): self.n = n; A.made += 1
    @classmethod
    def of(cls, s): return cls(int(s))
    @staticmethod
    def twice(x): return 2 * x
    def __call__(self, x): return self.n + x
class B(A):
    def __init__(self, n): super().__init__(n + 100)
    def __contains__(self, x): return x == self.n
