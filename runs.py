"""
What a run takes from its machine and leaves on its disk: checkpoints, metrics.jsonl, samples.jsonl, curves.png.

A checkpoint is a Hugging Face folder of the weights (of LoRA: a PEFT folder of the adapters), with state.safetensors
(everything the next step depends on) and run.json (the step, the best step so far, the config) beside it. It appears
whole or not at all.
"""

import contextlib
import ctypes
import itertools
import json
import math
import os
import re
import shutil
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from tqdm import tqdm

import config
import model


def prepare_process():
    """Once, in main: a compilation cache, so that a second start is fast, and memory in large pages."""
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "unmask")
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    if sys.platform != "linux":
        return
    # XLA's CPU backend allocates hundreds of MB anew for every step, and glibc gives such blocks back to the system, so
    # that each step faults its pages in again: 1.14 instead of 0.92 s (d 256, 6 layers, T 160, batch 32, 2 cores). So:
    # one heap that is never trimmed, and a reserve in it (untouched, so it costs nothing yet) that may use 2 MB pages.
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX, MADV_HUGEPAGE, size, page = -1, -4, -8, 14, 4 << 30, 2 << 20
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_ARENA_MAX, 1)):
            libc.mallopt(option, value)
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        reserve = libc.malloc(size)
        if reserve:
            start = -(-reserve // page) * page
            libc.madvise(start, size - page, MADV_HUGEPAGE)
            libc.free(reserve)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


LOGS = "metrics.jsonl", "samples.jsonl"
WRITING = ".writing"  # where in out_dir a checkpoint is before it is one, and again when it is deleted


def save(cfg, state, tok, best, finished):
    """Writes out_dir/step-NNNNNN: a folder of the weights or adapters, and all that the next step depends on."""
    final = os.path.join(cfg.out_dir, f"step-{state.step:06d}")
    if os.path.isdir(final):
        return
    temporary = os.path.join(cfg.out_dir, WRITING)
    shutil.rmtree(temporary, ignore_errors=True)
    if cfg.lora_rank:
        model.save_adapters(temporary, state.weights, cfg.model, cfg.init_from, cfg.lora_alpha)
    else:
        model.save(temporary, state.weights, cfg.model)
    tok.save(temporary)
    model.write_tensors(os.path.join(temporary, "state.safetensors"), lambda: flat(state._replace(step=())).items())
    run = {"step": state.step, "finished": finished, "best": best, "config": config.flatten(cfg)}
    with open(os.path.join(temporary, "run.json"), "w") as f:
        json.dump(run, f, indent=2)
    for name in [*os.listdir(temporary), "."]:
        sync(os.path.join(temporary, name))
    for name in set(LOGS) & set(os.listdir(cfg.out_dir)):  # what they say up to this step belongs to it
        sync(os.path.join(cfg.out_dir, name))
    os.rename(temporary, final)
    sync(cfg.out_dir)
    kept = checkpoints(cfg.out_dir)[-cfg.keep_checkpoints :] + [best and best["step"]]
    for step in checkpoints(cfg.out_dir):
        if step not in kept:  # renamed first: a folder that is half deleted must not look like a checkpoint
            os.rename(os.path.join(cfg.out_dir, f"step-{step:06d}"), temporary)
            shutil.rmtree(temporary)


def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def checkpoints(out_dir):
    """The steps there are checkpoints of, ascending."""
    names = os.listdir(out_dir) if os.path.isdir(out_dir) else []
    return sorted(int(n[5:]) for n in names if re.fullmatch(r"step-\d+", n))


def flat(tree):
    """A tree of arrays -> {path: array}."""
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def restore(folder, state):
    """The state that `save` wrote into folder, in the shape of `state`, and its run.json."""
    run = read_run(folder)
    if not {"step", "best"} <= run.keys():
        raise ValueError(
            f"{folder} has no run.json of this program: it is a model, not a run that can be resumed; "
            "start from it with --init_from and another out_dir"
        )
    path = os.path.join(folder, "state.safetensors")
    try:
        saved = safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as e:
        raise ValueError(
            f"{path} is truncated or not a checkpoint of this program ({e}): delete {folder} to resume "
            "from the checkpoint before it"
        ) from None
    mine = flat(state._replace(step=()))
    shape = lambda arrays, k: arrays[k].shape if k in arrays else None
    different = sorted(k for k in saved.keys() | mine.keys() if shape(saved, k) != shape(mine, k))
    if different:
        raise ValueError(
            f"{folder} is of another model or optimizer than this config: {different[0]} and "
            f"{len(different) - 1} more differ; resume with the config of that run, or start elsewhere "
            "with --out_dir"
        )
    leaf = lambda path, _: jnp.asarray(saved[jax.tree_util.keystr(path)])
    return jax.tree_util.tree_map_with_path(leaf, state._replace(step=()))._replace(step=run["step"]), run


def read_run(folder):
    """run.json of a checkpoint; {} in a model folder of somebody else's."""
    path = os.path.join(folder, "run.json")
    if not os.path.exists(path):
        return {}
    try:
        return dict(json.load(open(path)))
    except (TypeError, ValueError) as e:
        raise ValueError(f"{path} is damaged ({e}): delete {folder} to resume from the checkpoint before it") from None


def move_aside(out_dir):
    """An earlier run in out_dir goes to out_dir.1 (or .2, ...): nothing is ever overwritten."""
    if not checkpoints(out_dir) and not read_lines(os.path.join(out_dir, LOGS[0])):
        return
    out_dir = out_dir.rstrip("/")
    aside = next(path for n in itertools.count(1) if not os.path.exists(path := f"{out_dir}.{n}"))
    os.rename(out_dir, aside)
    print(f"{out_dir} held an earlier run: moved to {aside} (--resume=True would continue it)")


# ---- logs ------------------------------------------------------------------------------------------------------------


class Log:
    """metrics.jsonl and samples.jsonl in out_dir, cut back to the step a run resumes from; wandb when asked."""

    def __init__(self, cfg, step):
        os.makedirs(cfg.out_dir, exist_ok=True)
        shutil.rmtree(os.path.join(cfg.out_dir, WRITING), ignore_errors=True)  # of a run that was killed
        paths = [os.path.join(cfg.out_dir, name) for name in LOGS]
        self.out_dir, kept = cfg.out_dir, [[r for r in read_lines(p) if r["step"] <= step] for p in paths]
        for path, rows in zip(paths, kept, strict=True):
            with open(f"{path}.new", "w") as f:
                f.writelines(json.dumps(r) + "\n" for r in rows)
            os.replace(f"{path}.new", path)  # a kill in between loses no line
        self.begun = time.time() - max((r["time"] for r in kept[0]), default=0)
        self.wandb = None
        if cfg.wandb_log:
            try:
                import wandb
            except ImportError:
                raise ValueError("wandb_log=True needs the package wandb: pip install wandb") from None
            self.wandb = wandb.init(project=cfg.wandb_project, entity=cfg.wandb_entity, config=config.flatten(cfg),
                                    name=cfg.wandb_run_name or os.path.basename(cfg.out_dir))  # fmt: skip

    def metrics(self, step, values):
        self.append("metrics.jsonl", {"step": step, "time": round(time.time() - self.begun, 2)} | values)
        if self.wandb:
            self.wandb.log(values, step=step)

    def samples(self, step, rows):
        for row in rows:
            self.append("samples.jsonl", {"step": step} | row)

    def append(self, name, row):
        strict = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}  # JSON
        with open(os.path.join(self.out_dir, name), "a") as f:
            f.write(json.dumps(strict) + "\n")


