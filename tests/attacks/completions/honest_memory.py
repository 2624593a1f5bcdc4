def big(): return sum(len(x) for x in [bytearray(10 ** 7) for _ in range(10)])
