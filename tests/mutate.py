"""
How good are the tests? Change one operator, constant, comparison or index of the core at a time, and run the quick
tests: those that run the changed line, the fastest first, then the other tests of FILES. A change that no test notices
is a survivor.

    python tests/mutate.py                  # 300 changes drawn at random, into out/mutants.jsonl; again: goes on
    python tests/mutate.py --again          # the survivors once more, after tests were added
    python tests/mutate.py --n=20 --only=grpo.py
    python tests/mutate.py --report         # the share that is caught, and the survivors
"""
import argparse
import ast
import itertools
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import jax
import pytest

# Each file, and the files of tests that are for it.
FILES = {
    "grpo.py": ["test_grpo", "test_rl"],
    "diffusion.py": ["test_diffusion", "test_blocks", "test_grpo"],
    "model.py": ["test_model", "test_blocks", "test_diffusion", "test_lora", "test_sample"],
    "sample.py": ["test_sample", "test_blocks"],
    "rl.py": ["test_rl", "test_train", "test_lora"],
    "rewards.py": ["test_rewards", "test_rules", "test_programs", "test_terminal"],
}
SWAPS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*",
    ast.BitAnd: "|", ast.BitOr: "&", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=",
    ast.NotEq: "==", ast.And: "or", ast.Or: "and", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
SYMBOLS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
    ast.NotEq: "!=", ast.And: "and", ast.Or: "or", ast.Is: "is", ast.IsNot: "is not", ast.In: "in",
    ast.NotIn: "not in"}  # fmt: skip
SECONDS = 600  # of CPU time for all tests of one change, which may make a loop endless
NEAR_SECONDS = 60  # with --near: of the tests that run the changed line, those that take so long together
COVERED = "out/covered"  # a folder: which test runs which lines, and how long it takes


def offsets(source):
    """-> at(line, column of an ast node) -> index into the source; the columns of ast count bytes."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines(keepends=True)
    return lambda line, column: starts[line - 1] + len(lines[line - 1].encode()[:column].decode())


def parts_with_an_operator(node):
    """-> (left, operator, right) of every operator of a node."""
    if isinstance(node, ast.BinOp):
        yield node.left, node.op, node.right
    elif isinstance(node, ast.Compare):
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            yield left, op, right
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield left, node.op, right


def said(tree):
    """-> the nodes of messages and f-strings, in which a change is of no consequence."""
    roots = [n for n in ast.walk(tree) if isinstance(n, ast.Raise | ast.JoinedStr)]
    return {id(n) for root in roots for n in ast.walk(root)}


def changes(source):
    """-> [(start, end, new text)] of everything that can be changed in a source."""
    tree, at, found = ast.parse(source), offsets(source), []
    left_out = said(tree)
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        for left, op, right in parts_with_an_operator(node):
            start, end = at(left.end_lineno, left.end_col_offset), at(right.lineno, right.col_offset)
            symbol = SYMBOLS.get(type(op))
            where = source.find(symbol, start, end) if symbol else -1
            if where >= 0:
                found.append((where, where + len(symbol), SWAPS[type(op)]))
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            new = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            found.append((at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset), new))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
            start = at(node.lineno, node.col_offset)
            found.append((start, at(node.operand.lineno, node.operand.col_offset), ""))
        if isinstance(node, ast.Attribute) and node.attr in ("maximum", "minimum", "max", "min", "any", "all"):
            end = at(node.end_lineno, node.end_col_offset)
            swap = dict(maximum="minimum", minimum="maximum", max="min", min="max", any="all", all="any")[node.attr]
            found.append((end - len(node.attr), end, swap))
    return sorted(set(found))


def draw(n, only, seed):
    """-> n mutants as dicts, spread over the files by how much there is to change in each."""
    every = []
    for file in FILES if only is None else [only]:
        source = open(file).read()
        for start, end, new in changes(source):
            line = source.count("\n", 0, start) + 1
            every.append(dict(file=file, start=start, end=end, new=new, line=line, old=source[start:end],
                              text=source.splitlines()[line - 1].strip()))  # fmt: skip
    return random.Random(seed).sample(every, min(n, len(every)))


def copied(folder):
    """Copy the files that git knows of into a folder."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, listed):
        os.makedirs(os.path.join(folder, os.path.dirname(name)), exist_ok=True)
        shutil.copy(name, os.path.join(folder, name))


class Recorder:
    """A plugin of pytest: for every test the lines of FILES that run in it, and its seconds."""

    def __init__(self):
        self.seen, self.lines = {}, set()
        self.files = {os.path.abspath(file): file for file in FILES}

    def trace(self, frame, event, argument):
        file = self.files.get(frame.f_code.co_filename)
        if file is None:
            return None
        self.lines.add((file, frame.f_lineno))
        return self.trace

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        jax.clear_caches()  # what was compiled in another test runs no line of Python in this one
        self.lines, begun = set(), time.perf_counter()
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.seen[item.nodeid] = dict(seconds=time.perf_counter() - begun, lines=sorted(self.lines))

    def pytest_sessionfinish(self):
        with open(os.path.join(COVERED, f"{os.getpid()}.json"), "w") as f:
            json.dump(self.seen, f)


def pytest_configure(config):
    """Called where this file is given to pytest as a plugin (-p mutate), in every process of the tests."""
    os.makedirs(COVERED, exist_ok=True)
    config.pluginmanager.register(Recorder())


