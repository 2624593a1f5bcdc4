"""
A transformer in plain JAX: params are a nested dict, every function is pure. What is written for speed (products,
attention, cache writes) is in system/kernels.py.

One Llama-family block serves denoisers (bidirectional, with a mask token), judges (a head of width 1) and
autoregressive models. LLaDA, Dream, Llama, Qwen2 and Qwen3 are this network with other switches and under other tensor
names (checkpoints/huggingface.py). Models that differ in more name another entry of one of five tables: who sees whom
(MASKS), which state a token is predicted from (READS), what stands in place of the mlp (MLPS), how positions turn
(ROTARY), and what is scaled or capped around all of that (NETWORKS). A file of variants/ adds its entries when a model
needs it.

Shape letters, wherever a file does not say otherwise:
  B batch   T sequence   D width   H heads   K head width   F mlp width   L layers   V vocabulary   N prompts   G group
"""
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from system import kernels, sections, sharding
from system.sections import Table

NEVER = kernels.NEVER  # the logit of a token that must not be chosen


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
    tie_embeddings: bool = False  # one matrix embeds tokens and computes logits
    rope_theta: float = 10000.0  # the longest wavelength of the rotary positions, over 2 pi
    rotary_share: float = 1.0  # the share of a head's columns that rotary positions turn, the first of them (LLaDA2)
    max_positions: int | None = None  # the longest text for other programs, written into config.json; none here
    norm_eps: float = 1e-5  # added to the mean square before its root is taken
    dtype: str = "float32"  # of matmuls; params, norms, softmax, logits stay float32, on a CPU more: kernels.between
    remat: bool = False  # recompute the blocks in the backward pass: less memory, a third more time
    mask_id: int | None = None  # stands for a missing token; a data set's tokenizer sets this and the next three
    eos_id: int | None = None  # ends a text, and fills what is behind its end
    end_ids: tuple[int, ...] = ()  # other tokens that end a text, such as the end of a turn in a chat
    pad_id: int | None = None  # fills a prompt on its left
    bos_id: int | None = None  # begins a text, in models that have it
    mlp: str = "dense"  # what stands in place of the mlp, an entry of MLPS; a Shape in `use` may bring these names
    mask: str = "all"  # who sees whom, of MASKS; causal=True and Shapes bring theirs, also where "all" is written
    read: str = "own"  # the state that a token is predicted from, of READS; causal and shift bring theirs
    rotary: str = "plain"  # how positions turn, of ROTARY
    network: str = "plain"  # what is scaled and capped, of NETWORKS
    use: tuple[Any, ...] = ()  # the Shapes of variants, as in (blocks.Shape(block=4),)
    kind: ClassVar[str] = "Shape"  # of the sections in `use`

    def __post_init__(self):
        sections.check_fields(self)
        object.__setattr__(self, "use", sections.in_order(self.use, self.kind))
        for field, name in sections.settle(self, PARTS).items():
            object.__setattr__(self, field, name)
        sections.check(self, sections.rules_of_a_model, *(section.between_keys for section in self.use))

    def brought(self):
        """List who says which entries this model has: [(who, {field: name}), ...]."""
        own = [("shift=True", {"read": "shifted"})] if self.shift else []
        if self.causal:
            own = [("causal=True", {"mask": "causal", "read": "causal"})]
        return own + [(f"{sections.variant_of(section)}.Shape", section.brings) for section in self.use]

    @property
    def block(self):
        """Return the length of the blocks that this model fills one after the other; None: it has none."""
        return next((section.block for section in self.use if section.block), None)

    @property
    def ends(self):
        return tuple(i for i in (self.eos_id, *self.end_ids) if i is not None)

    @property
    def kv_heads(self):
        return self.n_kv_head or self.n_head

    @property
    def head_dim(self):
        return self.d_head or self.d_model // self.n_head

    @property
    def ff(self):
        return self.d_ff or -(-8 * self.d_model // 96) * 32


# ---- parameters ------------------------------------------------------------------------------------------------------


def shapes(cfg: ModelConfig, n_out: int | None = None) -> dict:
    """List the parameters as {name: shape}; those of the blocks as a list of such dicts, one for each layer.

    n_out: the width of the head (None: the vocabulary; 1: a judge)."""
    D, V = cfg.d_model, cfg.vocab_size
    blocks = [attention_shapes(cfg) | MLPS[cfg.mlp].shapes(cfg, i) for i in range(cfg.n_layer)]
    head = {} if cfg.tie_embeddings and n_out is None else {"head": (D, n_out or V)}
    return {"embed": (V, D), "blocks": blocks, "norm": (D,)} | head


def attention_shapes(cfg):
    """List the parameters of a layer's attention, and the gains of the norms before it and before the mlp."""
    D, Q, KV = cfg.d_model, cfg.n_head * cfg.head_dim, cfg.kv_heads * cfg.head_dim
    found = {"attn_norm": (D,), "q": (D, Q), "k": (D, KV), "v": (D, KV), "o": (Q, D), "mlp_norm": (D,)}
    if cfg.qkv_bias:
        found |= {"q_bias": (Q,), "k_bias": (KV,), "v_bias": (KV,)}
    if cfg.qk_norm:
        found |= {"q_norm": (cfg.head_dim,), "k_norm": (cfg.head_dim,)}
    return found


def init(key: jax.Array, cfg: ModelConfig, n_out: int | None = None) -> dict:
    """Draw the parameters of a new model."""

    def draw(name, shape):
        if name.endswith("norm"):
            return jnp.full(shape, 1.0 - network(cfg).gain, jnp.float32)  # a weak type would compile twice
        if name.endswith("bias"):
            return jnp.zeros(shape)
        # Embeddings of 0.5: at 0.02 sudoku had 43% instead of 54% after 800 steps. A head near zero: a uniform start.
        embed_std = 0.02 if cfg.tie_embeddings else 0.5
        std = {"embed": embed_std, "head": 0.02}.get(name, shape[-2] ** -0.5)
        if name == "o" or name.endswith("down"):
            std *= (2 * cfg.n_layer) ** -0.5  # GPT-2: scale what is added to the residual stream by its depth
        name_hash = sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**31
        leaf_key = jax.random.fold_in(key, name_hash)
        weights = {name: std * jax.random.normal(leaf_key, shape)}
        return sharding.shard(weights)[name]  # sharded one by one, so that no device ever holds all of them

    others = shapes(cfg, n_out)
    layers = others.pop("blocks")
    stacks = {name: draw(name, shape) for name, shape in sharding.stacked(layers).items()}
    blocks = sharding.split_layers(stacks, layers)
    return {name: draw(name, shape) for name, shape in others.items()} | {"blocks": blocks}


def stored_dtype(name: str, dtype: str) -> str:
    """Return the dtype of the parameter `name` in a model that is stored in `dtype`. Gains of norms stay float32, as a
    network may add 1 to them, which has to happen before rounding; routers do, because they compute in float32."""
    return "float32" if name.endswith("norm") or name.startswith("router") else dtype


def cast(params: dict, dtype: str) -> dict:
    """Convert parameters to `dtype`, except those that `stored_dtype` keeps in float32, and `Packed` ones."""

    def leaf(path, x):
        return x if kernels.is_packed(x) else x.astype(stored_dtype(path[-1].key, dtype))

    return jax.tree_util.tree_map_with_path(leaf, params, is_leaf=kernels.is_packed)


def width(params: dict) -> int | None:
    """Return 1 if the parameters are those of a judge, else None (the argument n_out of `shapes`)."""
    return 1 if "head" in params and params["head"].shape[-1] == 1 else None


# ---- one block -------------------------------------------------------------------------------------------------------


def linear(x, w, name):
    """Multiply x (..., I) by w[name] (I, O), with its bias and its low-rank adapter if there are any -> (..., O)."""
    y = kernels.matmul(x, w[name])
    if name + "_a" in w:  # LoRA: (I, r) and (r, O)
        low_rank = kernels.matmul(x, w[name + "_a"])
        y += kernels.matmul(low_rank, w[name + "_b"])
    if name + "_bias" in w:
        y += w[name + "_bias"]
    return y


def rms_norm(x, gain, eps):
    """Divide x (..., D) by its root mean square, and multiply it by gain (D,)."""
    x32 = x.astype(jnp.float32)
    mean_square = jnp.mean(x32 * x32, -1, keepdims=True)
    normed = x32 * jax.lax.rsqrt(mean_square + eps)
    return normed.astype(x.dtype) * gain


def rotary(positions, cfg):
    """Tabulate the rotary angles: positions (B or 1, S) -> cos, sin (B or 1, S, 1, K/2) float32, K being the columns of
    a head that are turned."""
    turned = int(cfg.head_dim * cfg.rotary_share)
    column = positions[:, :, None, None]
    angle = column * cfg.rope_theta ** (-jnp.arange(0, turned, 2) / turned)
    return jnp.cos(angle), jnp.sin(angle)


ROTARY = Table(plain=rotary)


def rotate(x, cos, sin):
    """Rotate the heads x (B, S, H, K) by the tables of `rotary`: column i together with column i + K/2 (GPT-NeoX's
    form; GGUF files interleave instead). If cos and sin are narrower than K/2, the last columns stay."""
    half = cos.shape[-1]
    a, b, rest = jnp.split(x.astype(jnp.float32), (half, 2 * half), -1)
    turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)
    return turned.astype(x.dtype)


