def add(a, b): return a + b

import socket
def tcp(): socket.create_connection(('127.0.0.1', @TCP@), 1)
def udp(): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @UDP@))
def fast(): socket.socket(socket.AF_INET, socket.SOCK_STREAM).sendto(b'x', 0x20000000, ('127.0.0.1', @TCP@))
def six(): socket.socket(socket.AF_INET6).connect(('::ffff:127.0.0.1', @TCP@))
def serve(): s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); s.connect(('127.0.0.1', @TCP@))
def http(): import urllib.request; urllib.request.urlopen('http://127.0.0.1:@TCP@', timeout=1)
def name(): socket.getaddrinfo('example.org', 80); raise OSError
def others(): [socket.socket(f, t) for f, t in ((16, 3), (17, 3), (40, 1), (2, 3))]; socket.create_connection(('127.0.0.1', @TCP@), 1)
for f in (tcp, udp, fast, six, serve, http, name, others):
    try: f()
    except Exception: pass
