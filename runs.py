"""
What a run takes from its machine, and what it leaves in its folder beside checkpoints (disk.py): metrics.jsonl,
samples.jsonl, curves.png.
"""

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import functools
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
from tqdm import tqdm

import config
import diffusion
import disk
import model
import terminal


def cache_folder():
    """Where compiled programs are kept from one start to the next."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "unmask")


def prepare_process():
    """Once, in main: a device, lines that are printed at once, a compilation cache, so that a second start is fast, and
    memory in large pages."""
    sys.stdout.reconfigure(line_buffering=True)
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as e:
        why = str(e).strip().splitlines() or ["it does not say why"]
        raise ValueError(f"JAX finds no device as JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')} asks for ({why[0]}): "
                         "unset it to run on what there is, or install jax for your GPU") from None
    jax.config.update("jax_compilation_cache_dir", cache_folder())
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


# ---- what it costs ---------------------------------------------------------------------------------------------------
#
# Counted from the config, before anything is compiled or allocated; tests hold it against XLA's own account.


def rows_of(cfg):
    """-> rows whose forward pass an iteration's updates take, rows of which a backward pass keeps activations, rows of
    which remat keeps what enters a block, are these recomputed?"""
    copies = config.n_views(cfg) if cfg.objective == "grpo" else 1 + cfg.paired
    more = 1 + 1 / copies if cfg.model.block_causal and cfg.objective != "judge" else 1  # and a clean one beside these
    if cfg.objective != "grpo":
        rows = cfg.batch_size * (2 if cfg.objective == "judge" else 1)
        return more * rows, *[more * rows // cfg.gradient_accumulation_steps] * 2, cfg.model.remat
    kept = config.kept(cfg)
    micro = config.minibatch(cfg) // cfg.gradient_accumulation_steps * config.n_views(cfg)
    chunk = min(cfg.logp_chunk or micro, micro)
    rows = cfg.updates_per_rollout * kept * config.n_views(cfg)
    return more * rows, more * chunk, more * micro, cfg.model.remat or chunk < micro


def cost(cfg):
    """Config with the model of the run -> bytes on the device by what they are for, FLOPs of an iteration by stage."""
    m, T, new = cfg.model, cfg.max_prompt_len + cfg.max_new_tokens, cfg.max_new_tokens
    grpo, judge, completions = cfg.objective == "grpo", cfg.objective == "judge", cfg.batch_size * cfg.group_size
    Q, KV, D, F, L, V = m.n_head * m.head_dim, m.kv_heads * m.head_dim, m.d_model, m.ff, m.n_layer, m.vocab_size
    shapes = jax.tree.leaves(model.shapes(m, 1 if judge else None), is_leaf=lambda s: isinstance(s, tuple))
    n, wide = sum(map(math.prod, shapes)), 2 if m.dtype == "bfloat16" else 4
    trained, held = n, 4 * n + 2 * n * (wide == 2)  # what has a gradient and two moments; float32, and cast
    if cfg.lora_rank:
        adapters = model.adapter_shapes(m, cfg.lora_targets, cfg.lora_rank)
        trained = sum(map(math.prod, adapters.values())) + judge * D
        held = wide * n + 4 * trained
    (total, rows, micro, again), keys = rows_of(cfg), T * (1 + bool(m.block_causal and not judge))  # and the text's
    # A layer as the backward pass wants it: norms, q, k, v before and after they turn, the mlp inside; scores, float32.
    layer = T * (wide * (6 * D + 4 * Q + 4 * KV + 4 * F) + 4 * 2 * m.n_head * keys)
    kept = rows * L * layer if not m.remat else micro * L * T * wide * D + rows * layer
    logits = lambda positions: 0 if judge else 4 * V * positions
    some = lambda positions: min(positions, max(diffusion.LOGITS // (4 * V), 1))
    filled = config.rollout_rows(cfg) if grpo else 0
    block = 1 if m.causal else cfg.block_len or new
    parts = {
        "params": held, "optimizer": 8 * trained, "average": 4 * trained * (cfg.ema_decay is not None),
        "reference": 4 * n * bool(grpo and cfg.kl_beta and not cfg.ref_offload and not cfg.lora_rank),
        # Summed up part by part, there are two of them: the sum, and what is next in it.
        "gradients": 4 * trained * (2 if cfg.gradient_accumulation_steps > 1 or cfg.logp_chunk else 1),
        # The logits and their gradient; with an entropy, also probabilities, and products of all of them.
        "activations": kept, "logits": (7 if grpo else 2) * logits(some(rows * new)),
        # Of a rollout no more than a layer is kept at a time, or the keys and values of all; of its logits there are
        # copies, probabilities and noise; and of every completion what is in a Rollout, 15 bytes a token, in parts and
        # joined, and its prompt.
        "rollout": filled * L * T * 2 * KV * wide * (m.causal or 2 * (cfg.cache != "none"))
        + (not m.causal) * filled * (layer // 2) + logits(some(4 * filled * block)) + 36 * grpo * completions * T,
    }  # fmt: skip
    update = sum(parts[name] for name in ("gradients", "activations", "logits"))
    resident = sum(parts[name] for name in ("params", "optimizer", "average", "reference"))
    parts["peak"] = resident + max(update, parts["rollout"])

    def forward(rows, positions, window, width=T, keys=T):
        """2 for each weight of a matmul and token of a width, 4Q of attention in a layer for each of its keys; the head
        and, but for keys and values, the last of a few layers are computed for a window only."""
        tokens = (L - 1) * width + (window if L <= model.UNROLLED else width)
        return rows * (tokens * (4 * D * Q + 6 * D * F + 4 * keys * Q) + L * width * 4 * D * KV
                       + (0 if judge else 2 * positions * D * V))  # fmt: skip

    first = config.minibatch(cfg) / (config.kept(cfg) * cfg.updates_per_rollout)  # the first minibatch is not scored
    scorings = bool(cfg.kl_beta) + (cfg.ratio_level != "none") * (1 - first)
    if m.causal:  # with a cache, every token is read once
        rollout = forward(completions, new, T)
    elif (b := m.block_causal) and cfg.cache != "none":  # a prompt once a group, and a pass more a block, to keep it
        passes = (min(cfg.rollout_steps or cfg.diffusion_steps, b) + 1) * -(-new // b)
        rollout = completions / cfg.group_size * forward(1, 0, T) + passes * forward(completions, b, b, b)
    else:  # the first step is the same for a group, if chunks do not cut it
        alike, steps = math.gcd(config.rollout_rows(cfg), cfg.group_size), cfg.rollout_steps or cfg.diffusion_steps
        whole = steps if cfg.cache == "none" else min(-(-new // block), steps)  # passes over everything: one a block
        width = block if cfg.cache == "dual" else (new + block) // 2  # of the others: on average
        rollout = (whole - 1 + 1 / alike) * forward(completions, block, block)
        rollout += (steps - whole) * forward(completions, block, block, width)
    scoring = forward(total, new, T if judge else new, keys=keys)
    flops = {"rollout": grpo * rollout, "scoring": grpo * scorings * scoring, "update": (4 if again else 3) * scoring}
    return parts, flops


def device_memory():
    """-> bytes that the first device has for us: a GPU's, or the machine's."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cheaper(cfg, limit):
    """-> {key: value}, changes with which the run fits into `limit` bytes, those that change its result least first;
    and the bytes it then needs."""
    halves = lambda n: [n >> i for i in range(1, n.bit_length())]
    rows, changes = rows_of(cfg)[1], {}
    grpo = cfg.objective == "grpo"
    with_model = lambda **new: {"model": dataclasses.replace(cfg.model, **new)}
    tries = [("gradient_accumulation_steps", [cfg.gradient_accumulation_steps << i for i in range(1, 12)])]
    if grpo:
        tries += [("logp_chunk", halves(rows)), ("rollout_chunk", halves(config.rollout_rows(cfg)))]
    tries += [("remat", [True]), ("dtype", ["bfloat16"])] + [("ref_offload", [True])] * bool(grpo and cfg.kl_beta)
    tries += [("batch_size", halves(cfg.batch_size))] + [("group_size", halves(cfg.group_size))] * grpo
    for key, values in tries:
        for value in values:
            now = cost(cfg)[0]["peak"]
            if now <= limit:
                return changes, now
            with contextlib.suppress(ValueError):  # what does not divide is not tried
                change = {key: value}
                new = dataclasses.replace(cfg, **(with_model(**change) if key in ("remat", "dtype") else change))
                whole = cfg.objective == "grpo" or new.batch_size % new.gradient_accumulation_steps == 0
                if whole and cost(new)[0]["peak"] < now:
                    cfg, changes = new, changes | change
    return changes, cost(cfg)[0]["peak"]


