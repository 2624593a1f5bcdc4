"""
Block diffusion (BD3-LM, SDAR, Fast-dLLM v2): a model that fills one block of a text after the other, each given the
clean text before it.

To score all blocks in one pass, noisy copies of a text are put after the text itself in one long row, and a mask says
who sees whom. The mask is that of a row with one copy; `attention_of_copies` applies it to each of them:

    [ clean text | noisy copy 1 | noisy copy 2 | ... ]    a copy's block sees itself, and the clean blocks before it

Blocks begin where a text does: block n has the tokens n * block and following, wherever padding has put them.
"""
import dataclasses
import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp

import diffusion
import model
import sample
from system import kernels, sections, sharding
from system.sections import POSITIVE_INT, Section, key
from variants import caches
from variants.rules import static
from variants.shifted import shifted as pick


@dataclasses.dataclass(frozen=True)
class Shape(Section):
    """The field of a ModelConfig with blocks."""

    block: int = key(4, "length of a block: tokens see their own and all earlier ones (SDAR)", POSITIVE_INT)
    brings = {"mask": "blocks"}


def number(valid, T, cfg):
    """Number the block that each token is in, from 0: valid (B, T) or None -> (B or 1, T)."""
    return model.positions_of(valid, T) // cfg.block


def first_of_block(valid, T, cfg):
    """True (B or 1, T) at the tokens that a shifted block model predicts from the clean text before their block: the
    first token of each block but the first. False if the model is not shifted."""
    if not cfg.shift:
        return False
    at = model.positions_of(valid, T)
    return (at > 0) & (at % cfg.block == 0)


def see_blocks(i, j, z, valid, cfg, part):
    """A token sees its own block and all earlier ones. Blocks begin where a text does, not where its padding does."""
    block = number(valid, z.shape[1], cfg)
    own = model.columns(block, part)
    return block[:, None] <= own[..., None]


def within(block, related):
    """Count for each token i the tokens j of its block with related[:, i, j] -> (B, T).

    block (B, T): the number of each token's block. related (B, T or 1, T) bool."""
    same = block[:, None] == block[..., None]
    return (same & related).sum(-1)


