"""
A transformer, all of it in this file, in plain JAX: params are a nested dict, every function is pure.

One Llama-family block serves denoisers (bidirectional, with a mask token), judges (a head of width 1) and
autoregressive models (`causal`). LLaDA, Dream, Llama, Qwen2, Qwen3 and Gemma 2 are this network with other switches and
under other tensor names (disk.py).

Shape letters used in the whole repository:
  B batch   T sequence   D width   H heads   K head width   F mlp width   L layers   V vocabulary   N prompts   G group
"""
import dataclasses
import functools

import jax
import jax.numpy as jnp

from machine import kernels, mesh

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
    block_causal: int | None = None  # tokens see their block of so many, and all earlier ones (SDAR); None: all
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
        for name in ("vocab_size", "n_layer", "n_head", "d_model", "d_head", "d_ff", "window", "block_causal"):
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
        if self.causal and self.block_causal:
            raise ValueError(f"causal=True and block_causal={self.block_causal}: one of them (a causal model of blocks "
                             "of 1 is another one: it reads token i from a mask in place i)")
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
            return jnp.full(shape, 0.0 if cfg.gemma else 1.0, jnp.float32)  # weak types are compiled twice
        if name.endswith("bias"):
            return jnp.zeros(shape)
        # Embeddings of 0.5: at 0.02 sudoku had 43% instead of 54% after 800 steps. A head near zero: a uniform start.
        std = {"embed": 0.02 if cfg.tie_embeddings else 0.5, "head": 0.02}.get(name, shape[-2] ** -0.5)
        if name in ("o", "down"):
            std *= (2 * cfg.n_layer) ** -0.5  # GPT-2: what is added to the residual stream, scaled by its depth
        k_leaf = jax.random.fold_in(key, sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**31)
        return mesh.shard({name: std * jax.random.normal(k_leaf, shape)})[name]  # one by one: never all in one place

    return jax.tree_util.tree_map_with_path(leaf, shapes(cfg, n_out), is_leaf=lambda x: isinstance(x, tuple))


def stored_dtype(name, dtype):
    """The dtype that a leaf is kept in where params are kept in 16 bits: gains of norms stay float32, since Gemma adds
    1 to them, which has to come before rounding."""
    return "float32" if name.endswith("norm") else dtype


def cast(params, dtype):
    """Keep params in dtype, but for what `stored_dtype` excepts."""
    return jax.tree_util.tree_map_with_path(lambda path, x: x.astype(stored_dtype(path[-1].key, dtype)), params)


@jax.custom_vjp
def product(x, w):
    """x (N, I), w (I, O) -> (N, O) float32, also of 16 bits, whose gradient rounds what comes back to 16 bits, too: a
    CPU with AVX512-BF16 multiplies these twice as fast as 32, but sums them only into 32 (Zen 4: 145 and 75 GFLOP/s a
    core, and 72 where the sums are asked for in 16)."""
    return jnp.matmul(x, w, preferred_element_type=jnp.float32)


def product_gradient(kept, g):
    """(x, w), g (N, O) -> the gradients of x and w; of float32, to the bit what jax makes of a matmul."""
    x, w = kept
    dot = lambda b, axis: jax.lax.dot_general(g.astype(x.dtype), b, (((axis,), (axis,)), ((), ())),
                                              preferred_element_type=jnp.float32)  # fmt: skip
    return dot(w, 1).astype(x.dtype), dot(x, 0).T.astype(w.dtype)


product.defvjp(lambda x, w: (product(x, w), (x, w)), product_gradient)


