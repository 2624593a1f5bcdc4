s = 'x'
while True: s += s
