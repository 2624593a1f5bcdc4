"""Score the completions of this folder and see that cheats earn nothing, honest work is paid, and the machine is unharmed.

    python tests/attacks/run.py [--only NAME] [--kind honest,cheat,bomb,hostile] [--timeout 3] [--slack 1] [-v]

manifest.json holds one case per line: the completion's name, its tests and entry, the rewards that are right (null: any),
the seconds it may take, and why it is there. completions.txt holds the completions, each below its name. In a completion @CANARY@, @LOOT@, @TCP@, @UDP@ stand for this run's targets.
The scorer runs in a process and session of its own, so an attack that kills it is seen. After every case this process
looks at the canary files, the loot folder, sockets that listen on this machine, and shared memory; at the end it looks
for processes that are still there. The completions are harmless by construction: they only reach for those targets, and
every bomb is bounded."""
import argparse
import hashlib
import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SHM_KEY = 0x5B0C5B0C
FILES = {  # what nobody may touch; the answer key is also what nobody may read
    "repo/train.py": "print('train')\n", "repo/README.md": "readme\n", "home/.netrc": "machine x password SECRET\n",
    "repo/answers.json": json.dumps({"3": 7919, "11": -40961, "58": 123457}), "home/keys/id": "SECRET", "cwd/a.json": "{}"}


# ---- the scorer's process ------------------------------------------------------------------------------------------------
def host(timeout, read, write):
    """Score one JSON line after the other. The reply carries the job's id: a completion may have found this pipe too."""
    jobs, replies = open(read), open(write, "w")
    for fd in (read, write):
        os.set_inheritable(fd, False)
    sys.path.insert(0, ROOT)
    from judges.sandbox.jobs import Job
    from judges.sandbox.pool import run
    print("ready", file=replies, flush=True)
    for line in jobs:
        job, start = json.loads(line), time.perf_counter()
        try:
            asked = Job(job["code"], job["tests"], job["entry"], job["language"])
            neighbour = Job("def add(a, b): return a + b", ["assert add(1, 2) == 3", "assert add(1, 2) == 4"], "add")
            before, verdict, after = run([neighbour, asked, neighbour], timeout=timeout, workers=1)  # one judge, if all are plain
            reply = {"reward": sum(verdict.passed) / len(verdict.passed)}
            if [before.passed, after.passed] != [[True, False]] * 2:
                reply = {"error": f"its neighbours got {before} and {after}"}
        except BaseException as e:
            reply = {"error": f"{type(e).__name__}: {e}"[:300]}
        reply["seconds"] = time.perf_counter() - start
        print("\n" + job["id"] + json.dumps(reply, default=repr), file=replies, flush=True)


