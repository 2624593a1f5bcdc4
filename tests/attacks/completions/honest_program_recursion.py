import sys, threading
sys.setrecursionlimit(10 ** 5)
def f(n): return 0 if n == 0 else 1 + f(n - 1)
def main(): print(f(int(open(0).read())))
threading.stack_size(1 << 26)
t = threading.Thread(target=main); t.start(); t.join()
