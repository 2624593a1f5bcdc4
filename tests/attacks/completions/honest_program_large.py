import sys
print('\n'.join(str(int(x) * 2) for x in sys.stdin.read().split()))
