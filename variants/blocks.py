"""
Block diffusion (BD3-LM, SDAR, Fast-dLLM v2): a model that fills one block of a text after the other, each given the
clean text before it.

To score all blocks in one pass, noisy copies of a text are put behind the text itself in one long row, and the mask
says who sees whom. The network is not told:

    [ clean text | noisy copy 1 | noisy copy 2 | ... ]    a copy's block sees itself, and the clean blocks before it

Blocks begin where a text does: block n has the tokens n * block_causal and following, wherever padding has put them.
"""
import jax
import jax.numpy as jnp

import model


def number(valid, T, cfg):
    """Number the block of each token: valid (B, T) or None -> (B or 1, T). None for a model without blocks."""
    return None if cfg.block_causal is None else model.positions_of(valid, T) // cfg.block_causal


def first_of_block(valid, T, cfg):
    """True (B or 1, T) at the tokens that a shifted block model predicts from the clean text before their block: the
    first token of each block but the first. None for other models."""
    if cfg.block_causal is None or not cfg.shift:
        return None
    at = model.positions_of(valid, T)
    return (at > 0) & (at % cfg.block_causal == 0)


def within(block, related):
    """Count for each token the tokens of its own block that are related to it: block (B, T), related (B, T or 1, T)
    -> (B, T)."""
    return ((block[:, None] == block[..., None]) & related).sum(-1)


def packed_mask(cfg, valid, T, first):
    """Say who sees whom in a row of a text and one copy of its columns from `first` on -> model.Mask, (B or 1, S, S)."""
    column = jnp.concatenate([jnp.arange(T), jnp.arange(first, T)])
    copy = jnp.arange(len(column)) >= T
    block = number(valid, T, cfg)[:, column]
    of_query, of_key = (lambda a: a[..., :, None]), (lambda a: a[..., None, :])
    earlier, same = of_key(block) < of_query(block), of_key(block) == of_query(block)
    sees_text = earlier | same & ~of_query(copy)
    far = jnp.where(of_key(copy), same & of_query(copy), sees_text)
    if valid is not None:  # padding sees itself
        far &= of_key(valid[:, column]) | jnp.eye(len(column), dtype=bool)
    near = far & (abs(of_query(column) - of_key(column)) < cfg.window) if cfg.window else None
    return model.Mask(far, near)


def hidden(params, clean, noisy, cfg, valid=None, start=0):
    """Compute the states of noisy copies: clean (B, T), noisy (B, n, T) -> (B, n, T - start, D), [..., i, :] about
    token start + i, as `model.hidden`.

    Copies are computed from the block of column `start` on; before it they have no masks. The first token of a block
    is predicted by the text before it if the model is shifted."""
    B, n, T = noisy.shape
    first = max(start - cfg.shift - cfg.block_causal + 1, 0)
    C = T - first
    tokens = jnp.concatenate([clean, noisy[:, :, first:].reshape(B, n * C)], 1)
    positions = model.positions_of(valid, T)
    row = jnp.concatenate([positions, jnp.tile(positions[:, first:], n)], 1)
    begin = max(start - 1, 0) if cfg.shift else T
    part = begin, T - begin + n * C
    h, _ = model.forward(params, tokens, cfg, row, packed_mask(cfg, valid, T, first), part=part, copies=n)
    text, copies = h[:, : T - begin], h[:, T - begin :].reshape(B, n, C, -1)
    if not cfg.shift:
        return copies[:, :, start - first :]
    length = T - start
    flat = copies.reshape(B * n, C, -1)
    valid = None if valid is None else jnp.repeat(valid, n, 0)
    own = model.shifted(flat, first, start, length, valid).reshape(B, n, length, -1)
    before = model.shifted(text, begin, start, length, None if valid is None else valid[::n])
    begins = first_of_block(None if valid is None else valid[::n], T, cfg)[:, start:]
    return jnp.where(begins[:, None, :, None], before[:, None], own)