def amount(x, unit="B"):
    """1234567890, "FLOP" -> 1.2 GFLOP."""
    power = max((p for p in range(6) if x >= 1000**p), default=0)
    return f"{x / 1000**power:.{0 if power == 0 else 1}f} {' kMGTP'[power].strip()}{unit}"


def describe_cost(cfg, limit=None):
    """-> the lines that a run begins with: what it takes, and, if that is more than there is, what to change."""
    (parts, flops), limit = cost(cfg), limit or device_memory()
    listed = " + ".join(f"{name} {amount(x)}" for name, x in parts.items() if x and name not in ("peak", "rollout"))
    rollout = f" (rollout {amount(parts['rollout'])}, before them)" if parts["rollout"] else ""
    stages = ", ".join(f"{name} {amount(x, 'FLOP')}" for name, x in flops.items() if x)
    lines = [f"memory: {listed}{rollout}, at most {amount(parts['peak'])} of {amount(limit)}; "
             f"{amount(sum(flops.values()), 'FLOP')} a step" + (f" ({stages})" if flops["rollout"] else "")]
    if parts["peak"] > limit:
        changes, then = cheaper(cfg, limit)
        how = " ".join(f"--{key}={value}" for key, value in changes.items())
        would = f"{how} would make it {amount(then)}" if how else "no key of this config helps"
        lines.append(f"warning: this run will probably not fit: {would}"
                     + ("" if then <= limit else "; still too much: it needs a smaller model or a larger device"))
    return lines


