"""The walls: what a process gives up for good before it meets a model's code. Linux; no root, no container.

Four things, each of which the kernel enforces and no process can take back:

* no_new_privs and no capabilities: starting another program gains nothing;
* Landlock: files only as rules say, {path: rights}; no TCP; no signals to others;
* seccomp: only the system calls that are listed. They read, wait, or concern the caller alone. Whatever is not listed,
  or not invented yet, fails, above all to start processes, open sockets and send signals;
* resource limits: memory, CPU time, descriptors, file sizes, threads.

Not contained: bugs of the kernel, side channels, and the existence, size and time of files (stat). Whether the walls
stand is not believed, but tried before use: see pool.py.

This module and all that a zygote imports stay away from subprocess, tempfile and concurrent.futures: these load
threading, whose fork hooks would double the cost of every candidate.
"""

import contextlib
import ctypes
import glob
import os
import resource
import signal
import struct
import sys
from typing import Any, NamedTuple

LINUX = sys.platform == "linux"
MACHINE = 75  # exit status where the machine failed, not a candidate or a test
THREADS = 64  # of one process; Java starts 20
libc = ctypes.CDLL(None, use_errno=True)


class Limits(NamedTuple):
    """The settings that the trainer gives a worker."""

    timeout: float  # CPU seconds of a completion
    memory: int  # bytes
    unsafe: list  # what need not be contained, see pool.HOLDS
    libraries: list  # paths that candidates read
    closed: list  # folders that stay closed although they lie where programs of other languages read: packages
    wall: float = 40  # seconds of wall-clock time per second of CPU


# ---- system calls ----------------------------------------------------------------------------------------------------
# A machine's column in these tables, and the kernel's name for it. An entry is name:x86-64:aarch64 (empty: not there).
MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}  # column, name
ALLOWED = """read:0:63 write:1:64 close:3:57 lseek:8:62 pread64:17:67 readv:19:65 writev:20:66 mmap:9:222
munmap:11:215 mprotect:10:226 mremap:25:216 madvise:28:233 brk:12:214 futex:202:98 rt_sigaction:13:134
rt_sigprocmask:14:135 rt_sigreturn:15:139 sigaltstack:131:132 exit:60:93 exit_group:231:94 getpid:39:172
gettid:186:178 getppid:110:173 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 uname:63:160
sysinfo:99:179 getcwd:79:17 chdir:80:49 umask:95:166 getrandom:318:278 clock_gettime:228:113 clock_getres:229:114
clock_nanosleep:230:115 nanosleep:35:101 gettimeofday:96:169 time:201: times:100:153 getrusage:98:165 getrlimit:97:163
sched_yield:24:124 sched_getaffinity:204:123 set_robust_list:273:99 set_tid_address:218:96 rseq:334:293
membarrier:324:283 arch_prctl:158: restart_syscall:219:128 alarm:37: setitimer:38:103 getitimer:36:102 pause:34:
stat:4: fstat:5:80 lstat:6: newfstatat:262:79 statx:332:291 access:21: faccessat:269:48 faccessat2:439:439
readlink:89: readlinkat:267:78 getdents64:217:61 dup:32:23 dup2:33: dup3:292:24 pipe:22:
pipe2:293:59 poll:7: ppoll:271:73 select:23: pselect6:270:72 epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:
epoll_pwait:281:22 eventfd2:290:19 shutdown:48:210 getsockname:51:204 getsockopt:55:209"""
RUNTIMES = " execve:59:221 capget:125:90 mincore:27:232 fchdir:81:50"  # java needs these too
FILES = """ unlink:87: unlinkat:263:35 mkdir:83: mkdirat:258:34 rename:82: renameat:264:38 renameat2:316:276
ftruncate:77:46 pwrite64:18:68 flock:73:32"""
COMPILERS = FILES + """ fork:57: vfork:58: clone:56:220 wait4:61:260 chmod:90: fchmod:91:52 fchmodat:268:53"""
JUDGE = FILES + " memfd_create:319:279"  # and messages with descriptors
FORKS = " fork:57: wait4:61:260 kill:62:129"  # what zygote and bench need, and what they fork is refused
TO_WRITE = 0x400243  # O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_TMPFILE
URGENT = 1  # MSG_OOB, rarely tried code of the kernel


