"""
Prepare the process of a run, and write what the run leaves in its folder next to the checkpoints (checkpoint.py):
metrics.jsonl, samples.jsonl, rollouts.jsonl, run.json, report.html.
"""

import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import config
from checkpoints import checkpoint
from config import Config
from data import cache_folder, plain
from loop import report as pages
from system import disk


def prepare_process() -> None:
    """Prepare the process, once, in main: memory, the device, and a cache of compiled programs."""
    keep_memory()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as e:
        from loop import failures

        raise failures.without_device(e) from None
    jax.config.update("jax_compilation_cache_dir", cache_folder())
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def skip_autotuning(cfg: Config) -> None:
    """Switch off XLA's autotuning, its search for the fastest kernels of an NVIDIA GPU, if the run begins with a new
    model that is small, unless XLA_FLAGS is set. On an H200 the README's first command took 127 s without it; with it,
    its first iterations had not ended after 216 s. Call this before JAX starts."""
    first = config.base_runs(cfg)[-1]
    is_small = 12 * first.model.n_layer * first.model.d_model**2 < 1_000_000  # parameters in its blocks, roughly
    on_gpu = any(map(importlib.util.find_spec, ("jax_cuda12_plugin", "jax_cuda13_plugin")))
    if on_gpu and is_small and not first.init_from:
        os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")