def columns(x, part):
    """Cut out the columns part = (first, how many) of x (B or 1, S, ...); None: all of them. first is one number, or
    (B,) if rows differ."""
    if part is None:
        return x
    first, n = part
    if jnp.ndim(first) == 0:
        return jax.lax.dynamic_slice_in_dim(x, first, n, 1)
    rows = jnp.broadcast_to(x, (len(first), *x.shape[1:]))

    def of_row(row, first):
        return jax.lax.dynamic_slice_in_dim(row, first, n)

    return jax.vmap(of_row)(rows, first)


def block(x, w, cfg, rotation, attend, part=None):
    """Apply one transformer block: x (B, S, D) -> (B, S, D).

    w: the weights of this block, perhaps with gains attn_out_norm for a norm of what attention adds. attend(q, k, v) ->
    the mixed values (B, S, H*K). rotation: the tables of `rotary`. part (first, how many): compute the result for these
    columns only, (B, how many, D); all columns still serve as keys and values."""

    def norm(x, name):
        return rms_norm(x, w[name], cfg.norm_eps)

    def heads(x, name):
        y = linear(x, w, name).reshape(*x.shape[:2], -1, cfg.head_dim)
        return norm(y, name + "_norm") if name + "_norm" in w else y

    h = norm(x, "attn_norm")
    q = rotate(heads(columns(h, part), "q"), *(columns(a, part) for a in rotation))
    k = rotate(heads(h, "k"), *rotation)
    mixed = attend(q, k, heads(h, "v"))
    out = linear(mixed, w, "o")
    x = columns(x, part) + (norm(out, "attn_out_norm") if "attn_out_norm" in w else out)
    return x + MLPS[cfg.mlp].apply(norm(x, "mlp_norm"), w, cfg)


