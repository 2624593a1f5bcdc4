"""
What a GPU makes of this code, in one call of about ten minutes:  python tests/bench.py gpu

Each part is a process of its own with a time limit. So one that hangs, crashes or runs out of memory leaves the others
whole. Compiling takes most of the time. So the parts that measure no speed run side by side, together with a first go
of the largest programs, whose compiled form the cache keeps. The parts that measure speed then run alone. Every figure
is printed and written into one JSON at once; the table of all comes last. --tiny makes all of it small.
"""
import argparse
import ctypes
import dataclasses
import fcntl
import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any, NamedTuple
from unittest import mock

import bench
import cost
import jax
import jax.numpy as jnp
import numpy as np
import shared

import config
import data
import model
import rl
import sample as sampler
import train as trainer
from checkpoints import huggingface
from loop import memory, runs, setup, start
from system import cudnn, kernels

H100_FLOPS = 989e12  # per second, dense products in bfloat16: NVIDIA's data sheet


class Figure(NamedTuple):
    """One measurement."""

    name: str
    value: Any  # a number, or a few words
    unit: str = ""
    note: str = ""
    holds: bool | None = None  # False if the value is not what it should be; None: there is nothing that it should be


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
        shape = start.with_ids(shared.shape(**size), tok)
        huggingface.save(base, model.init(jax.random.key(0), shape), shape)
        tok.save(base)
    fixed = dict(logp_est="trace", ratio_level="token", adv_negative=1.0)
    fixed |= dict(objective="grpo", init_from=base, out_dir=f"{options.folder}/{name}", max_prompt_len=3,
                 max_new_tokens=4, batch_size=4, group_size=4, updates_per_rollout=2, diffusion_steps=4, eval_size=4,
                 **{"evaluation.samples": 1}, eval_interval=1000, log_interval=1, **{"runs.log_samples": 0},
                 warmup_iters=0,
                 lr_schedule="constant", learning_rate=1e-3)  # fmt: skip
    return shared.run(**fixed | changes)


def trained(cfg):
    """Run a small run -> its last State as a list of arrays."""
    with mock.patch.object(setup, "evaluate_and_log", lambda run, state, best: ({}, best)):
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


# ---- learn -----------------------------------------------------------------------------------------------------------

def learn(options):
    """the first command of the README, the sudoku base and GRPO: their curves and seconds"""
    small = sized(options, dict(max_iters=2, eval_interval=2, eval_size=4, **{"texts.limit": 64}, batch_size=4), {})
    of_grpo = small | dict(rollout_chunk=None) | sized(options, dict(keep_completions=4), {})
    begun, evaluate, name = time.perf_counter(), setup.evaluate_and_log, ""

    def noted(run, state, best):
        """Evaluate as the run does, and tell the point of the curve."""
        values, best = evaluate(run, state, best)
        note = f"sampled {values['val/sampled']:.3f}, {time.perf_counter() - begun:.0f} s from the beginning"
        tell(options, Figure(f"{name}, step {state.step}, greedy", values["val/greedy"], note=note))
        return values, best

    for name, changes in {"sudoku_base": small, "sudoku_grpo": of_grpo}.items():
        cfg = config.read_file(f"config/{name}.py")
        shape = shared.changed(cfg.model, **sized(options, dict(n_layer=1, d_model=16, n_head=2), {}))
        start_from = cfg.init_from and f"{options.folder}/sudoku_base"
        cfg = shared.changed(cfg, out_dir=f"{options.folder}/{name}", model=shape, init_from=start_from, **changes)
        with mock.patch.object(setup, "evaluate_and_log", noted):
            state, _ = trainer.train(cfg)
        yield Figure(f"{name}, seconds from the beginning", time.perf_counter() - begun, "s", f"{state.step} steps")


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
    return Figure(f"matmul rate, {dtype}, {n} x {n}", 20 * 2 * n**3 / seconds[0] / 1e12, "TFLOP/s")


