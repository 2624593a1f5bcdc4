"""
Filling the masks of a text, some at each step, the surest first.

Prompting, infilling, fill-in tasks and left-to-right generation are one call, `generate`. A Plan says in which order
masks are filled, and by which rule how many at a time: quota is LLaDA's rule, dream (with tempered=True) Dream's,
threshold and factor Fast-dLLM's, entropy EB-Sampler's, dynamic and static SDAR's. An autoregressive model uses the
order left, one token per step, and a KV cache. To add an order or a rule, add a function to ORDERS or RULES.

    python sample.py out/code_grpo --prompt="def add(a, b):" --n=4
    python sample.py assets/sudoku_grpo --prompt="3_2__1________43" --show    # fill the gaps in place
    python sample.py out/words_base --data=words --out=filled.jsonl --rewards=math
    python sample.py data/smollm2 --prompt="The capital of France is" --max_new_tokens=9
    python sample.py out/lora --export=merged                          # merge LoRA adapters into the weights
    python sample.py out/sudoku_base out/sudoku_grpo --page=play.html  # one file in which both run in a browser
"""
if __name__ == "__main__":
    from system import terminal

    terminal.launch("tools.complete", help_of="tools.options")

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import diffusion
import model
from system import kernels, sharding
from variants import blocks, caches, checks, drafts, joint


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to fill masks."""

    # `confidence`, the largest probability at a position, depends on the state alone, so the trace's log-probs are
    # exact. With `sampled`, the probability of the token just drawn (LLaDA's choice at temperature > 0), whether a
    # token stays depends on which one it is, so they are not.
    order: str = "confidence"  # which masks first: random, confidence, margin, entropy, left, sampled
    # The rule `drafts` is a sampler of its own (variants/drafts.py), for models whose text is causal.
    # `renoise` also takes tokens back; it is for models with noise="uniform" (variants/uniform.py).
    rule: str = "quota"  # how many at a step: quota (LLaDA), dream, threshold, factor, entropy, dynamic, static (SDAR)
    steps: int = 32  # forward passes, divided among the blocks; in a block_causal model, for each block or part
    block_len: int | None = None  # fill blocks of this many tokens from left to right; None: one block
    cache: str = "none"  # reuse keys and values outside the block: none, prefix (left of it), dual (both sides)
    early_end: bool = False  # if a row has an end of text and no mask before it, fill the rest with it (causal: always)
    threshold: float = 0.9  # rules threshold, dynamic: commit every token at least this probable
    factor: float = 1.0  # rule factor: commit n if the last of them is at least 1 - factor / (n + 1) probable
    budget: float = 0.1  # rule entropy: commit while the sum of entropies, less the largest, is within this (nats)
    temperature: float = 0.0  # 0: the most probable token
    top_k: int | None = None  # draw from the k most probable tokens
    top_p: float | None = None  # draw from the most probable tokens that together reach this probability
    repetition_penalty: float = 1.0  # above 1: tokens that a row already has become less likely
    tempered: bool = False  # order by probabilities after temperature, top-k and top-p (Dream), not before (LLaDA)

    def __post_init__(self):
        checks.plan(self, ORDERS, (*RULES, "drafts"), CACHES)


class Filling(NamedTuple):
    """A batch while it is filled."""

    z: jax.Array  # (B, T) tokens, and the mask where there is none yet
    step: jax.Array  # (B, T) the step that committed each token; -1: given, or still masked
    logp: jax.Array  # (B, T) log-prob of each token when it was drawn; 0: given, masked, or filled in after an end
    n: jax.Array  # () steps so far; a round of drafts counts as two
    block: jax.Array  # (B,) the first column of each row's current block
    i: jax.Array  # (B,) steps so far in this block
    cache: list | None = None  # keys and values, see model.new_cache
    stored: jax.Array | None = None  # (B,) in a block model: the columns before it are in the cache for good


class Window(NamedTuple):
    """What a step works on: the current block of each row, L columns."""

    block: jax.Array  # (B,) its first column
    start: jax.Array  # (B,) the first of the L columns; less than `block` if the last block is shorter
    steps: jax.Array  # (B,) how many steps the block may take
    i: jax.Array  # (B,) the number of this step in the block
    refresh: jax.Array | None = None  # () True if the cache is to be computed anew (Fast-dLLM)
    may: jax.Array | None = None  # (B, T) True where a token may be committed now; None: in the whole block
    stored: jax.Array | None = None  # (B,) in a block model: Filling.stored during this step
    stored_next: jax.Array | None = None  # (B,) in a block model: Filling.stored after this step


class Block(NamedTuple):
    """What a rule decides from: the L positions of each row's block."""

    masked: jax.Array  # (B, L) True where a token may be committed
    rank: jax.Array  # (B, L) 0 for the mask that goes first
    confidence: jax.Array  # (B, L) probability of the likeliest token (order sampled: of the drawn one)
    entropy: jax.Array  # (B, L) in nats
    standing: jax.Array  # (B, L) probability of the token that stands there now, for rules in LOOKS_BACK
    i: jax.Array  # (B, 1) the number of this step in the block
    steps: jax.Array  # (B, 1) how many steps the block may take


