"""
What a GPU makes of this code:  python tests/bench.py gpu --tasks=sampling,step

Each part is a process of its own that takes at most ten minutes. So one that hangs, crashes or runs out of memory
leaves the others whole. Parts that measure no speed run side by side, the others alone. Every figure is printed and
written at once into a JSON file, which keeps the other parts that it has; the table of all comes last. Committed in
docs/results/gpu, the file is printed into docs/hardware.md by tests/tables.py. --tiny makes all of it small.
"""
import argparse
import ctypes
import dataclasses
import fcntl
import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from typing import Any, NamedTuple
from unittest import mock

import bench
import cost
import jax
import jax.numpy as jnp
import numpy as np
import shared
import tables

import config
import data
import model
import rl
import sample as sampler
import train as trainer
from checkpoints import huggingface
from loop import evaluation, memory, runs, setup
from system import cudnn, kernels
from tools import plan as planning

# FLOP per second of dense products in bfloat16: NVIDIA's data sheets.
SHEET = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12}
D1_DAYS = "one to two days of d1's author"  # for the 7,700 updates, see config/llada_gsm8k_grpo.py


class Figure(NamedTuple):
    """One measurement."""

    name: str
    value: Any  # a number, or a few words
    unit: str = ""
    note: str = ""
    holds: bool | None = None  # False if the value is not what it should be; None: there is nothing that it should be
    seconds: tuple = ()  # of each time that it was measured, ascending


def sized(options, tiny, whole):
    """Of two sizes the one for --tiny, or the whole one."""
    return tiny if options.toy else whole


def on_gpu():
    """True if JAX computes on a GPU."""
    return jax.default_backend() == "gpu"


def distance(a, b):
    """Return the length of a - b as a share of that of b, for arrays or lists of them."""
    a, b = (np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(t)]) for t in (a, b))
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))


def attempted(name, figures):
    """Yield figures; if one fails, yield that as a Figure of this name, so that the next is still tried."""
    try:
        yield from figures
    except Exception as e:
        traceback.print_exc()
        yield Figure(name, "does not work here", note=first_line(e), holds=False)


def first_line(error):
    """Describe an exception in a line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def random_params(cfg, dtype):
    """Draw the parameters of a model on the device, each at once in its own dtype: 8B of float32 would be 32 GB."""
    return jax.jit(lambda key: model.cast(model.init(key, cfg), dtype))(jax.random.key(0))


def peak():
    """Describe the most bytes that JAX has had on the device so far. A CPU does not count them."""
    used = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return f"peak {memory.amount(used)}" if used else "peak not counted here"


class Rates(NamedTuple):
    """What a card can do per second: as measured here, and by its data sheet (0: unknown)."""

    flops: float
    bytes: float
    sheet_flops: float
    sheet_bytes: float

    def shares(self, flops, moved, seconds):
        """Describe operations and bytes in these seconds as shares of what the card can do (MFU, MBU)."""
        of = [(flops, self.flops, "measured products"), (flops, self.sheet_flops, "the data sheet's"),
              (moved, self.bytes, "measured bandwidth"), (moved, self.sheet_bytes, "the data sheet's")]  # fmt: skip
        return ", ".join(f"{n / seconds / rate:.0%} of {what}" for n, rate, what in of if n and rate)


def measured_rates(options):
    """Measure matrix products in bfloat16 and copies of an array; yield their Figures, and return Rates."""
    n, size = sized(options, 256, 8192), sized(options, 2**16, 2**31)
    square = jax.random.normal(jax.random.key(0), (n, n), jnp.bfloat16)
    yield (rate := product_rate(functools.partial(jax.jit(jnp.matmul), square, square), jax.block_until_ready, n,
                                "bfloat16"))  # fmt: skip
    array = jnp.zeros(size, jnp.bfloat16)
    copied = bench.waiting(jax.jit(lambda x: x + 1), array)
    ((_, seconds),) = bench.in_turns({"a copy": copied}, 5)
    yield Figure("bandwidth of a copy", (speed := 2 * array.nbytes / seconds[0]) / 1e12, "TB/s", seconds=(*seconds,))
    kind = jax.devices()[0].device_kind
    card = next((name for name in SHEET if name in kind), "")
    sheet = [device.bandwidth for name, device in planning.DEVICES.items() if card and name.startswith(card)]
    return Rates(rate.value * 1e12, speed, SHEET.get(card, 0), max(sheet, default=0))


# ---- numbers: what must be right on any device -----------------------------------------------------------------------

def blocks_behind_padding(T):
    """Return the mask of blocks of 4 tokens, of which the second text is padded."""
    place = jnp.arange(T) - jnp.array([[0], [T // 3]])
    block = place.clip(0) // 4
    return (place >= 0)[:, None] & (block[:, :, None] >= block[:, None])


# Masks (B or 1, S or 1, T) for B = 2 texts of T tokens.
MASKS = {
    "padding": lambda T: (jnp.arange(T) >= jnp.array([[0], [T // 3]]))[:, None],
    "blocks behind padding": blocks_behind_padding,
    "no mask": lambda T: None,
    "left to right": lambda T: jnp.tril(jnp.ones((1, T, T), bool)),
}


def numbers(options):
    """this device beside the CPU; cuDNN's attention beside the plain one"""
    for check in (device_and_cpu, attention):
        yield from attempted(check.__name__.replace("_", " "), check(options))


