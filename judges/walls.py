"""Walls."""
import contextlib
import ctypes
import glob
import os
import resource
import signal
import struct
import sys
from typing import NamedTuple

# subprocess, tempfile and concurrent.futures are imported where they are used: they load threading, whose fork hooks
# would double the cost of every candidate.
LINUX = sys.platform == "linux"
MACHINE = 75  # exit status where the machine failed, not a candidate or a test
THREADS = 64  # of one process; Java starts 20


class Limits(NamedTuple):
    timeout: float
    memory: int
    unsafe: list
    libraries: list  # paths that candidates read
    closed: list  # folders that stay closed although they lie where programs of other languages read: packages


libc = ctypes.CDLL(None, use_errno=True)
# The system calls that are allowed, name:x86-64:aarch64 (empty: not there). They read, wait, or concern the caller
# alone; what may be opened is Landlock's business. Whatever is not listed, or not invented yet, fails.
MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}  # column, the kernel's name for it
ALLOWED = """read:0:63 write:1:64 close:3:57 lseek:8:62 pread64:17:67 readv:19:65 writev:20:66 mmap:9:222
munmap:11:215 mprotect:10:226 mremap:25:216 madvise:28:233 brk:12:214 futex:202:98 rt_sigaction:13:134
rt_sigprocmask:14:135 rt_sigreturn:15:139 sigaltstack:131:132 exit:60:93 exit_group:231:94 getpid:39:172
gettid:186:178 getppid:110:173 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 uname:63:160
sysinfo:99:179 getcwd:79:17 chdir:80:49 umask:95:166 getrandom:318:278 clock_gettime:228:113 clock_getres:229:114
clock_nanosleep:230:115 nanosleep:35:101 gettimeofday:96:169 time:201: times:100:153 getrusage:98:165 getrlimit:97:163
sched_yield:24:124 sched_getaffinity:204:123 set_robust_list:273:99 set_tid_address:218:96 rseq:334:293
membarrier:324:283 arch_prctl:158: restart_syscall:219:128 alarm:37: setitimer:38:103 getitimer:36:102 pause:34:
stat:4: fstat:5:80 lstat:6: newfstatat:262:79 statx:332:291 access:21: faccessat:269:48 faccessat2:439:439
readlink:89: readlinkat:267:78 getdents64:217:61 fadvise64:221:223 dup:32:23 dup2:33: dup3:292:24 pipe:22:
pipe2:293:59 poll:7: ppoll:271:73 select:23: pselect6:270:72 epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:
epoll_pwait:281:22 eventfd2:290:19 shutdown:48:210 getsockname:51:204 getsockopt:55:209"""
RUNTIMES = " execve:59:221 capget:125:90 mincore:27:232 fchdir:81:50"  # node and java need these too
FILES = """ unlink:87: unlinkat:263:35 mkdir:83: mkdirat:258:34 rename:82: renameat:264:38 renameat2:316:276
ftruncate:77:46 pwrite64:18:68 flock:73:32"""
COMPILERS = FILES + """ fork:57: vfork:58: clone:56:220 wait4:61:260 chmod:90: fchmod:91:52 fchmodat:268:53"""
JUDGE = FILES + " memfd_create:319:279"  # and messages with descriptors


def seccomp_filter(may_write, more=""):
    """A program for the kernel's little machine (classic BPF) that decides on every system call -> address, memory."""
    column, machine = MACHINES[os.uname().machine]
    step = lambda code, value, yes=0, no=0: struct.pack("HBBI", code, yes, no, value)  # yes, no: steps to jump over
    load, equal, has_bit = (lambda at: step(0x20, at)), (lambda *a: step(0x15, *a)), (lambda *a: step(0x45, *a))
    argument = lambda n, high=0: load(16 + 8 * n + 4 * high)
    allow, fail, kill, missing = (step(6, x) for x in (0x7FFF0000, 0x50001, 0x80000000, 0x50026))  # EPERM; ENOSYS
    one_of = lambda n, *values: [argument(n)] + sum(([equal(v, 0, 1), allow] for v in values), []) + [fail]
    to_write = 0x400243  # O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_TMPFILE
    reading = lambda n: [allow] if may_write else [argument(n), has_bit(to_write, 0, 1), fail, allow]
    in_band = lambda n: [argument(n), has_bit(1, 0, 1), fail]  # no MSG_OOB: urgent data is rarely tried code
    special = {
        "clone:56:220": [argument(0), has_bit(0x10000, 0, 1), allow, fail],  # CLONE_THREAD: threads, not processes
        "clone3:435:435": [missing],  # its flags are out of sight; the C library then uses clone
        # AF_UNIX, as asyncio needs, and SOCK_STREAM, with CLOEXEC and NONBLOCK or not: it has no other address
        "socketpair:53:199": [argument(0), equal(1, 1, 0), fail, *one_of(1, 1, 0x801, 0x80001, 0x80801)],
        "prlimit64:302:261": one_of(0, 0),  # of itself
        "prctl:157:167": one_of(0, 15, 16),  # names of threads
        "sendto:44:206": [*in_band(3), argument(4), equal(0, 0, 3), argument(4, 1), equal(0, 0, 1), allow, fail],
        "recvfrom:45:207": [*in_band(3), allow],
        "fcntl:72:25": one_of(1, 0, 1, 2, 3, 4, 1030, 1032),  # not F_SETOWN, F_SETSIG: they send signals
        "ioctl:16:29": one_of(1, 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451),  # not TIOCSTI: it types
        "open:2:": reading(1), "openat:257:56": reading(2)}
    if more == JUDGE: special |= {"sendmsg:46:211": [*in_band(2), allow], "recvmsg:47:212": [*in_band(2), allow]}
    number = lambda entry: int(entry.split(":")[column] or -1)
    listed = [n for n in map(number, (ALLOWED + more).split()) if n >= 0]
    rules = {number(entry): rule for entry, rule in special.items() if number(entry) not in (-1, *listed)}
    steps = [load(4), equal(machine, 1, 0), kill, load(0)]  # the calling convention of another machine kills
    for n, rule in rules.items(): steps += [equal(n, 0, len(rule)), *rule]
    steps += [equal(n, len(listed) - i, 0) for i, n in enumerate(listed)] + [fail, allow]
    memory = ctypes.create_string_buffer(b"".join(steps))
    return struct.pack("HxxxxxxP", len(steps), ctypes.addressof(memory)), memory


