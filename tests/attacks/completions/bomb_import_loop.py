import importlib, sys
class F:
    def find_spec(self, n, p=None, t=None): importlib.import_module(n + 'x')
sys.meta_path.insert(0, F())
import nothing_like_this
def add(a, b): return None
