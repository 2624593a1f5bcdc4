def add(a, b): return a + b

import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def mark(): open('@LOOT@/child', 'w').close(); os._exit(0)
def spawn(): os.posix_spawn('/bin/touch', ['touch', '@LOOT@/spawn'], {})
def shell(): os.system('touch @LOOT@/shell')
def run(): import subprocess; subprocess.run(['/bin/touch', '@LOOT@/run'])
def pool(): import multiprocessing; p = multiprocessing.Process(target=mark); p.start(); p.join(1)
def pty_(): import pty; pid, fd = pty.fork(); pid or mark()
def native(): libc.vfork() or libc._exit(0); raise OSError
def clone(): r = libc.syscall(56, 17, 0, 0, 0, 0); r or mark()
def clone3(): r = libc.syscall(435, (0).to_bytes(32, 'little') + (17).to_bytes(8, 'little') + bytes(48), 88); r or mark()
def image(): fd = os.memfd_create('x'); os.write(fd, b'#!/bin/sh'); os.execve(fd, ['x'], {})
def replace(): os.execv('/bin/touch', ['touch', '@LOOT@/exec'])
for f in (spawn, shell, run, pool, pty_, clone, clone3, image, replace):
    try: f()
    except Exception: pass
