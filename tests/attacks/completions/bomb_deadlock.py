import threading
l = threading.Lock(); l.acquire()
def add(a, b): l.acquire()
