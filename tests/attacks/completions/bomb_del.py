class D:
    def __del__(self): D()
def add(a, b): D(); return 0