def step_figure(name, run, seconds, rate, note):
    """Make the Figure of a training step, of the best of some seconds."""
    B, T, best = run.batch_size, run.max_new_tokens, min(seconds)
    n, flops = memory.n_params(run), step_flops(run)
    return Figure(f"{name}, {n / 1e9:.2g}B parameters, {B} x {T} tokens", best * 1e3, "ms",
                  f"{flops / best / 1e12:.4g} TFLOP/s, {flops / best / rate / 1e12:.0%} of the matmul rate; "
                  f"{B * T / best:,.0f} tokens/s; {note}")  # fmt: skip


def step(options):
    """a training step of 1B parameters in bfloat16, as a share of the measured matmul rate"""
    run, n = billion(options), sized(options, 256, 8192)
    square = jax.random.normal(jax.random.key(0), (n, n), jnp.bfloat16)
    yield (rate := product_rate(functools.partial(jax.jit(jnp.matmul), square, square), jax.block_until_ready, n,
                                "bfloat16"))  # fmt: skip
    one_step = bench.learner(run, random_params(run.model, "float32"))[2]  # which keeps none of these params
    begun = time.perf_counter()
    one_step()
    first = time.perf_counter() - begun
    ((_, seconds),) = bench.in_turns({"step": one_step}, sized(options, 1, 10))
    yield step_figure("jax", run, seconds, rate.value, f"first step in {first:.0f} s; {peak()}")


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
    x = t.torch.randint(0, cfg.mask_id, shape, device=t.device)
    weights = t.random_weights(cfg, t.torch.float32)
    for kind in sized(options, ("torch eager",), ("torch.compile", "torch eager")):
        yield from attempted(kind, timed_step(t, kind, weights, x, run, rate.value, options))


def timed_step(t, kind, weights, x, run, rate, options):
    """Time the twin's training step on tokens x; rate: of matrix products, in TFLOP/s."""
    begun = time.perf_counter()
    _, _, one_step = t.twin.training(weights, x, run.model, "." in kind)
    with t.half():
        t.waiting(one_step)()
        first = time.perf_counter() - begun
        ((_, seconds),) = bench.in_turns({kind: t.waiting(one_step)}, sized(options, 1, 10))
    yield step_figure(kind, run, seconds, rate, f"first step in {first:.0f} s; {t.peak()}")


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
        """Yield (texts at a time, name, Plan)."""
        return ((B, *way) for B in self.rows for way in self.ways().items())

    def masked(self, B):
        """Return texts (B, T) of a prompt and masks."""
        return jnp.full((B, self.prompt + self.new), self.cfg.mask_id).at[:, : self.prompt].set(7)


def sizes_of_sampling(options):
    """Return the Sampling of LLaDA-8B, with 2 tokens per pass and blocks of 32 as in d1."""
    shape = config.run_file("config/llada_gsm8k_grpo.py")["shape"]
    tiny = dict(vocab_size=512, mask_id=511, eos_id=510, n_layer=9, n_head=2, d_model=32)
    cfg = shared.shape(**sized(options, tiny, shape), dtype="bfloat16")
    return Sampling(cfg, *sized(options, (8, 16, 8, 4, (2,)), (64, 256, 128, 32, (1, 8))))


def program_bytes(program):
    """Count the bytes that a compiled program needs: arguments, results and temporaries."""
    used = program.memory_analysis()
    return (used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes
            - used.alias_size_in_bytes)  # fmt: skip


def sampling(options):
    """LLaDA-8B with random weights in bfloat16, 256 new tokens: one block, blocks of 32, prefix cache, dual cache"""
    s = sizes_of_sampling(options)
    params = random_params(s.cfg, "bfloat16")
    for B, name, plan in s.jobs():
        label = f"jax, {name}, {B} at a time"
        yield from attempted(label, filled(label, s, params, B, plan))