def attention(options):
    """Compare cudnn.attention in 16 bits, forward and backward, with plain attention in float32."""
    T, H, KV, K = sized(options, (16, 4, 2, 8), (512, 16, 4, 128))
    flash = cudnn.attention if on_gpu() else functools.partial(cudnn.attention, implementation="xla")
    kernel = "cuDNN" if on_gpu() else "no cuDNN on a CPU: XLA in its place"
    cases = [("padding", T - 1), *((name, T) for name in MASKS)]
    for kind, length in cases[: sized(options, 3, None)]:
        heads = [jax.random.normal(jax.random.key(n), (2, length, h, K), jnp.bfloat16)
                 for n, h in enumerate((H, KV, KV))]  # fmt: skip
        both = jax.jit(functools.partial(both_ways, mask=MASKS[kind](length)), static_argnums=0)
        with jax.default_matmul_precision("highest"):
            exact = both(kernels.plain_attention, [x.astype(jnp.float32) for x in heads])
        plain, fast = (distance(both(attend, heads), exact) for attend in (kernels.plain_attention, flash))
        name = f"attention, {kind}, {length} tokens, {H} heads, {KV} KV heads"
        yield Figure(name, fast, "of the length", f"{kernel}; plain attention in 16 bits: {plain:.1e}",
                     fast <= 2 * plain + 1e-3)  # fmt: skip


def both_ways(attend, heads, mask):
    """Compute attention of q, k and v, and the gradient of all three."""
    def forward(*heads):
        return attend(*heads, mask, heads[0].shape[-1] ** -0.5).astype(jnp.float32)
    out, back = jax.vjp(forward, *heads)
    return out, back(jnp.sin(10 * out))


def reversed_digits():
    """Make the rows of a task: write two digits backwards."""
    return [{"prompt": f"{i:02d}", "completion": f"{i:02d}"[::-1]} for i in range(100)]


def even(prompts, completions):
    """Reward characters with an even number: a random model writes some, so that there is something to learn."""
    return [float(sum(ord(c) % 2 == 0 for c in text)) for text in completions]


def small_run(options, name, **changes):
    """Return the Config of a run of grpo on `reversed_digits` into a folder of this name, from a random model."""
    base = f"{options.folder}/small_model"
    if not os.path.exists(base):
        tok = data.Tokenizer.bytes()
        size = sized(options, dict(n_layer=2, n_head=2, d_model=32), dict(n_layer=4, n_head=4, d_model=128))
        shape = setup.with_ids(shared.shape(**size), tok)
        huggingface.save(base, model.init(jax.random.key(0), shape), shape)
        tok.save(base)
    fixed = dict(logp_est="trace", ratio_level="token", adv_negative=1.0)
    fixed |= dict(objective="grpo", init_from=base, out_dir=f"{options.folder}/{name}", max_prompt_len=3,
                 max_new_tokens=4, batch_size=4, group_size=4, updates_per_rollout=2, diffusion_steps=4, eval_size=4,
                 **{"evaluation.samples": 1}, eval_interval=1000, log_interval=1, warmup_iters=0,
                 lr_schedule="constant", learning_rate=1e-3)  # fmt: skip
    return shared.run(**fixed | changes)


def trained(cfg):
    """Run a small run -> its last State as a list of arrays."""
    with mock.patch.object(evaluation, "evaluate_and_log", lambda run, state, best: ({}, best)):
        state, _ = trainer.train(cfg, reversed_digits(), even)
    return [np.asarray(x) for x in jax.tree.leaves((state.params, state.opt_state))]


def logged_updates(cfg):
    """Read what a run logged of its iterations."""
    return [row for row in runs.read_lines(f"{cfg.out_dir}/metrics.jsonl") if "grad_norm" in row]


def ratios(options):
    """two iterations that change nothing, in 16 bits: every ratio of the second update must be exactly 1"""
    for name, more in (("all weights", {}), ("LoRA", {"lora.rank": 4}))[: sized(options, 1, 2)]:
        cfg = small_run(options, f"ratios {name}", model=model.ModelConfig(dtype="bfloat16"), max_iters=2,
                        learning_rate=1e-30, logp_est="coupled_elbo", ratio_level="sequence", clip_low=4e-4,
                        clip_high=4e-4, **more)  # fmt: skip
        trained(cfg)
        logged = logged_updates(cfg)
        worst = max(max(row["ratio_max"] - 1, abs(row["approx_kl"])) for row in logged)
        yield Figure(f"ratios - 1 before anything moved, 16 bits, {name}", worst, note="must be 0", holds=worst == 0)


