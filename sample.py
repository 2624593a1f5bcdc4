"""
Filling the masks of a text, some at each step, the surest first.

Prompting, infilling, fill-in tasks and left-to-right generation are one call, `generate`. A Plan says in which order
masks are filled, and by which rule how many at a time: quota is LLaDA's rule, threshold Fast-dLLM's. To add an order or
a rule, add a function to ORDERS or RULES. In variants/ are the rules dream (with tempered=True), factor (Fast-dLLM's
other), entropy (EB-Sampler's), dynamic and static (SDAR's), and autoregressive models, blocks and KV caches.

    python sample.py out/code_grpo --prompt="def add(a, b):" --n=4
    python sample.py assets/sudoku_grpo --prompt="3_2__1________43" --show    # fill the gaps in place
    python sample.py out/words_base --data=words --out=filled.jsonl; python rewards.py filled.jsonl --rewards=math
    python sample.py data/smollm2 --prompt="The capital of France is" --max_new_tokens=9
    python sample.py out/lora --export=merged                          # merge LoRA adapters into the weights
    python sample.py out/sudoku_base out/sudoku_grpo --page=play.html  # one file in which both run in a browser
"""
if __name__ == "__main__":
    from system import terminal

    terminal.launch("tools.complete")

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import model
from system import kernels, sections, sharding
from system.sections import NON_NEGATIVE, POSITIVE_INT, SMALLEST, within

