class Timer:
    def __enter__(self): return self
    def __exit__(self, *error): return True
    elapsed = 0
def work(): raise ValueError