def device_and_cpu(options):
    """Fill the same masks with the same weights on this device and on the CPU, in float32."""
    B, T, new = sized(options, (4, 16, 8), (64, 96, 64))
    size = sized(options, dict(d_model=16, n_layer=2), dict(d_model=128, n_layer=4))
    cfg = shared.shape(vocab_size=bench.V, mask_id=bench.V - 1, **size)
    params = model.init(jax.random.key(0), cfg)
    params["head"] *= 10  # probabilities far apart, so that rounding decides nothing
    z = jax.random.randint(jax.random.key(1), (B, T), 0, bench.V - 1).at[:, T - new :].set(cfg.mask_id)
    beside = "beside the CPU" if on_gpu() else "no GPU here: the CPU beside itself"
    for name, heat in (("greedy", 0.0), ("sampled", 1.0)):
        how = sampler.Plan(steps=new // 2, block_len=new // 2, temperature=heat)
        found = []
        for device in (jax.devices()[0], jax.devices("cpu")[0]):
            args = jax.device_put((params, jax.random.key(2), z), device)
            with jax.default_matmul_precision("highest"):
                x, trace = sampler.generate(*args, cfg, how)
            found.append((np.asarray(x), np.asarray(trace["logp"])))
        (x, logp), (other, other_logp) = found
        equal = (x == other).all(1)
        off = np.abs(logp - other_logp)[equal].max(initial=0)
        yield Figure(f"sampling in float32, {name}: rows with equal tokens", int(equal.sum()), f"of {B}",
                     f"{beside}; their log-probs differ by at most {off:.1e}",
                     bool(equal.mean() >= 0.9 and off < 1e-3))  # fmt: skip


# ---- resume ----------------------------------------------------------------------------------------------------------

def resume(options):
    """a run of 4 iterations, the same again, and one of 2 that is resumed: are they equal to the bit?"""
    for dtype in sized(options, ("bfloat16",), ("bfloat16", "float32")):
        yield from attempted(f"resumed, {dtype}", resumed_in(options, dtype))


def resumed_in(options, dtype):
    """Compare a run that is resumed with one that is not, in this dtype."""
    made = functools.partial(small_run, options, model=model.ModelConfig(dtype=dtype), ratio_level="none",
                             save_interval=2)  # fmt: skip
    first, again = (trained(made(f"{name} {dtype}", max_iters=4)) for name in ("unbroken", "again"))
    half = made(f"resumed {dtype}", max_iters=2)
    trained(half)
    resumed = trained(dataclasses.replace(half, max_iters=4, resume=True))
    off, off_again = distance(resumed, first), distance(again, first)
    said = "equal to the unbroken run, bit for bit"
    if off:
        said = f"{off:.1e} of the length away from the unbroken run"
    if off_again:
        said += f"; but the unbroken run itself, a second time, is {off_again:.1e} away"
    moved = sum(row["update_norm"] for row in logged_updates(half))
    yield Figure(f"resumed, {dtype}", said, note=f"all updates together are {moved:.2g} long",
                 holds=moved > 0 and (not off or bool(off_again)))  # fmt: skip


# ---- commands --------------------------------------------------------------------------------------------------------

TINY_RUN = ["--max_iters=2", "--eval_interval=2", "--eval_size=4", "--batch_size=4"]

QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def seconds_of_command(options, recipe, folder, cache, flags, **more):
    """Run the command of a recipe, as a person types it -> seconds.

    cache: where compiled programs are kept"""
    begun = time.perf_counter()
    env = os.environ | {"XDG_CACHE_HOME": f"{options.folder}/{cache}"} | sized(options, QUICK, {}) | more
    env.pop("JAX_PLATFORMS", None)  # the device that a person gets
    command = [sys.executable, "train.py", f"config/{recipe}.py", f"--out_dir={folder}", *flags]
    subprocess.run(command, check=True, env=env)
    return time.perf_counter() - begun


def run_command(options, recipe, name, cache, flags):
    """Run the command of a recipe -> a Figure of its seconds, of each evaluation, a sample."""
    folder = f"{options.folder}/{name}"
    yield Figure(f"{name}, from the command to its end", seconds_of_command(options, recipe, folder, cache, flags), "s")
    for row in runs.read_lines(f"{folder}/metrics.jsonl"):
        if "val/greedy" in row:
            yield Figure(f"{name}, step {row['step']}, greedy", row["val/greedy"],
                         note=f"sampled {row['val/sampled']:.3f}, {row['time']:.0f} s from the first step")  # fmt: skip
    sample = runs.read_lines(f"{folder}/samples.jsonl")[-1]
    yield Figure(f"{name}, a sample", " ".join(str(sample["greedy"]).split())[:80])


FIRST_TINY = [*TINY_RUN, "--keep_completions=4", "--base.n_layer=1", "--base.d_model=16", "--base.n_head=2",
              *(f"--base.{flag[2:]}" for flag in TINY_RUN)]  # fmt: skip
SMOLLM2_TINY = [*TINY_RUN, "--init_from=data/tiny/llama", "--dataset=data/tiny/gsm8k", "--max_prompt_len=300",
                "--group_size=2", "--keep_completions=4"]  # fmt: skip


def first(options):
    """the first command of the README, sudoku's base and GRPO: with an empty cache of compiled programs, and again"""
    for name in ("cold", "warm"):
        flags = [f"--base.out_dir={options.folder}/{name}_base", *sized(options, FIRST_TINY, [])]
        yield from run_command(options, "sudoku_grpo", f"sudoku_grpo, {name}", "first", flags)


def smollm2(options):
    """config/smollm2_grpo.py to its end, on real weights"""
    yield from run_command(options, "smollm2_grpo", "smollm2_grpo", "cache", sized(options, SMOLLM2_TINY, []))


# What XLA_FLAGS may change of the search for the fastest programs, and of how many are compiled at a time.
SEARCHES = {
    "as XLA has it": "",
    "no autotuning": "--xla_gpu_autotune_level=0",
    "no products by Triton": "--xla_gpu_enable_triton_gemm=false",
    "no fusions by cuDNN": "--xla_gpu_cudnn_gemm_fusion_level=0",
    "one compiler for each core": f"--xla_gpu_force_compilation_parallelism={os.cpu_count()}",
}


def autotuning(options):
    """a few iterations of a model of 0.25M parameters and of one of 135M, from an empty cache, by flags of XLA"""
    begun = {"sudoku_grpo": ["--base.max_iters=100", "--base.stop_at=None", "--max_iters=5"],
             "smollm2_grpo": ["--max_iters=5", "--eval_size=16"]}  # fmt: skip
    tiny = {"sudoku_grpo": FIRST_TINY, "smollm2_grpo": SMOLLM2_TINY}
    for recipe, flags in sized(options, tiny, begun).items():
        for label, searched in [*SEARCHES.items()][:sized(options, 2, None)]:
            name = f"{recipe}, {label}"
            folder = f"{options.folder}/{name}"
            base = [f"--base.out_dir={folder} base"] * (recipe == "sudoku_grpo")
            asked = " ".join([*os.environ.get("XLA_FLAGS", "").split(), *searched.split()])
            seconds = seconds_of_command(options, recipe, folder, name, flags + base, XLA_FLAGS=asked)
            steps = [row["step_time"] for row in runs.read_lines(f"{folder}/metrics.jsonl") if "step_time" in row]
            yield Figure(name, seconds, "s", f"the first iteration {steps[0]:.3g} s, the fastest {min(steps):.3g}")


def sudoku9(options):
    """config/sudoku9_grpo.py with its base; then both by number of passes"""
    folder, flags = f"{options.folder}/sudoku9_grpo", sized(options, ["--model=tiny"], [])
    of_base = f"--base.out_dir={folder}_base"
    yield from run_command(options, "sudoku9_grpo", "sudoku9_grpo", "cache", [*flags, of_base])
    whose = {"base": ["--base=", f"--init_from={folder}_base", f"--out_dir={folder}_none"],
             "GRPO": [of_base, f"--out_dir={folder}"]}  # fmt: skip
    for steps in sized(options, (9,), (9, 18, 36, 81)):
        for name, more in whose.items():
            asked = ["--eval_only=True", f"--diffusion_steps={steps}", *flags, *more]
            cfg = config.load(["config/sudoku9_grpo.py", *asked])
            values = evaluated(cfg)
            yield Figure(f"sudoku9, {name}, {steps} passes, greedy", values["val/greedy"],
                         note=f"sampled {values['val/sampled']:.3f}, {cfg.eval_size} puzzles")  # fmt: skip


def evaluated(cfg):
    """Evaluate the run of a Config that has eval_only -> its metrics."""
    found, evaluate = [], evaluation.evaluate_and_log

    def noted(run, state, best):
        found.append(evaluate(run, state, best))
        return found[-1]

    with mock.patch.object(evaluation, "evaluate_and_log", noted):
        trainer.train(cfg)
    return found[-1][0]


# ---- step ------------------------------------------------------------------------------------------------------------

# 1.06B parameters; texts, tokens of each. The twin knows no grouped heads.
BILLION = dict(vocab_size=32768, mask_id=32767, eos_id=32766, n_layer=18, n_head=16, d_model=2048, d_ff=5632), 16, 1024
BILLION_TINY = dict(vocab_size=512, mask_id=511, eos_id=510, n_layer=9, n_head=2, d_model=32), 2, 32


def billion(options):
    """Return the Config of the training step that is measured."""
    shape, B, T = sized(options, BILLION_TINY, BILLION)
    shape = shared.shape(**shape, dtype="bfloat16")
    return config.Config(batch_size=B, max_prompt_len=0, max_new_tokens=T, model=shape)


def step_flops(run):
    """Count the operations that a step needs: logits of half of the tokens, those that are masked on average."""
    T = run.max_new_tokens
    return 3 * cost.pass_flops(run, run.batch_size, T / 2, T, T)


def product_rate(product, wait, n, dtype):
    """Measure matrix products of n x n numbers, 20 in a row, product() each -> their Figure."""
    def some_products():
        wait([product() for _ in range(20)])

    ((_, seconds),) = bench.in_turns({f"products of {n} x {n}": some_products}, 3)
    rate = 20 * 2 * n**3 / seconds[0] / 1e12
    return Figure(f"matmul rate, {dtype}, {n} x {n}", rate, "TFLOP/s", seconds=(*seconds,))


def step_figure(name, run, seconds, rates, note):
    """Make the Figure of a training step, of the best of some seconds in ascending order."""
    B, T, best = run.batch_size, run.max_new_tokens, seconds[0]
    n, flops = memory.n_params(run), step_flops(run)
    return Figure(f"{name}, {n / 1e9:.2g}B parameters, {B} x {T} tokens", best * 1e3, "ms",
                  f"{flops / best / 1e12:.4g} TFLOP/s, {rates.shares(flops, 0, best)}; {B * T / best:,.0f} tokens/s; "
                  f"{note}", seconds=(*seconds,))  # fmt: skip


def step(options):
    """a training step of 1B parameters in bfloat16, as a share of the measured matmul rate"""
    run = billion(options)
    rates = yield from measured_rates(options)
    one_step = bench.learner(run, random_params(run.model, "float32"))[2]  # which keeps none of these params
    begun = time.perf_counter()
    one_step()
    first = time.perf_counter() - begun
    ((_, seconds),) = bench.in_turns({"step": one_step}, sized(options, 1, 10))
    yield step_figure("jax", run, seconds, rates, f"first step in {first:.0f} s; {peak()}")


# ---- the same in torch -----------------------------------------------------------------------------------------------

class Torch(NamedTuple):
    """PyTorch, the twin of model.py in it, and the device that it computes on."""

    torch: Any
    twin: Any
    device: str

    def wait(self, _=None):
        """Return when all is computed."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def waiting(self, fn):
        """Return fn as a call that returns when its result is there."""
        return lambda: self.wait(fn())

    def peak(self):
        """Describe the most bytes that were in use on the device."""
        return f"peak {memory.amount(self.torch.cuda.max_memory_allocated())}" if self.device == "cuda" else (
            "peak not counted here")  # fmt: skip

    def random_weights(self, cfg, dtype):
        """Draw the weights of the twin on the device."""
        def draw(name, shape):
            std = 0.02 if name in ("embed", "head") else shape[-1] ** -0.5
            empty = self.torch.empty(shape, dtype=dtype, device=self.device)
            return empty.fill_(1) if name.endswith("norm") else empty.normal_(0, std)

        shapes = model.shapes(cfg)
        weights = {name: draw(name, shapes[name]) for name in ("embed", "norm")}
        weights["head"] = draw("head", shapes["head"][::-1])
        for i, layer in enumerate(shapes["blocks"]):
            weights |= {f"{name}{i}": draw(name, shape[::-1]) for name, shape in layer.items()}
        return weights

    def half(self):
        """Compute products in bfloat16 while the context lasts."""
        return self.torch.autocast(self.device, self.torch.bfloat16)


def with_torch(options):
    """Import PyTorch; stop if it is not here, or sees no GPU."""
    if not importlib.util.find_spec("torch"):
        raise RuntimeError("PyTorch is not installed, so there is nothing to compare with: pip install torch")
    import torch
    import twin
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.toy:
        raise RuntimeError("this PyTorch sees no GPU, and on a CPU the part would take hours: --tiny shows its form")
    torch.set_num_threads(sized(options, 1, bench.CORES))  # several wait for each other more than they compute
    return Torch(torch, twin, device)


def step_torch(options):
    """the same step in PyTorch, eager and by torch.compile: float32 weights, autocast, fused AdamW"""
    t, run, n = with_torch(options), billion(options), sized(options, 256, 8192)
    cfg, shape = run.model, (run.batch_size, run.max_new_tokens)
    square = t.torch.randn(n, n, dtype=t.torch.bfloat16, device=t.device)
    yield (rate := product_rate(functools.partial(t.torch.matmul, square, square), t.wait, n, "bfloat16"))
    rates = Rates(rate.value * 1e12, 0, 0, 0)
    x = t.torch.randint(0, cfg.mask_id, shape, device=t.device)
    weights = t.random_weights(cfg, t.torch.float32)
    for kind in sized(options, ("torch eager",), ("torch.compile", "torch eager")):
        yield from attempted(kind, timed_step(t, kind, weights, x, run, rates, options))


def timed_step(t, kind, weights, x, run, rates, options):
    """Time the twin's training step on tokens x."""
    begun = time.perf_counter()
    _, _, one_step = t.twin.training(weights, x, run.model, "." in kind)
    with t.half():
        t.waiting(one_step)()
        first = time.perf_counter() - begun
        ((_, seconds),) = bench.in_turns({kind: t.waiting(one_step)}, sized(options, 1, 10))
    yield step_figure(kind, run, seconds, rates, f"first step in {first:.0f} s; {t.peak()}")


# ---- sampling --------------------------------------------------------------------------------------------------------

class Sampling(NamedTuple):
    """What is filled: `new` tokens behind a prompt, in `steps` passes, all at once or in blocks."""

    cfg: model.ModelConfig
    prompt: int
    new: int
    steps: int
    block: int
    rows: tuple  # how many texts at a time

    def ways(self):
        """Return {name: Plan}."""
        blocks = dict(steps=self.steps, block_len=self.block)
        return {"plain": sampler.Plan(steps=self.steps, block_len=self.new), "blocks": shared.plan(**blocks),
                "prefix cache": shared.plan(**blocks, cache="prefix"),
                "dual cache": shared.plan(**blocks, cache="dual")}  # fmt: skip

    def jobs(self):
        """Yield (texts at a time, name, Plan); for many, which take a minute, only blocks and the quickest cache."""
        quickest = "blocks", "dual cache"
        return ((B, *way) for B in self.rows for way in self.ways().items() if B <= 8 or way[0] in quickest)

    def work(self, params, B, plan, passes):
        """Count the operations of filling B texts, and the bytes read: in each pass the weights and, with a cache, the
        keys and values of all columns."""
        m, T = self.cfg, self.prompt + self.new
        run = types.SimpleNamespace(objective="grpo", model=m, max_prompt_len=self.prompt, max_new_tokens=self.new,
                                    batch_size=B, group_size=1, rollout_chunk=None,
                                    diffusion_steps=plan.steps, block_len=plan.block_len, cache=plan.cache)
        weights = sum(x.nbytes for x in jax.tree.leaves(params)) - params["embed"].nbytes
        kept = B * T * m.n_layer * 2 * m.kv_heads * m.head_dim * 2 * (plan.cache != "none")
        return cost.rollout_flops(run), passes * (weights + kept)

    def masked(self, B):
        """Return texts (B, T) of a prompt and masks."""
        return jnp.full((B, self.prompt + self.new), self.cfg.mask_id).at[:, : self.prompt].set(7)


def sizes_of_sampling(options):
    """Return the Sampling of LLaDA-8B, with 2 tokens per pass and blocks of 32 as in d1."""
    shape = config.run_file("config/llada_gsm8k_grpo.py")["shape"]
    tiny = dict(vocab_size=512, mask_id=511, eos_id=510, n_layer=9, n_head=2, d_model=32)
    cfg = shared.shape(**sized(options, tiny, shape), dtype="bfloat16")
    return Sampling(cfg, *sized(options, (8, 16, 8, 4, (2,)), (64, 256, 128, 32, (1, 8, 32, 64))))


def program_bytes(program):
    """Count the bytes that a compiled program needs: arguments, results and temporaries."""
    used = program.memory_analysis()
    return (used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes
            - used.alias_size_in_bytes)  # fmt: skip


def sampling(options):
    """LLaDA-8B with random weights in bfloat16, 256 new tokens: one block, blocks of 32, prefix cache, dual cache"""
    s = sizes_of_sampling(options)
    rates = yield from measured_rates(options)
    params = random_params(s.cfg, "bfloat16")
    for B, name, plan in s.jobs():
        label = f"jax, {name}, {B} at a time"
        yield from attempted(label, filled(label, s, params, B, plan, rates))


def filled(label, s, params, B, plan, rates):
    """Compile the sampler for B texts, and time it: three times, or as often as half a minute allows."""
    key, z, begun = jax.random.key(0), s.masked(B), time.perf_counter()
    fill = sampler.generate.lower(params, key, z, s.cfg, plan).compile()
    compiling = time.perf_counter() - begun
    jax.block_until_ready(fill(params, key, z.at[:, :-1].set(7)))  # warm up: a single mask takes few passes
    seconds = []
    while len(seconds) < 3 and sum(seconds) < 30:
        begun = time.perf_counter()
        _, trace = jax.block_until_ready(fill(params, key, z))
        seconds.append(time.perf_counter() - begun)
    best, passes = min(seconds), int(trace["n_steps"])
    shares = rates.shares(*s.work(params, B, plan, passes), best)
    yield Figure(label, B * s.new / best, "tokens/s",
                 f"{s.prompt} + {s.new} tokens, {passes} passes, {passes / best:.3g} passes/s, "
                 f"{best / passes * 1e3:.3g} ms each; {shares}; {memory.amount(program_bytes(fill))}; "
                 f"compiled in {compiling:.0f} s", seconds=(*sorted(seconds),))  # fmt: skip


def sampling_torch(options):
    """LLaDA's own loop in PyTorch, in blocks of 32; before that its tokens beside ours, in float32"""
    t, s = with_torch(options), sizes_of_sampling(options)
    yield same_tokens(t)
    weights = t.random_weights(s.cfg, t.torch.bfloat16)
    for B in s.rows:
        x = t.torch.tensor(np.asarray(s.masked(B)), device=t.device).long()
        with t.half():
            t.wait(t.twin.llada(weights, x, s.cfg, s.prompt, 1, s.new))  # warm up, by a single pass
            begun = time.perf_counter()
            t.wait(t.twin.llada(weights, x, s.cfg, s.prompt, s.steps, s.block))
            seconds = time.perf_counter() - begun
        yield Figure(f"LLaDA's loop in torch, blocks, {B} at a time", B * s.new / seconds, "tokens/s",
                     f"{s.steps} passes, {seconds:.3g} s, {t.peak()}")  # fmt: skip


def same_tokens(t):
    """Fill masks by our sampler on the CPU and by the twin's loop on its device, both in float32 -> Figure."""
    cfg = model.ModelConfig(vocab_size=bench.V, mask_id=bench.V - 1, n_layer=2, d_model=32, n_head=2)
    params = model.init(jax.random.key(0), cfg)
    params["head"] *= 10  # probabilities far apart, so that rounding decides nothing
    z = jax.random.randint(jax.random.key(1), (8, 24), 0, bench.V - 1).at[:, 8:].set(cfg.mask_id)
    ours, _ = sampler.generate(params, jax.random.key(2), z, cfg, sampler.Plan(steps=8, block_len=8))
    weights = {name: w.to(t.device) for name, w in t.twin.tensors(params, cfg).items()}
    theirs = t.twin.llada(weights, t.torch.tensor(np.asarray(z), device=t.device).long(), cfg, 8, 8, 8)
    equal = int((theirs.cpu().numpy() == np.asarray(ours)).all(1).sum())
    return Figure("rows that both fill alike in float32", equal, "of 8", holds=equal >= 7)


# ---- iterations of recipes -------------------------------------------------------------------------------------------

def begun_run(cfg, params):
    """Make the Run and the State of a Config from these parameters, on random prompts or texts, as setup.setup does
    from folders. The reward is the length of a completion."""
    tok, text = bench.prompts_of(cfg, cfg.batch_size // config.copies(cfg))
    text = text._replace(valid=np.ones(text.tokens.shape, bool))  # as prompts with padding: it runs other programs
    key, (tx, rate) = jax.random.key(0), setup.optimizer(cfg)
    rewards = {"length": lambda completions: [float(len(c)) for c in completions]}
    noise = rl.noise(cfg)

    def iterate(policy, key, update, old_logp_of=None):
        if cfg.objective == "grpo":
            return trainer.iteration(policy, key, update, lambda step: text, rewards, cfg, tok, old_logp_of)
        return update(noise(key, text.arrays())) or {}

    loss = (functools.partial(rl.policy_loss, cfg=cfg) if cfg.objective == "grpo" else
            rl.denoising_loss(cfg))  # fmt: skip
    task = rl.Task(None, iterate, loss, None, len(text.rows), None)
    trained, base = rl.split(params, key, cfg)
    state = setup.new_state(trained, cfg, tx)
    gradient = jax.jit(rl.make_gradient(loss, cfg)) if config.old_logp_by_gradient(cfg) else None
    update = rl.make_update(loss, tx, cfg, gradient)
    return setup.Run(cfg, tok, task, base, update, gradient, rate, key, None), state


def iterations(name, cfg, params, n):
    """Run n iterations of a Config from these parameters -> a Figure of each, by stage; the first one compiles."""
    spent = []  # seconds that XLA compiled
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: spent.append(seconds) if event.endswith("backend_compile_duration") else None)
    run, state = begun_run(cfg, params)
    del params
    operations = sum(cost.estimate_flops(cfg).values())
    for i in range(n):
        spent.clear()
        begun = time.perf_counter()
        state, updates, notes = trainer.advance(run, state)
        jax.block_until_ready((state.params, updates))
        seconds = time.perf_counter() - begun
        stages = {key.removeprefix("time/"): notes[key] for key in notes if key.startswith("time/")}
        stages["updates"] = seconds - sum(stages.values())
        compiling = sum(spent)
        listed = ", ".join(f"{stage} {s:.3g}" for stage, s in stages.items())
        yield Figure(f"{name}, iteration {i + 1}", (alone := seconds - compiling), "s",
                     f"{listed}, with {compiling:.3g} to compile, left out of the sum; "
                     f"{operations / alone / 1e12:.3g} TFLOP/s; {peak()}")  # fmt: skip


def llada_config(options):
    """Return config/llada_gsm8k_grpo.py with all its settings: 16 prompts, 6 completions, 12 updates."""
    flags = []
    if options.toy:
        flags += ["--batch_size=2", "--gradient_accumulation_steps=2", "--max_prompt_len=8", "--max_new_tokens=8",
                  "--block_len=4", "--diffusion_steps=4", "--lora.rank=2",
                  "--updates_per_rollout=2"]  # fmt: skip
    cfg = config.load(["config/llada_gsm8k_grpo.py", *flags], for_plan=True)
    tiny = dict(vocab_size=512, mask_id=511, eos_id=510, pad_id=510, n_layer=9, n_head=2, d_model=32, d_ff=None)
    shape = shared.changed(cfg.model, **sized(options, tiny, {}))
    return dataclasses.replace(cfg, model=shape, rewards=("length",), reward_weights=())


def iteration(options):
    """an iteration of config/llada_gsm8k_grpo.py as d1 has it, with LoRA and random weights: seconds by stage"""
    cfg = llada_config(options)
    parts, flops = memory.estimate_bytes(cfg, 1), cost.estimate_flops(cfg)
    yield Figure("llada_gsm8k_grpo, estimated", sum(parts.values()) / 1e9, "GB",
                 f"at least {sum(flops.values()) / SHEET['H100']:.3g} s on an H100 ({cost.stage_flops(cfg)})")
    for figure in iterations("llada_gsm8k_grpo", cfg, random_params(cfg.model, cfg.model.dtype), 2):
        yield figure  # at once: the second one may be cut at the limit
        hours = figure.value * 7700 / cfg.updates_per_rollout / 3600
    yield Figure("llada_gsm8k_grpo, 7,700 updates at this speed", hours, "hours", f"beside {D1_DAYS}")


# ---- all parts -------------------------------------------------------------------------------------------------------

BESIDE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
TORCH = {"JAX_PLATFORMS": "cpu", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # PyTorch has the card
NO_JAX = {"JAX_PLATFORMS": "cpu"}  # the command that it runs has the card
# What each process runs, its environment, and the most seconds that it gets.
PARTS = {
    "numbers": (numbers, BESIDE, 300), "ratios": (ratios, BESIDE, 300), "resume": (resume, BESIDE, 300),
    "first": (first, NO_JAX, 300), "step": (step, {}, 120), "sampling": (sampling, {}, 600),
    "iteration": (iteration, {}, 600), "smollm2": (smollm2, NO_JAX, 600), "sudoku9": (sudoku9, BESIDE, 600),
    "autotuning": (autotuning, NO_JAX, 600),
    "step_torch": (step_torch, TORCH, 120), "sampling_torch": (sampling_torch, TORCH, 120),
}  # fmt: skip
TOGETHER = "numbers", "ratios", "resume"


def read_report(path):
    """Read the JSON of all parts so far."""
    with open(path) as file:
        return json.load(file)


def note_down(path, part, figure=None, **facts):
    """Add a figure or facts of a part to the JSON, which is whole at any moment. Parts side by side take turns."""
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = read_report(path)
        about = report["parts"].setdefault(part, {"figures": []})
        about |= facts
        about["figures"] += [figure._asdict()] if figure else []
        with open(f"{path}.new", "w") as file:
            json.dump(report, file, indent=1)
        os.replace(f"{path}.new", path)


def tell(options, figure):
    """Print a figure, and write it into the JSON."""
    note_down(options.json, options.part, figure)
    print(f"{options.part}: {figure.name}: {tables.shown(figure._asdict())}" + f" ({figure.note})" * bool(figure.note))


def die_with_parent():
    """Ask Linux to kill this process when the one that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def begin(name, options, folder):
    """Start the process of a part."""
    (run, more, _), folder = PARTS[name], os.path.join(folder, name)
    os.makedirs(folder)
    print(f"\n== {name}: {run.__doc__}", flush=True)
    command = [sys.executable, __file__, name, "--json", options.json, "--folder", folder, *["--tiny"] * options.toy]
    env = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"} | os.environ | more

    return subprocess.Popen(command, env=env, process_group=0, preexec_fn=die_with_parent)


def kill(process):
    """Kill the process of a part with all that it started, if it has not ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_parts(names, limit, options, folder):
    """Run parts side by side for at most so many seconds; yield each one's name, how it ended, and its seconds."""
    begun, running = time.monotonic(), {}
    try:
        for name in names:
            running[name] = begin(name, options, folder)
        while running:
            time.sleep(0.05)
            seconds = time.monotonic() - begun
            for name, process in [*running.items()]:
                code = process.poll()
                if code is not None or seconds > limit:
                    kill(running.pop(name))
                    ended = {None: f"cut at its limit of {limit:.0f} s", 0: "whole", 1: "failed"}
                    yield name, ended.get(code, f"killed by signal {-(code or 0)}"), seconds
    finally:
        for process in running.values():
            kill(process)


def card():
    """Ask the driver for the name of the first card and its own version -> text; empty if there is none."""
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip().split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return ""


def report_file(options):
    """Return the path of the JSON: the one that was asked for, or one of this card and day."""
    if options.json or options.toy:
        return options.json or "out/gpu.json"
    name = re.sub(r"\W+", "-", card().partition(",")[0].lower())
    return f"docs/results/gpu/{name}-{time.strftime('%Y-%m-%d')}.json"


def main(options):
    """Run the parts that were asked for, or all; print the table of their figures."""
    asked = options.tasks.split(",") if options.tasks else [*PARTS]
    if strange := [name for name in asked if name not in PARTS]:
        raise ValueError(f"--tasks={options.tasks}: there is no {strange[0]!r}, there are {', '.join(PARTS)}")
    if not (options.toy or card()):
        raise ValueError("nvidia-smi shows no GPU here, and on a CPU these parts would take hours; --tiny shows their "
                         "form")  # fmt: skip
    options.json = report_file(options)
    os.makedirs(os.path.dirname(options.json) or ".", exist_ok=True)
    others = read_report(options.json)["parts"] if os.path.exists(options.json) and not options.toy else {}
    with open(options.json, "w") as file:
        parts = {name: part for name, part in others.items() if name not in asked}
        json.dump({"tiny": options.toy, "parts": parts}, file, indent=1)
    bench.machine("jax", "jaxlib", "numpy", "torch")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for names in (TOGETHER, *((name,) for name in PARTS if name not in TOGETHER)):
            names = [name for name in names if name in asked]
            limit = max((PARTS[name][2] for name in names), default=0) * sized(options, 5, 1)  # a slow CPU may be slow
            for name, how, after in run_parts(names, limit, options, folder):
                note_down(options.json, name, ended=how, seconds=round(after, 1))
                print(f"== {name}: {how}, {after:.0f} s", flush=True)
    os.remove(f"{options.json}.lock")
    print_table(options, time.monotonic() - begun)


def print_table(options, seconds):
    """Print every figure of every part."""
    rows = []
    for name, part in read_report(options.json)["parts"].items():
        facts = [part[f] for f in ("ended", "error", "device", "date") if f in part]
        facts += ["beside others"] * (name in TOGETHER)
        rows.append([f"**{name}**", f"{part['seconds']:.0f} s", "; ".join(facts)])
        rows += [[figure["name"], tables.shown(figure), tables.note_of(figure)] for figure in part["figures"]]
    print(f"\n{seconds:.0f} s in all" + ", --tiny: this shows only the form" * options.toy + "\n")
    bench.table(["", "value", "note"], [row[0] for row in rows], rows)
    print(f"\n{options.json} has the same")


def facts():
    """Describe what a part is measured with: card and driver, versions, date, commit."""
    there = ("jax", "jaxlib", "torch") if importlib.util.find_spec("torch") else ("jax", "jaxlib")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in there)
    git = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {"device": card() or "a CPU", "versions": versions, "date": time.strftime("%Y-%m-%d %H:%M"),
            "commit": git.stdout.strip()}  # fmt: skip


def run_one():
    """Run one part, in the process that `main` started for it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--json")
    parser.add_argument("--folder")
    parser.add_argument("--tiny", action="store_true", dest="toy")
    options = parser.parse_args()
    run, env, _ = PARTS[options.part]
    if options.toy:
        jax.config.update("jax_disable_most_optimizations", True)
    runs.prepare_process()
    try:
        if not (options.toy or on_gpu() or "JAX_PLATFORMS" in env):
            raise RuntimeError("JAX sees no GPU here, and on a CPU this part would take hours; --tiny shows its form")
        note_down(options.json, options.part, **facts())
        for figure in run(options):
            tell(options, figure)
    except Exception as e:
        traceback.print_exc()
        note_down(options.json, options.part, error=first_line(e))
        raise SystemExit(1) from None


if __name__ == "__main__":
    run_one()