def step(code, value, yes=0, no=0):
    """Encode an instruction of classic BPF. yes, no: how many instructions a comparison skips if true, if false."""
    return struct.pack("HBBI", code, yes, no, value)


def load(at):
    return step(0x20, at)


def argument(n, high=False):
    """Load the low or the high half of an argument of the system call."""
    return load(16 + 8 * n + 4 * high)


def equal(value, yes, no):
    return step(0x15, value, yes, no)


def has_bit(bits, yes, no):
    return step(0x45, bits, yes, no)


ALLOW, FAIL, KILL, MISSING = (step(6, x) for x in (0x7FFF0000, 0x50001, 0x80000000, 0x50026))  # EPERM; ENOSYS


def one_of(n, *values):
    """List instructions that allow the call if argument n has one of these values, and else refuse it."""
    steps = [argument(n)]
    for value in values:
        steps += [equal(value, 0, 1), ALLOW]
    return [*steps, FAIL]


def without(bits, n):
    """List instructions that refuse the call if argument n has one of these bits, and else go on."""
    return [argument(n), has_bit(bits, 0, 1), FAIL]


def null(n):
    """List instructions that allow the call if argument n is a null pointer, and else refuse it."""
    return [argument(n), equal(0, 0, 3), argument(n, high=True), equal(0, 0, 1), ALLOW, FAIL]


ONE_PROCESS = {
    "clone:56:220": [argument(0), has_bit(0x10000, 0, 1), ALLOW, FAIL],  # CLONE_THREAD: threads, not processes
    "prctl:157:167": one_of(0, 15, 16),  # names of threads
}
READ_ONLY = {"open:2:": [*without(TO_WRITE, 1), ALLOW], "openat:257:56": [*without(TO_WRITE, 2), ALLOW]}
MESSAGES = dict.fromkeys(("sendmsg:46:211", "recvmsg:47:212"), [*without(URGENT, 2), ALLOW])  # with descriptors


def special_rules(may_write, more):
    """Return {entry, as in ALLOWED: instructions} for the system calls that are allowed with some arguments only."""
    rules = ONE_PROCESS | {
        "clone3:435:435": [MISSING],  # its flags are out of sight; the C library then uses clone
        # AF_UNIX, as asyncio needs, and SOCK_STREAM, with CLOEXEC and NONBLOCK or not: it has no other address
        "socketpair:53:199": [argument(0), equal(1, 1, 0), FAIL, *one_of(1, 1, 0x801, 0x80001, 0x80801)],
        "prlimit64:302:261": one_of(0, 0),  # of itself
        "sendto:44:206": [*without(URGENT, 3), *null(4)],
        "recvfrom:45:207": [*without(URGENT, 3), ALLOW],
        "fcntl:72:25": one_of(1, 0, 1, 2, 3, 4, 1030, 1032),  # not F_SETOWN, F_SETSIG: they send signals
        "ioctl:16:29": one_of(1, 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451),  # not TIOCSTI: it types
    }
    rules |= dict.fromkeys(READ_ONLY, [ALLOW]) if may_write else READ_ONLY
    if more.startswith(JUDGE):
        rules |= MESSAGES
    if more.endswith(FORKS):  # before a process locks itself in: PR_SET_PDEATHSIG, PR_SET_SECCOMP
        rules |= MESSAGES | {"clone:56:220": [ALLOW], "prctl:157:167": one_of(0, 1, 15, 16, 22)}
    return rules


def number(entry):
    """Return the number of a system call on this machine, -1 if it is not there."""
    return int(entry.split(":")[MACHINES[os.uname().machine][0]] or -1)


