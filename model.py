"""
A transformer, all of it in this file, in plain JAX: params are a nested dict, every function is pure.

One Llama-family block serves denoisers (bidirectional, with a mask token), judges (a head of width 1) and
autoregressive models (`causal`). LLaDA, Dream, Llama, Qwen2, Qwen3 and Gemma 2 are this network with other switches and
under other tensor names (FAMILIES, below).

Shape letters used in the whole repository:
  B batch   T sequence   D width   H heads   K head width   F mlp width   L layers   V vocabulary   N prompts   G group
"""
import dataclasses
import functools
import json
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

UNROLLED = 8  # a model of at most so many blocks has them compiled one by one
BANNED = -1e30  # the logit of what must never be chosen: finite, so that 0 * log p stays 0 in an entropy


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    vocab_size: int = 259  # V: every id there is, mask, padding and end of text included
    n_layer: int = 4  # L, blocks
    n_head: int = 4  # H, attention heads
    n_kv_head: int | None = None  # heads of keys and values (grouped-query attention); None: as many as n_head
    d_model: int = 128  # D, the width
    d_head: int | None = None  # K, the width of a head; None: d_model / n_head
    d_ff: int | None = None  # F, the width inside the mlp; None: 8/3 of d_model, rounded up to a multiple of 32
    causal: bool = False  # True: an autoregressive model, each position sees only what is left of it
    shift: bool = False  # True: position i-1 predicts token i (Dream, and every autoregressive model)
    qkv_bias: bool = False  # queries, keys and values have biases (Dream, Qwen2)
    qk_norm: bool = False  # queries and keys are normalised (Qwen3)
    gemma: bool = False  # norms also after attention and mlp, gains of 1 + w, GELU, embeddings times sqrt(D) (Gemma 2)
    window: int | None = None  # blocks 0, 2, 4, ... see only tokens less than this far away (Gemma 2)
    query_scale: int | None = None  # queries are divided by its root; None: by that of the width of a head
    attn_cap: float | None = None  # attention scores s become cap * tanh(s / cap) (Gemma 2)
    logit_cap: float | None = None  # and so do logits (Gemma 2)
    tie_embeddings: bool = False  # one matrix reads tokens in and logits out
    rope_theta: float = 10000.0  # the longest wavelength of the rotary positions, over 2 pi
    rope_scaling: tuple[float, ...] | None = None  # factor, low and high frequency factor, trained length (Llama 3.1)
    norm_eps: float = 1e-5  # added to the mean square before its root is taken
    dtype: str = "float32"  # of the matmuls; params, norms, softmax and logits stay float32
    remat: bool = False  # recompute the blocks in the backward pass: less memory, a third more time
    mask_id: int | None = None  # the special ids; a data set's tokenizer sets them
    eos_id: int | None = None  # ends a text
    pad_id: int | None = None  # fills a prompt on its left
    bos_id: int | None = None  # begins a text, in models that have it

    def __post_init__(self):
        for f in dataclasses.fields(self):
            kind = tuple | None if f.name == "rope_scaling" else f.type  # isinstance knows no tuple[float]
            kind = kind | int if isinstance(0.0, kind) else kind  # 256 is a number like 256.0
            if not isinstance(getattr(self, f.name), kind):
                raise ValueError(f"{f.name}={getattr(self, f.name)!r}: expected {getattr(f.type, '__name__', f.type)}")
        for name in ("vocab_size", "n_layer", "n_head", "d_model", "d_head", "d_ff", "window"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.d_head is None and self.d_model % self.n_head:
            raise ValueError(f"d_model={self.d_model} must be divisible by n_head={self.n_head} (or set d_head)")
        if self.n_kv_head is not None and (self.n_kv_head < 1 or self.n_head % self.n_kv_head):
            raise ValueError(f"n_head={self.n_head} must be divisible by n_kv_head={self.n_kv_head}")
        if self.head_dim % 2:
            raise ValueError(f"a head has {self.head_dim} columns, but rotary positions turn pairs: make it even")
        if self.rope_scaling is not None:
            numbers = all(type(x) in (int, float) and x > 0 for x in self.rope_scaling)
            if len(self.rope_scaling) != 4 or not numbers or self.rope_scaling[1] >= self.rope_scaling[2]:
                raise ValueError(f"rope_scaling={self.rope_scaling}: expected four numbers above 0, as in 8,1,4,8192: "
                                 "factor, low_freq_factor < high_freq_factor, original_max_position_embeddings")
        if self.causal and not self.shift:
            raise ValueError("causal=True needs shift=True: a position that sees its own token cannot predict it")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype={self.dtype!r}: one of float32, bfloat16")
        for name in ("mask_id", "eos_id", "pad_id", "bos_id"):
            # A causal model never reads a hole, so an id beyond its vocabulary can stand for one: all others are text.
            size = self.vocab_size + (self.causal and name == "mask_id")
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < size:
                raise ValueError(f"{name}={getattr(self, name)} is outside the vocabulary of {self.vocab_size} ids")
        if self.mask_id is not None and self.mask_id in (self.eos_id, self.pad_id, self.bos_id):
            raise ValueError(f"mask_id={self.mask_id}, eos_id={self.eos_id}, pad_id={self.pad_id}, "
                             f"bos_id={self.bos_id}: a hole must look like none of the tokens that can be there")

    @property
    def kv_heads(self):
        return self.n_kv_head or self.n_head

    @property
    def head_dim(self):
        return self.d_head or self.d_model // self.n_head

    @property
    def ff(self):
        return self.d_ff or -(-8 * self.d_model // 96) * 32


def shapes(cfg, n_out=None):
    """The params as a table of shapes: {name: shape}, "blocks" with a leading L axis. n_out None: the vocabulary."""
    L, D, F, V = cfg.n_layer, cfg.d_model, cfg.ff, cfg.vocab_size
    Q, KV = cfg.n_head * cfg.head_dim, cfg.kv_heads * cfg.head_dim
    blocks = {
        "attn_norm": (L, D), "q": (L, D, Q), "k": (L, D, KV), "v": (L, D, KV), "o": (L, Q, D),
        "mlp_norm": (L, D), "gate": (L, D, F), "up": (L, D, F), "down": (L, F, D)}  # fmt: skip
    if cfg.qkv_bias:
        blocks |= {"q_bias": (L, Q), "k_bias": (L, KV), "v_bias": (L, KV)}
    if cfg.qk_norm:
        blocks |= {"q_norm": (L, cfg.head_dim), "k_norm": (L, cfg.head_dim)}
    if cfg.gemma:
        blocks |= {"attn_out_norm": (L, D), "mlp_out_norm": (L, D)}
    head = {} if cfg.tie_embeddings and n_out is None else {"head": (D, n_out or V)}
    return {"embed": (V, D), "blocks": blocks, "norm": (D,)} | head


def init(key, cfg, n_out=None):
    """key -> params of the trunk and of a linear head to n_out (None: the vocabulary; 1: a judge)."""

    def leaf(path, shape):
        name = path[-1].key
        if name.endswith("norm"):
            return jnp.full(shape, 0.0 if cfg.gemma else 1.0)
        if name.endswith("bias"):
            return jnp.zeros(shape)
        # Embeddings of 0.5: at 0.02 sudoku had 43% instead of 54% after 800 steps. A head near zero: a uniform start.
        std = {"embed": 0.02 if cfg.tie_embeddings else 0.5, "head": 0.02}.get(name, shape[-2] ** -0.5)
        if name in ("o", "down"):
            std *= (2 * cfg.n_layer) ** -0.5  # GPT-2: what is added to the residual stream, scaled by its depth
        k_leaf = jax.random.fold_in(key, sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**31)
        return std * jax.random.normal(k_leaf, shape)

    return jax.tree_util.tree_map_with_path(leaf, shapes(cfg, n_out), is_leaf=lambda x: isinstance(x, tuple))


def dense(x, w, dtype=None):
    """x (..., I), w (I, O) -> (..., O), as one matrix product: the CPU gradient of a (B, T, I) one is 1/3 slower."""
    y = jnp.matmul(x.reshape(-1, x.shape[-1]), w, preferred_element_type=dtype)
    return y.reshape(*x.shape[:-1], w.shape[-1])


def linear(x, w, name):
    """x (..., I) times the matrix of that name, and times the adapters A (I, r), B (r, O) beside it -> (..., O)."""
    y = dense(x, w[name])
    return y + dense(dense(x, w[name + "_a"]), w[name + "_b"]) if name + "_a" in w else y


def rms_norm(x, gain, eps):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + eps)).astype(x.dtype) * gain