def check_fits(cfg, shape):
    """Refuses a run on a model of that shape that cannot fit: the estimate is right to a factor of 2."""
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(shape, dtype=cfg.model.dtype, remat=cfg.model.remat))
    if not cfg.eval_only and cost(cfg)[0]["peak"] > 2 * device_memory():
        said = "; ".join(describe_cost(cfg))
        raise ValueError(said.replace("warning: this run will probably not", "this run cannot"))


# ---- the folder of a run ---------------------------------------------------------------------------------------------

@contextlib.contextmanager
def claimed(out_dir):
    """While this lasts no other run writes into out_dir: a lock on the folder itself, which ends with its process. An
    error of the disk is said with what is safe, and what was half written does not stay on it."""
    os.makedirs(out_dir, exist_ok=True)
    handle = os.open(out_dir, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ValueError(f"another run writes into {out_dir!r}: wait for its end, or give this one another --out_dir"
                         ) from None  # fmt: skip
    except OSError:  # there are file systems without locks
        pass
    try:
        yield
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        shutil.rmtree(os.path.join(out_dir, disk.WRITING), ignore_errors=True)
        safe = [disk.of_step(out_dir, step) for step in disk.steps(out_dir)[-1:]]
        raise ValueError(f"{os.strerror(e.errno)}, while writing into {out_dir}"
                         + (f": {safe[0]} is whole; make room and go on with --resume=True" if safe else
                            ", where no checkpoint was whole yet")) from None  # fmt: skip
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            os.rmdir(out_dir)  # if it is empty: a run that could not start leaves nothing


# What may change when a run is resumed and when its base is trained no further: nothing that it would compute depends
# on it, or it is only how long it goes on. Everything else would make it another run.
FREE = ("out_dir resume eval_only init_from base log_interval eval_interval save_interval keep_checkpoints log_samples "
        "wandb_log wandb_project wandb_run_name wandb_entity reward_timeout reward_workers sandbox_unsafe "
        "rollout_chunk logp_chunk ref_offload model.dtype model.remat").split()  # fmt: skip
LENGTH = ["max_iters", "stop_at"]


def changed(cfg, was, free):
    """What a Config says otherwise than the `config` of a run.json, as text; what it says of the model at all, too."""
    now, default = (json.loads(json.dumps(config.flatten(c))) for c in (cfg, config.Config()))
    if (cfg.judge_from or "").endswith(".py"):
        now["judge_from"] = config.read(cfg.judge_from).out_dir
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

class Log:
    """metrics.jsonl and samples.jsonl in out_dir, cut back to the step a run resumes from; wandb when asked."""

    def __init__(self, cfg, step):
        os.makedirs(cfg.out_dir, exist_ok=True)
        shutil.rmtree(os.path.join(cfg.out_dir, disk.WRITING), ignore_errors=True)  # of a run that was killed
        paths = [os.path.join(cfg.out_dir, name) for name in disk.LOGS]
        self.out_dir, kept = cfg.out_dir, [[r for r in read_lines(p) if r["step"] <= step] for p in paths]
        for path, rows in zip(paths, kept, strict=True):
            with open(f"{path}.new", "w") as f:
                f.writelines(json.dumps(r) + "\n" for r in rows)
            os.replace(f"{path}.new", path)  # a kill in between loses no line
        self.begun = time.time() - max((r["time"] for r in kept[0]), default=0)
        self.wandb = None
        if cfg.wandb_log:
            import wandb
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
    of_val = re.compile(r"val/(greedy|sampled|pass@\d+|pair_acc|calibration_error|correlation)")
    panels = {"reward": ["reward", "val/greedy_reward", "val/sampled_reward"] if "reward" in keys else [],
              "loss": ["loss", "val/nelbo"], "val": list(filter(of_val.fullmatch, keys)),
              "spread": ["entropy", "frac_reward_zero_std"],
              "gradient norm": ["grad_norm"], "learning rate": ["learning_rate"]}  # fmt: skip
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
    """Whether ctrl-C, SIGTERM or SIGHUP came, or nobody reads any more what is printed: the loop saves and leaves; a
    second ctrl-C leaves at once."""

    def __enter__(self):
        self.signal = None
        asking = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
        self.before = {s: signal.signal(s, self.note) for s in asking}  # nohup has SIGHUP ignored
        self.streams = [(stream, stream.write) for stream in (sys.stdout, sys.stderr)]
        for stream, write in self.streams:
            stream.write = functools.partial(self.write, stream, write)
        return self

    def write(self, stream, write, text):
        """What a stream's own `write` does; its end is noted, not raised: `train.py | head -1`, a lost terminal."""
        try:
            size = write(text)
            stream.flush()
        except OSError as e:
            if e.errno not in (errno.EPIPE, errno.EIO):
                raise
            terminal.silence(stream)
            self.signal = self.signal or signal.SIGPIPE
            size = len(text)
        return size

    def note(self, number, frame):
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        tqdm.write("saving after this step; ctrl-C again leaves at once", file=sys.stderr)

    def __exit__(self, *_):
        for s, handler in self.before.items():
            signal.signal(s, handler)
        for stream, write in self.streams:
            stream.write = write
