class E(Exception):
    def __str__(self):
        while True: pass
def add(a, b): raise E(E())