def filled(label, s, params, B, plan):
    """Compile the sampler for B texts, and time it."""
    key, z, begun = jax.random.key(0), s.masked(B), time.perf_counter()
    fill = sampler.generate.lower(params, key, z, s.cfg, plan).compile()
    compiling = time.perf_counter() - begun
    jax.block_until_ready(fill(params, key, z.at[:, :-1].set(7)))  # warm up: a single mask takes few passes
    begun = time.perf_counter()
    _, trace = jax.block_until_ready(fill(params, key, z))
    seconds = time.perf_counter() - begun
    yield Figure(label, B * s.new / seconds, "tokens/s",
                 f"{int(trace['n_steps'])} passes, {seconds:.3g} s, {memory.amount(program_bytes(fill))}; compiled in "
                 f"{compiling:.0f} s")  # fmt: skip


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
    run, state = begun_run(cfg, params)
    del params
    operations = sum(cost.estimate_flops(cfg).values())
    for i in range(n):
        begun = time.perf_counter()
        state, updates, notes = trainer.advance(run, state)
        jax.block_until_ready((state.params, updates))
        seconds = time.perf_counter() - begun
        stages = {key.removeprefix("time/"): notes[key] for key in notes if key.startswith("time/")}
        stages["updates"] = seconds - sum(stages.values())
        listed = ", ".join(f"{stage} {s:.3g}" for stage, s in stages.items())
        yield Figure(f"{name}, iteration {i + 1}" + ", compiles" * (not i), seconds, "s",
                     f"{listed}; {operations / seconds / 1e12:.3g} TFLOP/s; {peak()}")  # fmt: skip


def llada_config(options):
    """Return config/llada_gsm8k_grpo.py with all its settings but the number of prompts: one, with its 6 completions,
    which are one micro-batch of the recipe."""
    flags = ["--batch_size=1", "--gradient_accumulation_steps=1"]
    if options.toy:
        flags += ["--max_prompt_len=8", "--max_new_tokens=8", "--block_len=4", "--diffusion_steps=4", "--lora.rank=2",
                  "--updates_per_rollout=2"]  # fmt: skip
    cfg = config.load(["config/llada_gsm8k_grpo.py", *flags], for_plan=True)
    tiny = dict(vocab_size=512, mask_id=511, eos_id=510, pad_id=510, n_layer=9, n_head=2, d_model=32, d_ff=None)
    shape = shared.changed(cfg.model, **sized(options, tiny, {}))
    return dataclasses.replace(cfg, model=shape, rewards=("length",), reward_weights=())


def iteration(options):
    """an iteration of config/llada_gsm8k_grpo.py with LoRA: one prompt, random weights; seconds by stage, memory"""
    cfg = llada_config(options)
    parts, flops = memory.estimate_bytes(cfg, 1), cost.estimate_flops(cfg)
    yield Figure("llada_gsm8k_grpo, estimated", sum(parts.values()) / 1e9, "GB",
                 f"at least {sum(flops.values()) / H100_FLOPS:.3g} s on an H100 "
                 f"({cost.stage_flops(cfg)})")  # fmt: skip
    yield from iterations("llada_gsm8k_grpo", cfg, random_params(cfg.model, cfg.model.dtype), 2)


# ---- all parts -------------------------------------------------------------------------------------------------------

