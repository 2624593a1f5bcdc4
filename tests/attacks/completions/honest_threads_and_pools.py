from concurrent.futures import ThreadPoolExecutor
import threading, queue
def squares(xs):
    with ThreadPoolExecutor(4) as p: return list(p.map(lambda x: x * x, xs))
def relay(xs):
    q, out = queue.Queue(), []
    t = threading.Thread(target=lambda: [out.append(q.get()) for _ in xs]); t.start()
    for x in xs: q.put(x)
    t.join(); return out