# ---- orders: which masks first. logits (N, V); (N,): the likeliest token of each position (order sampled: the drawn
# ---- one), a random key, its column -> scores (N,), the highest first. `*_` stands for arguments that are not used.


def softmax_of(logits, some):
    """Return the probabilities (N, k) of k logits of each row: `some` (N, k) are values taken from logits (N, V), not
    their ids. The other probabilities are not computed."""
    top, total = kernels.peak_and_sum(logits)
    return jnp.exp(some - top[:, None]) / total[:, None]


def probability(logits, token, *_):
    own = jnp.take_along_axis(logits, token[:, None], -1)
    return softmax_of(logits, own)[:, 0]


def negative_entropy(logits, *_):
    p = kernels.probabilities(logits)
    return kernels.add_up(p * jnp.log(p + 1e-10))  # the 1e-10 is Dream's: its orders are reproduced to the token


def random(logits, token, keys, *_):
    return jax.vmap(jax.random.uniform)(keys)


def margin(logits, *_):
    top, _ = jax.lax.top_k(logits, 2)
    best, second = softmax_of(logits, top).T
    return best - second


def left(logits, token, keys, column):
    return -column.astype(jnp.float32)


ORDERS = {
    "random": random,
    "confidence": probability,
    "margin": margin,
    "entropy": negative_entropy,
    "left": left,
    "sampled": probability,  # of the token that was drawn
}


# ---- rules: how many at a step. Block, Plan -> (B, L) True where a token is to stand after this step. A rule that says
# ---- False where one stands already takes that token back.