BESIDE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
LARGE = BESIDE | {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}  # frees memory at once
TORCH = {"JAX_PLATFORMS": "cpu", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # PyTorch has the card
# What each process runs, and its environment.
PARTS = {
    "numbers": (numbers, BESIDE), "ratios": (ratios, BESIDE), "resume": (resume, BESIDE), "learn": (learn, BESIDE),
    "sampling_first": (sampling, LARGE), "iteration_first": (iteration, LARGE),
    "step": (step, {}), "sampling": (sampling, {}), "iteration": (iteration, {}), "step_torch": (step_torch, TORCH),
    "sampling_torch": (sampling_torch, TORCH),
}  # fmt: skip
TOGETHER = [*PARTS][:6]
# The seconds of what runs side by side, and of what runs alone.
PHASES = ((TOGETHER, 300), (["step"], 70), (["sampling"], 60), (["iteration"], 70), (["step_torch"], 60),
          (["sampling_torch"], 40))  # fmt: skip


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


def shown(figure):
    """Format the value of a Figure, given as a dict."""
    value = figure["value"]
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{text} {figure['unit']}".strip() + {False: ", WRONG", None: ""}.get(figure["holds"], ", as it should be")


def tell(options, figure):
    """Print a figure, and write it into the JSON."""
    note_down(options.json, options.part, figure)
    print(f"{options.part}: {figure.name}: {shown(figure._asdict())}" + f" ({figure.note})" * bool(figure.note))


def die_with_parent():
    """Ask Linux to kill this process when the one that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def begin(name, options, folder):
    """Start the process of a part."""
    (run, more), folder = PARTS[name], os.path.join(folder, name)
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


def main(options):
    """Run all parts, phase by phase; print the table of all figures."""
    there = dict.fromkeys(run.__name__ for run, _ in PARTS.values())
    asked = options.tasks.split(",") if options.tasks else there
    if strange := [name for name in asked if name not in there]:
        raise ValueError(f"--tasks={options.tasks}: there is no {strange[0]!r}, there are {', '.join(there)}")
    os.makedirs(os.path.dirname(options.json) or ".", exist_ok=True)
    with open(options.json, "w") as file:
        json.dump({"tiny": options.toy, "parts": {}}, file)
    bench.machine("jax", "jaxlib", "numpy", "torch")
    begun, allowed = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        for names, seconds in PHASES:
            names = [name for name in names if PARTS[name][0].__name__ in asked]
            if options.toy:  # whose compiled programs no later part needs
                names = [name for name in names if not name.endswith("_first")]
            # A phase may also take what those before it left. With --tiny, a slow CPU is no reason to stop.
            allowed += seconds * sized(options, 5, 1) * bool(names)
            limit = begun + allowed - time.monotonic()
            for name, how, after in run_parts(names, limit, options, folder):
                note_down(options.json, name, ended=how, seconds=round(after, 1))
                print(f"== {name}: {how}, {after:.0f} s", flush=True)
    os.remove(f"{options.json}.lock")
    print_table(options, time.monotonic() - begun)


def print_table(options, seconds):
    """Print every figure of every part."""
    rows = []
    for name, part in read_report(options.json)["parts"].items():
        facts = [part[f] for f in ("ended", "error", "device") if f in part] + ["beside others"] * (name in TOGETHER)
        rows.append([f"**{name}**", f"{part['seconds']:.0f} s", "; ".join(facts)])
        rows += [[figure["name"], shown(figure), figure["note"]] for figure in part["figures"]]
    print(f"\n{seconds:.0f} s in all" + ", --tiny: this shows only the form" * options.toy + "\n")
    bench.table(["", "value", "note"], [row[0] for row in rows], rows)
    print(f"\n{options.json} has the same")


def describe_device(part):
    """Name the device that a part computes on."""
    if PARTS[part][1] is TORCH:
        if not importlib.util.find_spec("torch"):
            return "no PyTorch"
        import torch
        return torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    return f"{jax.devices()[0].device_kind} of {memory.amount(memory.device_memory())}, jax {jax.__version__}"


def run_one():
    """Run one part, in the process that `main` started for it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--json")
    parser.add_argument("--folder")
    parser.add_argument("--tiny", action="store_true", dest="toy")
    options = parser.parse_args()
    run, env = PARTS[options.part]
    if options.toy:
        jax.config.update("jax_disable_most_optimizations", True)
    runs.prepare_process()
    try:
        if not (options.toy or on_gpu() or env is TORCH):
            raise RuntimeError("JAX sees no GPU here, and on a CPU this part would take hours; --tiny shows its form")
        note_down(options.json, options.part, device=describe_device(options.part))
        for figure in run(options):
            tell(options, figure)
    except Exception as e:
        traceback.print_exc()
        note_down(options.json, options.part, error=first_line(e))
        raise SystemExit(1) from None


if __name__ == "__main__":
    run_one()