def keep_memory():
    """Keep used memory in large pages, on Linux, before JAX starts its threads.

    XLA's CPU backend allocates hundreds of MB anew in every step, and glibc gives such blocks back to the system: page
    faults took a fifth of a step. So there is one heap that is never trimmed, with a reserve (which costs nothing until
    it is used) that may use 2 MB pages. A thread that already has a heap of its own would map and unmap large blocks.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX, MADV_HUGEPAGE, size, page = -1, -4, -8, 14, 4 << 30, 2 << 20
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_ARENA_MAX, 1)):  # -1: never
            libc.mallopt(option, value)
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        reserve = libc.malloc(size)
        if reserve:
            start = -(-reserve // page) * page
            libc.madvise(start, size - page, MADV_HUGEPAGE)
            libc.free(reserve)


# ---- the folder of a run ---------------------------------------------------------------------------------------------


def lock(out_dir: str, tries: int = 9) -> int:
    """Make out_dir if need be, and lock it -> its descriptor; an error if another run has it."""
    os.makedirs(out_dir, exist_ok=True)
    handle = os.open(out_dir, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ValueError(f"another run writes into {out_dir!r}: wait for its end, or give this one another --out_dir"
                         ) from None  # fmt: skip
    except OSError:  # a file system without locks
        pass
    with contextlib.suppress(FileNotFoundError):
        if not tries or os.path.samefile(handle, out_dir):
            return handle
    os.close(handle)  # a run that left deleted this folder before it was locked
    return lock(out_dir, tries - 1)


@contextlib.contextmanager
def locked(out_dir: str) -> Iterator[None]:
    """Lock out_dir against other runs while the context lasts; an error if another run has it.

    The lock is on the folder itself and ends with the process. A folder that is still empty at the end is deleted."""
    with disk_errors_explained(out_dir):
        handle = lock(out_dir)
    try:
        with disk_errors_explained(out_dir):
            yield
    finally:
        with contextlib.suppress(OSError):
            try:
                os.rmdir(out_dir)  # only if it is empty: a run that could not start leaves nothing
            finally:
                os.close(handle)


@contextlib.contextmanager
def disk_errors_explained(out_dir):
    """Turn an OSError in out_dir into a ValueError that names the last whole checkpoint; delete a half written one."""
    try:
        yield
    except OSError as e:
        from loop import failures

        raise failures.of_the_disk(e, out_dir) from None


# ---- logs ------------------------------------------------------------------------------------------------------------

SAMPLES = 16  # completions per evaluation in samples.jsonl


class Log:
    """The files checkpoint.LOGS and run.json in out_dir, and where else the variants of a run log."""

    def __init__(self, cfg: Config, step: int) -> None:
        """Cut the logs back to `step`, after which the run goes on; -1: start new logs."""
        os.makedirs(cfg.out_dir, exist_ok=True)
        disk.delete_folder(os.path.join(cfg.out_dir, checkpoint.WRITING))  # left by a run that was killed
        self.cfg, seconds = cfg, 0.0
        self.evaluated = False  # True if the step after which the run goes on was evaluated
        for name in checkpoint.LOGS:
            path = os.path.join(cfg.out_dir, name)
            rows = [row for row in read_lines(path) if row["step"] <= step]
            if name == "metrics.jsonl":
                seconds = max((row["time"] for row in rows), default=0.0)
                self.evaluated = any(key.startswith("val/") for row in rows if row["step"] == step for key in row)
            with disk.replacing(path) as f:
                f.writelines(json.dumps(row) + "\n" for row in rows)
        self.page_due = 0.0  # time.monotonic() from which it is written anew
        self.begun = time.monotonic() - seconds  # which nobody sets back
        disk.write_json(os.path.join(cfg.out_dir, "run.json"), {"config": config.flatten(cfg)})
        self.others: list = []  # what variants log to, see Section.logger

    def metrics(self, step: int, values: dict[str, Any]) -> None:
        """Log the metrics of a step."""
        self.append("metrics.jsonl", {"step": step, "time": round(time.monotonic() - self.begun, 2)} | values)
        for other in self.others:
            other.log(values, step=step)

    def samples(self, step: int, rows: Iterable[dict]) -> None:
        """Log the completions of an evaluation."""
        for row in rows:
            self.append("samples.jsonl", {"step": step} | row)

    def append(self, name: str, row: dict[str, Any]) -> None:
        """Append a row to a log, with null for numbers that JSON does not know."""
        row = json.loads(json.dumps(row, default=plain), parse_constant=lambda nan: None)
        with disk.writing(os.path.join(self.cfg.out_dir, name), "a") as f:
            f.write(json.dumps(row) + "\n")


def read_lines(path: str) -> list[dict]:
    """Read the rows of a log up to the first damaged one: a kill may have cut the last."""
    rows = []
    damaged = contextlib.suppress(FileNotFoundError, ValueError, RecursionError)
    with damaged, disk.naming(path), open(path) as f:
        for line in f:
            row = json.loads(line, parse_constant=lambda infinite: None)  # a curve cannot show it
            if not isinstance(row, dict) or "step" not in row:
                break
            rows.append(row)
    return rows


# ---- what a person sees ----------------------------------------------------------------------------------------------


RATES = re.compile(r"val/(greedy|sampled|pass@\d+|pair_acc)")  # of held-out rows that are right


def panels(rows: list[dict]) -> list[dict]:
    """Make the pictures of the curves in rows of metrics.jsonl. Colour 0 is training; each measure of held-out rows has
    its own, also for the rewards of the same completions."""
    keys = dict.fromkeys(key for row in rows for key in row)
    is_grpo = "reward" in keys
    pictures = [
        ("reward", "mean", ["reward", "val/greedy_reward", "val/sampled_reward"] if is_grpo else []),
        ("held-out rows", "share that is right", [key for key in keys if RATES.fullmatch(key)]),
        ("entropy", "nats per token", ["entropy"]),
        ("groups without a signal", "share of all", ["frac_reward_zero_std"]),
        ("gradient norm", "before clipping", ["grad_norm"]),
        ("loss", "" if is_grpo else "nats per token", ["loss", "val/nelbo"]),
        ("learning rate", "", ["learning_rate"]),
    ]
    colors: dict[str, int] = {}
    found = []
    for title, unit, names in pictures:
        lines = []
        for name in names:
            if line := pages.line_of(rows, name):
                measure = name.removesuffix("_reward")
                number = colors.setdefault(measure, len(colors) + 1) if name.startswith("val/") else 0
                lines.append(line | {"color": number})
        found.append({"title": title, "unit": unit, "lines": lines})
    return [panel for panel in found if panel["lines"]]


def report(cfg: Config, done: bool = False) -> None:
    """Write report.html from the logs in out_dir, a page to look at while a run goes on.

    done: the run has ended, so the page need not be loaded again."""
    rows, samples, rollouts = (read_lines(os.path.join(cfg.out_dir, name)) for name in checkpoint.LOGS)
    if not rows:
        return
    ours, default = config.flatten(cfg), config.flatten(Config())
    tokens, seconds = (max(row.get(name, 0) for row in rows) for name in ("tokens", "time"))
    content = {
        "about": [
            f"{cfg.objective} on {cfg.dataset}",
            f"step {rows[-1]['step']:,} of {cfg.max_iters:,} after {seconds / 60:.1f} minutes, {tokens:,} tokens",
        ],
        "panels": panels(rows),
        "done": done,
        "result": result(rows),
        "group": pages.telling_group(rollouts),
        "evaluations": pages.evaluations(samples),
        "keys": [(name, str(value), str(default.get(name))) for name, value in ours.items()],  # here, by default
    }
    title = os.path.basename(os.path.abspath(cfg.out_dir))
    with disk.replacing(os.path.join(cfg.out_dir, "report.html")) as f:
        f.write(pages.fill_template(pages.TEMPLATE, title, content))


REPORT_SECONDS = 30.0  # until the page is written anew, when a step is logged


def ending(cfg: Config, best: dict | None) -> str:
    """Write the final page and print the result -> words about the best checkpoint.

    The words ("" if there is none) give its score, the standard error, and the number of evaluations: the best of many
    noisy scores is too high.
    """
    rows = read_lines(f"{cfg.out_dir}/metrics.jsonl")
    report(cfg, done=True)
    if line := result(rows):
        print(line)
    if not best:
        return ""
    measure, score = best["measure"], best["score"] if best["measure"] != "val/nelbo" else -best["score"]
    error = f" ± {best['se']:.4f}" if "se" in best else ""
    where = f"best at step {best['step']}" if best["step"] else f"none better than the start, {cfg.init_from}"
    return f", {where}: {measure} {score:.4f}{error}, of {sum(measure in row for row in rows)} evaluations"


def result(rows: list[dict]) -> str:
    """Say in one line what a run has brought so far, from the rows of metrics.jsonl: the first and the last value of
    each rate of passing, or else of val/nelbo; "" before its second evaluation."""
    keys = dict.fromkeys(key for row in rows for key in row)
    names = [key for key in keys if RATES.fullmatch(key)] or ["val/nelbo"]
    rated = [row for row in rows if names[0] in row]
    if len(rated) < 2:
        return ""
    first, last = rated[0], rated[-1]
    changes = []
    for name in names:
        before, after = ("none" if row.get(name) is None else f"{row[name]:.3f}" for row in (first, last))
        changes.append(f"{name.removeprefix('val/')} {before} → {after}")
    minutes, seconds = divmod(round(last.get("time", 0)), 60)
    return f"{', '.join(changes)} in steps {first['step']:,} to {last['step']:,}, {minutes}:{seconds:02} minutes"


def show(run: Any, step: int, values: dict[str, float], samples: list[dict]) -> None:
    """Log the metrics and samples of an evaluation, print the rates and the first sample, and write the page."""
    before = []
    if run.log:
        before = read_lines(os.path.join(run.cfg.out_dir, "samples.jsonl"))
        run.log.metrics(step, values)
        run.log.samples(step, samples[:SAMPLES])
        report(run.cfg)
        values = {name: value for name, value in values.items() if RATES.fullmatch(name) or name == "val/nelbo"}
    tqdm.write(f"step {step:6d}  " + "  ".join(f"{k} {v:.4f}" for k, v in values.items() if not np.isnan(v)))
    for sample in samples[:1]:
        tqdm.write(sample_text(sample, before[0] if before else {}))


def sample_text(sample: dict, first: dict) -> str:
    """Describe a sample in two short lines: its prompt, and its greedy completion behind that of the first evaluation,
    of which `first` is the row in samples.jsonl; of a judge's, what there is."""
    shown = {name: value for name, value in sample.items() if name not in ("prompt", "columns", "sampled", "rewards")}
    if "greedy" in first:
        shown = {f"at step {first['step']}": first["greedy"], "now": sample["greedy"]}
    quoted = [f"{name} {repr(value)[:80]}" for name, value in shown.items()]
    return f"    prompt {repr(sample['prompt'])[:80]}\n    {', '.join(quoted)}"


