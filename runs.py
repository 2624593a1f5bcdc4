"""
What a run asks of its process, what it says on the way, and what it leaves in its folder beside checkpoints (disk.py):
metrics.jsonl, samples.jsonl, rollouts.jsonl, run.json, curves.png, report.html.
"""

import contextlib
import ctypes
import errno
import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import sys
import threading
import time

import jax
import numpy as np
from tqdm import tqdm

import config
import disk
from assets.report import page
from data import cache_folder
from machine import mesh, terminal


def prepare_process(cfg=None):
    """Once, in main: memory in large pages, a device, lines that are printed at once, a compilation cache, so that a
    second start is fast."""
    keep_memory()
    sys.stdout.reconfigure(line_buffering=True)
    if cfg:
        mesh.join(cfg.coordinator, cfg.processes, cfg.process_id)
    try:
        if mesh.processes().rank:
            terminal.silence(sys.stdout)
    except (RuntimeError, AssertionError) as e:
        why = str(e).strip().splitlines() or ["there is none"]
        raise ValueError(f"JAX finds no device as JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')} asks for ({why[0]}): "
                         "unset it to run on what there is, or install jax for your GPU") from None
    jax.config.update("jax_compilation_cache_dir", cache_folder())
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def keep_memory():
    """Memory that was used once stays, in large pages.

    XLA's CPU backend allocates hundreds of MB anew for every step, and glibc gives such blocks back to the system, so
    that each step faults its pages in again: a fifth of its time. So: one heap that is never trimmed, and a reserve in
    it (untouched, so it costs nothing yet) that may use 2 MB pages. Before JAX starts its threads: one that has a heap
    of its own already would map every large block, and unmap it."""
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

@contextlib.contextmanager
def claimed(out_dir):
    """While this lasts no other run writes into out_dir: a lock on the folder itself, which ends with its process."""
    with explained(out_dir):
        os.makedirs(out_dir, exist_ok=True)
        handle = os.open(out_dir, os.O_RDONLY)
    try:
        if not mesh.processes().rank:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ValueError(f"another run writes into {out_dir!r}: wait for its end, or give this one another --out_dir"
                         ) from None  # fmt: skip
    except OSError:  # there are file systems without locks
        pass
    try:
        with explained(out_dir):
            yield
            disk.settled()
    finally:
        with contextlib.suppress(OSError):
            os.close(handle)
        with contextlib.suppress(OSError):
            os.rmdir(out_dir)  # if it is empty: a run that could not start leaves nothing


@contextlib.contextmanager
def explained(out_dir):
    """An error of the disk in out_dir is said with its file, what is safe and what to do, and what was half written
    does not stay there."""
    try:
        yield
    except OSError as e:
        with contextlib.suppress(OSError):
            disk.settled()  # what is being written may fail for the same reason
        file = str(e.filename)
        if e.errno == errno.ENOENT or not (file.startswith(out_dir) or out_dir.startswith(file)):
            raise
        shutil.rmtree(os.path.join(out_dir, disk.WRITING), ignore_errors=True)
        safe = [disk.of_step(out_dir, step) for step in disk.steps(out_dir)[-1:]]
        cure = "make room" if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "mend that"
        raise ValueError(f"{os.strerror(e.errno)} at {file}: "
                         + (f"{safe[0]} is whole; {cure} and go on with --resume=True" if safe else
                            f"no checkpoint was whole yet; {cure} and start again")) from None  # fmt: skip


# What may change when a run is resumed and when its base is trained no further: nothing that it would compute depends
# on it, or it is only how long it goes on. Everything else would make it another run.
FREE = ("out_dir resume eval_only init_from base log_interval eval_interval save_interval keep_checkpoints log_samples "
        "wandb_log wandb_project wandb_run_name wandb_entity reward_timeout reward_workers sandbox_unsafe "
        "rollout_chunk logp_chunk ref_offload mesh coordinator processes process_id "
        "model.dtype model.remat").split()  # fmt: skip
