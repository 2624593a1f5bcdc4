"""
Filling the holes: every position of z that holds the mask token is drawn from the model, some at each step, best first.

Prompting, infilling, fill-in tasks and left-to-right generation are one call, `generate`; a Plan says in which order
holes are filled and how many at once. LLaDA's sampler is the rule quota, Dream's is dream with tempered=True, those of
Fast-dLLM are threshold and factor, with a cache that is right when a block begins; EB-Sampler's is entropy. An
autoregressive model is the order left, one token a step, and reads only that token: what it computed for those before
is in a cache of keys and values.

    python sample.py out/code_grpo --prompt="def add(a, b):" --n=4
    python sample.py out/sudoku --prompt="3.2..1........43:3_2__1________43" --show       # holes are filled in place
    python sample.py out/words_base --data=words --out=filled.jsonl --rewards=math
    python sample.py data/smollm2 --prompt="The capital of France is" --max_new_tokens=9
    python sample.py out/lora --export=merged                          # LoRA adapters become part of the weights
"""
from machine import terminal

if __name__ == "__main__":
    terminal.begin()

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import diffusion
import model
from machine import caches, kernels, mesh


@dataclasses.dataclass(frozen=True)
class Plan:
    # `confidence` is the largest probability of a position: it depends on the state alone, so the trace's log-probs are
    # exactly the trajectory's. LLaDA's own choice at temperature > 0 is `sampled`, the probability of the token just
    # drawn: whether a token is kept then depends on which one it is, and its log-prob is not that of its being there.
    order: str = "confidence"  # which holes first: random, confidence, margin, entropy, left, sampled
    rule: str = "quota"  # how many at a step: quota (LLaDA), dream, threshold, factor, entropy, dynamic (SDAR)
    steps: int = 32  # forward passes, shared out over the blocks; of a block_causal model, for each block
    block_len: int | None = None  # fill blocks of this many tokens from left to right; None: all is one block
    cache: str = "none"  # of what a pass leaves out: none, prefix (left of the block), dual (and right of it)
    early_end: bool = False  # a row whose text has its end, and no hole before it, is done: the rest becomes ends, too
    threshold: float = 0.9  # rule threshold: commit whatever is at least this probable, and the best
    factor: float = 1.0  # rule factor: commit n if the last of them is at least 1 - factor / (n + 1) probable
    budget: float = 0.1  # rule entropy: commit while the sum of entropies, less the largest, is within this (nats)
    temperature: float = 0.0  # 0: the most probable token
    top_k: int | None = None  # draw from the k most probable tokens
    top_p: float | None = None  # draw from the most probable tokens that together reach this probability
    repetition_penalty: float = 1.0  # above 1: tokens that a row already has become less likely
    guidance: float = 0.0  # LLaDA's cfg_scale: away from what the model says without the given tokens
    tempered: bool = False  # order by the probabilities after temperature, top-k and top-p (Dream), not before (LLaDA)
    never: tuple[int, ...] = ()  # ids that are never drawn (LLaDA's logits_eos_inf)
    last: tuple[int, ...] = ()  # ids whose confidence counts as 0 (LLaDA's confidence_eos_eot_inf)

    def __post_init__(self):
        least = dict(steps=1, block_len=1, top_k=1, threshold=0, factor=0, budget=0, temperature=0)
        values = dataclasses.asdict(self)
        checks = {name: (values[name] is None or values[name] >= x, f"at least {x}") for name, x in least.items()} | {
            "order": (self.order in ORDERS, "one of " + ", ".join(ORDERS)),
            "rule": (self.rule in RULES, "one of " + ", ".join(RULES)),
            "cache": (self.cache in CACHES, "one of " + ", ".join(CACHES)),
            "top_p": (self.top_p is None or 0 < self.top_p <= 1, "None, or a number above 0 and up to 1"),
            "guidance": (self.guidance == 0 or self.cache == "none" and self.guidance > 0,
                         "at least 0; with a cache 0, for there is none of the second pass"),
            "repetition_penalty": (self.repetition_penalty > 0, "above 0; 1 changes nothing"),
            "last": (not self.last or self.order not in ("random", "left"),
                     f"nothing with order={self.order!r}, which does not look at probabilities")}
        for name, (holds, expected) in checks.items():
            if not holds:
                raise ValueError(f"{name}={values[name]!r}: expected {expected}")
        for name in ("never", "last"):  # a list has no hash, and jit finds a plan by its hash
            object.__setattr__(self, name, tuple(values[name]))