def read_lines(path):
    """The rows of a JSONL file of ours up to the first that is damaged: the last may have been cut by a kill."""
    rows = []
    with contextlib.suppress(OSError, ValueError), open(path) as f:
        for line in f:
            row = json.loads(line)
            if not isinstance(row, dict) or "step" not in row:
                break
            rows.append(row)
    return rows


def draw(out_dir):
    """curves.png out of metrics.jsonl, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = read_lines(os.path.join(out_dir, "metrics.jsonl"))
    keys = dict.fromkeys(k for r in rows for k in r)
    rated = [
        k for k in keys if re.fullmatch(r"val/(greedy|sampled|pass@\d+|pair_acc|calibration_error|correlation)", k)
    ]
    panels = {"reward": ["reward", "val/greedy_reward", "val/sampled_reward"] if "reward" in keys else [],
              "loss": ["loss", "val/nelbo"], "val": rated, "spread": ["entropy", "frac_reward_zero_std"],
              "gradient norm": ["grad_norm"], "learning rate": ["lr"]}  # fmt: skip
    panels = {title: [k for k in some if k in keys] for title, some in panels.items() if keys.keys() & set(some)}
    wide, high = max(min(len(panels), 3), 1), max(-(-len(panels) // 3), 1)
    figure = plt.figure(figsize=(4.2 * wide, 3 * high), constrained_layout=True)
    for n, (title, some) in enumerate(panels.items(), 1):
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
    figure.savefig(temporary, dpi=110)
    plt.close(figure)
    os.replace(temporary, os.path.join(out_dir, "curves.png"))


class Asked:
    """Whether ctrl-C or SIGTERM came: the loop saves and leaves; a second ctrl-C leaves at once."""

    def __enter__(self):
        self.signal = None
        self.before = {s: signal.signal(s, self.note) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def note(self, number, frame):
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        tqdm.write("saving after this step; ctrl-C again leaves at once", file=sys.stderr)

    def __exit__(self, *_):
        for s, handler in self.before.items():
            signal.signal(s, handler)
