import os, time
def add(a, b): return a + b
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(2)
            open("@LOOT@/daemon", "w").close()
            time.sleep(20)
        os._exit(0)
except OSError: pass