def rotary(positions, cfg):
    """positions (B or 1, T) -> cos, sin (B or 1, T, 1, K/2) float32."""
    frequency = cfg.rope_theta ** (-jnp.arange(0, cfg.head_dim, 2) / cfg.head_dim)
    if cfg.rope_scaling is not None:  # slow turns become `factor` times slower, fast ones stay, linear in between
        factor, low, high, length = cfg.rope_scaling
        stay = jnp.clip((length * frequency / (2 * jnp.pi) - low) / (high - low), 0, 1)
        frequency = frequency * (stay + (1 - stay) / factor)
    angle = positions[:, :, None, None] * frequency
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x, cos, sin):
    """The half-split form: column i turns with column i + K/2 (GPT-NeoX; GGUF files interleave instead)."""
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def attention(q, k, v, mask, scale=None, cap=None):
    """q (B, S, H, K), k and v (B, T, KV, K), mask (B or 1, 1, 1, S or 1, T) or None -> (B, S, H*K)."""
    B, S, H, K = q.shape
    T, KV = k.shape[1:3]
    # One batch axis of B*KV, the heads that share a key as rows, and the division after the product with v: 6 ms where
    # einsum over "bthk" takes 43 (B 32, T 160, D 256, 2 cores), and on a GPU the same three kernels.
    q = q.reshape(B, S, KV, H // KV, K).transpose(0, 2, 3, 1, 4).reshape(B * KV, H // KV * S, K)
    k, v = (x.transpose(0, 2, 1, 3).reshape(B * KV, T, K) for x in (k, v))
    s = jnp.einsum("btk,bsk->bts", q, k, preferred_element_type=jnp.float32)  # (B*KV, H/KV*S, T)
    s = soft_cap(s * (scale or K) ** -0.5, cap)
    if mask is not None:
        s = jnp.where(mask, s.reshape(B, KV, H // KV, S, T), BANNED).reshape(s.shape)
    p = jnp.exp(s - jax.lax.stop_gradient(s.max(-1, keepdims=True)))
    out = jnp.einsum("bts,bsk->btk", p.astype(v.dtype), v, preferred_element_type=jnp.float32)
    out = (out / p.sum(-1, keepdims=True)).astype(v.dtype)
    return out.reshape(B, KV, H // KV, S, K).transpose(0, 3, 1, 2, 4).reshape(B, S, H * K)


def soft_cap(x, cap):
    """x -> x squeezed between -cap and cap; None: x."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def block(x, w, cfg, cos, sin, mask, cache=None, place=None, window=None):
    """x (B, S, D), w the weights of one layer, a cache of keys and values and where in it this block's are from the
    first of x on -> (B, S, D), the cache with those of x. window, a start and a length: only of these columns of x."""
    cut = lambda a: a if window is None else columns(a, *window)
    h = rms_norm(x, w["attn_norm"], cfg.norm_eps)
    q, k, v = (linear(cut(h) if n == "q" else h, w, n) + (w[n + "_bias"] if cfg.qkv_bias else 0) for n in "qkv")
    q, k, v = (a.reshape(*a.shape[:2], -1, cfg.head_dim) for a in (q, k, v))  # (B, S, H or KV, K)
    if cfg.qk_norm:
        q, k = rms_norm(q, w["q_norm"], cfg.norm_eps), rms_norm(k, w["k_norm"], cfg.norm_eps)
    q, k = rotate(q, cut(cos), cut(sin)), rotate(k, cos, sin)
    if cache is not None:
        layer, column = place
        cache = [jax.lax.dynamic_update_slice(old, new[None], (layer, 0, column, 0, 0))
                 for old, new in zip(cache, (k, v), strict=True)]  # fmt: skip
        k, v = (old[layer] for old in cache)  # (B, T, KV, K)
    mixed = attention(q, k, v, mask, cfg.query_scale, cfg.attn_cap)
    out = linear(mixed, w, "o")
    x = cut(x) + (rms_norm(out, w["attn_out_norm"], cfg.norm_eps) if cfg.gemma else out)
    h = rms_norm(x, w["mlp_norm"], cfg.norm_eps)
    bend = jax.nn.gelu if cfg.gemma else jax.nn.silu  # JAX's gelu is the tanh form, as Gemma's
    out = linear(bend(linear(h, w, "gate")) * linear(h, w, "up"), w, "down")
    return x + (rms_norm(out, w["mlp_out_norm"], cfg.norm_eps) if cfg.gemma else out), cache


def columns(a, start, length):
    """a (B or 1, T, ...) -> (B or 1, length, ...), those from start () or, of each row its own, (B,)."""
    if jnp.ndim(start) == 0:
        return jax.lax.dynamic_slice_in_dim(a, start, length, 1)
    rows = jnp.broadcast_to(a, (len(start), *a.shape[1:]))
    return jax.vmap(lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, length))(rows, start)


def trunk(params, tokens, cfg, valid=None):
    """tokens (B, T), valid (B, T) False at left padding -> features (B, T, D). Denoisers and judges share this."""
    return extend(params, tokens, cfg, valid)[0]


def new_cache(cfg, B, T):
    """Room for the keys and the values of every block, (L, B, T, KV, K) each."""
    return [jnp.zeros((cfg.n_layer, B, T, cfg.kv_heads, cfg.head_dim), cfg.dtype) for _ in "kv"]


def extend(params, tokens, cfg, valid=None, cache=None, start=0, window=None):
    """tokens (B, S), which are columns start to start + S of a text whose T columns have `valid` (B, T) and the cache
    of what was computed before -> features (B, S, D), the cache with them. Without a cache, S is T, and of a window,
    a start and a length, the features are (B, length, D): the last block is not computed for the other columns."""
    gain = lambda path: cfg.gemma and path[-1].key.endswith("norm")
    p = jax.tree_util.tree_map_with_path(lambda path, w: (w + 1 if gain(path) else w).astype(cfg.dtype),
                                         {n: params[n] for n in ("embed", "blocks", "norm")})  # fmt: skip
    S, T = tokens.shape[1], tokens.shape[1] if cache is None else cache[0].shape[2]
    # Padding is neither attended nor counted, so a padded prompt and an unpadded one have the same logits.
    positions = jnp.arange(T)[None] if valid is None else jnp.maximum(jnp.cumsum(valid, 1) - 1, 0)
    part = lambda a: jax.lax.dynamic_slice_in_dim(a, start, S, 1)
    positions = part(positions)
    if valid is not None and cfg.causal:  # where the first token is read from: see `features`
        tokens = jnp.where(part(valid), tokens, start_id(cfg))

    def seen(i, first, n):
        """What columns first to first + n attend to in layer i: (..., n or 1, T), or None for everything."""
        own, others = jnp.reshape(first, (-1, 1, 1, 1, 1)) + jnp.arange(n)[:, None], jnp.arange(T)
        near = [] if valid is None else [valid[:, None, None, None, :] | (others == own if cfg.causal else False)]
        near += [others <= own] if cfg.causal else []
        near += [(jnp.abs(own - others) < cfg.window) | (i % 2 == 1)] if cfg.window else []
        return functools.reduce(jnp.logical_and, near) if near else None

    def step(carry, layer, window=None):
        w, i = layer
        mask = seen(i, *(window or (start, S)))
        return block(carry[0], w, cfg, *rotary(positions, cfg), mask, carry[1], (i, start), window), None

    kept = jax.checkpoint if cfg.remat else lambda step: step
    x = p["embed"].at[tokens].get(mode="clip")  # a causal model's mask_id may lie beyond: what it reads there is moot
    x = x * cfg.d_model**0.5 if cfg.gemma else x
    layers = p["blocks"], jnp.arange(cfg.n_layer)
    # A while loop costs a small model 15% on a CPU. Beyond 8 blocks it costs nothing, and what is compiled one by one
    # copies its weights: of 28 blocks in eights 1.28 times the params in a forward pass and 2.4 in a gradient, instead
    # of 0.04 and 0.2. There a window is cut out in the end: the loop over all blocks but the last would copy them, too.
    flat = cfg.n_layer <= UNROLLED
    if window and flat:
        last, layers = jax.tree.map(lambda w: w[-1], layers), jax.tree.map(lambda w: w[:-1], layers)
    (x, cache), _ = jax.lax.scan(kept(step), (x, cache), layers, unroll=flat)
    if window and flat:
        (x, cache), _ = kept(functools.partial(step, window=window))((x, cache), last)
    elif window:
        x = columns(x, *window)
    return rms_norm(x, p["norm"], cfg.norm_eps), cache


def readout(params, h, cfg):
    """h (..., D) -> logits (..., V) float32, in which the mask token can never win."""
    head = params["embed"].T if cfg.tie_embeddings else params["head"]
    out = soft_cap(dense(h, head.astype(cfg.dtype), jnp.float32), cfg.logit_cap)
    return out if cfg.mask_id is None else jnp.where(jnp.arange(cfg.vocab_size) == cfg.mask_id, BANNED, out)


def start_id(cfg):
    """What a causal model reads the first token of a text from: the beginning or the end of a text, or any one id."""
    return next(i for i in (cfg.bos_id, cfg.eos_id, 0) if i is not None)


def features(params, z, cfg, valid=None, start=0, length=None):
    """z (B, T) with holes -> (B, length, D): `[:, i]` is what token start + i is read from, shifted model or not.

    Only the window [start, start + length) is taken (None: to the end); `start` may be traced, and differ by row (B,),
    so a sampler that works on a block pays the vocabulary for the block alone.

    Shifted, the first token has nothing on its left. A denoiser reads it from its own position, a hole, as in Dream's
    sampler. A causal model would see the token: it reads it from a `start_id` in the column before, which sees only
    itself and which no token sees; where there is no padding that column is added.
    """
    length = z.shape[1] - start if length is None else length
    if cfg.causal and not (isinstance(start, int) and start > 0):
        valid = jnp.ones((1, z.shape[1]), bool) if valid is None else valid
        z, valid, start = jnp.pad(z, ((0, 0), (1, 0))), jnp.pad(valid, ((0, 0), (1, 0))), start + 1
    own = cfg.shift and not cfg.causal
    first, n = jnp.maximum(start - 1, 0) if cfg.shift else start, min(length + own, z.shape[1])
    h = extend(params, z, cfg, valid, window=None if n == z.shape[1] else (first, n))[0]
    if own:
        per_row = lambda a: jnp.reshape(a, (-1, 1))
        left = per_row(start) - 1 + jnp.arange(length)
        left = jnp.maximum(left, 0 if valid is None else per_row(jnp.argmax(valid, 1))) - per_row(first)
        h = jax.vmap(lambda h, i: h[i])(h, jnp.broadcast_to(left, (len(h), length)))
    return h


def logits(params, z, cfg, valid=None, start=0, length=None):
    """z (B, T) with holes -> (B, length, V) float32: `[:, i]` is always about token start + i (see `features`)."""
    return readout(params, features(params, z, cfg, valid, start, length), cfg)


def score(params, tokens, cfg, valid=None):
    """tokens (B, T) -> one number per sequence (B,): the judge. Features are averaged; causal models use the last."""
    h = trunk(params, tokens, cfg, valid).astype(jnp.float32)
    seen = jnp.ones(tokens.shape) if valid is None else valid.astype(jnp.float32)
    if cfg.causal:
        seen = (jnp.cumsum(seen, 1) == seen.sum(1, keepdims=True)) * seen
    pooled = jnp.sum(h * seen[..., None], 1) / jnp.maximum(seen.sum(1, keepdims=True), 1)  # (B, D)
    return pooled @ params["head"][:, 0]


def adapt(params, cfg, mask_id):
    """A causal model -> params, ModelConfig of a denoiser, as Dream was made of Qwen2: it sees both sides, still
    predicts each token one place before it, and has a mask, at first the mean of all tokens, also where there is a row
    for it already (Qwen2 has 152,064, of which 151,665 mean something). Its family has biases."""
    size = max(cfg.vocab_size, mask_id + 1)
    more = size - cfg.vocab_size
    cfg = dataclasses.replace(cfg, causal=False, mask_id=mask_id, vocab_size=size, qkv_bias=True)
    fill = lambda rows, mean: jnp.concatenate([rows, jnp.repeat(mean[None], more, 0)]).at[mask_id].set(mean)
    grown = lambda rows: fill(rows, rows.mean(0))
    biases = {n: jnp.zeros(shape) for n, shape in shapes(cfg)["blocks"].items() if n.endswith("_bias")}
    head = {"head": grown(params["head"].T).T} if "head" in params else {}
    return params | head | {"embed": grown(params["embed"]), "blocks": biases | params["blocks"]}, cfg


# ---- LoRA (2106.09685): beside a frozen matrix W (I, O) two small ones are trained, W + alpha / r * A (I, r) B (r, O)


def adapter_shapes(cfg, targets, rank):
    """As `shapes`, of the adapters beside the matrices in targets: {name: shape}, with a leading L axis."""
    sizes = [(name, *shapes(cfg)["blocks"][name]) for name in targets]
    return {n + "_a": (L, I, rank) for n, L, I, _ in sizes} | {n + "_b": (L, rank, O) for n, L, _, O in sizes}


def adapters(key, cfg, targets, rank):
    """key -> new adapters. As in PEFT, A is uniform within 1 / sqrt(I), and B is 0: a model begins as its base."""
    table = adapter_shapes(cfg, targets, rank)
    k_leaf = dict(zip(table, jax.random.split(key, len(table)), strict=True))
    uniform = lambda name, shape: jax.random.uniform(k_leaf[name], shape, minval=-1, maxval=1) * shape[1] ** -0.5
    return {"blocks": {n: jnp.zeros(s) if n.endswith("_b") else uniform(n, s) for n, s in table.items()}}


def adapted(base, adapters, alpha):
    """Params of a base, adapters and what else is new -> params of the model that they make, with the base's arrays."""
    scaled = {name: x * (alpha / x.shape[1]) if name.endswith("_b") else x for name, x in adapters["blocks"].items()}
    return base | adapters | {"blocks": base["blocks"] | scaled}


def width(params):
    """1 if params are a judge's, else None: what `shapes` calls n_out."""
    return 1 if "head" in params and params["head"].shape[-1] == 1 else None


# ---- Hugging Face folders: config.json and safetensors, the only checkpoint format -----------------------------------

# Where a family keeps each of our tensors, * is ".weight" and {} the layer. They store (out, in), we compute (in, out).
LLAMA = {
    "embed": "model.embed_tokens*", "norm": "model.norm*", "head": "lm_head*",
    "attn_norm": "model.layers.{}.input_layernorm*", "mlp_norm": "model.layers.{}.post_attention_layernorm*",
    "o": "model.layers.{}.self_attn.o_proj*", "gate": "model.layers.{}.mlp.gate_proj*",
    "up": "model.layers.{}.mlp.up_proj*", "down": "model.layers.{}.mlp.down_proj*",
    "q_norm": "model.layers.{}.self_attn.q_norm*", "k_norm": "model.layers.{}.self_attn.k_norm*",
} | {n: f"model.layers.{{}}.self_attn.{n}_proj*" for n in "qkv"}  # fmt: skip
GEMMA = LLAMA | {
    "attn_out_norm": "model.layers.{}.post_attention_layernorm*",
    "mlp_norm": "model.layers.{}.pre_feedforward_layernorm*",
    "mlp_out_norm": "model.layers.{}.post_feedforward_layernorm*"}  # fmt: skip
LLADA = {
    "embed": "model.transformer.wte*", "norm": "model.transformer.ln_f*", "head": "model.transformer.ff_out*",
    "attn_norm": "model.transformer.blocks.{}.attn_norm*", "mlp_norm": "model.transformer.blocks.{}.ff_norm*",
    "o": "model.transformer.blocks.{}.attn_out*", "gate": "model.transformer.blocks.{}.ff_proj*",
    "up": "model.transformer.blocks.{}.up_proj*", "down": "model.transformer.blocks.{}.ff_out*",
} | {n: f"model.transformer.blocks.{{}}.{n}_proj*" for n in "qkv"}  # fmt: skip

# Our field -> their key. A key with a default may be missing.
IDS = {"mask_id": "mask_token_id", "eos_id": "eos_token_id", "pad_id": "pad_token_id", "bos_id": "bos_token_id"}
ROPE = "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"  # of cfg.rope_scaling
LLAMA_KEYS = IDS | {
    "vocab_size": "vocab_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "d_head": "head_dim",
    "n_kv_head": "num_key_value_heads", "d_model": "hidden_size", "d_ff": "intermediate_size",
    "tie_embeddings": "tie_word_embeddings", "rope_theta": "rope_theta", "norm_eps": "rms_norm_eps",
    "rope_scaling": "rope_scaling"}  # fmt: skip
GEMMA_KEYS = LLAMA_KEYS | {
    "window": "sliding_window", "query_scale": "query_pre_attn_scalar", "attn_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping"}  # fmt: skip
LLADA_KEYS = IDS | {
    "vocab_size": "embedding_size", "n_layer": "n_layers", "n_head": "n_heads", "n_kv_head": "n_kv_heads",
    "d_model": "d_model", "d_ff": "mlp_hidden_size", "tie_embeddings": "weight_tying", "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps", "qkv_bias": "include_qkv_bias"}  # fmt: skip
# What a config must say (or leave out) for this code to be that network.
LLAMA_NEEDS = {"hidden_act": "silu", "rope_type": "default", "attention_bias": False,
               "mlp_bias": False, "use_sliding_window": False}  # fmt: skip
GEMMA_NEEDS = LLAMA_NEEDS | {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
                             "use_bidirectional_attention": False}  # fmt: skip
LLADA_NEEDS = {
    "rope_scaling": None,
    "block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "rope": True, "block_group_size": 1,
    "alibi": False, "include_bias": False, "attention_layer_norm": False, "input_emb_norm": False,
    "scale_logits": False}  # fmt: skip

# model_type: (class, tensors, keys, needs, what its config need not say). Every other field has its default.
FAMILIES = {
    "llada": ("LLaDAModelLM", LLADA, LLADA_KEYS, LLADA_NEEDS, {}),
    "Dream": ("DreamModel", LLAMA, LLAMA_KEYS, LLAMA_NEEDS, dict(shift=True, qkv_bias=True)),
    "llama": ("LlamaForCausalLM", LLAMA, LLAMA_KEYS, LLAMA_NEEDS, dict(causal=True, shift=True)),
    "qwen2": ("Qwen2ForCausalLM", LLAMA, LLAMA_KEYS, LLAMA_NEEDS, dict(causal=True, shift=True, qkv_bias=True)),
    "qwen3": ("Qwen3ForCausalLM", LLAMA, LLAMA_KEYS, LLAMA_NEEDS, dict(causal=True, shift=True, qk_norm=True)),
    "gemma2": ("Gemma2ForCausalLM", GEMMA, GEMMA_KEYS, GEMMA_NEEDS,
               dict(causal=True, shift=True, gemma=True, tie_embeddings=True)),
}  # fmt: skip
FREE = ("dtype", "remat", "d_head")  # fields that say nothing about the family
JUDGE = "score.weight"  # (1, D): the head of a judge, as in transformers' ...ForSequenceClassification


def family(cfg):
    """The name of the family whose folders hold this configuration."""
    fixed = {f.name: f.default for f in dataclasses.fields(cfg) if f.name not in FREE}
    for name, (_, _, keys, _, implied) in FAMILIES.items():
        headed = "d_head" in keys or cfg.head_dim * cfg.n_head == cfg.d_model
        if headed and all(getattr(cfg, k) == v for k, v in (fixed | implied).items() if k not in keys):
            return name
    switches = ("causal", "shift", "qkv_bias", "qk_norm", "gemma", "window", "query_scale", "attn_cap", "logit_cap",
                "rope_scaling")
    raise ValueError(
        "no Hugging Face family has these switches together: "
        + ", ".join(f"{k}={getattr(cfg, k)}" for k in (*switches, "d_head"))
        + "; there are " + "; ".join(f"{n}: {f[4] or 'none'}" for n, f in FAMILIES.items())
    )  # fmt: skip


def tensors(cfg, n_out):
    """(our path, layer or None, their name) of every tensor of a folder of this configuration."""
    names, table = FAMILIES[family(cfg)][1], shapes(cfg, n_out)
    for name in table:
        if name == "head" and n_out is not None:
            yield ("head",), None, JUDGE
        elif name != "blocks":
            yield (name,), None, names[name].replace("*", ".weight")
    for i in range(cfg.n_layer):
        for name in table["blocks"]:
            role = name.removesuffix("_bias")
            yield ("blocks", name), i, names[role].format(i).replace("*", ".weight" if role == name else ".bias")


def save(folder, params, cfg):
    """Writes a Hugging Face folder: config.json and model.safetensors (a tokenizer saves itself beside them)."""
    os.makedirs(folder, exist_ok=True)
    n_out = width(params)
    name = family(cfg)
    architecture, _, keys, needs, _ = FAMILIES[name]
    filled = dataclasses.replace(cfg, d_head=cfg.head_dim, n_kv_head=cfg.kv_heads, d_ff=cfg.ff,
                                 query_scale=cfg.query_scale or cfg.head_dim)  # fmt: skip
    theirs = {"model_type": name, "architectures": [architecture], "torch_dtype": "float32"}
    theirs |= {k: v for k, v in needs.items() if v is not None} | ({"num_labels": 1} if n_out else {})
    theirs |= {key: getattr(filled, ours) for ours, key in keys.items()} | {"vocab_size": cfg.vocab_size}
    theirs["mask_token_id"] = None if cfg.mask_id == cfg.vocab_size else cfg.mask_id
    if cfg.rope_scaling is not None:
        theirs["rope_scaling"] = {"rope_type": "llama3", **dict(zip(ROPE, cfg.rope_scaling, strict=True))}
        del theirs["rope_type"]
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(theirs, f, indent=2)
    write_tensors(os.path.join(folder, "model.safetensors"), stored(params, tensors(cfg, n_out)))


def stored(params, listed):
    """params, (our path, layer or None, their name) of tensors -> what `write_tensors` takes of each, as stored."""
    for path, layer, name in listed:
        x = params[path[0]] if len(path) == 1 else params[path[0]][path[1]]
        turned = x.ndim - (layer is not None) == 2 and path != ("embed",)
        shape = x.shape[layer is not None :]

        def fetch(x=x, layer=layer, turned=turned):
            x = np.asarray(x if layer is None else x[layer])
            return x.T if turned else x

        yield name, jax.ShapeDtypeStruct(shape[::-1] if turned else shape, x.dtype), fetch


def write_tensors(path, items):
    """Writes (name, shape and dtype, function that fetches the array) of tensors as a safetensors file: each is fetched
    once, and none before the one before it is written; on disk at return."""
    kinds = {"float32": "F32", "bfloat16": "BF16", "int32": "I32", "uint32": "U32", "bool": "BOOL"}
    header, end, items = {"__metadata__": {"format": "pt"}}, 0, list(items)
    for name, x, _ in items:
        size = x.size * x.dtype.itemsize
        header[name] = {"dtype": kinds[str(x.dtype)], "shape": list(x.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, _, fetch in items:
            f.write(np.ascontiguousarray(fetch()).tobytes())
        f.flush()
        os.fsync(f.fileno())


def find(path):
    """The folder of a model or of adapters: `path` itself, or the newest checkpoint in the out_dir of a run of ours."""
    if not os.path.isdir(path):
        raise ValueError(f"{path!r} is not a folder: give the out_dir of a run or a folder with config.json in it")
    if any(os.path.exists(os.path.join(path, name)) for name in ("config.json", ADAPTERS)):
        return path
    steps = [d for d in os.listdir(path) if re.fullmatch(r"step-\d+", d)]
    if not steps:
        raise ValueError(f"{path!r} holds no model: neither a config.json nor a checkpoint step-... of a run")
    return os.path.join(path, max(steps, key=lambda d: int(d[5:])))


def best(path):
    """-> the folder that `path` stands for where a model is only to be used: itself, or the best checkpoint in the
    out_dir of a run (which goes on from its newest, `find`); and why this one."""
    newest = find(path)
    run = os.path.join(newest, "run.json")
    if newest == path:
        return path, "asked for"
    known = read_json(run).get("best") if os.path.exists(run) else None
    if not known:
        return newest, "the newest; none was evaluated"
    if not os.path.isdir(folder := os.path.join(path, f"step-{known['step']:06d}")):
        return newest, f"the newest; the best by {known['measure']}, step {known['step']}, is not here"
    return folder, f"the best by {known['measure']}" + (", and the newest" if folder == newest else "")


def read_json(path):
    """A JSON file that holds an object -> dict."""
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
    except (OSError, ValueError) as e:
        raise ValueError(f"{path} cannot be read as JSON: {e}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}, expected an object such as {{...}}")
    return found


def llama3_rope(path, theirs):
    """config.json of a folder -> cfg.rope_scaling; takes the rope_type of what is understood out of it."""
    found = theirs.get("rope_scaling") or (theirs if theirs.get("rope_type") == "llama3" else {})
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3" or not set(ROPE) <= found.keys():
        raise ValueError(f"{path}: rope_scaling={found} is not supported; this code computes rope_type='default', and "
                         f"'llama3' with {', '.join(ROPE)}")
    theirs.pop("rope_type", None)
    return tuple(found[k] for k in ROPE)


def read_config(folder):
    """config.json of a Hugging Face folder -> ModelConfig, or a ValueError that names what this code cannot do."""
    path = os.path.join(folder, "config.json")
    theirs = read_json(path)
    kind = theirs.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(f"{path}: model_type is {kind!r}; known families: {', '.join(FAMILIES)}")
    _, _, keys, needs, implied = FAMILIES[kind]
    theirs |= theirs.get("rope_parameters") or {}  # where transformers 5 keeps rope_theta
    theirs |= {"rope_scaling": llama3_rope(path, theirs)}
    demand(path, theirs, needs)
    fields = {ours: theirs[key] for ours, key in keys.items() if theirs.get(key) is not None}
    if implied.get("causal"):  # it reads no holes, and may write every id that it has
        fields.setdefault("mask_id", fields.get("vocab_size"))
    fields["eos_id"] = fields["eos_id"][0] if isinstance(fields.get("eos_id"), list) else fields.get("eos_id")
    missing = [keys[f] for f in ("vocab_size", "n_layer", "n_head", "d_model", "d_ff") if f not in fields]
    if missing:
        raise ValueError(f"{path}: missing {', '.join(missing)}")
    try:
        cfg = ModelConfig(**implied | fields)
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from None
    types = ["sliding_attention" if cfg.window and i % 2 == 0 else "full_attention" for i in range(cfg.n_layer)]
    if theirs.get("layer_types") not in (None, types):
        raise ValueError(f"{path}: layer_types={theirs['layer_types']} is not supported; this code computes {types}")
    return cfg


def demand(path, theirs, needs):
    """A ValueError unless the file at path says (or leaves out) what this code computes."""
    for key, want in needs.items():
        if (theirs.get(key, want) or None) != (want or None):  # null is no
            raise ValueError(f"{path}: {key}={theirs[key]!r} is not supported; this code computes {key}={want!r}")


def load(path, dtype="float32"):
    """A Hugging Face folder, or the out_dir of a run (its newest checkpoint) -> params, ModelConfig. Of a folder of
    adapters: the params of their base, with the adapters merged into them.

    Tensors are read one at a time and stored as `dtype`: peak memory is the model and its largest leaf, one matrix of
    all layers.
    """
    folder = find(path)
    if os.path.exists(os.path.join(folder, ADAPTERS)):
        return load_merged(folder, dtype)
    cfg = read_config(folder)
    index = os.path.join(folder, "model.safetensors.index.json")
    sharded = os.path.exists(index)
    listed = read_json(index).get("weight_map") if sharded else {"": "model.safetensors"}
    if not isinstance(listed, dict):
        raise ValueError(f"{index} has no weight_map, the file of each tensor")
    where = {}
    for file in sorted(set(listed.values())):
        where |= opened(os.path.join(folder, file))
    n_out = 1 if JUDGE in where else None
    if cfg.mask_id is None and not cfg.causal and n_out is None:
        raise ValueError(f"{folder}/config.json has no mask_token_id: a model of the family {family(cfg)} fills holes, "
                         f"so one of its {cfg.vocab_size} ids is the mask; add the one that it was trained with")
    kind = f"{family(cfg)} model"
    return read(folder, where, list(tensors(cfg, n_out)), shapes(cfg, n_out), dtype, kind, "config.json"), cfg


def opened(file):
    """A safetensors file -> {name of a tensor: the open file}."""
    try:
        handle = safetensors.safe_open(file, "numpy")
    except (OSError, safetensors.SafetensorError) as e:
        raise ValueError(f"{file} is missing, truncated or not a safetensors file: {e}") from None
    return dict.fromkeys(handle.keys(), handle)


def read(folder, where, wanted, table, dtype, kind, by):
    """{name: open file}, (our path, layer, name) of all that is wanted, a table of shapes -> params of these shapes."""
    missing, unknown = {n for *_, n in wanted} - set(where), set(where) - {n for *_, n in wanted}
    if missing or unknown:
        some = lambda names: ", ".join(sorted(names)[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise ValueError(f"{folder} is not the {kind} that its {by} describes: "
                         f"missing tensors: {some(missing) or 'none'}; unknown tensors: {some(unknown) or 'none'}")
    room = lambda shape: np.empty(shape, jnp.dtype(dtype))
    params = jax.tree.map(room, table, is_leaf=lambda s: isinstance(s, tuple))
    for tree, layer, name in wanted:
        x = where[name].get_tensor(name)
        full = params[tree[0]] if len(tree) == 1 else params[tree[0]][tree[1]]
        part = full[...] if layer is None else full[layer]
        part = part.T if part.ndim == 2 and tree != ("embed",) else part
        if x.shape != part.shape:
            raise ValueError(f"{folder}: {name} has the shape {x.shape}, but {by} makes it {part.shape}")
        part[...] = x
    leaves, tree = jax.tree.flatten(params)
    del params, full, part
    for i in range(len(leaves)):
        leaves[i] = jnp.asarray(leaves[i])  # one by one, so that there are never two copies of all of them
    return jax.tree.unflatten(tree, leaves)


# ---- folders of adapters, in PEFT's format ---------------------------------------------------------------------------

ADAPTERS = "adapter_config.json"
PEFT = "base_model.model."  # before the names of the base's tensors
PEFT_NEEDS = {"peft_type": "LORA", "bias": "none", "fan_in_fan_out": False, "use_rslora": False, "use_dora": False,
              "rank_pattern": {}, "alpha_pattern": {}}  # fmt: skip


def adapter_tensors(cfg, targets, n_out):
    """(our path, layer or None, PEFT's name) of every tensor of adapters: A (r, I), B (O, r), the head of a judge."""
    for path, layer, name in tensors(cfg, n_out):
        if path[-1] in targets:
            stem = PEFT + name.removesuffix("weight")
            yield ("blocks", path[-1] + "_a"), layer, stem + "lora_A.weight"
            yield ("blocks", path[-1] + "_b"), layer, stem + "lora_B.weight"
        elif name == JUDGE:
            yield ("head",), None, PEFT + name


def save_adapters(folder, params, cfg, base, alpha):
    """Writes `params` of LoRA: adapter_config.json, which names the folder of their base, and their tensors."""
    os.makedirs(folder, exist_ok=True)
    names, n_out = FAMILIES[family(cfg)][1], width(params)
    ranks = {name[:-2]: x.shape[-1] for name, x in params["blocks"].items() if name.endswith("_a")}
    module = lambda name: names[name].removesuffix("*").rpartition(".")[2]
    theirs = PEFT_NEEDS | {
        "base_model_name_or_path": base, "r": max(ranks.values()), "lora_alpha": alpha, "lora_dropout": 0.0,
        "target_modules": sorted(map(module, ranks)), "inference_mode": True,
        "task_type": "SEQ_CLS" if n_out else "CAUSAL_LM" if cfg.causal else None,
        "modules_to_save": [JUDGE.removesuffix(".weight")] if n_out else None}  # fmt: skip
    if module("head") in theirs["target_modules"]:  # LLaDA: both its head and the last matrix of a block are a ff_out
        theirs["exclude_modules"] = [names["head"].removesuffix("*")]
    with open(os.path.join(folder, ADAPTERS), "w") as f:
        json.dump(theirs, f, indent=2)
    listed = list(adapter_tensors(cfg, ranks, n_out))
    write_tensors(os.path.join(folder, "adapter_model.safetensors"), stored(params, listed))


def read_adapters(folder):
    """adapter_config.json of a folder -> the folder of the base, r, alpha; or a ValueError."""
    path = os.path.join(folder, ADAPTERS)
    theirs = read_json(path)
    demand(path, theirs, PEFT_NEEDS)
    base, rank, alpha = (theirs.get(key) for key in ("base_model_name_or_path", "r", "lora_alpha"))
    if not (type(rank) is int and rank > 0 and type(alpha) in (int, float) and isinstance(base, str)):
        raise ValueError(f"{path}: expected the numbers r and lora_alpha and the text base_model_name_or_path, got "
                         f"{rank!r}, {alpha!r} and {base!r}")
    if not os.path.isdir(base):
        raise ValueError(f"{path}: the base of these adapters, base_model_name_or_path={base!r}, is not a folder here: "
                         "bring it back, or write there where it is now")
    return base, rank, alpha


def load_merged(folder, dtype):
    """A folder of adapters -> the params of their base with them merged into its matrices, ModelConfig."""
    base, rank, alpha = read_adapters(folder)
    params, cfg = load(base, dtype)
    where = opened(os.path.join(folder, "adapter_model.safetensors"))
    n_out = 1 if PEFT + JUDGE in where else None
    matrices = [name for name, shape in shapes(cfg)["blocks"].items() if len(shape) == 3]
    targets = {path[-1][:-2] for path, _, name in adapter_tensors(cfg, matrices, None) if name in where}
    table = {"blocks": adapter_shapes(cfg, targets, rank)} | ({"head": (cfg.d_model, 1)} if n_out else {})
    wanted = list(adapter_tensors(cfg, targets, n_out))
    new = read(folder, where, wanted, table, "float32", f"LoRA of a {family(cfg)} model", ADAPTERS)
    for name in targets:  # one after the other, so that there are never two copies of all of them
        a, b = (new["blocks"][name + end] for end in ("_a", "_b"))
        merged = params["blocks"][name] + jnp.matmul(a, b * (alpha / rank), precision="highest")
        params["blocks"][name] = merged.astype(dtype)
    return params | {name: x for name, x in new.items() if name != "blocks"}, cfg
