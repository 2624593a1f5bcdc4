import time
def nap():
    t = time.perf_counter(); time.sleep(0.05); return time.perf_counter() - t