def quota(b, plan):
    """LLaDA: fill an equal share of the block's remaining masks in each of its remaining steps, rounded up."""
    steps_left = jnp.maximum(b.steps - b.i, 1)
    share = -(-b.masked.sum(1, keepdims=True) // steps_left)
    return ~b.masked | (b.rank < share)


def dream_fractions(steps):
    """Return the fraction (steps,) of the remaining masks that Dream fills at each step; all of them at the last."""
    t = np.linspace(1, 1e-3, steps + 1, dtype=np.float32)  # not to 0: as many steps as masks fill 0, 1, 1, ..., 1, 2
    return np.append(1 - t[1:-1] / t[:-2], np.float32(1))


def dream(b, plan):
    """Dream: a growing fraction of a row's masks (in Dream, of their mean in the batch), rounded down; at the last step
    all of them."""
    by_steps = [np.pad(dream_fractions(n), (0, plan.steps - n)) for n in range(1, plan.steps + 1)]
    fraction = jnp.asarray(np.stack(by_steps))[b.steps - 1, b.i]
    share = b.masked.sum(1, keepdims=True) * fraction
    is_last = b.i >= b.steps - 1
    return ~b.masked | is_last | (b.rank < share.astype(jnp.int32))


def static(b, plan):
    """SDAR: in each step an equal share of the block's length, at least one. If a prompt fills the beginning of the
    block, its masks are used up in fewer steps."""
    L = b.masked.shape[1]
    share = L // b.steps + (b.i < L % b.steps)
    return ~b.masked | (b.rank < jnp.maximum(share, 1))


def dynamic(b, plan):
    """SDAR's other rule: what `static` says, and every other token that is more probable than plan.threshold."""
    return static(b, plan) | (b.confidence > plan.threshold)


def threshold(b, plan):
    """Fast-dLLM: every token at least as probable as plan.threshold, and always the first in plan.order."""
    return ~b.masked | (b.confidence >= plan.threshold) | (b.rank == 0)


def renoise(b, plan):
    """DiffusionGemma's idea: after each step as many tokens stand as with `quota`, the most probable ones. A token that
    stands and has become less probable than a new one elsewhere is taken back."""
    n = quota(b, plan).sum(1, keepdims=True)
    p = jnp.where(b.masked, b.confidence, b.standing)
    return rank_of(without_noise(p)) < n


def factor(b, plan):
    """Fast-dLLM's other rule: tokens in plan.order, up to the first for which (n + 1) (1 - p) > plan.factor, p being
    the probability of the n-th; at least one. (Its released loop fills the last mask even where that fails.)"""
    too_unsure = (b.rank + 2) * (1 - b.confidence) > plan.factor
    fails = b.masked & (b.rank > 0) & too_unsure
    failing = jnp.where(fails, b.rank, b.masked.shape[1])
    return ~b.masked | (b.rank < failing.min(1, keepdims=True))


def entropy(b, plan):
    """EB-Sampler: tokens in plan.order, as long as the sum of their entropies, less the largest, is within plan.budget;
    at least one."""
    not_later = b.rank[:, None] <= b.rank[..., None]  # (B, L, L)
    upto = jnp.where(not_later, b.entropy[:, None], 0)
    within = upto.sum(-1) - upto.max(-1) <= plan.budget
    return ~b.masked | within | (b.rank == 0)


RULES = {
    "quota": quota,
    "dream": dream,
    "threshold": threshold,
    "factor": factor,
    "entropy": entropy,
    "dynamic": dynamic,
    "static": static,
    "renoise": renoise,
}
# The rules that read Block.standing, to take tokens back. With any other rule, chunks without a mask are not scored.
LOOKS_BACK = {"renoise"}
CACHES = "none", "prefix", "dual"


# ---- the distribution that tokens are drawn from ---------------------------------------------------------------------


def ids_of(z, there, V):
    """Say which ids a row z (..., T) has in the places where `there` (..., T) is True -> (..., V) bool."""
    rows = jnp.indices(z.shape, sparse=True)[:-1]
    nothing = jnp.zeros((*z.shape[:-1], V), bool)
    return nothing.at[(*rows, z)].max(there)


def penalized(logits, present, plan):
    """Make the ids that a row has already, present (..., V), less likely by plan.repetition_penalty."""
    penalty = plan.repetition_penalty
    lower = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(present, lower, logits)


def ids_present(z, valid, cfg, plan):
    """Say which ids each row has (B, V), padding and masks left out; None without a repetition penalty."""
    if plan.repetition_penalty == 1:
        return None
    there = z != cfg.mask_id
    return ids_of(z, there if valid is None else there & valid, cfg.vocab_size)


def adjusted(params, h, present, row, cfg, plan):
    """Compute logits (N, V) from states h (N, D), and apply the repetition penalty.

    present (B, V): from `ids_present`. row (N,): which of its rows each state belongs to."""
    logits = model.readout(params, h, cfg)
    return logits if present is None else penalized(logits, present[row], plan)


def filtered(logits, plan):
    """Apply temperature, then top-p, then top-k (Dream's order) to logits (..., V)."""
    if plan.temperature:
        logits = logits / plan.temperature
    if plan.top_p is not None and plan.top_p < 1:
        logits = jnp.where(kernels.nucleus(logits, plan.top_p), logits, model.NEVER)
    if plan.top_k is not None:
        k = min(plan.top_k, logits.shape[-1])
        top, _ = jax.lax.top_k(logits, k)
        logits = jnp.where(logits < top[..., -1:], model.NEVER, logits)
    return logits


def as_drawn(logits, x, ids, there, plan):
    """Apply penalty, temperature (above 0) and filters to logits (..., V), as when the tokens x (...) were drawn.

    ids (..., T): the tokens of each x's row at that time; there (..., T): True on those that the penalty counts.
    If x would be filtered out now (by another policy than drew it, or in another view), it is kept: its log-prob is
    finite, has a gradient, and is exact wherever x could have been drawn."""
    if plan.repetition_penalty != 1:
        logits = penalized(logits, ids_of(ids, there, logits.shape[-1]), plan)
    drawn = jnp.arange(logits.shape[-1]) == x[..., None]
    return jnp.where(drawn, logits / plan.temperature, filtered(logits, plan))


# ---- one step --------------------------------------------------------------------------------------------------------


def masked_at_start(s, cfg):
    """Find the positions (B, T) that were masked before the first step, whether or not they are filled by now."""
    return (s.z == cfg.mask_id) | (s.step >= 0)


def current_block(s, cfg, plan, L):
    """Find the block of L columns that each row works on -> Window.

    Blocks tile a row from the column that was its first mask at the start. They divide the steps in proportion to
    their masks: equally when everything is masked, as in LLaDA. With a cache all rows begin their next block together.
    """
    T = s.z.shape[1]
    masked = s.z == cfg.mask_id
    unfinished = masked.any(1)
    asked = masked_at_start(s, cfg)
    first = jnp.argmax(asked, 1)
    next_mask = jnp.where(unfinished, jnp.argmax(masked, 1), first)
    block = first + (next_mask - first) // L * L
    in_block = unfinished & (block == s.block)
    refresh = ~in_block.any()
    if plan.cache != "none":  # a row that has finished its block waits until all rows have
        may_move = in_block | refresh & unfinished
        block = jnp.where(may_move, block, jnp.maximum(s.block, 0))

    def steps_before(column):
        """Count the steps that fall to the columns before this one."""
        before = jnp.arange(T) < column[:, None]
        share = (asked & before).sum(1)
        return plan.steps * share // jnp.maximum(asked.sum(1), 1)

    steps = jnp.maximum(steps_before(block + L) - steps_before(block), 1)
    i = jnp.where(block == s.block, s.i, 0)
    return Window(block, jnp.minimum(block, T - L), steps, i, refresh)


def causal_column(s, cfg):
    """Find the one column that all rows of a causal model are at -> Window. It goes right by one each step, from the
    first column that any row has to fill. It also visits given tokens on its way, because the cache has to hold them.
    """
    B, T = s.z.shape
    first = jnp.argmax(masked_at_start(s, cfg).any(0))
    column = jnp.full(B, first + s.n)
    zero = jnp.zeros(B, jnp.int32)
    return Window(column, jnp.minimum(column, T - 1), zero + 1, zero)


def next_block(s, cfg, plan, valid, L):
    """Find the block of L columns, or the part of a block, that each row of a block model works on -> Window.

    Two kinds of pass do not count as one of a block's steps. With a cache, a finished block gets one more pass, which
    stores it. In a shifted model, with or without a cache, the first token of each block but the first gets a pass of
    its own, because it is predicted from the finished block before it; with a cache this is the pass that stores."""
    B, T = s.z.shape
    size = cfg.block_causal
    text = 0 if valid is None else jnp.argmax(valid, 1)  # where each row's text begins
    first = jnp.argmax(s.z == cfg.mask_id, 1)
    at = first - text
    block = text + at // L * L
    needed = text + jnp.maximum(at - cfg.shift, 0) // size * size  # the columns that must be in the cache
    stored = jnp.where(s.n == 0, needed, s.stored)  # the prompt has been read
    behind = (s.cache is not None) & (stored < needed)
    alone = cfg.shift & (at > 0) & (at % size == 0)
    is_first = jnp.arange(T) == first[:, None]
    may = (is_first | ~alone[:, None]) & ~behind[:, None]
    extra = alone | behind
    i = jnp.where(block == s.block, s.i, 0) - extra
    start = jnp.minimum(block, T - L)
    steps = jnp.full(B, plan.steps)
    stored_next = jnp.where(extra, stored + size, stored)
    return Window(block, start, steps, i, may=may, stored=stored, stored_next=stored_next)


def block_hidden(params, s, window, valid, cfg, plan, L):
    """Compute the states of the L columns of a window -> (B, L, D), the updated cache."""
    start, cache = window.start, s.cache
    if cfg.causal:
        h, cache = caches.next_column(params, s.z, cfg, valid, cache, start[0])
    elif cache is not None and cfg.block_causal:
        h, cache = caches.block_pass(params, s, window, cfg, plan, valid, L)
    elif cache is not None:
        h, cache = caches.approximate_pass(params, s, window, cfg, plan, valid, L)
    else:
        h = model.hidden(params, s.z, cfg, valid, start, L)
    return h, cache


def draw_tokens(logits, keys, plan):
    """Draw a token from each of logits (N, V) -> tokens, log-probs (N,). At temperature 0 take the likeliest tokens;
    their log-probs are those at temperature 1, because that of an argmax would be 0."""
    source = filtered(logits, plan)
    token = kernels.draw_rows(keys, source) if plan.temperature else kernels.likeliest(source)
    return token, diffusion.gather_logp(source, token)


def without_noise(score):
    """Round scores to 12 bits, so that equal ones stay equal. Without a prompt all masks are alike. The last bits of
    float32 differ from one batch size or mesh to another, and would decide the order: 14 of 16 tokens changed."""
    return jax.lax.reduce_precision(score, exponent_bits=8, mantissa_bits=12)


def score_positions(logits, keys, at, plan, drawn=None):
    """Score the Positions `at` from their logits (N, V) -> four (N,): the score by which plan.order ranks them, and the
    confidence, entropy and standing of Block. drawn (N,): the tokens drawn there, for the order `sampled`."""
    logits = filtered(logits, plan) if plan.tempered else logits
    token = kernels.likeliest(logits) if drawn is None else drawn
    score = ORDERS[plan.order](logits, token, keys, at.column)
    if plan.order not in ("left", "random"):  # these two are exact
        score = without_noise(score)
    score = jnp.where(jnp.isnan(score), model.NEVER, score)  # nan: a broken model must not hang the loop
    standing = probability(logits, at.z)
    return score, probability(logits, token), -negative_entropy(logits), standing


def rank_of(score):
    """Rank scores (B, L): how many are higher, or equal and further left, so that ties break the same way everywhere.
    The L * L comparisons are nothing beside attention's dot products."""
    own = score[..., None]
    other = score[:, None]
    earlier = jnp.tri(score.shape[1], k=-1, dtype=bool)
    before = (other > own) | (other == own) & earlier  # (B, L, L)
    return before.sum(-1)


def one_of_each_group(s, window, valid, group):
    """Keep the first of every `group` rows, which are identical -> Filling, Window, valid of those."""
    cache = s.cache and [a[:, ::group] for a in s.cache]
    trees = s._replace(cache=None), window, valid
    s, window, valid = sharding.take(trees, slice(None, None, group))
    return s._replace(cache=cache), window, valid


class Positions(NamedTuple):
    """The N = B * L positions of all blocks, flat."""

    source: jax.Array  # (N, D) states; or (N, V) logits, if those of all positions fit into memory
    row: jax.Array  # (N,)
    column: jax.Array  # (N,)
    number: jax.Array  # (N,) makes each position's random key from its row's key, see `row_key`; so does number + 1
    z: jax.Array  # (N,) the token that stands there
    masked: jax.Array  # (N,) True where a token may be committed


def flat_positions(h, s, window, cfg):
    """Make the Positions of a window from its states h (B, L, D), or from its logits (B, L, V)."""
    B, T = s.z.shape
    L = h.shape[1]
    column = window.start[:, None] + jnp.arange(L)
    z = jnp.take_along_axis(s.z, column, 1)
    masked = z == cfg.mask_id
    if window.may is not None:
        masked &= jnp.take_along_axis(window.may, column, 1)
    # A key for each row, column from the right end, and step: neither other rows nor padding change what a row gets.
    from_right = T - column
    number = (from_right * 2**15 + window.i[:, None]) * 2
    row, _ = jnp.indices((B, L))
    by_row = Positions(h, row, column, number, z, masked)
    return sharding.joined(by_row)


def positions_at_once(cfg):
    """Say how many positions may have logits at a time: up to four such arrays exist."""
    return max(diffusion.LOGITS_BYTES // (16 * cfg.vocab_size), 1)


def logits_at_positions(params, h, s, window, valid, cfg, plan):
    """Prepare to read logits at the positions of a window with states h (B / group, L, D) -> its Positions; a function
    that computes the logits (N, V) of some of them; how many of them may be read at a time."""
    B, L = len(s.z), h.shape[1]
    group = B // len(h)
    params = model.gather_head(params, cfg)
    present = ids_present(s.z, valid, cfg, plan)
    n = positions_at_once(cfg)
    at_once = B * L <= n
    if at_once:
        rows = jnp.arange(0, B, group).repeat(L)
        flat = h.reshape(len(rows), -1)
        logits = adjusted(params, flat, present, rows, cfg, plan)
        h = logits.reshape(len(h), L, -1)

    def logits_of(at):
        return at.source if at_once else adjusted(params, at.source, present, at.row, cfg, plan)

    at = flat_positions(jnp.repeat(h, group, 0), s, window, cfg)
    return at, logits_of, n


def draws_everywhere(plan, V):
    """True if it costs less to draw a token at every scored position than to compute the logits of the committed ones
    again, to draw there alone."""
    filters = plan.top_k or plan.top_p
    return not plan.temperature or kernels.by_stretches(V) and not filters


def choose(params, keys, h, s, window, valid, cfg, plan):
    """Choose what to commit in a window with states h (B / group, L, D) -> masked, stands (B, L): where a token may be
    committed, and where one is to stand; token, logp (B, L), of use only where both are True."""
    B, L = len(s.z), h.shape[1]
    at, logits_of, n = logits_at_positions(params, h, s, window, valid, cfg, plan)

    def draw(at):
        return draw_tokens(logits_of(at), row_key(keys, at.row, at.number), plan)

    def score(at):
        """Score positions -> the 4 arrays of score_positions, and if draws_first the 2 of draw."""
        drawn = draw(at) if draws_first else ()
        token = drawn[0] if plan.order == "sampled" else None  # this order ranks positions by the token just drawn
        return *score_positions(logits_of(at), row_key(keys, at.row, at.number + 1), at, plan, token), *drawn

    def by_row(values):
        return [a.reshape(B, L) for a in values]

    draws_first = plan.order == "sampled" or draws_everywhere(plan, cfg.vocab_size)
    wanted = at.masked | (plan.rule in LOOKS_BACK)
    order, *known = by_row(diffusion.wanted_in_chunks(score, n, wanted, at))
    masked = at.masked.reshape(B, L)
    order = jnp.where(masked, order, -jnp.inf)
    block = Block(masked, rank_of(order), *known[:3], window.i[:, None], window.steps[:, None])
    stands = apply_rule(block, cfg, plan)
    drawn = known[3:]  # tokens and log-probs, or nothing yet
    if not draws_first:  # draw only what is committed
        committed = (masked & stands).reshape(-1)
        drawn = by_row(diffusion.wanted_in_chunks(draw, min(n, max(B * L // 8, 256)), committed, at))
    return masked, stands, *drawn


def row_key(keys, row, number):
    """Make the keys (N,) of positions from those of their rows (B,) and a number (N,)."""
    return jax.vmap(jax.random.fold_in)(keys[row], number)


def apply_rule(block, cfg, plan):
    """Say where a token is to stand after this step (B, L). A causal model fills the one column that it is at, and for
    a block model `quota` means `static`."""
    if cfg.causal:
        return jnp.ones_like(block.masked)
    rule = "static" if cfg.block_causal and plan.rule == "quota" else plan.rule  # their own way of equal shares
    return RULES[rule](block, plan)


@functools.partial(jax.jit, static_argnames=("cfg", "plan", "group"))
def fill_step(params, keys, s, cfg, plan, valid, group=1):
    """Take one step: in each row's current block, the masks that the rule picks get a token -> the Filling after it.

    keys (B,): one per row. group: so many consecutive rows are identical; the model reads one of them."""
    if plan.rule == "drafts":
        return step_of_drafts(params, keys, s, cfg, plan, valid)
    L = block_length(s.z.shape[1], cfg, plan)
    # 1  Find the block that each row works on.
    if cfg.causal:
        window = causal_column(s, cfg)
    elif cfg.block_causal:
        window = next_block(s, cfg, plan, valid, L)
    else:
        window = current_block(s, cfg, plan, L)
    # 2  Compute its states.
    rows = one_of_each_group(s, window, valid, group)
    h, cache = block_hidden(params, *rows, cfg, plan, L)
    cache = cache and [jnp.repeat(a, group, 1) for a in cache]
    # 3  Choose positions and draw tokens.
    masked, stands, token, logp = choose(params, keys, h, s, window, valid, cfg, plan)
    # 4  Write them down.
    column = window.start[:, None] + jnp.arange(L)
    written = write(s, column, masked & stands, ~masked & ~stands, token, logp, cfg, plan, valid)
    state = *written, s.n + 1, window.block, window.i + 1
    return Filling(*sharding.replicate(state), cache, window.stored_next)


def write(s, column, commit, retract, token, logp, cfg, plan, valid):
    """Put tokens into columns (B, L) where `commit`, and masks back where `retract`, but never over given tokens -> z,
    step, logp (B, T). In a causal model, or with plan.early_end, the masks after a row's end of text become ends, too:
    they get the number of this step, and logp 0."""
    here = jnp.arange(len(s.z))[:, None], column  # picks (B, L) of (B, T)
    asked = masked_at_start(s, cfg)
    retract = retract & asked[here]

    def put(old, new, nothing):
        others = jnp.where(retract, nothing, old[here])
        return old.at[here].set(jnp.where(commit, new, others))

    z = put(s.z, token.astype(s.z.dtype), cfg.mask_id)
    step = put(s.step, s.n, -1)
    if (cfg.causal or plan.early_end) and cfg.eos_id is not None:
        rest = behind_the_end(z, step, asked, valid, cfg)
        z = jnp.where(rest, cfg.eos_id, z)
        step = jnp.where(rest, s.n, step)
    return z, step, put(s.logp, logp, 0)


def step_of_drafts(params, keys, s, cfg, plan, valid):
    """Take a step with rule="drafts": a round of variants/drafts.py -> the Filling after it. It counts as two forward
    passes; its tokens get the number of the second."""
    params = model.gather_head(params, cfg)
    causal = joint.autoregressive(cfg)

    def logits(h):
        return filtered(adjusted(params, h, None, None, cfg, plan), plan)

    sampling = drafts.Sampling(logits, not plan.temperature, positions_at_once(cfg))
    prompt_end = jnp.argmax(s.z == cfg.mask_id, 1)
    stored = jnp.where(s.n == 0, prompt_end, s.stored)  # the prompt has been read
    r = drafts.write_round(params, keys, s.z, stored, cfg, valid, s.cache, sampling)
    s = s._replace(n=s.n + 1)
    written = write(s, r.column, r.commit, False, r.token, r.logp, causal, plan, valid)
    state = *written, s.n + 1, s.block, s.i
    return Filling(*sharding.replicate(state), r.cache, r.stored)


def block_length(T, cfg, plan):
    """Return the number of columns that a step works on."""
    return 1 if cfg.causal else min(plan.block_len or T, cfg.block_causal or T, T)


def behind_the_end(z, step, asked, valid, cfg):
    """Find the masks (B, T) that need no more steps: those after an end of text that was written right of all given
    tokens, if no mask is left of it. In a block model the whole block with the end has to be filled first."""
    T = z.shape[1]
    column = jnp.arange(T)
    masked = z == cfg.mask_id
    given = jnp.where(asked, -1, column)
    ends = jnp.isin(z, jnp.array(cfg.ends)) & (step >= 0) & (column > given.max(1, keepdims=True))
    if cfg.block_causal:
        number = blocks.number(valid, T, cfg)

        def first_block(there):
            return jnp.where(there, number, T).min(1, keepdims=True)

        return masked & (first_block(masked) > first_block(ends))
    behind = jnp.cumsum(ends, 1) > ends
    return masked & (behind | ~masked).all(1, keepdims=True)


# ---- all steps -------------------------------------------------------------------------------------------------------


def row_keys(key, n, first=0):
    """Make the keys (n,) of the rows first, first + 1, ..., so that chunking does not change any token."""
    rows = first + jnp.arange(n)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, rows)


def begin(params, key, z, cfg, plan, valid, group=1):
    """Check model and plan; make the keys (B,) of the rows and the Filling before step 0, with its cache. Arguments:
    see `generate`."""
    checks.model_and_plan(cfg, plan)
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    keys = row_keys(key, len(z)) if key.ndim == 1 - typed else key
    zero = jnp.zeros(len(z), jnp.int32)
    cache = None
    reader = joint.autoregressive(cfg) if plan.rule == "drafts" else cfg
    if reader.causal or cfg.block_causal and plan.cache != "none":
        cache = caches.prefill(params, z, reader, valid, group)
    elif plan.cache != "none":
        cache = model.new_cache(cfg, *z.shape)
    step = jnp.full(z.shape, -1, jnp.int32)
    logp = jnp.zeros(z.shape, jnp.float32)
    stored = zero if cfg.block_causal else None
    s = Filling(z, step, logp, n=jnp.int32(0), block=zero - 1, i=zero, cache=cache, stored=stored)
    return keys, s


@functools.partial(jax.jit, static_argnames=("cfg", "plan", "group"))
def generate(params, key, z, cfg, plan, valid=None, group=1):
    """Fill the masks of z (B, T) -> x (B, T), and the trace, a dict: step (B, T), which committed each token, -1 if
    given; logp (B, T), its log-prob under the distribution it was drawn from, 0 if given; n_steps (), the steps taken.

    Given tokens never change. A step is a forward pass. What follows an end of text may be filled
    in all at once, see `write`: it has the number of that step, and logp 0.
    key: one, or one per row (B,). valid (B, T): False on left padding. group: so many consecutive rows are identical.
    A causal model then reads their prompt once, and a denoiser computes their first step once."""
    keys, s = begin(params, key, z, cfg, plan, valid, group)
    if group > 1 and not cfg.causal and plan.rule != "drafts":
        s = fill_step(params, keys, s, cfg, plan, valid, group)

    def unfinished(s):
        return jnp.any(s.z == cfg.mask_id)

    def step(s):
        return fill_step(params, keys, s, cfg, plan, valid)

    s = jax.lax.while_loop(unfinished, step, s)
    trace = {"step": s.step, "logp": s.logp, "n_steps": s.n}
    return sharding.replicate((s.z, trace))


# ---- for a run -------------------------------------------------------------------------------------------------------


def plan(cfg, temperature, steps=None, early_end=True) -> Plan:
    """Make the Plan of a run from the keys of its Config that are fields of Plan. steps None: cfg.diffusion_steps; a
    block_len of None becomes max_new_tokens, except in a block model."""
    names = [f.name for f in dataclasses.fields(Plan) if hasattr(cfg, f.name)]
    values = {name: getattr(cfg, name) for name in names}
    whole = None if cfg.model.block_causal else cfg.max_new_tokens  # one block of all masks: no logits of the prompt
    values |= {"block_len": cfg.block_len or whole, "temperature": temperature, "early_end": early_end}
    return Plan(**values, steps=steps or cfg.diffusion_steps)


def masked_tokens(batch, cfg):
    """Return the tokens (B, T) of a data.Batch with masks where they are to be filled. cfg: a ModelConfig."""
    return jnp.where(batch.maskable, cfg.mask_id, batch.tokens)


def fill(params, keys, batch, cfg, plan, group=1):
    """Fill a data.Batch as `generate` does. cfg: a Config. keys: one, or one per row. group: how many consecutive rows
    have the same prompt."""
    z = masked_tokens(batch, cfg.model)
    return generate(params, keys, z, cfg.model, plan, batch.valid, group)