LENGTH = ["max_iters", "num_epochs", "stop_at"]


def changed(cfg, was, free):
    """What a Config says otherwise than the `config` of a run.json, as text; what it says of the model at all, too."""
    now, default = (json.loads(json.dumps(config.flatten(c))) for c in (cfg, config.Config()))
    for key in ("judge_from", "ref_from"):
        if (now[key] or "").endswith(".py"):
            now[key] = config.read_file(now[key]).out_dir
    free = [*free, "max_iters"] if cfg.num_epochs else free  # it was counted then, and will be
    return ", ".join(f"{k}={now[k]!r} (it was {was[k]!r})" for k in now if k in was and now[k] != was[k]
                     and k not in free and not (k.startswith("model.") and now[k] == default[k]))  # fmt: skip


def move_aside(out_dir):
    """An earlier run in out_dir goes to out_dir.1 (or .2, ...): nothing is ever overwritten. -> was there one?"""
    if not disk.steps(out_dir) and not read_lines(os.path.join(out_dir, disk.LOGS[0])):
        return False
    out_dir = out_dir.rstrip("/")
    aside = next(path for n in itertools.count(1) if not os.path.exists(path := f"{out_dir}.{n}"))
    os.rename(out_dir, aside)
    print(f"{out_dir} held an earlier run: moved to {aside} (--resume=True would continue it)")
    return True


# ---- logs ------------------------------------------------------------------------------------------------------------

SAMPLES = 16  # completions that an evaluation writes to samples.jsonl


class Log:
    """disk.LOGS in out_dir, cut back to the step a run resumes from, its config in run.json; wandb when asked."""

    def __init__(self, cfg, step):
        os.makedirs(cfg.out_dir, exist_ok=True)
        disk.clear(os.path.join(cfg.out_dir, disk.WRITING))  # of a run that was killed
        paths = [os.path.join(cfg.out_dir, name) for name in disk.LOGS]
        self.cfg, kept = cfg, [[r for r in read_lines(p) if r["step"] <= step] for p in paths]
        for path, rows in zip(paths, kept, strict=True):
            with disk.writing(f"{path}.new") as f:
                f.writelines(json.dumps(r) + "\n" for r in rows)
            os.replace(f"{path}.new", path)  # a kill in between loses no line
        self.begun = time.time() - max((r["time"] for r in kept[0]), default=0)
        self.describe()
        self.wandb = None
        if cfg.wandb_log:
            import wandb
            self.wandb = wandb.init(project=cfg.wandb_project, entity=cfg.wandb_entity, config=config.flatten(cfg),
                                    name=cfg.wandb_run_name or os.path.basename(cfg.out_dir))  # fmt: skip

    def describe(self):
        disk.write_json(os.path.join(self.cfg.out_dir, "run.json"), {"config": config.flatten(self.cfg)})

    def metrics(self, step, values):
        self.append("metrics.jsonl", {"step": step, "time": round(time.time() - self.begun, 2)} | values)
        if self.wandb:
            self.wandb.log(values, step=step)

    def samples(self, step, rows):
        for row in rows:
            self.append("samples.jsonl", {"step": step} | row)

    def append(self, name, row):
        strict = json.loads(json.dumps(row), parse_constant=lambda nan: None)  # which JSON has not
        if not os.path.exists(os.path.join(self.cfg.out_dir, "run.json")):
            tqdm.write(f"{self.cfg.out_dir} was deleted: it is made again, and its logs begin with step {row['step']}")
            os.makedirs(self.cfg.out_dir, exist_ok=True)
            self.describe()
            for empty in disk.LOGS:
                open(os.path.join(self.cfg.out_dir, empty), "a").close()
        with disk.writing(os.path.join(self.cfg.out_dir, name), "a") as f:
            f.write(json.dumps(strict) + "\n")