class State(NamedTuple):
    z: jax.Array  # (B, T)
    step: jax.Array  # (B, T) when each token was committed; -1: given, or still a hole
    logp: jax.Array  # (B, T) its log-prob when it was drawn
    n: jax.Array  # steps so far
    block: jax.Array  # (B,) where the current block of each row begins
    i: jax.Array  # (B,) steps so far in this block
    cache: list | None = None  # keys and values: of a causal model, of what is left of the current column
    kept: jax.Array | None = None  # (B,) of a block model: what is left of this column stays in the cache as it is


# ---- who goes first: logits (n, V), the token each of n positions would get, its key and its column -> scores (n,)

def chances(l, some):
    """l (n, V), some of its logits (n, k) -> the softmax of these, (n, k), without all the others in memory."""
    top = l.max(-1, keepdims=True)
    return jnp.exp(some - top) / jnp.exp(l - top).sum(-1, keepdims=True)


def chance(l, token):
    """l (n, V), token (n,) -> its probability (n,)."""
    return chances(l, jnp.take_along_axis(l, token[:, None], -1))[:, 0]


def negative_entropy(l):
    """l (n, V) -> (n,). The 1e-10 is Dream's: its orders are reproduced to the token."""
    p = jax.nn.softmax(l)
    return jnp.sum(p * jnp.log(p + 1e-10), -1)


ORDERS = {
    "random": lambda l, token, keys, column: jax.vmap(jax.random.uniform)(keys),
    "confidence": lambda l, token, keys, column: chance(l, token),
    "margin": lambda l, token, keys, column: -jnp.diff(chances(l, jax.lax.top_k(l, 2)[0]))[:, 0],  # best minus second
    "entropy": lambda l, token, keys, column: negative_entropy(l),
    "left": lambda l, token, keys, column: -column.astype(jnp.float32),
    "sampled": lambda l, token, keys, column: chance(l, token),  # of the token drawn; for all others, the likeliest
}


# ---- how many: rank, hole, the scores of NEEDS (B, L), step i of `share` (B, 1) in this block -> commit (B, L) bool

# The order by whose scores a rule decides.
NEEDS = {"threshold": "confidence", "factor": "confidence", "dynamic": "confidence", "entropy": "entropy"}