class Mlp(NamedTuple):
    """What stands in place of the mlp."""

    shapes: Callable  # cfg, the number of a layer -> its weights {name: shape}
    apply: Callable  # h (B, S, D), the weights of a layer, cfg -> (B, S, D)


def dense_shapes(cfg, i):
    """List the weights of an mlp with a gate."""
    D, F = cfg.d_model, cfg.ff
    return {"gate": (D, F), "up": (D, F), "down": (F, D)}


def dense(h, w, cfg):
    """Apply an mlp with a gate: h (B, S, D) -> (B, S, D)."""
    inner = jax.nn.silu(linear(h, w, "gate")) * linear(h, w, "up")
    return linear(inner, w, "down")


MLPS = Table(dense=Mlp(dense_shapes, dense))


# ---- who sees whom ---------------------------------------------------------------------------------------------------


def positions_of(valid, T):
    """Number the tokens of each text from 0: valid (B, T) or None -> (B or 1, T). Padding on the left is not counted
    (it gets 0), so a padded prompt and an unpadded one have the same logits."""
    if valid is None:
        return jnp.arange(T)[None]
    return jnp.maximum(jnp.cumsum(valid, 1) - 1, 0)


def see_all(i, j, z, valid, cfg, part):
    """Every column sees all others."""
    return None