EXECUTE, WRITE, READ, LIST, ALL = 1, 2, 4, 8, 0xFFFF


def landlock(rules):
    """Files only as {path: rights} says, no TCP, no signals out -> False where the kernel (before 5.13) has none."""
    call = lambda *a: libc.syscall(*[ctypes.c_long(x) if isinstance(x, int) else x for x in a])
    if (abi := call(444, None, 0, 1)) < 1: return False
    known = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}.get(abi, ALL)  # all that this kernel can forbid
    ruleset = call(444, struct.pack("QQQ", known, 3, 3), 8 if abi < 4 else 16 if abi < 6 else 24, 0)
    for path, rights in rules.items():
        if os.path.exists(path):
            place, fits = os.open(path, os.O_PATH), known if os.path.isdir(path) else EXECUTE | WRITE | READ
            call(445, ruleset, 1, struct.pack("=Qi", rights & fits, place), 0)
            os.close(place)
    done = call(446, ruleset, 0) == 0
    os.close(ruleset)
    return done


def limit(**limits):
    """limit(AS=bytes, CPU=seconds, ...), soft and hard, not above what this process was given."""
    for name, value in limits.items():
        what = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard),) * 2)


def lock(rules, more="", unsafe=()):
    """No privileges by exec, no root powers, files by `rules` -> the last wall, to be shut by each process itself."""
    if not LINUX: return None
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no core, no ptrace, /proc/<pid> belongs to root
    libc.capset(struct.pack("II", 0x20080522, 0), bytes(24))
    landlocked = landlock(rules)
    if os.uname().machine not in MACHINES or libc.prctl(21, 0, 0, 0, 0) < 0: return None  # PR_GET_SECCOMP: has none
    return seccomp_filter(landlocked or "write" in unsafe and more in (JUDGE, RUNTIMES + COMPILERS), more)


def shut(wall, parent):
    """Die with the parent, then seccomp: PR_SET_PDEATHSIG, PR_SET_SECCOMP. Not half a wall: raises if that fails."""
    if LINUX and (libc.prctl(1, 9, 0, 0, 0) or os.getppid() != parent or wall and libc.prctl(22, 2, wall[0], 0, 0)):
        raise OSError("seccomp refused")


def become_countable():
    """Where this is root, have a user of its own for what the kernel counts per user -> the limit of that, if any.

    Others share the count with all that they run: no thread is started when half of what this machine allows is."""
    if not LINUX: return {"NPROC": 0}  # of processes; not for root
    with contextlib.suppress(OSError):  # a user namespace may not have this user
        if os.getuid() == 0: os.setresuid(1 << 30 | int.from_bytes(os.urandom(3), "big"), 0, 0)
    if os.getuid() >= 1 << 30: return {"NPROC": 2 * THREADS}
    allowed = [resource.getrlimit(resource.RLIMIT_NPROC)[1]]
    for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):  # a container's
        with contextlib.suppress(OSError, ValueError), open(path) as f: allowed.append(int(f.read()))
    return {"NPROC": min(n for n in allowed if n > 0) // 2} if max(allowed) > 0 else {}


def opened(path, closed):
    """A path -> the paths to open in its place, so that what is closed stays so: the path, or its parts one by one."""
    inside = [place for place in closed if place == path or place.startswith(path + "/")]
    if not inside: return [path]
    try: parts = [] if path in inside else [part.path for part in os.scandir(path) if not part.is_symlink()]
    except OSError: parts = []
    return [place for part in parts for place in opened(part, inside)]


def without_packages(paths, closed):
    """The paths to open in place of these, so that a Python's packages stay closed: one may hold the solutions."""
    roots = dict.fromkeys(map(os.path.realpath, filter(os.path.exists, paths)))
    packages = [found for root in roots for middle in ("", "lib*/", "local/lib*/", "lib*/py*/")
                for name in ("py*/site-packages", "py*/dist-packages", "site-packages", "dist-packages")
                for found in glob.glob(f"{root}/{middle}{name}")]
    packages = {os.path.realpath(place) for place in [*packages, *closed]}
    packages = [place for place in packages if not any((root + "/").startswith(place + "/") for root in roots)]
    return [place for root in roots for place in opened(root, packages)]


SYSTEM = {"/usr/share/zoneinfo": READ | LIST, "/etc/ld.so.cache": READ, "/dev/null": READ | WRITE,
          "/dev/urandom": READ}
LIBRARY = os.path.dirname(os.path.realpath(os.__file__))
LIBRARIES = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", sys.base_prefix + "/lib", LIBRARY]


def kill(pid):
    """Kill a process, and in its group what a compiler may have started."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(OSError): kill(pid, signal.SIGKILL)


def end_process(pid):
    """Kill a process -> its exit status, the CPU seconds it took with those that it waited for."""
    kill(pid)
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