def read_lines(path):
    """The rows of a JSONL file of ours up to the first that is damaged: the last may have been cut by a kill."""
    rows = []
    damaged = contextlib.suppress(FileNotFoundError, ValueError, RecursionError)
    with damaged, disk.named(path), open(path) as f:
        for line in f:
            row = json.loads(line, parse_constant=lambda infinite: None)  # which no curve can show
            if not isinstance(row, dict) or "step" not in row:
                break
            rows.append(row)
    return rows


def panels(rows):
    """Rows of metrics.jsonl -> {title: metrics} of the curves that are drawn of them."""
    keys = dict.fromkeys(k for r in rows for k in r)
    of_val = re.compile(r"val/(greedy|sampled|pass@\d+|pair_acc|calibration_error|correlation)")
    titles = {"reward": ["reward", "val/greedy_reward", "val/sampled_reward"] if "reward" in keys else [],
              "loss": ["loss", "val/nelbo"], "val": list(filter(of_val.fullmatch, keys)),
              "spread": ["entropy", "frac_reward_zero_std"],
              "gradient norm": ["grad_norm"], "learning rate": ["learning_rate"]}  # fmt: skip
    return {title: [k for k in some if k in keys] for title, some in titles.items() if keys.keys() & set(some)}


def report(cfg):
    """report.html out of the logs in out_dir: a page to look at while a run goes on."""
    rows, samples = (read_lines(os.path.join(cfg.out_dir, name)) for name in disk.LOGS[:2])
    ours, default = config.flatten(cfg), config.flatten(config.Config())
    path = os.path.join(cfg.out_dir, "report.html")
    with disk.writing(f"{path}.new") as f:
        f.write(page(os.path.basename(os.path.abspath(cfg.out_dir)), ours, default, rows, panels(rows), samples))
    os.replace(f"{path}.new", path)