# Say which columns see which: query columns i (B or 1, S, 1), key columns j (1, 1, T), tokens z (B, T), valid (B, T) or
# None, cfg, part (first, how many; None: all): which columns i are -> (B or 1, S, T) bool; None: all see all.
MASKS = Table(all=see_all)


def attention_mask(cfg: ModelConfig, valid: jax.Array | None, z: jax.Array, part=None) -> Callable:
    """Say to which columns of the tokens z (B, T) each column of `part` (first, how many; None: all) may attend -> a
    function of a layer's number that returns its Scores."""
    j = jnp.arange(z.shape[1])[None, None]
    i = columns(j[0], part)[..., None]
    seen = MASKS[cfg.mask](i, j, z, valid, cfg, part)
    if valid is not None:  # padding sees itself: a softmax over nothing would be 0 / 0
        text = valid[:, None]
        seen = text if seen is None else seen & (text | (i == j))
    return network(cfg).scores(seen, i - j, cfg)


def attention(q, k, v, scores, part):
    """Mix the values v that queries may see: q (B, S, H, K) of the columns `part`, k and v (B, T, KV, K), the Scores of
    all queries in this layer -> (B, S, H*K)."""
    mask, *others = scores
    if mask is not None and mask.shape[1] > 1:
        mask = columns(mask, part)
    return kernels.attention(q, k, v, mask, *others)


# ---- what is scaled and capped ---------------------------------------------------------------------------------------


class Scores(NamedTuple):
    """How the scores of one layer's attention are made of queries and keys."""

    mask: jax.Array | None  # (B or 1, S or 1, T) bool: which key columns each query column sees; None: all
    scale: float  # products of queries and keys are multiplied by it
    cap: float | None  # see kernels.soft_cap


class Network(NamedTuple):
    """What a kind of network does with its numbers."""

    gain: float  # is added to the gains of norms as they are stored
    embedded: Callable  # embeddings (B, S, D), cfg -> what the first block reads
    scores: Callable  # mask, distance of query and key columns, cfg -> a function of a layer's number -> its Scores
    logits: Callable  # logits (..., V), cfg -> (..., V)


def unchanged(x, cfg):
    """Return x."""
    return x


def equal_layers(mask, distance, cfg):
    """Give all layers the same Scores."""
    scores = Scores(mask, cfg.head_dim**-0.5, None)
    return lambda layer: scores


NETWORKS = Table(plain=Network(0, unchanged, equal_layers, unchanged))


def network(cfg):
    """Return the Network of a ModelConfig."""
    return NETWORKS[cfg.network]


# ---- the network -----------------------------------------------------------------------------------------------------


def forward(params, tokens, cfg, positions, mask, part=None, attention=attention):
    """Run the network over tokens (B, S) -> hidden states (B, S, D).

    positions (B or 1, S): from `positions_of`. mask: from `attention_mask`. part (first, how many): the last layer
    computes only the states of these columns. attention: that of packed rows is another (variants/blocks.py), and with
    a cache (variants/caches.py)."""
    params = prepared(params, cfg)
    rotation = ROTARY[cfg.rotary](positions, cfg)

    def layer(scores, wanted, x, w, rotation, visible):
        def attend(q, k, v):
            return attention(q, k, v, scores._replace(mask=visible), wanted)

        x, w = sharding.gather_layer(x, w, cfg.remat)
        return sharding.shard_rows(block(x, w, cfg, rotation, attend, wanted))

    if cfg.remat:
        from system import remat

    x = embed(params, tokens, cfg)
    for i, w in enumerate(params["blocks"]):
        scores = mask(i)
        run = functools.partial(layer, scores._replace(mask=None), part if i == cfg.n_layer - 1 else None)
        inputs = x, w, rotation, scores.mask
        x = remat.recomputed(run, *inputs) if cfg.remat else run(*inputs)
    return rms_norm(x, params["norm"], cfg.norm_eps)