def quota(plan, rank, hole, score, i, share):
    """LLaDA's balanced split: n holes in s steps are n // s at each and one more at the first n % s."""
    return rank < -(-hole.sum(1, keepdims=True) // jnp.maximum(share - i, 1))  # holes left / steps left, rounded up


def dream_fractions(steps):
    """-> (steps,) float32: the fraction of the holes that Dream fills at each step; at the last, all."""
    t = np.linspace(1, 1e-3, steps + 1, dtype=np.float32)  # not to 0: as many steps as holes fill 0, 1, 1, ..., 1, 2
    return np.append(1 - t[1:-1] / t[:-2], np.float32(1))


def dream(plan, rank, hole, score, i, share):
    """Dream's schedule: a fraction of a row's holes (Dream: of their mean in the batch), rounded down; at last, all."""
    fractions = np.stack([np.pad(dream_fractions(s), (0, plan.steps - s)) for s in range(1, plan.steps + 1)])
    k = (hole.sum(1, keepdims=True) * jnp.asarray(fractions)[share - 1, i]).astype(jnp.int32)
    return rank < jnp.where(i < share - 1, k, hole.shape[1])


def static(plan, rank, hole, score, i, share):
    """SDAR's split: of a block's length, not of the holes in it, which are fewer where a prompt ends."""
    return rank < jnp.maximum(hole.shape[1] // share + (i < hole.shape[1] % share), 1)


def factor(plan, rank, hole, score, i, share):
    """Fast-dLLM's other rule: n of them, the last with a probability p that has (n + 1) (1 - p) <= factor; and the
    best. (Its released loop takes the last hole of all even where that fails.)"""
    fails = hole & (rank > 0) & ((rank + 2) * (1 - score) > plan.factor)
    return rank < jnp.min(jnp.where(fails, rank, hole.shape[1]), 1, keepdims=True)


def entropy(plan, rank, hole, score, i, share):
    """EB-Sampler: as far as the sum of entropies, less the largest of them, stays in the budget; and the best."""
    H = jnp.where(rank[:, None] <= rank[..., None], -score[:, None], 0)  # (B, L, L): up to each rank
    return (H.sum(-1) - H.max(-1) <= plan.budget) | (rank == 0)


RULES = {"quota": quota, "dream": dream, "factor": factor, "entropy": entropy,  # and whatever is probable enough:
         "dynamic": lambda plan, *a: static(plan, *a) | (a[2] > plan.threshold),  # SDAR's: what is sure, and its split
         "threshold": lambda plan, rank, hole, score, i, share: (score >= plan.threshold) | (rank == 0)}
CACHES = "none", "prefix", "dual"


# ---- one step --------------------------------------------------------------------------------------------------------

def ban(l, ids):
    """l (..., V) with these ids out of reach."""
    return l.at[..., jnp.array(ids)].set(model.BANNED) if ids else l


def predict(params, s, asked, cfg, plan, valid, start, length, fresh):
    """State, asked (B, T), the start (B,) of a window, or () -> what its logits are read from, (B, length, D or with
    guidance 2D); for the penalty, which ids (B, V) a row has already; the cache, in a causal model with the column
    before start, the one that was filled last."""
    z, cache = s.z, s.cache
    if cfg.causal:
        before = jnp.maximum(start - 1, 0)
        last = jax.lax.dynamic_slice_in_dim(z, before, 1, 1)  # of column 0 there is none, and the next step mends it
        last = jnp.where(start == 0, model.start_id(cfg), last)
        h, cache = model.extend(params, last, cfg, valid, cache, before)
    elif cache is not None and cfg.block_causal:
        h, cache = caches.block_pass(params, s, cfg, plan, valid, start, length)
    elif cache is not None:
        h, cache = caches.revisit(params, s, cfg, plan, valid, start, length, fresh)
    else:
        h = model.features(params, z, cfg, valid, start, length)
    if plan.guidance:
        u = model.features(params, jnp.where(asked, z, cfg.mask_id), cfg, valid, start, length)
        h = jnp.concatenate([h, u], -1)
    if plan.repetition_penalty == 1:
        return h, None, cache
    return h, ids_of(z, (z != cfg.mask_id) & (True if valid is None else valid), cfg.vocab_size), cache


def ids_of(z, there, V):
    """z, there (..., T) -> (..., V): which ids are there."""
    rows = jnp.indices(z.shape, sparse=True)[:-1]
    return jnp.zeros((*z.shape[:-1], V), bool).at[(*rows, z)].max(there)


def penalized(l, known, plan):
    """l, known (..., V) -> l, in which the ids that a row has are less likely."""
    return jnp.where(known, jnp.where(l > 0, l / plan.repetition_penalty, l * plan.repetition_penalty), l)


def logits(params, h, known, cfg, plan):
    """h (n, D or 2D), known (n, V) or None of `predict` -> logits (n, V), after guidance, penalty and `never`."""
    h, *without = jnp.split(h, 1 + bool(plan.guidance), -1)
    l = model.readout(params, h, cfg)
    if plan.guidance:
        u = model.readout(params, *without, cfg)
        l = u + (1 + plan.guidance) * (l - u)
    if known is not None:
        l = penalized(l, known, plan)
    return ban(l, plan.never)


def temper(l, plan):
    """l (..., V) -> the logits that tokens are drawn from: temperature, then top-p, then top-k, in Dream's order."""
    if plan.temperature:
        l = l / plan.temperature
    if plan.top_p is not None and plan.top_p < 1:
        l = jnp.where(kernels.nucleus(l, plan.top_p), l, model.BANNED)
    if plan.top_k is not None:
        l = jnp.where(l < jax.lax.top_k(l, min(plan.top_k, l.shape[-1]))[0][..., -1:], model.BANNED, l)
    return l


def as_drawn(l, x, ids, there, plan):
    """l (..., V), x (...), ids, there (..., T) -> the logits that x was drawn from where its row had these ids.

    Where x would be filtered out now (another policy than the one that drew it, another view), it counts as one of
    those that are kept: its log-prob is finite, has a gradient, and is exact wherever x could have been drawn."""
    l = l if plan.repetition_penalty == 1 else penalized(l, ids_of(ids, there, l.shape[-1]), plan)
    return jnp.where(jnp.arange(l.shape[-1]) == x[..., None], l / plan.temperature, temper(l, plan))


def reach(key, p):
    """Where the cumulative sum of p (n,) first reaches a random share of the whole: index i with chance p[i]."""
    u = ((jax.random.bits(key) >> 8).astype(jnp.float32) + 0.5) * 2.0**-24  # neither 0 nor 1
    sums = jnp.cumsum(p)
    return (sums < u * sums[-1]).sum()


def draw(key, p):
    """A key, p (V,) -> a token. First which of sqrt(V) stretches of the vocabulary, then which token of the stretch: so
    the sums stay short, and exact for the rare tokens of a large vocabulary, and two random numbers do. (Gumbel noise,
    as in LLaDA's code, takes V of them and as many logarithms of logarithms, with the same distribution.)"""
    n = math.isqrt(len(p) - 1) + 1
    cut = jnp.pad(p, (0, n * n - len(p))).reshape(n, n)
    k_stretch, k_token = jax.random.split(key)
    stretch = reach(k_stretch, cut.sum(-1))
    token = stretch * n + reach(k_token, cut[stretch])
    # The last bit of a sum must not make a banned token possible.
    return jnp.where(p[token] > 0, token, kernels.likeliest(p))


def place(s, cfg, plan, L):
    """State, the length L of a block -> for each row (B,) where its block begins, the steps it may take, and of these
    the next one; (), do blocks begin? With a cache rows wait for each other, and begin their next blocks together.

    Blocks tile a row from its first hole and share the steps by how many tokens were asked for in each: equal shares
    where all of them were, as in LLaDA, and none for given text in between. A causal model is at one column in all
    rows, and comes by given ones, too: the cache has to know them."""
    T, holes = s.z.shape[1], s.z == cfg.mask_id
    asked = holes | (s.step >= 0)
    first = jnp.argmax(asked, 1)
    now = jnp.where(holes.any(1), jnp.argmax(holes, 1), first)
    if cfg.causal:
        first = jnp.full(len(s.z), jnp.argmax(asked.any(0)))
        now = first + s.n
    block = first + (now - first) // L * L
    going = holes.any(1) & (block == s.block)
    fresh = ~going.any()
    if plan.cache != "none":
        block = jnp.where(going | fresh & holes.any(1), block, jnp.maximum(s.block, 0))
    before = lambda at: plan.steps * (asked & (jnp.arange(T) < at[:, None])).sum(1) // jnp.maximum(asked.sum(1), 1)
    return block, jnp.maximum(before(block + L) - before(block), 1), jnp.where(block == s.block, s.i, 0), fresh


def in_grid(s, cfg, plan, L, valid):
    """State of a block model, the length L of a block, or of a part of one -> for each row where its block begins, the
    steps it may take, the next of them; which columns (B, T) may be filled now; the State, and `kept` of the next.

    Blocks begin where the text does. With a cache, one that is finished takes a pass of its own, to be kept. That gives
    a shifted model the first token of the next: alone, for nothing can be said of its others yet."""
    B, T = s.z.shape
    holes, column, b = s.z == cfg.mask_id, jnp.arange(T), cfg.block_causal
    text = jnp.zeros(B, jnp.int32) if valid is None else jnp.argmax(valid, 1)
    at = jnp.argmax(holes, 1) - text
    block, read_from = text + at // L * L, text + jnp.maximum(at - cfg.shift, 0) // b * b
    s = s._replace(kept=jnp.where(s.n == 0, read_from, s.kept))  # what is given before the first hole has been read
    alone, behind = cfg.shift & (at > 0) & (at % b == 0), (s.cache is not None) & (at > 0) & (s.kept < read_from)
    may = jnp.where(alone[:, None], column == (text + at)[:, None], True) & ~behind[:, None]
    i = jnp.where(block == s.block, s.i, 0) - (alone | behind)  # neither is one of a block's steps
    return block, jnp.full(B, plan.steps), i, may, s, jnp.where(alone | behind, s.kept + b, s.kept)


def speak(l, keys, plan):
    """l (n, V), keys (n,) -> the tokens (n,) that are drawn, their log-probs. At temperature 0 that is the model's own,
    at temperature 1: that of a point mass would say nothing."""
    source = temper(l, plan)
    token = jax.vmap(draw)(keys, jax.nn.softmax(source)) if plan.temperature else kernels.likeliest(source)
    return token, diffusion.gather_logp(source, token)


def without_noise(score):
    """Round scores to 12 bits, so that equal ones stay equal. Without a prompt all masks are alike. The last bits of
    float32 differ from one batch size or mesh to another, and would decide the order: 14 of 16 tokens changed."""
    return jax.lax.reduce_precision(score, exponent_bits=8, mantissa_bits=12)


def rate(l, keys, plan, column, drawn=None):
    """l (n, V), keys, columns and maybe tokens (n,) -> the scores (n,) of plan.order, and those that its rule needs."""
    looked_at = temper(l, plan) if plan.tempered else l
    token = kernels.likeliest(looked_at) if drawn is None else drawn
    seen = ban(looked_at, plan.last)
    of = lambda order: ORDERS[order](seen, token, keys, column)
    score = of(plan.order)
    if plan.order not in ("left", "random"):  # these two are exact
        score = without_noise(score)
    low = jnp.isnan(score) | jnp.isin(token, jnp.array(plan.last, int))  # nan: a broken model must not hang the loop
    return jnp.where(low, model.BANNED, score), of(NEEDS[plan.rule]) if plan.rule in NEEDS else score


@functools.partial(jax.jit, static_argnames=("cfg", "plan", "alike"))
def denoise(params, keys, s, cfg, plan, valid, alike=1):
    """One step from State s, keys (B,): of the holes of each row's current block the best get a token. Where so many
    rows in a row are `alike`, the model reads the first of them."""
    B, T = s.z.shape
    L = 1 if cfg.causal else min(plan.block_len or T, cfg.block_causal or T, T)
    holes, fresh, may, kept = s.z == cfg.mask_id, None, True, None
    if cfg.block_causal:
        block, share, i, may, s, kept = in_grid(s, cfg, plan, L, valid)
    else:
        block, share, i, fresh = place(s, cfg, plan, L)
    start = jnp.minimum(block, T - L)  # the last block may look back over finished text, where no holes are
    column = start[:, None] + jnp.arange(L)
    here = jnp.arange(B)[:, None], column  # (B, L) of (B, T)
    hole = (holes & may)[here]

    asked = holes | (s.step >= 0)
    some = s.z, asked, valid, start, block, s.kept, i
    z, ask, seen, at, begun, stays, now = (None if x is None else x[::alike] for x in some)
    read_of = s._replace(z=z, block=begun, i=now, kept=stays, cache=s.cache and [x[:, ::alike] for x in s.cache])
    h, known, cache = predict(params, read_of, ask, cfg, plan, seen, at[0] if cfg.causal else at, L, fresh)
    cache = cache and [jnp.repeat(x, alike, 1) for x in cache]
    params = model.at_hand(params, cfg)
    read = lambda h, row: logits(params, h, None if known is None else known[row // alike], cfg, plan)
    row, flat = jnp.arange(B).repeat(L), lambda a: a.reshape(B * L, *a.shape[2:])
    n = max(diffusion.LOGITS // (16 * cfg.vocab_size), 1)  # positions at a time: there are up to four such arrays
    if B * L <= n:  # all logits at once, and once
        l = read(h.reshape(-1, h.shape[-1]), alike * row[: B * L // alike])
        h, read = l.reshape(-1, L, cfg.vocab_size), lambda l, row: l
    # A key per row, position from the right end, and step: neither other rows nor padding change what a row gets.
    number = ((T - column) * 2**15 + i[:, None]) * 2
    of_row = lambda row, number: jax.vmap(jax.random.fold_in)(keys[row], number)
    some = flat(jnp.repeat(h, alike, 0)), row, flat(number)
    say = lambda h, row, number: speak(read(h, row), of_row(row, number), plan)
    see = lambda h, row, number, *more: rate(read(h, row), of_row(row, number + 1), plan, *more)

    drawn = diffusion.in_chunks(say, n, flat(hole), *some) if plan.order == "sampled" else ()
    score, sure = (x.reshape(B, L) for x in diffusion.in_chunks(see, n, flat(hole), *some, flat(column), *drawn[:1]))
    score = jnp.where(hole, score, -jnp.inf)
    # How many go before it: those with a higher score, and of equals those to the left, so that ties break the same way
    # everywhere. L * L comparisons are nothing beside attention's dot products.
    other, own, earlier = score[:, None], score[..., None], jnp.tri(L, k=-1, dtype=bool)  # (B, L, L)
    rank = ((other > own) | (other == own) & earlier).sum(-1)
    rule = static if cfg.block_causal and plan.rule == "quota" else RULES[plan.rule]
    commit = hole if cfg.causal else hole & rule(plan, rank, hole, sure, i[:, None], share[:, None])
    few = min(n, max(B * L // 8, 256))  # of the rest nothing is drawn
    drawn, logp = (x.reshape(B, L) for x in drawn or diffusion.in_chunks(say, few, flat(commit), *some))

    put = lambda x, new: x.at[here].set(jnp.where(commit, new, x[here]))
    z, step = put(s.z, drawn.astype(s.z.dtype)), put(s.step, s.n)
    if (cfg.causal or plan.early_end) and cfg.eos_id is not None:  # behind an end without given text there is no more
        given = jnp.max(jnp.where(asked, -1, jnp.arange(T)), 1, keepdims=True)  # the last column
        ends = (z == cfg.eos_id) & (step >= 0) & (jnp.arange(T) > given)  # (B, T)
        behind, left = jnp.cumsum(ends, 1) > ends, z == cfg.mask_id
        rest = left & (behind | ~left).all(1, keepdims=True)
        if cfg.block_causal:  # the block that has the end is filled to its own
            least = lambda some: jnp.where(some, diffusion.blocks(valid, T, cfg), T).min(1, keepdims=True)
            rest = left & (least(left) > least(ends))
        z, step = jnp.where(rest, cfg.eos_id, z), jnp.where(rest, s.n, step)
    return State(*mesh.replicate((z, step, put(s.logp, logp), s.n + 1, block, i + 1)), cache, kept)


# ---- all of them -----------------------------------------------------------------------------------------------------

def row_keys(key, n, first=0):
    """key -> the keys (n,) of rows first .. first + n - 1: a batch in chunks gets the tokens that it gets at once."""
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(first + jnp.arange(n))


def begin(params, key, z, cfg, plan, valid, group=1):
    """-> keys (B,), the State before the first step. What cannot work is said here."""
    if cfg.mask_id is None:
        raise ValueError("this model has no mask token, so nothing in z can be a hole: set mask_id in its config")
    if cfg.causal and plan.order != "left":
        raise ValueError(f"order={plan.order!r}: a causal model sees only what is left of a hole; use order='left'")
    if cfg.causal and plan.cache != "none":
        raise ValueError(f"cache={plan.cache!r}: a causal model has a cache of its own, an exact one; leave it out")
    if cfg.causal and plan.guidance:
        raise ValueError(f"guidance={plan.guidance} compares with a prompt of masks, which a causal model cannot read")
    ids = set(plan.never + plan.last)
    if not ids <= set(range(cfg.vocab_size)) or len({cfg.mask_id, *plan.never}) == cfg.vocab_size:
        raise ValueError(f"never={plan.never}, last={plan.last}: expected ids below {cfg.vocab_size}, never not all")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    keys = row_keys(key, len(z)) if key.ndim == 1 - typed else key
    if cfg.block_causal and cfg.block_causal % min(plan.block_len or cfg.block_causal, cfg.block_causal):
        raise ValueError(f"block_len={plan.block_len}: expected a divisor of block_causal={cfg.block_causal}, whose "
                         "blocks are filled in parts of this length, or more than that: then they are not")
    n, block, i = jnp.int32(0), *jnp.array([[-1], [0]], jnp.int32).repeat(len(z), 1)
    cache = None if plan.cache == "none" else model.new_cache(cfg, *z.shape)
    cache = caches.prefill(params, z, cfg, valid, group) if cfg.causal or cfg.block_causal and cache else cache
    return keys, State(z, jnp.full(z.shape, -1, jnp.int32), jnp.zeros(z.shape, jnp.float32), n, block, i, cache,
                       i if cfg.block_causal else None)  # fmt: skip


@functools.partial(jax.jit, static_argnames=("cfg", "plan", "group"))
def generate(params, key, z, cfg, plan, valid=None, group=1):
    """z (B, T) with holes, a key or keys (B,), valid (B, T) False at left padding -> x (B, T) without holes, trace:
    step (B, T) at which each token was committed, -1 where given; logp (B, T) of each token under the
    distribution it was drawn from, 0 where given; n_steps (), the forward passes. What is not a hole is not changed.

    group: so many rows in a row are alike. A causal model then reads their prompt once, and a denoiser does their first
    step once, from which they differ.
    """
    keys, s = begin(params, key, z, cfg, plan, valid, group)
    if group > 1 and not cfg.causal:
        s = denoise(params, keys, s, cfg, plan, valid, group)
    step = lambda s: denoise(params, keys, s, cfg, plan, valid)
    s = jax.lax.while_loop(lambda s: jnp.any(s.z == cfg.mask_id), step, s)
    return mesh.replicate((s.z, {"step": s.step, "logp": s.logp, "n_steps": s.n}))


# ---- of a run --------------------------------------------------------------------------------------------------------

SHARED = "order rule block_len cache threshold factor budget tempered".split()  # fields that a run has, too


def plan(cfg, temperature, steps=None, early_end=True):
    same = {name: getattr(cfg, name) for name in [*SHARED, "top_k", "top_p", "repetition_penalty"]}
    whole = None if cfg.model.block_causal else cfg.max_new_tokens  # one block of all holes: no logits of the prompt
    same["block_len"] = cfg.block_len or whole
    return Plan(**same, steps=steps or cfg.diffusion_steps, temperature=temperature, early_end=early_end)


def holed(arrays, cfg):
    """arrays of Text -> its tokens (B, T) with the mask in every hole."""
    return jnp.where(arrays["hole"], cfg.mask_id, arrays["tokens"])


def fill(params, keys, arrays, cfg, plan, group=1):
    """arrays of Text, a key or one for each row -> tokens (B, T) whose holes are filled, the trace. group: so many
    rows in a row have one prompt."""
    return generate(params, keys, holed(arrays, cfg.model), cfg.model, plan, arrays["valid"], group)


if __name__ == "__main__":
    from machine import writer

    terminal.run(writer.main)