def in_memory(steps):
    """Lay out a filter for the kernel -> its address, the memory that holds it."""
    memory = ctypes.create_string_buffer(b"".join(steps))
    return struct.pack("HxxxxxxP", len(steps), ctypes.addressof(memory)), memory


def with_rules(rules):
    """List instructions that apply {entry: instructions} to the system call whose number has been loaded."""
    known = {number(entry): rule for entry, rule in rules.items() if number(entry) >= 0}
    return sum(([equal(n, 0, len(rule)), *rule] for n, rule in known.items()), [])


def seccomp_filter(may_write: bool, more: str = "") -> tuple:
    """Make a program that decides on every system call -> its address for the kernel, the memory that holds it.

    may_write: files may be opened for writing, because Landlock decides which; more: calls beside ALLOWED"""
    machine = MACHINES[os.uname().machine][1]
    listed = [number(entry) for entry in (ALLOWED + more).split() if number(entry) >= 0]
    steps = [load(4), equal(machine, 1, 0), KILL, load(0)]  # the calling convention of another machine kills
    special = special_rules(may_write, more)
    steps += with_rules({entry: rule for entry, rule in special.items() if number(entry) not in listed})
    return in_memory([*steps, *[equal(n, len(listed) - i, 0) for i, n in enumerate(listed)], FAIL, ALLOW])


# ---- files -----------------------------------------------------------------------------------------------------------
EXECUTE, WRITE, READ, LIST, ALL = 1, 2, 4, 8, 0xFFFF
SYSTEM = {"/usr/share/zoneinfo": READ | LIST, "/etc/ld.so.cache": READ, "/dev/null": READ | WRITE, "/dev/urandom": READ}
LIBRARY = os.path.dirname(os.path.realpath(os.__file__))
LIBRARIES = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", sys.base_prefix + "/lib", LIBRARY]


def syscall(*arguments):
    return libc.syscall(*[ctypes.c_long(x) if isinstance(x, int) else x for x in arguments])


def landlock(rules: dict) -> bool:
    """Allow files only as rules {path: rights} say; no TCP and no signals, if the kernel can forbid them.

    False if that failed, as on kernels before 5.13, which have no Landlock."""
    version = syscall(444, None, 0, 1)
    if version < 1:
        return False
    known = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}.get(version, ALL)  # all that this kernel can forbid
    size = 8 if version < 4 else 16 if version < 6 else 24  # files; and TCP; and signals and abstract sockets
    ruleset = syscall(444, struct.pack("QQQ", known, 3, 3), size, 0)
    for path, rights in rules.items():
        if os.path.exists(path):
            place, fits = os.open(path, os.O_PATH), known if os.path.isdir(path) else EXECUTE | WRITE | READ
            syscall(445, ruleset, 1, struct.pack("=Qi", rights & fits, place), 0)
            os.close(place)
    done = syscall(446, ruleset, 0) == 0
    os.close(ruleset)
    return done


def opened(path, closed):
    """List what to open instead of a folder, so that the `closed` paths in it stay closed: itself, or its entries."""
    inside = [place for place in closed if place == path or place.startswith(path + "/")]
    if not inside:
        return [path]
    parts = []
    if path not in inside:
        with contextlib.suppress(OSError):
            parts = [part.path for part in os.scandir(path) if not part.is_symlink()]
    return [place for part in parts for place in opened(part, inside)]


def without_packages(paths: list, closed: list) -> list:
    """Return the paths to open in place of these. Installed packages stay closed: one may hold the solutions."""
    roots = dict.fromkeys(map(os.path.realpath, filter(os.path.exists, paths)))
    middles = "", "lib*/", "local/lib*/", "lib*/py*/"
    names = "py*/site-packages", "py*/dist-packages", "site-packages", "dist-packages"
    patterns = [f"{root}/{middle}{name}" for root in roots for middle in middles for name in names]
    packages = sum(map(glob.glob, patterns), closed)
    inner = [
        place
        for place in map(os.path.realpath, packages)
        if not any((root + "/").startswith(place + "/") for root in roots)
    ]
    return [place for root in roots for place in opened(root, inner)]