def draw(out_dir):
    """curves.png out of metrics.jsonl, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    rows = read_lines(os.path.join(out_dir, "metrics.jsonl"))
    shown = panels(rows)
    wide, high = max(min(len(shown), 3), 1), max(-(-len(shown) // 3), 1)
    figure = plt.figure(figsize=(4.2 * wide, 3 * high), constrained_layout=True)
    for n, (title, some) in enumerate(shown.items(), 1):
        ax = figure.add_subplot(high, wide, n)
        for key in some:
            points = [(r["step"], r[key]) for r in rows if r.get(key) is not None]
            if points:
                ax.plot(*zip(*points, strict=True), label=key, marker="o" if len(points) < 30 else None, ms=3)
        ax.set(title=title, xlabel="step")
        if ax.lines:
            ax.legend(frameon=False, fontsize=8)
        ax.grid(alpha=0.25)
    temporary = os.path.join(out_dir, ".curves.png")
    with disk.writing(temporary, "wb") as f:
        figure.savefig(f, dpi=110, format="png")
    plt.close(figure)
    os.replace(temporary, os.path.join(out_dir, "curves.png"))


def ending(cfg, best):
    """What was reached, which checkpoint is the best, and how sure that is: the highest of many noisy numbers is too
    high."""
    rows = read_lines(f"{cfg.out_dir}/metrics.jsonl")
    if cfg.objective == "grpo":
        rated = [r for r in rows if "val/greedy" in r]
        names = [k for first in rated[:1] for k in first if re.fullmatch("val/(greedy|sampled|pass@.*)", k)]
        shares = all(r.get(k) is None or 0 <= r[k] <= 1 for r in rated for k in names) and (
            cfg.pass_at is not None or all("pass_rate" in r for r in rows if "reward" in r))
        for name in names:
            both = rated[0][name], rated[-1][name]
            before, after = ("no opinion" if x is None else format(x, ".1%" if shares else ".3f") for x in both)
            print(f"{name}: {before} before, {after} after")
    if not best:
        return ""
    measure, score = best["measure"], best["score"] if best["measure"] != "val/nelbo" else -best["score"]
    said = f"{measure} {score:.4f}" + (f" ± {best['se']:.4f}" if "se" in best else "")
    where = f"best at step {best['step']}" if best["step"] else f"none better than the start, {cfg.init_from}"
    return f", {where}: {said}, of {sum(measure in row for row in rows)} evaluations"


def show(run, step, values, samples):
    """The metrics and samples of an evaluation, into the log and onto the page and the screen."""
    if run.log:
        run.log.metrics(step, values)
        run.log.samples(step, samples[:SAMPLES])
        draw(run.cfg.out_dir)
        report(run.cfg)
    tqdm.write(f"step {step:6d}  " + "  ".join(f"{k} {v:.4f}" for k, v in values.items() if not np.isnan(v)))
    for s in samples[: run.cfg.log_samples]:
        tqdm.write("    " + " | ".join(f"{k}: {v!r}" for k, v in s.items() if k not in ("columns", "film")))


def write(run, state, last, seconds, logged):
    """The numbers of the iteration that ended with this State, which took so long, as a line on the screen (of GRPO)
    and where they are `logged` into the log, with the first group."""
    values = {k: v for k, v in last.items() if k not in ("step", "group")} | {"step_time": seconds}
    values["tokens"] = state.step * config.tokens_per_iter(run.cfg)
    if timed := [v for k, v in last.items() if k.startswith("time/")]:
        values["time/update"] = seconds - sum(timed)
    if run.cfg.objective == "grpo":
        known = {"reward": "{:.3f}", "reward_std": "± {:.3f}", "pass_rate": "pass {:.1%}", "entropy": "entropy {:.3f}",
                 "kl": "kl {:.4f}", "rewards/kl/mean": "kl {:.4f}"}  # fmt: skip
        said = [form.format(values[k]) for k, form in known.items() if k in values and np.isfinite(values[k])]
        stages = [f"{k[5:]} {v:.1f}" for k, v in values.items() if k.startswith("time/")]
        tqdm.write(f"step {state.step:6d}  reward {'  '.join(said) or 'none'}  {' + '.join(stages)} s")
    if logged:
        updates = int(state.opt_state[-1][0].count)  # before it: skipped steps made none
        values["learning_rate"] = float(run.rate(max(updates - config.updates_per_iter(run.cfg), 0)))
        run.log.metrics(state.step, values)
    if logged and "group" in last:
        group, shown = last["group"], run.cfg.log_samples
        run.log.append("rollouts.jsonl", {"step": state.step} | group)
        for text, adv in [*zip(group["completions"], group["advantages"], strict=True)][:shown]:
            tqdm.write(f"    {group['masked' if 'masked' in group else 'prompt']!r} -> {text!r}  advantage {adv:+.2f}")


class Asked:
    """Whether ctrl-C, SIGTERM or SIGHUP came, or nobody reads any more what is printed: the loop saves and leaves; a
    second ctrl-C leaves at once."""

    def __enter__(self):
        self.signal = None
        ours = threading.current_thread() is threading.main_thread()  # only there can signals be set
        asking = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
                  if ours and signal.getsignal(s) != signal.SIG_IGN]
        self.before = {s: signal.signal(s, self.note) for s in asking}  # nohup has SIGHUP ignored
        self.streams = contextlib.ExitStack()
        for stream in (sys.stdout, sys.stderr):
            self.streams.enter_context(terminal.guarded(stream, self.unread))
        return self

    def unread(self):
        """`train.py | head -1`, a lost terminal, a full disk behind `> FILE`: noted, not raised."""
        self.signal = self.signal or signal.SIGPIPE

    def note(self, number, frame):
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        tqdm.write("saving after this step; ctrl-C again leaves at once", file=sys.stderr)

    def __exit__(self, *_):
        for s, handler in self.before.items():
            signal.signal(s, handler)
        self.streams.close()