class Host:
    """The scorer's process, started again when an attack has killed it."""

    def __init__(self, options, world):
        self.options, self.world, self.process = options, world, None

    def start(self):
        (job_read, job_write), (reply_read, reply_write) = os.pipe(), os.pipe()
        command = [sys.executable, os.path.abspath(__file__), "--host", f"{job_read},{reply_write}",
                   "--timeout", str(self.options.timeout)]
        self.process = subprocess.Popen(
            command, pass_fds=(job_read, reply_write), cwd=self.world.base + "/canary/cwd", start_new_session=True,
            env=dict(os.environ, HOME=self.world.base + "/canary/home", SECRET=secrets.token_hex(8)),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.close(job_read), os.close(reply_write)
        self.jobs, self.replies = open(job_write, "w"), open(reply_read, "rb", 0)
        if self.line(b"ready", 60)[0] is None:
            raise SystemExit("the scorer did not start")

    def line(self, tag, seconds):
        """The rest of the line with this tag (b"" at the end, None when time is up), and what foreign bytes came before."""
        end, data = time.time() + seconds, b""
        while not (tag in data and b"\n" in data[data.index(tag):]):
            if not select.select([self.replies], [], [], max(0, end - time.time()))[0]:
                return None, data
            if not (part := self.replies.read(65536)):
                return b"", data
            data = (data + part)[-8_000_000:]
        before, after = data.split(tag, 1)
        return after.split(b"\n", 1)[0], before.strip()

    def ask(self, case, code, seconds):
        if self.process is None or self.process.poll() is not None:
            self.start()
        start, tag = time.perf_counter(), secrets.token_hex(8)
        job = {"id": tag, "code": code, "tests": case["tests"], "entry": case["entry"], "language": case.get("language", "python")}
        try:
            print(json.dumps(job), file=self.jobs, flush=True)
            line, foreign = self.line(tag.encode(), seconds)
        except OSError:
            line, foreign = b"", b""
        if line:
            return json.loads(line) | ({"error": "foreign bytes on the scorer's own pipe"} if foreign else {})
        self.stop()
        return {"error": "the scorer hung" if line is None else "the scorer died", "seconds": time.perf_counter() - start}

    def stop(self):
        if self.process:
            try:
                self.jobs.close(), self.replies.close()
                self.process.wait(3)
            except (OSError, subprocess.TimeoutExpired):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


# ---- what must stay unharmed ------------------------------------------------------------------------------------------------
class World:
    """Canary files, an empty loot folder, and sockets that nothing should reach."""

    def __init__(self):
        self.base, self.hits = tempfile.mkdtemp(prefix="attacks-"), []
        os.chmod(self.base, 0o755)
        self.plant()
        os.mkdir(self.base + "/loot")
        os.chmod(self.base + "/loot", 0o777)
        tcp, udp = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        path, abstract = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
        tcp.bind(("127.0.0.1", 0)), tcp.listen(64), udp.bind(("127.0.0.1", 0)), path.bind(self.base + "/canary/sock")
        os.chmod(self.base + "/canary/sock", 0o777)
        self.tcp, self.udp = tcp.getsockname()[1], udp.getsockname()[1]
        if sys.platform == "linux":
            abstract.bind(f"\0sbx_{self.tcp}")
        for name, wait in {"tcp": tcp.accept, "udp": lambda: udp.recv(99), "unix": lambda: path.recv(99), "abstract": lambda: abstract.recv(99)}.items():
            threading.Thread(target=self.listen, args=(name, wait), daemon=True).start()
        self.before = self.tree()

    def listen(self, name, wait):
        while True:
            wait()
            self.hits.append(name)

    def plant(self):
        for name, text in FILES.items():
            path = f"{self.base}/canary/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)
            os.chmod(path, 0o666)
        for folder, _, _ in os.walk(self.base + "/canary"):
            os.chmod(folder, 0o777)

    def tree(self):
        """{path: (mode, time, content)} of all canaries."""
        tree = {}
        for folder, _, names in os.walk(self.base + "/canary"):
            tree[folder] = oct(os.stat(folder).st_mode)
            for path in (os.path.join(folder, n) for n in names if n != "sock"):
                with open(path, "rb") as f:
                    tree[path] = oct(os.lstat(path).st_mode), int(os.lstat(path).st_mtime), hashlib.md5(f.read()).hexdigest()
        return tree

    def damage(self):
        """What has happened since the last look; afterwards all is as before."""
        found = [f"a packet arrived: {h}" for h in self.hits]
        self.hits.clear()
        if (now := self.tree()) != self.before:
            found += [f"changed: {p}" for p in sorted({*now, *self.before}) if now.get(p) != self.before.get(p)]
            for path in now.keys() - self.before.keys():
                os.remove(path)
            self.plant()
            self.before = self.tree()
        if loot := sorted(os.listdir(self.base + "/loot")):
            found.append(f"loot: {loot[:4]}, {len(loot)} files")
            shutil.rmtree(self.base + "/loot")
            os.mkdir(self.base + "/loot", 0o777)
        if os.path.exists("/dev/shm/sbx_loot"):
            found.append("left /dev/shm/sbx_loot")
            os.remove("/dev/shm/sbx_loot")
        for kind in ("shm", "msg", "sem"):
            if os.path.exists(f"/proc/sysvipc/{kind}"):
                with open(f"/proc/sysvipc/{kind}") as f:
                    if any(int(line.split()[0]) & 0xFFFFFFFF == SHM_KEY for line in f.readlines()[1:]):
                        found.append(f"left System V {kind}")
        return found

    def fill(self, code):
        code = re.sub(r"@REPEAT\{(.*?)\|(\d+)\}@", lambda m: m[1] * int(m[2]), code, flags=re.DOTALL)
        targets = {"@LOOT@": self.base + "/loot", "@CANARY@": self.base + "/canary", "@TCP@": str(self.tcp),
                   "@UDP@": str(self.udp), "@NUL@": "\0", "@SURROGATE@": "\ud800"}
        for mark, target in targets.items():
            code = code.replace(mark, target)
        return code


def children():
    """Processes whose parent is this one; orphans come here too, see main."""
    found = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as f:
            found += map(int, f.read().split())
    return found


# ---- the run -------------------------------------------------------------------------------------------------------------------
def cases(options):
    with open(os.path.join(HERE, "manifest.json")) as f:
        for case in json.load(f)[::options.every]:
            wanted = options.only in case["file"] and (not options.kind or case["kind"] in options.kind.split(","))
            here = case.get("machine", os.uname().machine) == os.uname().machine
            needs = {"c": "gcc", "c++": "g++", "java": "javac"}.get(case.get("language"), "sh")
            if wanted and here and shutil.which(needs):
                yield case


def judge(case, reply, slack):
    """What is wrong with the verdict -> list of complaints."""
    if "error" in reply:
        return [reply["error"]]
    wrong, reward = [], reply["reward"]
    if not (isinstance(reward, (int, float)) and 0 <= reward <= 1):
        wrong.append(f"{reward!r} is not a reward")
    elif case["expect"] is not None and not any(abs(reward - x) < 1e-6 for x in case["expect"]):
        wrong.append(f"reward {reward:.3g}, right is {case['expect']}")
    if reply["seconds"] > case["seconds"] * slack:
        wrong.append(f"took {reply['seconds']:.1f} s, {case['seconds']} are allowed")
    return wrong


def completions():
    """{name: code}"""
    with open(os.path.join(HERE, "completions.txt"), encoding="utf-8", errors="surrogateescape", newline="") as f:
        _, *parts = re.split(r"(?m)^#{8} (\S+)\n", f.read())
    return dict(zip(parts[::2], parts[1::2], strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--kind", default="", help="honest,cheat,bomb,hostile")
    parser.add_argument("--every", type=int, default=1, help="only every so manieth case")
    parser.add_argument("--timeout", type=float, default=3.0, help="the sandbox's limit, seconds")
    parser.add_argument("--slack", type=float, default=1.0, help="stretches the allowed seconds on a busy machine")
    parser.add_argument("--host", default="", help=argparse.SUPPRESS)
    parser.add_argument("-v", action="store_true", help="print every case")
    options = parser.parse_args()
    if options.host:
        return host(options.timeout, *map(int, options.host.split(",")))
    if sys.platform == "linux":
        import ctypes
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans of the scorer come to us
    world = World()
    scorer, codes, counts, bad, start = Host(options, world), completions(), {}, 0, time.time()
    for case in cases(options):
        code = world.fill(codes[case["file"]])
        for test in case["tests"]:
            if type(test) is dict:
                test.update({k: world.fill(v) for k, v in test.items()})
        reply = scorer.ask(case, code, 60 * options.slack)
        time.sleep(0.05)
        wrong = judge(case, reply, options.slack) + world.damage()
        right, total = counts.get(case["kind"], (0, 0))
        counts[case["kind"]] = right + (not wrong), total + 1
        bad += bool(wrong)
        if wrong or options.v:
            print(f"{'FAIL' if wrong else 'ok  '} {case['file']:36} {reply['seconds']:6.2f} s  reward {reply.get('reward')}  {'; '.join(wrong)}", flush=True)
    time.sleep(2.5)  # a daemon may wake up late
    late = world.damage()
    scorer.stop()
    time.sleep(0.5)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    for pid in children() if sys.platform == "linux" else []:
        with open(f"/proc/{pid}/cmdline") as f:
            late.append(f"process {pid} is still running: {f.read().replace(chr(0), ' ')[:60]}")
        os.kill(pid, signal.SIGKILL)
    if late:
        print("FAIL after the end:", "; ".join(late))
    shutil.rmtree(world.base, ignore_errors=True)
    summary = ", ".join(f"{kind} {right}/{total}" for kind, (right, total) in counts.items())
    print(f"{sum(r for r, _ in counts.values())}/{sum(t for _, t in counts.values())} as required in {time.time() - start:.0f} s: {summary}", flush=True)
    os._exit(1 if bad or late else 0)  # not waiting for the listeners


if __name__ == "__main__":
    main()
