import sys, os, io
data = sys.stdin.buffer.read().split()
sys.stdout.write(data[0].decode() + '\n')
print(data[1].decode(), end=' ', flush=True)
sys.stdout.buffer.write(data[2] + b'\n'); sys.stdout.flush()
os.write(1, b'raw\n')
print('error', file=sys.stderr)
if __name__ == '__main__': print('main')
sys.exit(0)
