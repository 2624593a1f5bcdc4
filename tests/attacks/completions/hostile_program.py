import os, socket
for f in (lambda: open('@LOOT@/x', 'w'), lambda: os.fork() or (open('@LOOT@/y', 'w'), os._exit(0)), lambda: socket.create_connection(('127.0.0.1', @TCP@), 1), lambda: os.kill(os.getppid(), 9), lambda: os.remove('@CANARY@/repo/train.py')):
    try: f()
    except OSError: pass
print(sum(map(int, input().split())))
