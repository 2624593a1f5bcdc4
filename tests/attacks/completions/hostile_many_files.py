import os
def add(a, b): return a + b
for i in range(2000):
    try: os.close(os.open("@LOOT@/f%d" % i, os.O_CREAT | os.O_WRONLY))
    except OSError: break
try: os.mkdir("@LOOT@/d"); os.symlink("/etc", "@LOOT@/link"); os.mkfifo("@LOOT@/fifo")
except OSError: pass