def mask_blocks(key, x, maskable, valid, cfg):
    """Mask each block by itself, as diffusion.mask_rows masks a row -> z, masked, t (B, T), t being the share of masks
    in the token's block. Blocks of 1 are all masked, so that the bound is the likelihood itself; with one t per row it
    would be so only on average."""
    t_key, mask_key = jax.random.split(key)
    B, T = x.shape
    block = jnp.broadcast_to(number(valid, T, cfg), x.shape)
    blocks_per_row = -(-T // cfg.block)
    n = within(block, maskable[:, None])
    place = jnp.arange(B)[:, None] * blocks_per_row + block
    u = diffusion.strata(t_key, B * blocks_per_row)[place]
    count = diffusion.random_count(u, n)
    t = count / jnp.maximum(n, 1)
    draws = jnp.where(maskable, jax.random.uniform(mask_key, x.shape), 2.0)
    has_less = draws[:, None] < draws[..., None]
    masked = maskable & (within(block, has_less) < count)
    return jnp.where(masked, cfg.mask_id, x), masked, t


def parts(valid, T, cfg):
    """Say that each block is filled by itself, and which tokens are predicted from the text before their block."""
    return number(valid, T, cfg), first_of_block(valid, T, cfg)


def packed_mask(cfg, valid, T, first):
    """Say who sees whom in a row of a text and one copy of its columns from `first` on, as model.attention_mask does:
    (B or 1, S, S), where S = T + (T - first)."""
    column = jnp.concatenate([jnp.arange(T), jnp.arange(first, T)])
    is_copy = jnp.arange(len(column)) >= T
    block = number(valid, T, cfg)[:, column]
    earlier = block[:, None] < block[..., None]  # the key's block, and the query's
    same = block[:, None] == block[..., None]
    query_is_copy = is_copy[:, None]
    sees_text = earlier | same & ~query_is_copy
    sees_copy = same & query_is_copy
    far = jnp.where(is_copy, sees_copy, sees_text)
    if valid is not None:  # padding sees itself
        is_text = valid[:, None, column]
        far &= is_text | jnp.eye(len(column), dtype=bool)
    return model.network(cfg).scores(far, column[:, None] - column, cfg)


def attention_of_copies(q, k, v, mask, scale, cap, T):
    """Compute `kernels.attention` of packed rows [text | copy 1 | copy 2 | ...] without the scores between one copy and
    another: 1.26 and 1.45 times as fast with 2 and 4 copies of texts of 256 tokens.

    T: columns of the text. mask (B or 1, queries, T + C): that of a row with one copy of C columns, which serves all
    copies. q (and the mask) may lack the first columns of the text, whose results are then left out."""
    B, S = k.shape[:2]
    C = mask.shape[2] - T
    copies = (S - T) // C
    missing = S - q.shape[1]

    def as_rows(a):
        """Make each copy a row."""
        a = a[:, -copies * C :]
        return a.reshape(B * copies, C, *a.shape[2:])

    def behind_text(a):
        """Make each copy a row, behind its text."""
        text = jnp.repeat(a[:, :T], copies, 0)
        return jnp.concatenate([text, as_rows(a)], 1)

    of_copies = mask[:, -C:]
    if len(of_copies) > 1:
        of_copies = jnp.repeat(of_copies, copies, 0)
    out = kernels.attention(as_rows(q), behind_text(k), behind_text(v), of_copies, scale, cap)
    out = out.reshape(B, copies * C, -1)
    if missing >= T:
        return out
    q = q[:, : T - missing]
    k, v = k[:, :T], v[:, :T]
    text = kernels.attention(q, k, v, mask[:, :-C, :T], scale, cap)
    return jnp.concatenate([text, out], 1)


def packed_attention(T, q, k, v, scores, part):
    """Compute model.attention of packed rows, whose text has T columns: the mask of a row with one copy serves all."""
    mask, *others = scores
    if part is not None:
        first, n = part  # it reaches to the end of the row
        not_in_mask = k.shape[1] - mask.shape[1]  # columns of copies 2, 3, ...: they see what copy 1 sees
        mask = model.columns(mask, (first, n - not_in_mask))
    return attention_of_copies(q, k, v, mask, *others, T)


def hidden(params, clean, noisy, cfg, valid=None, start=0):
    """Compute the states of noisy copies: clean (B, T), noisy (B, n, T) -> (B, n, T - start, D), [..., i, :] about
    token start + i, as `model.hidden`.

    Copies are computed from the block of column `start` on, because they have no masks before it."""
    B, n, T = noisy.shape
    if n > 1 and sharding.round_up(B) != B:  # devices that share rows take one copy each
        clean, valid = repeated(clean, n), repeated(valid, n)
        noisy = noisy.reshape(B * n, 1, T)
        h = hidden(params, clean, noisy, cfg, valid, start)
        return h.reshape(B, n, T - start, -1)
    first = max(start - cfg.shift - cfg.block + 1, 0)
    C = T - first
    copies = noisy[:, :, first:].reshape(B, n * C)
    tokens = jnp.concatenate([clean, copies], 1)
    positions = model.positions_of(valid, T)
    of_copies = jnp.tile(positions[:, first:], n)
    positions = jnp.concatenate([positions, of_copies], 1)
    begin = max(start - 1, 0) if cfg.shift else T  # of the text, only what is read from it
    length = T - begin
    part = begin, length + n * C
    mask = packed_mask(cfg, valid, T, first)
    attention = functools.partial(packed_attention, T)
    h = model.forward(params, tokens, cfg, positions, mask, part, attention)
    text = h[:, :length]
    copies = h[:, length:].reshape(B, n, C, -1)
    if cfg.shift:
        return shifted(text, begin, copies, first, cfg, valid, start)
    return copies[:, :, start - first :]


def repeated(x, n):
    """Repeat each row of x n times; None stays None."""
    return None if x is None else jnp.repeat(x, n, 0)


def shifted(text, begin, copies, first, cfg, valid, start):
    """Pick the states that a shifted model predicts tokens from: the first token of a block from the text before it
    (states text (B, S, D) from column `begin` on), the others from their copy (copies (B, n, C, D) from `first` on)."""
    B, n, C, D = copies.shape
    length = C + first - start
    of_copies = repeated(valid, n)
    rows = copies.reshape(B * n, C, D)
    own = pick(rows, first, start, length, of_copies)
    before = pick(text, begin, start, length, valid)
    begins = first_of_block(valid, C + first, cfg)
    begins = begins[:, None, start:, None]
    return jnp.where(begins, before[:, None], own.reshape(B, n, length, D))


# ---- how it is sampled from: a block, or a part of one, after the other, with an exact KV cache or without one -------


def check(cfg, plan):
    """Refuse parts of blocks that are not equally long."""
    if cfg.block % min(plan.block_len or cfg.block, cfg.block):
        raise ValueError(f"block_len={plan.block_len}: expected a divisor of blocks.block={cfg.block}, whose "
                         "blocks are filled in parts of this length, or a larger number, which changes nothing")


class Turn(NamedTuple):
    """The block, or the part of a block, that each row works on."""

    window: sample.Window
    stored: jax.Array  # (B,) the columns before it are in the cache for good
    extra: jax.Array  # (B,) True if this pass is not one of the block's steps


def next_turn(s, stored, has_cache, cfg, plan, valid, L) -> Turn:
    """Find the block of L columns, or the part of a block, that each row works on.

    Two kinds of pass do not count as one of a block's steps. With a cache, a finished block gets one more pass, which
    stores it. In a shifted model, with or without a cache, the first token of each block but the first gets a pass of
    its own, because it is predicted from the finished block before it; with a cache this is the pass that stores."""
    B, T = s.z.shape
    size = cfg.block
    text = 0 if valid is None else jnp.argmax(valid, 1)  # where each row's text begins
    first = jnp.argmax(s.z == cfg.mask_id, 1)
    at = first - text
    block = text + at // L * L
    needed = text + jnp.maximum(at - cfg.shift, 0) // size * size  # the columns that must be in the cache
    stored = jnp.where(s.n == 0, needed, stored)  # the prompt has been read
    behind = has_cache & (stored < needed)
    alone = cfg.shift & (at > 0) & (at % size == 0)
    extra = alone | behind
    i = jnp.where(block == s.block, s.i, 0) - extra
    w = sample.window(s.z, block, i, jnp.full(B, plan.steps), cfg, L)
    may = (w.column == first[:, None]) | ~alone[:, None]
    return Turn(w._replace(masked=w.masked & may & ~behind[:, None]), stored, extra)


def block_pass(params, z, turn, cfg, plan, valid, cache):
    """Compute the states (B, L, D) of the window of a Turn of z (B, T), and update the cache.

    The block that is computed is the first that is not stored for good, from column turn.stored on: the one being
    filled or, once it is finished, the same one for the last time, from which a shifted model also predicts the next
    block's first token. If a block is filled in parts of L columns, the first pass of a part computes the whole block,
    and with the dual cache later ones only the part; but a shifted model computes the whole block until the part's
    first token, which it reads from the column before, is filled."""
    w, stored = turn.window, turn.stored
    T, L = z.shape[1], w.column.shape[1]
    full = min(cfg.block, T)
    start = w.column[:, 0]
    in_parts = plan.cache == "dual" and L < full
    first_token = model.columns(z, (start, 1))[:, 0]
    begins = w.i <= 0
    whole = begins | cfg.shift & (first_token == cfg.mask_id)  # rows that need their whole block

    def run(size, cache):
        first = jnp.minimum(stored, T - size) if size == full else start
        write = caches.Write(first)
        if in_parts:  # rows that need only their part keep the rest
            low = jnp.where(whole, 0, start)
            high = jnp.where(whole, T, start + L)
            write = caches.Write(first, low, high)
        part = first, size
        h, cache = caches.compute(params, z, cfg, valid, cache, part, write)
        at = start[:, None] + jnp.arange(L) - cfg.shift - first[:, None]
        at = at.clip(0, size - 1)
        return jax.vmap(operator.getitem)(h, at), cache

    if not in_parts:
        return run(full, cache)
    run_block = functools.partial(run, full)
    run_part = functools.partial(run, L)
    return jax.lax.cond(whole.any(), run_block, run_part, cache)


def behind_the_end(s, cfg, valid):
    """Find the masks (B, T) that need no more steps: those in blocks behind the first one that is not full, if a full
    one has an end of text. The whole block with the end has to be filled."""
    T = s.z.shape[1]
    block = number(valid, T, cfg)
    masked = s.z == cfg.mask_id

    def first_block(there):
        return jnp.where(there, block, T).min(1, keepdims=True)

    return masked & (first_block(masked) > first_block(sample.ends_written(s, cfg)))


def fill_in_blocks(params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T), a block after the other. Of every `group` rows, which have one prompt, the first step
    computes one."""
    B, T = z.shape
    L = min(plan.block_len or T, cfg.block, T)
    rule = static if plan.rule == "quota" else sample.RULES[plan.rule]  # their own way of equal shares
    behind = functools.partial(behind_the_end, valid=valid)

    def step(state, group=1):
        s, stored, cache = state
        turn = next_turn(s, stored, cache is not None, cfg, plan, valid, L)
        w = turn.window
        if cache is None:
            h = sample.states(params, s.z, w, cfg, valid, group)
        else:
            z, one, of_text, cache = caches.one_of_each_group((s.z, turn, valid, cache), group)
            h, cache = block_pass(params, z, one, cfg, plan, of_text, cache)
            cache = caches.for_all_rows(cache, group)
        chosen = sample.choose(params, keys, h, s.z, w, valid, cfg, plan, rule)
        s = sample.write(s, w, *chosen)
        if plan.early_end:
            s = sample.fill_rest(s, behind, cfg)
        stored = jnp.where(turn.extra, turn.stored + cfg.block, turn.stored)
        return s, stored, cache

    cache = None if plan.cache == "none" else caches.prefill(params, z, cfg, valid, group)
    state = sample.begin(z), jnp.zeros(B, jnp.int32), cache
    state = sample.until_filled(step, state, cfg, group)
    s = state[0]
    passes = s.step.max(1) + 1 if cache is None else caches.distinct_steps(s.step)
    return sample.result(s, passes)


sections.add(model.MASKS, blocks=see_blocks)
sections.add(diffusion.NOISES, blocks=diffusion.Noise(mask_blocks, hidden, parts))
sections.add(sample.SAMPLERS, blocks=sample.Sampler(fill_in_blocks, check))
