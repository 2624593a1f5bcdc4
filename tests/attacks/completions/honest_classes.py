class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __repr__(self): return f"Stack({self.items})"
    @staticmethod
    def of(*xs):
        s = Stack(); s.items = list(xs); return s