CHECKS = {
    "steps": POSITIVE_INT,
    "block_len": POSITIVE_INT,
    "threshold": NON_NEGATIVE,
    "temperature": NON_NEGATIVE,
    "top_k": POSITIVE_INT,
    "top_p": within(SMALLEST, 1, "None, or a number above 0 and up to 1"),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to fill masks. The settings of rules in variants/ are in `use`."""

    # `confidence`, the largest probability at a position, depends on the state alone, so the trace's log-probs are
    # exact. With `sampled`, the probability of the token just drawn (LLaDA's choice at temperature > 0), whether a
    # token stays depends on which one it is, so they are not.
    order: str = "confidence"  # which masks first: random, confidence, margin, entropy, left, sampled
    rule: str = "quota"  # how many at a step: quota (LLaDA), dream, threshold, factor, entropy, dynamic, static (SDAR)
    steps: int = 32  # forward passes, divided among the blocks; in a model with blocks, for each block or part
    block_len: int | None = None  # fill blocks of this many tokens from left to right; None: one block
    cache: str = "none"  # reuse keys and values outside the block: none, prefix (left of it), dual (both sides)
    early_end: bool = False  # if a row has an end of text and no mask before it, fill the rest with it (causal: always)
    threshold: float = 0.9  # rule=threshold: commit every token at least this probable; rule=dynamic: more probable
    temperature: float = 0.0  # 0: the most probable token
    top_k: int | None = None  # draw from the k most probable tokens
    top_p: float | None = None  # draw from the most probable tokens that together reach this probability
    tempered: bool = False  # order by probabilities after temperature, top-k and top-p (Dream), not before (LLaDA)
    use: tuple[Any, ...] = ()  # the Keys of variants, see system/sections.py
    kind: ClassVar[str] = "Keys"  # of the sections in `use`

    def __post_init__(self):
        for name, check in CHECKS.items():
            value = getattr(self, name)
            if not (value is None or check.holds(value)):
                raise ValueError(f"{name}={value!r}: expected {check.expected}")
        for name, table in (("order", ORDERS), ("rule", RULES), ("cache", CACHES)):
            sections.require(name, getattr(self, name), table)
        named = [sections.variant_named(RULES, self.rule)]
        object.__setattr__(self, "use", sections.in_order(self.use, self.kind, named))


class Filling(NamedTuple):
    """A batch while it is filled."""

    z: jax.Array  # (B, T) tokens, and the mask where there is none yet
    step: jax.Array  # (B, T) the step that committed each token; -1: given, or still masked
    logp: jax.Array  # (B, T) log-prob of each token when it was drawn; 0: given, masked, or filled in after an end
    n: jax.Array  # () steps so far
    block: jax.Array  # (B,) the first column of each row's current block
    i: jax.Array  # (B,) steps so far in this block


class Window(NamedTuple):
    """What a step works on: the current block of each row, L columns."""

    block: jax.Array  # (B,) its first column
    column: jax.Array  # (B, L) the last L columns of the row if the last block is shorter
    masked: jax.Array  # (B, L) True where a token may be committed
    i: jax.Array  # (B,) the number of this step in the block
    steps: jax.Array  # (B,) how many steps the block may take


class Block(NamedTuple):
    """What a rule decides from: the L positions of each row's block."""

    masked: jax.Array  # (B, L) True where a token may be committed
    rank: jax.Array  # (B, L) 0 for the mask that goes first
    confidence: jax.Array  # (B, L) probability of the likeliest token (order sampled: of the drawn one)
    entropy: jax.Array  # (B, L) in nats
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


def left(logits, token, keys, column):
    return -column.astype(jnp.float32)


ORDERS = sections.Table(
    random=random,
    confidence=probability,
    entropy=negative_entropy,
    left=left,
    sampled=probability,  # of the token that was drawn
)


# ---- rules: how many at a step. Block, Plan -> (B, L) True where a mask gets a token in this step. What a rule says of
# ---- other positions does not count.


def quota(b, plan):
    """LLaDA: fill an equal share of the block's remaining masks in each of its remaining steps, rounded up."""
    steps_left = jnp.maximum(b.steps - b.i, 1)
    share = -(-b.masked.sum(1, keepdims=True) // steps_left)
    return b.rank < share


def threshold(b, plan):
    """Fast-dLLM: every token at least as probable as plan.threshold, and always the first in plan.order."""
    return (b.confidence >= plan.threshold) | (b.rank == 0)


RULES = sections.Table(quota=quota, threshold=threshold)
SCHEDULED = "quota", "dream"  # the rules that share out a given number of steps
CACHES = "none", "prefix", "dual"


# ---- the distribution that tokens are drawn from ---------------------------------------------------------------------


def row_logits(params, z, valid, cfg, plan):
    """Make the function that computes logits (N, V) from states (N, D) and the row (N,) of z (B, T) that each is of."""
    changes = [change for s in plan.use if (change := s.row_logits(z, valid, cfg, plan))]

    def logits_of(h, row):
        logits = model.readout(params, h, cfg)
        for change in changes:
            logits = change(logits, row)
        return logits

    return logits_of


def filtered(logits, plan):
    """Apply temperature, then top-p, then top-k (Dream's order) to logits (..., V)."""
    if plan.temperature:
        logits = logits / plan.temperature
    if plan.top_p is None and plan.top_k is None:
        return logits
    from system import filters  # the first recipe samples from all tokens

    return filters.kept(logits, plan.top_p, plan.top_k)


def as_drawn(logits, x, plan):
    """Apply temperature (above 0) and filters to logits (..., V), as when the tokens x (...) were drawn.

    If x would be filtered out now (by another policy than drew it, or in another view), it is kept: its log-prob is
    finite, has a gradient, and is exact wherever x could have been drawn."""
    drawn = jnp.arange(logits.shape[-1]) == x[..., None]
    return jnp.where(drawn, logits / plan.temperature, filtered(logits, plan))


# ---- one step --------------------------------------------------------------------------------------------------------


def masked_at_start(s, cfg):
    """Find the positions (B, T) that were masked before the first step, whether or not they are filled by now."""
    return (s.z == cfg.mask_id) | (s.step >= 0)


def block_length(s, plan):
    """Return the number of columns L that a step works on."""
    T = s.z.shape[1]
    return min(plan.block_len or T, T)


def next_block(s, cfg, plan):
    """Find the first column (B,) of the block with each row's next mask. Blocks of L columns tile a row from the column
    that was its first mask at the start."""
    L = block_length(s, plan)
    masked = s.z == cfg.mask_id
    first = jnp.argmax(masked_at_start(s, cfg), 1)
    next_mask = jnp.where(masked.any(1), jnp.argmax(masked, 1), first)
    return first + (next_mask - first) // L * L


def block_window(s, block, cfg, plan):
    """Make the Window of blocks that begin in columns `block` (B,). Blocks divide the steps in proportion to their
    masks at the start: equally when everything is masked, as in LLaDA."""
    L, asked = block_length(s, plan), masked_at_start(s, cfg)

    def steps_before(column):
        """Count the steps that fall to the columns before this one."""
        before = jnp.arange(asked.shape[1]) < column[:, None]
        share = (asked & before).sum(1)
        return plan.steps * share // jnp.maximum(asked.sum(1), 1)

    steps = jnp.maximum(steps_before(block + L) - steps_before(block), 1)
    i = jnp.where(block == s.block, s.i, 0)
    return window(s.z, block, i, steps, cfg, L)


def window(z, block, i, steps, cfg, L):
    """Make the Window of L columns from `block` (B,) on, in which all masks may be filled."""
    start = jnp.minimum(block, z.shape[1] - L)
    column = start[:, None] + jnp.arange(L)
    masked = jnp.take_along_axis(z, column, 1) == cfg.mask_id
    return Window(block, column, masked, i, steps)


def draw_tokens(logits, keys, plan):
    """Draw a token from each of logits (N, V) -> tokens, log-probs (N,). At temperature 0 take the likeliest tokens;
    their log-probs are those at temperature 1, because that of an argmax would be 0."""
    source = filtered(logits, plan)
    token = kernels.draw_rows(keys, source) if plan.temperature else kernels.likeliest(source)
    return token, kernels.token_logp(source, token)


def score_positions(logits, keys, column, plan, drawn=None):
    """Score positions from their logits (N, V) -> three (N,): the score by which plan.order ranks them, and the
    confidence and entropy of Block. drawn (N,): the tokens drawn there, for the order `sampled`."""
    logits = filtered(logits, plan) if plan.tempered else logits
    token = kernels.likeliest(logits) if drawn is None else drawn
    score = ORDERS[plan.order](logits, token, keys, column)
    if plan.order not in ("left", "random"):  # these two are exact
        score = kernels.without_noise(score)
    return score, probability(logits, token), -negative_entropy(logits)


def rank_of(score):
    """Rank scores (B, L): how many are higher, or equal and further left, so that ties break the same way everywhere.
    The L * L comparisons are nothing beside attention's dot products."""
    own = score[..., None]
    other = score[:, None]
    earlier = jnp.tri(score.shape[1], k=-1, dtype=bool)
    before = (other > own) | (other == own) & earlier  # (B, L, L)
    return before.sum(-1)


def states(params, z, w, cfg, valid, group):
    """Compute the states (B / group, L, D) of a window of z (B, T), in which every `group` rows are identical."""
    z, start, valid = sharding.take((z, w.column[:, 0], valid), slice(None, None, group))
    return model.hidden(params, z, cfg, valid, start, w.column.shape[1])


class Positions(NamedTuple):
    """The N = B * L positions of all blocks, flat."""

    source: jax.Array  # (N, D) states; or (N, V) logits, if those of all positions fit into memory
    row: jax.Array  # (N,)
    column: jax.Array  # (N,)
    number: jax.Array  # (N,) of its column, counted from the right end, and of the step, see `position_keys`


def logits_at_positions(params, h, z, w, valid, cfg, plan):
    """Prepare to read logits at the positions of a window with states h (B / group, L, D) -> its Positions; a function
    that computes the logits (N, V) of some of them; how many of them may be read at a time."""
    B, L = w.column.shape
    group = B // len(h)
    params = model.gather_head(params, cfg)
    read = row_logits(params, z, valid, cfg, plan)
    n = kernels.positions_at_once(cfg.vocab_size)
    at_once = B * L <= n
    if at_once:
        rows = jnp.arange(0, B, group).repeat(L)
        h = read(sharding.joined(h), rows).reshape(len(h), L, -1)

    def logits_of(at):
        return at.source if at_once else read(at.source, at.row)

    number = (z.shape[1] - w.column) * 2**15 + w.i[:, None]
    row, _ = jnp.indices((B, L))
    by_row = Positions(jnp.repeat(h, group, 0), row, w.column, number)
    return sharding.joined(by_row), logits_of, n


def choose(params, keys, h, z, w, valid, cfg, plan, rule):
    """Choose what to commit in a window with states h (B / group, L, D) -> what the rule says (B, L); token, logp
    (B, L), of use only where it says True of a mask."""
    B, L = w.column.shape
    at, logits_of, n = logits_at_positions(params, h, z, w, valid, cfg, plan)

    def draw(at):
        return draw_tokens(logits_of(at), position_keys(keys, at, DRAW), plan)

    def score(at):
        """Score positions -> the 3 arrays of score_positions, and if draws_first the 2 of draw."""
        drawn = draw(at) if draws_first else ()
        token = drawn[0] if plan.order == "sampled" else None  # this order ranks positions by the token just drawn
        return *score_positions(logits_of(at), position_keys(keys, at, ORDER), at.column, plan, token), *drawn

    def by_row(values):
        return [a.reshape(B, L) for a in values]

    draws_first = plan.order == "sampled" or kernels.draws_everywhere(plan, cfg.vocab_size)
    order, confidence, entropy, *drawn = by_row(kernels.wanted_in_chunks(score, n, w.masked.reshape(-1), at))
    rank = rank_of(jnp.where(w.masked, order, -jnp.inf))
    chosen = rule(Block(w.masked, rank, confidence, entropy, w.i[:, None], w.steps[:, None]), plan)
    # From the last step of the schedule on, the first mask goes whatever a rule says: so the loop ends.
    chosen = sections.of_shape(chosen, plan.rule, rank.shape) | (rank == 0) & (w.i >= w.steps - 1)[:, None]
    if not draws_first:  # draw only what is committed
        committed = (w.masked & chosen).reshape(-1)
        drawn = by_row(kernels.wanted_in_chunks(draw, min(n, max(B * L // 8, 256)), committed, at))
    return chosen, *drawn


DRAW, ORDER = 0, 1  # what the two random keys of a position are for


def position_keys(keys, at, purpose):
    """Make the keys (N,) of Positions from those of their rows (B,): one for each row, column from the right end, step
    and purpose, so that neither other rows nor padding change what a row gets."""
    return jax.vmap(jax.random.fold_in)(keys[at.row], at.number * 2 + purpose)


@functools.partial(jax.jit, static_argnames=("cfg", "plan", "group"))
def fill_step(params, keys, s, cfg, plan, valid, group=1):
    """Take one step: in each row's current block, the masks that the rule picks get a token -> the Filling after it.

    keys (B,): one per row. group: so many consecutive rows are identical; the model reads one of them."""
    # 1  Find the block that each row works on.
    w = block_window(s, next_block(s, cfg, plan), cfg, plan)
    # 2  Compute the states that its logits are read from.
    h = states(params, s.z, w, cfg, valid, group)
    # 3  Choose positions and draw tokens.
    chosen, token, logp = choose(params, keys, h, s.z, w, valid, cfg, plan, RULES[plan.rule])
    # 4  Commit them.
    s = write(s, w, chosen, token, logp)
    return fill_rest(s, behind_the_end, cfg) if plan.early_end else s


def write(s, w, commit, token, logp):
    """Put tokens into the masks of a window where `commit` (B, L) says so -> the Filling after this step."""
    here = jnp.arange(len(s.z))[:, None], w.column  # picks (B, L) of (B, T)

    def put(old, new):
        return old.at[here].set(jnp.where(w.masked & commit, new, old[here]))

    z = put(s.z, token.astype(s.z.dtype))
    return sharding.replicate(Filling(z, put(s.step, s.n), put(s.logp, logp), s.n + 1, w.block, w.i + 1))


def behind_the_end(s, cfg):
    """Find the masks (B, T) that need no more steps: those after an end of text that was written right of all given
    tokens, if no mask is left of it."""
    masked = s.z == cfg.mask_id
    ends = ends_written(s, cfg)
    behind = jnp.cumsum(ends, 1) > ends
    return masked & (behind | ~masked).all(1, keepdims=True)


def ends_written(s, cfg):
    """Find the ends of text (B, T) that were written right of all given tokens."""
    column = jnp.arange(s.z.shape[1])
    given = jnp.where(masked_at_start(s, cfg), -1, column)
    is_end = jnp.isin(s.z, jnp.array(cfg.ends))
    return is_end & (s.step >= 0) & (column > given.max(1, keepdims=True))


def fill_rest(s, behind, cfg):
    """Make ends of text of the masks that behind(s, cfg) finds. They get the number of the step just taken, and logp
    0."""
    if cfg.eos_id is None:
        return s
    rest = behind(s, cfg)
    s = s._replace(z=jnp.where(rest, cfg.eos_id, s.z), step=jnp.where(rest, s.n - 1, s.step))
    return sharding.replicate(s)


# ---- all steps -------------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="n")
def row_keys(key, n, first=0):
    """Make the keys (n,) of the rows first, first + 1, ..., so that chunking does not change any token."""
    rows = first + jnp.arange(n)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, rows)


def key_per_row(key, n):
    """Return the keys (n,) of n rows, made from one key unless there is one per row already."""
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    axes_of_one = 0 if is_typed else 1  # what jax.random.PRNGKey makes is an array of two numbers
    keys = row_keys(key, n) if key.ndim == axes_of_one else key
    if len(keys) != n:
        raise ValueError(f"{len(keys)} keys for {n} rows: expected one key, or one per row")
    return keys


def begin(z):
    """Make the Filling of z (B, T) before step 0."""
    zero = jnp.zeros(len(z), jnp.int32)
    step = jnp.full(z.shape, -1, jnp.int32)
    return Filling(z, step, jnp.zeros(z.shape, jnp.float32), n=jnp.int32(0), block=zero - 1, i=zero)


def result(s, passes):
    """Return what a sampler does: z, and the trace of `generate`. passes (B,): those of each row."""
    return s.z, {"step": s.step, "logp": s.logp, "n_steps": s.n, "passes": passes}


def until_filled(step, state, cfg, group=1):
    """Take steps, the first one for groups of rows that are alike, until no mask is left in the first entry of state,
    a Filling. step(state, group=1) -> state"""

    def unfinished(state):
        return jnp.any(state[0].z == cfg.mask_id)

    if group > 1:
        state = step(state, group)
    return jax.lax.while_loop(unfinished, step, state)


def fill_in_steps(params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T), a block and a step after the other."""

    def step(state, group=1):
        (s,) = state
        return (fill_step(params, keys, s, cfg, plan, valid, group),)

    (s,) = until_filled(step, (begin(z),), cfg, group)
    return result(s, s.step.max(1) + 1)


def takes_any_plan(cfg, plan):
    """Refuse no plan."""


class Sampler(NamedTuple):
    """A way to fill masks."""

    fill: Callable  # params, keys (B,), z (B, T), ModelConfig, Plan, valid, group: see `generate` -> z, the trace
    check: Callable = takes_any_plan  # ModelConfig, Plan -> None; a ValueError if they do not fit
    queue: str = ""  # the file of variants/ whose `in_turn` replaces finished rows, see `fill_rows`


SAMPLERS = sections.Table(steps=Sampler(fill_in_steps, queue="slots"))


def sampler_of(cfg, plan) -> Sampler:
    """Return the sampler for a model and a plan. ValueError if its file is not there."""
    name = "steps" if plan.cache == "none" else "caches"
    if cfg.block:
        name = "blocks"
    if cfg.causal:
        name = "causal"
    if not sections.plugged(SAMPLERS, name):
        raise ValueError(f"this model and plan are sampled from by variants/{name}.py, and there is no such file")
    return SAMPLERS[name]


def check(cfg, plan):
    """Raise a ValueError if a model cannot be sampled from by a plan."""
    if cfg.mask_id is None:
        raise ValueError("this model has no mask token, so nothing in z can be masked: set mask_id in its config")
    sampler_of(cfg, plan).check(cfg, plan)


@functools.partial(jax.jit, static_argnames=("cfg", "plan", "group"))
def generate(params, key, z, cfg, plan, valid=None, group=1):
    """Fill the masks of z (B, T) -> x (B, T), and the trace, a dict: step (B, T), which committed each token, -1 if
    given; logp (B, T), its log-prob under the distribution it was drawn from, 0 if given; n_steps (), the steps taken;
    passes (B,), the forward passes that worked on each row.

    Given tokens never change. A step is a forward pass. What follows an end of text may be filled in all at once, see
    `fill_rest`: it has the number of that step, and logp 0.
    key: one, or one per row (B,). valid (B, T): False on left padding. group: so many consecutive rows are identical.
    A causal model then reads their prompt once, and a denoiser computes their first step once."""
    check(cfg, plan)
    keys = key_per_row(key, len(z))
    fill = sampler_of(cfg, plan).fill
    params = model.cast(params, cfg.dtype)  # once: XLA would convert all matrices in each pass
    return sharding.replicate(fill(params, keys, z, cfg, plan, valid, group))


# ---- for a run -------------------------------------------------------------------------------------------------------


def plan(cfg, temperature, early_end=True) -> Plan:
    """Make the Plan of a run from the keys of its Config. A block_len of None becomes max_new_tokens, except in a block
    model."""
    whole = None if cfg.model.block else cfg.max_new_tokens  # one block of all masks: no logits of the prompt
    of_rule = sections.variant_named(RULES, cfg.rule)
    return Plan(
        order=cfg.order,
        rule=cfg.rule,
        steps=cfg.diffusion_steps,
        block_len=cfg.block_len or whole,
        cache=cfg.cache,
        early_end=early_end,
        threshold=cfg.threshold,
        temperature=temperature,
        top_k=cfg.top_k,
        top_p=cfg.top_p,
        tempered=cfg.tempered,
        use=tuple(s for s in cfg.use if s.in_sampling or sections.variant_of(s) == of_rule),
    )


def masked_tokens(batch, cfg):
    """Return the tokens (B, T) of a data.Batch with masks where they are to be filled. cfg: a ModelConfig."""
    return np.where(batch.maskable, cfg.mask_id, batch.tokens)


def fill(params, keys, batch, cfg, plan, group=1):
    """Fill a data.Batch as `generate` does. cfg: a Config. keys: one, or one per row. group: how many consecutive rows
    have the same prompt."""
    z = masked_tokens(batch, cfg.model)
    return generate(params, keys, z, cfg.model, plan, batch.valid, group)


def fill_rows(params, keys, batch, cfg, plan, size, group=1):
    """Fill N rows as `fill` does, `size` at a time -> x (N, T), the trace. Every `group` rows have one prompt.

    Where rows need different numbers of passes and the sampler has a queue, a full row makes room for the next one.
    n_steps is the mean number of steps per chunk, or then per row."""
    n, group = len(keys), math.gcd(size, group)
    queue = sampler_of(cfg.model, plan).queue
    may_wait = size < n and n % size == 0 and plan.rule not in SCHEDULED and not sharding.shape()
    if queue and may_wait and (slots := sections.load(f"variants.{queue}")):
        z = masked_tokens(batch, cfg.model)
        return slots.in_turn(params, keys, z, cfg.model, plan, batch.valid, size, group)

    def chunk(keys, batch):
        return fill(params, keys, batch, cfg, plan, group)

    return sharding.in_chunks(chunk, size, keys, batch)
