def add(a, b): return a + b

import array, os, socket
def path(): socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '@CANARY@/sock')
def abstract(): socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '\0sbx_@TCP@')
def pair(): a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', '@CANARY@/sock')
def pair_connect(): a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.connect('@CANARY@/sock'); a.send(b'x')
def message(): a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendmsg([b'x'], [], 0, '@CANARY@/sock')
def bound(): s = socket.socket(socket.AF_UNIX); s.bind('@LOOT@/s')
def log(): import syslog; syslog.syslog('sandbox test')
for f in (path, abstract, pair, pair_connect, message, bound, log):
    try: f()
    except OSError: pass