def covered(workers):
    """-> {test: {"seconds", "lines": {(file, line)}}} of all quick tests; they are run once to know it."""
    if not os.path.isdir(COVERED):
        env = os.environ | {"PYTHONPATH": "tests"}
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "mutate", "-n", str(workers)], env=env)
    found = {}
    for name in os.listdir(COVERED):
        found |= json.load(open(os.path.join(COVERED, name)))
    return {test: row | {"lines": {tuple(at) for at in row["lines"]}} for test, row in found.items()}


def lines_of(mutant):
    """-> {(file, line)} of the smallest statement around a change: Python names any of its lines as what runs."""
    source = open(mutant["file"]).read()
    statements = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.stmt)]
    first = lambda n: min([n.lineno, *(one.lineno for one in getattr(n, "decorator_list", ()))])
    holds = [n for n in statements if first(n) <= mutant["line"] <= n.end_lineno]
    inner = min(holds, key=lambda n: n.end_lineno - n.lineno)
    last = first(inner.body[0]) - 1 if hasattr(inner, "body") else inner.end_lineno  # of an `if`, only its condition
    return {(mutant["file"], line) for line in range(first(inner), max(last, inner.lineno) + 1)}


def caught(mutant, folder, near, near_only):
    """Run the tests of a mutant in a copy of the repository -> the test that fails, or None. near: those that run the
    changed line."""
    path = os.path.join(folder, mutant["file"])
    source = open(mutant["file"]).read()
    files = [f"tests/{name}.py" for name in FILES[mutant["file"]]]
    others = [f"--deselect={test}" for test in near]
    with open(path, "w") as f:
        f.write(source[: mutant["start"]] + mutant["new"] + source[mutant["end"] :])
    try:
        for chosen in [near, [] if near_only and near else files + others]:
            if not chosen:
                continue
            with open(os.path.join(folder, "chosen"), "w") as f:
                f.write("\n".join(chosen))
            limit = 2 * NEAR_SECONDS if near_only and near else SECONDS
            limited = "sh", "-c", f'ulimit -t {limit}; exec "$0" "$@"'
            command = [*limited, sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--no-header", "@chosen"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
                return f"no end after {limit} s"
            if done.returncode not in (0, 5):  # 5: there is no test but those that ran before
                failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return failed[0] if failed else f"exit {done.returncode}"
        return None
    finally:
        with open(path, "w") as f:
            f.write(source)


def report(path):
    """Print the share that is caught, by file and in all, and the survivors."""
    rows = [json.loads(line) for line in open(path)]
    for file in [*FILES, None]:
        some = [row for row in rows if file in (None, row["file"])]
        if some:
            n = sum(row["caught"] is not None for row in some)
            print(f"{file or 'all':14} {n:4} of {len(some):4} caught, {n / len(some):.1%}")
    for row in rows:
        if row["caught"] is None:
            print(f"survivor  {row['file']}:{row['line']}  {row['old']!r} -> {row['new']!r}  {row['text']}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--n", type=int, default=300)
    p.add_argument("--only", choices=FILES)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", default="out/mutants.jsonl")
    p.add_argument("--workers", type=int, default=2, help="processes at a time, one per core")
    p.add_argument("--again", action="store_true")
    p.add_argument("--near", action="store_true", help="fewer tests: what survives them needs --again")
    p.add_argument("--report", action="store_true")
    asked = p.parse_args()
    if asked.report:
        if not os.path.exists(asked.out):
            raise SystemExit(f"error: {asked.out} is not there: tests/mutate.py without --report writes it")
        return report(asked.out)
    os.makedirs(os.path.dirname(asked.out) or ".", exist_ok=True)
    done = [json.loads(line) for line in open(asked.out)] if os.path.exists(asked.out) else []
    if asked.again:
        done = [row for row in done if row["caught"] is not None]
        with open(asked.out, "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in done)
    known = {(row["file"], row["old"], row["new"], row["text"], row["start"]) for row in done}
    todo = [m for m in draw(asked.n, asked.only, asked.seed)
            if (m["file"], m["old"], m["new"], m["text"], m["start"]) not in known]  # fmt: skip
    tests = covered(asked.workers)
    with tempfile.TemporaryDirectory() as root:
        folders = queue.SimpleQueue()
        for i in range(asked.workers):
            copied(os.path.join(root, str(i)))
            folders.put(os.path.join(root, str(i)))

        def near(mutant):  # not in a thread: Python 3.11 parses in one thread only
            here = lines_of(mutant)
            fastest_first = sorted((r["seconds"], t) for t, r in tests.items() if r["lines"] & here)
            upto = itertools.accumulate(seconds for seconds, _ in fastest_first)
            most = NEAR_SECONDS if asked.near else float("inf")
            return [test for (_, test), sum in zip(fastest_first, upto, strict=True) if sum <= most]

        def test(mutant, near):
            folder, begun = folders.get(), time.perf_counter()
            mutant["caught"] = caught(mutant, folder, near, asked.near)
            mutant["seconds"] = round(time.perf_counter() - begun, 1)
            folders.put(folder)
            return mutant

        jobs = [(mutant, near(mutant)) for mutant in todo]
        with ThreadPoolExecutor(asked.workers) as pool, open(asked.out, "a") as f:
            for finished in as_completed([pool.submit(test, *job) for job in jobs]):
                mutant = finished.result()
                print(json.dumps(mutant), file=f, flush=True)
                change = f"{mutant['file']}:{mutant['line']} {mutant['old']!r} -> {mutant['new']!r}"
                print(f"{mutant['seconds']:6.1f} s  {change}: {(mutant['caught'] or 'SURVIVED')[:100]}", flush=True)
    report(asked.out)


if __name__ == "__main__":
    main()
