s = input()
print(s[::-1], len(s), 'é中😀')
