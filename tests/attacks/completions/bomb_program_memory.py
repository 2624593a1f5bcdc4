x = [bytearray(1 << 28) for _ in range(16)]
print(3)