def prepared(params, cfg):
    """Add to gains what the network adds, then round all parameters but routers to cfg.dtype. Embeddings, norms and
    biases then get the dtype that they are added and multiplied in, see `kernels.between` -> params without the head.
    """

    def leaf(path, w):
        if kernels.is_packed(w):
            return w
        if path[-1].key.endswith("norm"):
            w = w + network(cfg).gain
        if path[-1].key.startswith("router"):
            return w
        w = w.astype(cfg.dtype)
        is_product = w.ndim > 1 and len(path) > 1
        return w if is_product else w.astype(kernels.between(cfg.dtype))

    trunk = {name: params[name] for name in ("embed", "blocks", "norm")}
    return jax.tree_util.tree_map_with_path(leaf, trunk, is_leaf=kernels.is_packed)


def embed(params, tokens, cfg):
    """Look up the embeddings of tokens (B, S) -> (B, S, D)."""
    # A causal model's mask_id may lie outside its vocabulary: the state there is never used.
    x = sharding.shard_rows(params["embed"].at[tokens].get(mode="clip"), embedded=True)
    return network(cfg).embedded(x, cfg)


def trunk(params, tokens, cfg, valid=None, part=None):
    """Run the network over whole texts: tokens (B, T), valid (B, T) False on left padding -> states (B, T, D), or those
    of the columns `part` (first, how many)."""
    positions = positions_of(valid, tokens.shape[1])
    mask = attention_mask(cfg, valid, tokens)
    return forward(params, tokens, cfg, positions, mask, part)


# ---- the state that a token is predicted from ------------------------------------------------------------------------


def own_state(params, z, cfg, valid, start, length):
    """Predict a token from the state in its own place (LLaDA)."""
    return trunk(params, z, cfg, valid, None if length == z.shape[1] else (start, length))


READS = Table(own=own_state)
PARTS = {"mlp": MLPS, "mask": MASKS, "read": READS, "rotary": ROTARY, "network": NETWORKS}  # by fields of ModelConfig


def hidden(params, z, cfg, valid=None, start=0, length=None):
    """Compute the states that tokens are predicted from: z (B, T) with masks -> (B, length, D), [:, i] about token
    start + i, whichever of READS the model has.

    length None: up to the end. `start` may be traced, and (B,) if rows differ (then give length)."""
    length = z.shape[1] - start if length is None else length
    return READS[cfg.read](params, z, cfg, valid, start, length)


def gather_head(params, cfg):
    """Gather the output head across devices once, before logits are computed in chunks -> params with it."""
    name = "embed" if cfg.tie_embeddings else "head"
    return params | sharding.gather_weights({name: params[name]})


def readout(params: dict, h: jax.Array, cfg: ModelConfig) -> jax.Array:
    """Compute logits (..., V) float32 from states h (..., D); the mask itself can never be predicted."""
    head = params["embed"].T if cfg.tie_embeddings else params["head"]
    out = kernels.matmul(h, head.astype(cfg.dtype), jnp.float32)
    out = network(cfg).logits(out, cfg)
    return out if cfg.mask_id is None else kernels.without(out, cfg.mask_id)


def logits(params, z, cfg, valid=None, start=0, length=None):
    """Compute logits of z (B, T) with masks -> (B, length, V) float32, [:, i] about token start + i."""
    h = hidden(params, z, cfg, valid, start, length)
    return readout(gather_head(params, cfg), h, cfg)