def dense(x, w, dtype=None):
    """x (..., I), w (I, O) -> (..., O), as one matrix product: the CPU gradient of a (B, T, I) one is 1/3 slower."""
    y = product(x.reshape(-1, x.shape[-1]), w).astype(dtype or x.dtype)
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
    # Batch axes in front, the heads that share a key as rows, and the division after the product with v: 6 ms where
    # einsum over "bthk" takes 43 (B 32, T 160, D 256, 2 cores), and on a GPU the same three kernels.
    q = q.reshape(B, S, KV, H // KV, K).transpose(0, 2, 3, 1, 4).reshape(B, KV, H // KV * S, K)
    k, v = (x.transpose(0, 2, 1, 3) for x in (k, v))
    s = jnp.einsum("bgtk,bgsk->bgts", q, k, preferred_element_type=jnp.float32)  # (B, KV, H/KV*S, T)
    s = soft_cap(s * (scale or K) ** -0.5, cap)
    if mask is not None:
        s = jnp.where(mask, s.reshape(B, KV, H // KV, S, T), BANNED).reshape(s.shape)
    p = jnp.exp(s - jax.lax.stop_gradient(s.max(-1, keepdims=True)))
    out = jnp.einsum("bgts,bgsk->bgtk", p.astype(v.dtype), v, preferred_element_type=jnp.float32)
    out = (out / p.sum(-1, keepdims=True)).astype(v.dtype)
    return out.reshape(B, KV, H // KV, S, K).transpose(0, 3, 1, 2, 4).reshape(B, S, H * K)


def soft_cap(x, cap):
    """x -> x squeezed between -cap and cap; None: x."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def block(x, w, cfg, cos, sin, mask, cache=None, place=None, window=None, text=None):
    """x (B, S, D), w the weights of one layer, a cache of keys and values and its place for `store` -> (B, S, D), the
    cache with those of x, or these. window, a start and a length: only of these columns of x. text: keys and values of
    what x are copies of, B / n of each in a row, (n, T, KV, K): they stand before those of x."""
    cut = lambda a: a if window is None else columns(a, *window)
    h = rms_norm(x, w["attn_norm"], cfg.norm_eps)
    q, k, v = (linear(cut(h) if n == "q" else h, w, n) + (w[n + "_bias"] if cfg.qkv_bias else 0) for n in "qkv")
    q, k, v = (a.reshape(*a.shape[:2], -1, cfg.head_dim) for a in (q, k, v))  # (B, S, H or KV, K)
    if cfg.qk_norm:
        q, k = rms_norm(q, w["q_norm"], cfg.norm_eps), rms_norm(k, w["k_norm"], cfg.norm_eps)
    q, k = rotate(q, cut(cos), cut(sin)), rotate(k, cos, sin)
    if cache is not None:
        cache = [store(old, bits(new), *place) for old, new in zip(cache, (k, v), strict=True)]
        k, v = (numbers(old[place[0]]).swapaxes(1, 2) for old in cache)  # (B, T, KV, K)
    if text is not None:
        k, v = (jnp.concatenate([jnp.repeat(a, len(x) // len(a), 0), b], 1) for a, b in zip(text, (k, v), strict=True))
    # For one query the keys would be copied; and the kernel cannot be split over rows that do not divide.
    if kernels.fused(cfg) and q.shape[1] > 1 and mesh.round_up(len(q)) == len(q):
        mixed = kernels.flash(q, k, v, mask, cfg.query_scale)
    else:
        mixed = attention(q, k, v, mask, cfg.query_scale, cfg.attn_cap)
    out = linear(mixed, w, "o")
    x = cut(x) + (rms_norm(out, w["attn_out_norm"], cfg.norm_eps) if cfg.gemma else out)
    h = rms_norm(x, w["mlp_norm"], cfg.norm_eps)
    bend = jax.nn.gelu if cfg.gemma else jax.nn.silu  # JAX's gelu is the tanh form, as Gemma's
    out = linear(bend(linear(h, w, "gate")) * linear(h, w, "up"), w, "down")
    return x + (rms_norm(out, w["mlp_out_norm"], cfg.norm_eps) if cfg.gemma else out), cache or (k, v)


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
    """Room for the keys and the values of every block, (L, B, KV, T, K) each, as `bits`: as `attention` multiplies
    them. In the order of x every step would turn them around, a quarter of its time with texts of 470 tokens."""
    return [bits(jnp.zeros((cfg.n_layer, B, cfg.kv_heads, T, cfg.head_dim), cfg.dtype)) for _ in "kv"]


def bits(x):
    """bfloat16 -> the same as uint16, which has no gradient; all else as it is. To cut a layer out of an array of
    bfloat16, or to write one, XLA's CPU turns the whole array into float32 and back; in a loop, for every layer."""
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x


def numbers(x):
    """What `bits` were made of."""
    return jax.lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.uint16 else x


def positions_of(valid, T):
    """valid (B, T) or None -> (B or 1, T). Padding is neither attended nor counted, so a padded prompt and an unpadded
    one have the same logits."""
    return jnp.arange(T)[None] if valid is None else jnp.maximum(jnp.cumsum(valid, 1) - 1, 0)


def store(cache, new, layer, column, kept=None):
    """cache (L, B, KV, T, K), new (B, S, KV, K) of a layer, from a column () or, of each row its own, (B,) on -> the
    cache with them. kept, two columns () or (B,): what is left of the first or not of the second stays as it is."""
    if jnp.ndim(column) == 0 and kept is None:
        return jax.lax.dynamic_update_slice(cache, new.swapaxes(1, 2)[None], (layer, 0, 0, column, 0))
    B, S, T = *new.shape[:2], cache.shape[3]
    at = jnp.reshape(column, (-1, 1)) + jnp.arange(S)
    if kept is not None:
        low, high = (jnp.reshape(x, (-1, 1)) for x in kept)
        at = jnp.where((at < low) | (at >= high), T, at)  # beyond the end: dropped
    return cache.at[layer, jnp.arange(B)[:, None], :, at].set(new, mode="drop")


def seen(cfg, valid, positions, i, first, n, own=0):
    """What columns first to first + n attend to in layer i: (..., n or 1, T), or None for everything. own: a noisy copy
    attends to its text in earlier blocks and, in its own, to what stands behind that, its last `own` columns."""
    at, others = jnp.reshape(first, (-1, 1, 1, 1, 1)) + jnp.arange(n)[:, None], jnp.arange(positions.shape[1])
    near = [] if valid is None else [valid[:, None, None, None, :] | (others == at if cfg.causal else False)]
    near += [others <= at] if cfg.causal else []
    near += [(jnp.abs(at - others) < cfg.window) | (i % 2 == 1)] if cfg.window else []
    if cfg.block_causal:  # blocks begin where a text does, not where its padding does
        grid = positions // cfg.block_causal
        mine, theirs = columns(grid, first, n)[:, None, None, :, None], grid[:, None, None, None]
        near += [theirs <= mine]
    mask = functools.reduce(jnp.logical_and, near) if near else None
    return jnp.concatenate([mask & (theirs < mine), (mask & (theirs == mine))[..., -own:]], -1) if own else mask


def extend(params, tokens, cfg, valid=None, cache=None, start=0, window=None, kept=None, copies=None):
    """tokens (B, S), which are columns start to start + S of a text whose T columns have `valid` (B, T) and the cache
    of what was computed before -> features (B, S, D), the cache with them. Without a cache, S is T. start and a window,
    a start and a length in the text, as in `columns`: the features are then (B, length, D), the last block is not
    computed for the other columns. kept as in `store`. copies (N, C), of a block_causal model: the last C columns of
    noisy copies of the texts, N / B of each in a row (see `features`) -> their features in place of a cache."""
    gain = lambda path: cfg.gemma and path[-1].key.endswith("norm")
    p = jax.tree_util.tree_map_with_path(lambda path, w: (w + 1 if gain(path) else w).astype(cfg.dtype),
                                         {n: params[n] for n in ("embed", "blocks", "norm")})  # fmt: skip
    S, T = tokens.shape[1], tokens.shape[1] if cache is None else cache[0].shape[3]
    everywhere, part = positions_of(valid, T), lambda a: columns(a, start, S)
    positions, sees = part(everywhere), functools.partial(seen, cfg, valid, everywhere)
    cut = window and (window[0] - start, window[1])
    if valid is not None and cfg.causal:  # where the first token is read from: see `features`
        tokens = jnp.where(part(valid), tokens, start_id(cfg))

    C = 0 if copies is None else copies.shape[1]
    of_copies = lambda a: a if len(a) == 1 else jnp.repeat(a, len(copies) // len(tokens), 0)
    late = rotary(of_copies(positions[:, -C:]), cfg) if C else None

    def step(carry, layer, cut=None):
        (x, y, cache), w, i = carry, jax.tree.map(numbers, mesh.gather_weights(layer[0])), layer[1]
        mask = sees(i, *(window if cut else (start, S)))
        x, new = block(x, w, cfg, *rotary(positions, cfg), mask, cache, (i, start, kept), cut)
        if C:
            mask = of_copies(sees(i, *(window if cut else (T - C, C)), C))
            y = mesh.shard_rows(block(y, w, cfg, *late, mask, window=cut and (cut[0] - T + C, cut[1]), text=new)[0])
        return (mesh.shard_rows(x), y, cache and new), None

    again = jax.checkpoint if cfg.remat else lambda step: step
    # A causal model's mask_id may lie beyond: what it reads there is moot.
    scale = cfg.d_model**0.5 if cfg.gemma else 1
    embed = lambda ids: scale * mesh.shard_rows(p["embed"].at[ids].get(mode="clip"), embedded=True)
    carry = embed(tokens), embed(copies) if C else None, cache
    layers = jax.tree.map(lambda w: w if cache is None else bits(w), p["blocks"]), jnp.arange(cfg.n_layer)
    # A while loop costs a small model 15% on a CPU. Beyond 8 blocks it costs nothing, and what is compiled one by one
    # copies its weights: of 28 blocks in eights 1.28 times the params in a forward pass and 2.4 in a gradient, instead
    # of 0.04 and 0.2. There a window is cut out in the end: the loop over all blocks but the last would copy them, too.
    flat = cfg.n_layer <= UNROLLED
    if window and flat:
        last, layers = jax.tree.map(lambda w: w[-1], layers), jax.tree.map(lambda w: w[:-1], layers)
    (x, y, cache), _ = jax.lax.scan(again(step), carry, layers, unroll=flat)
    if window and flat:
        (x, y, cache), _ = again(functools.partial(step, cut=cut))((x, y, cache), last)
    elif window:
        x, y = columns(x, *cut), columns(y, cut[0] - T + C, cut[1]) if C else None
    return rms_norm(x, p["norm"], cfg.norm_eps), rms_norm(y, p["norm"], cfg.norm_eps) if C else cache


def at_hand(params, cfg):
    """Params -> the same, the matrix that logits are read with gathered: once, before they are read in chunks."""
    name = "embed" if cfg.tie_embeddings else "head"
    return params | mesh.gather_weights({name: params[name]})


def readout(params, h, cfg):
    """h (..., D) -> logits (..., V) float32, in which the mask token can never win."""
    head = params["embed"].T if cfg.tie_embeddings else params["head"]
    out = soft_cap(dense(h, head.astype(cfg.dtype), jnp.float32), cfg.logit_cap)
    return out if cfg.mask_id is None else jnp.where(jnp.arange(cfg.vocab_size) == cfg.mask_id, BANNED, out)


def start_id(cfg):
    """What a causal model reads the first token of a text from: the beginning or the end of a text, or any one id."""
    return next(i for i in (cfg.bos_id, cfg.eos_id, 0) if i is not None)


def features(params, z, cfg, valid=None, start=0, length=None, clean=None):
    """z (B, T) with holes -> (B, length, D): `[:, i]` is what token start + i is read from, shifted model or not.

    Only the window [start, start + length) is taken (None: to the end); `start` may be traced, and differ by row (B,),
    so a sampler that works on a block pays the vocabulary for the block alone.

    Shifted, the first token has nothing on its left. A denoiser reads it from its own position, a hole, as in Dream's
    sampler. A causal model would see the token: it reads it from a `start_id` in the column before, which sees only
    itself and which no token sees; where there is no padding that column is added.

    clean (n, T), of a block_causal model: the texts that z are noisy copies of, B / n of each in a row. Every block is
    read with the text before it, all in one pass (BD3-LM); a text sees no copy, so one pass over it does for all, which
    are computed from the block of `start`, an int, on. Shifted, a block's first token is read from the text.
    """
    if clean is None:
        return read(params, z, cfg, valid, start, length)[0]
    each, at = len(z) // len(clean), columns(positions_of(valid, z.shape[1]), start, length or z.shape[1] - start)
    text, h = read(params, clean, cfg, None if valid is None else valid[::each], start, length, copies=z)
    begins = (at % cfg.block_causal == 0) & (at > 0)
    return jnp.where(begins[..., None], jnp.repeat(text, each, 0), h) if cfg.shift else h


def read(params, z, cfg, valid=None, start=0, length=None, cache=None, part=(0, None, None), copies=None):
    """`features`, and the cache with what was computed, or `features` of copies. part: a start () or (B,) and a length,
    the columns around the window that are computed, all others being what the cache has of them; and `kept` of `store`.
    """
    length = z.shape[1] - start if length is None else length
    if cfg.causal and not (isinstance(start, int) and start > 0):
        valid = jnp.ones((1, z.shape[1]), bool) if valid is None else valid
        z, valid, start = jnp.pad(z, ((0, 0), (1, 0))), jnp.pad(valid, ((0, 0), (1, 0))), start + 1
    own = cfg.shift and not cfg.causal
    first, n = jnp.maximum(start - 1, 0) if cfg.shift else start, min(length + own, z.shape[1])
    at, size, kept = part
    z = z if size is None else columns(z, at, size)
    copies = copies if copies is None else copies[:, max(start - own - cfg.block_causal + 1, 0) :]
    h, more = extend(params, z, cfg, valid, cache, at, None if n == z.shape[1] else (first, n), kept, copies)
    if own:
        per_row = lambda a: jnp.reshape(a, (-1, 1))
        left = per_row(start) - 1 + jnp.arange(length)
        left = jnp.maximum(left, 0 if valid is None else per_row(jnp.argmax(valid, 1))) - per_row(first)
        pick = lambda h: jax.vmap(lambda h, i: h[i])(h, jnp.repeat(left, len(h) // len(left), 0))
        h, more = pick(h), more if copies is None else pick(more)
    return h, more


def logits(params, z, cfg, valid=None, start=0, length=None):
    """z (B, T) with holes -> (B, length, V) float32: `[:, i]` is always about token start + i (see `features`)."""
    return readout(at_hand(params, cfg), features(params, z, cfg, valid, start, length), cfg)


def score(params, tokens, cfg, valid=None):
    """tokens (B, T) -> one number per sequence (B,): the judge. Features are averaged; causal models use the last."""
    h = trunk(params, tokens, cfg, valid).astype(jnp.float32)
    seen = jnp.ones(tokens.shape) if valid is None else valid.astype(jnp.float32)
    if cfg.causal:
        seen = (jnp.cumsum(seen, 1) == seen.sum(1, keepdims=True)) * seen
    pooled = jnp.sum(h * seen[..., None], 1) / jnp.maximum(seen.sum(1, keepdims=True), 1)  # (B, D)
    return mesh.replicate(pooled @ params["head"][:, 0])


def width(params):
    """1 if params are a judge's, else None: what `shapes` calls n_out."""
    return 1 if "head" in params and params["head"].shape[-1] == 1 else None