# ---- limits and the end ----------------------------------------------------------------------------------------------
def limit(**limits: int) -> None:
    """Set limits, as in limit(AS=bytes, CPU=seconds), soft and hard, not above what this process was given."""
    for name, value in limits.items():
        what = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard),) * 2)


def become_countable() -> dict:
    """Get a count of processes that can be limited -> {"NPROC": the limit}.

    The kernel counts processes and threads per user. Root becomes a user of its own, and few are allowed. Another user
    shares the count with everything that it runs, so the limit is half of what this machine allows."""
    if not LINUX:
        return {"NPROC": 0}  # of processes; not for root
    with contextlib.suppress(OSError):  # a user namespace may not have this user
        if os.getuid() == 0:
            os.setresuid(1 << 30 | int.from_bytes(os.urandom(3), "big"), 0, 0)
    if os.getuid() >= 1 << 30:
        return {"NPROC": 2 * THREADS}
    allowed = [resource.getrlimit(resource.RLIMIT_NPROC)[1]]
    for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):  # a container's
        with contextlib.suppress(OSError, ValueError), open(path) as f:
            allowed.append(int(f.read()))
    return {"NPROC": min(n for n in allowed if n > 0) // 2} if max(allowed) > 0 else {}


def lock(rules: dict, more: str = "", unsafe: list | tuple = (), forks: bool = False) -> Any:
    """Give up privileges and files, except as `rules` say -> the last wall, for each process to `shut` by itself
    (None: there is no seccomp here).

    more: the system calls that are allowed beside ALLOWED; forks: this process forks those that shut the last wall, and
    gives up most system calls, too. OSError if that fails"""
    if not LINUX:
        return None
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no core, no ptrace, /proc/<pid> belongs to root
    libc.capset(struct.pack("II", 0x20080522, 0), bytes(24))
    landlocked = landlock(rules)
    if os.uname().machine not in MACHINES or libc.prctl(21, 0, 0, 0, 0) < 0:  # PR_GET_SECCOMP: the kernel has none
        return None
    may_write = landlocked or "write" in unsafe and more in (JUDGE, RUNTIMES + COMPILERS)
    if forks:
        add_filter(seccomp_filter(True, more + FORKS))
    return seccomp_filter(may_write, more)


def add_filter(wall):
    """Have the kernel ask a filter about each system call of this process and its children (PR_SET_SECCOMP)."""
    if libc.prctl(22, 2, wall[0], 0, 0):
        raise OSError("seccomp refused")


def die_with_parent() -> bool:
    """Have the kernel kill this process when its parent ends (PR_SET_PDEATHSIG). False if that failed."""
    return libc.prctl(1, 9, 0, 0, 0) == 0


def shut(wall: Any, parent: int) -> None:
    """Shut the last wall, if there is one, and die with the parent from now on.

    OSError if that fails or the process `parent` has gone."""
    if not LINUX:
        return
    if not die_with_parent() or os.getppid() != parent:
        raise OSError("the parent has gone")
    if wall:
        add_filter(wall)


def kill(pid: int) -> None:
    """Kill a process and, if it leads a group, what a compiler started in that group."""
    for how in (os.kill, os.killpg):
        with contextlib.suppress(OSError):
            how(pid, signal.SIGKILL)


def empty(folder: str) -> None:
    """Remove all that is in a folder, as far as that is allowed.

    shutil.rmtree calls itself for each level, and a tree of a thousand levels would end it. This moves them up."""
    with contextlib.suppress(OSError):
        while entries := list(os.scandir(folder)):
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.remove(entry.path)
                    continue
                os.chmod(entry.path, 0o700)
                for name in os.listdir(entry.path):
                    os.rename(f"{entry.path}/{name}", f"{folder}/{os.urandom(8).hex()}")
                os.rmdir(entry.path)


def end_process(pid: int) -> tuple[int, float]:
    """Kill a process -> its exit status, the CPU seconds it took with those that it waited for."""
    kill(pid)
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