# What the line of an iteration of grpo says of a metric.
FORMS = {"reward": "{:.3f}", "reward_std": "± {:.3f}", "pass_rate": "pass {:.1%}", "entropy": "entropy {:.3f}",
         "kl": "kl {:.4f}"}  # fmt: skip


def write(run: Any, state: Any, last: dict[str, Any], seconds: float, logged: bool) -> None:
    """Print the line of an iteration of grpo that ended with this State.

    logged: also log its metrics, and its first group if there is one. last: the metrics and, in grpo, the "group";
    seconds: that it took."""
    values = {k: v for k, v in last.items() if k not in ("step", "group")} | {"step_time": seconds}
    values["tokens"] = state.step * config.tokens_per_iter(run.cfg)
    if timed := [v for k, v in last.items() if k.startswith("time/")]:
        values["time/update"] = seconds - sum(timed)
    if run.cfg.objective == "grpo":
        known = {k: values[k] for k in FORMS if np.isfinite(values.get(k, np.nan))}
        if known.get("pass_rate") == known.get("reward"):
            known.pop("pass_rate", None)
        shown = [FORMS[k].format(value) for k, value in known.items()]
        stages = [f"{k.removeprefix('time/')} {v:.1f}" for k, v in values.items() if k.startswith("time/")]
        tqdm.write(f"step {state.step:6d}  reward {'  '.join(shown) or 'none'}  {' + '.join(stages)} s")
        if values["skipped"]:
            tqdm.write(f"step {state.step:6d}  no update: no reward has an opinion on any completion")
    if not logged:
        return
    updates = int(state.opt_state[-1][0].count)  # counted by the optimizer, because skipped iterations made none
    values["learning_rate"] = float(run.rate(max(updates - config.updates_per_iter(run.cfg), 0)))
    run.log.metrics(state.step, values)
    if time.monotonic() > run.log.page_due:
        run.log.page_due = time.monotonic() + REPORT_SECONDS
        report(run.cfg)
    if "group" in last:
        run.log.append("rollouts.jsonl", {"step": state.step} | last["group"])


class StopRequested:
    """Note ctrl-C, SIGTERM or SIGHUP, so that the loop saves and leaves. ctrl-C after one of these leaves at once."""

    def __enter__(self):
        self.signal = None
        is_main = threading.current_thread() is threading.main_thread()  # only there can handlers be set
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] if is_main else []
        numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
        self.before = {number: signal.signal(number, self.note) for number in numbers}
        return self

    def note(self, number, frame):
        """Handle a signal."""
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        tqdm.write("saving after this step; ctrl-C again leaves at once", file=sys.stderr)

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)


def progress_bar(cfg, state):
    """Make the bar of a run; its text holds until the first step is done."""
    bar = tqdm(total=cfg.max_iters, initial=state.step, unit="step", dynamic_ncols=True, smoothing=0.1,
               disable=None)  # None: shown in a terminal only
    bar.set_description_str("compiling, once: 10 to 60 s")
    return bar


def leave_if_asked(run, state, done, leaving):
    """Leave the loop before it is done if a signal asked for it (leaving: its number, or None)."""
    if leaving and not done:
        report(run.cfg, done=True)
        tqdm.write(f"saved {run.cfg.out_dir}/step-{state.step:06d}; continue with --resume=True")
        raise KeyboardInterrupt(int(leaving))
