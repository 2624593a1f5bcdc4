def add(a, b): return a + b

import os
P = '@CANARY@/repo/train.py'
for f in (lambda: os.chmod(P, 0), lambda: os.chown(P, 12345, 12345), lambda: os.utime(P), lambda: os.setxattr(P, 'user.x', b'1'), lambda: os.truncate(P, 1), lambda: os.rename(P, P + 'x'),
          lambda: os.replace(P, '@LOOT@/x'), lambda: os.unlink(P), lambda: os.rmdir('@CANARY@/home/keys'), lambda: os.chmod('@CANARY@/repo', 0o700), lambda: os.symlink(P, '@LOOT@/s'), lambda: os.link(P, '@LOOT@/l'),
          lambda: os.lchown(P, 0, 0), lambda: os.mknod('@LOOT@/n'), lambda: os.mkfifo('@LOOT@/f'), lambda: os.mkdir('@LOOT@/d'), lambda: os.removexattr(P, 'user.x')):
    try: f()
    except OSError: pass
