import sys
first = sys.stdin.readline()
rest = [int(l) for l in sys.stdin]
print(first.strip(), sum(rest))
try: input()
except EOFError: print('end')
quit()
