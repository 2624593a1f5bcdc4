"""
Lossless drafts: an autoregressive model that writes several tokens at a time (Nemotron's self-speculation; drafts are
accepted as by Leviathan et al., 2211.17192).

A model of variants/joint.py drafts tokens in one denoising pass, all at once, and reads them in one causal pass. A
token that was drawn from q is accepted with probability min(1, p / q), where p is the causal model's. The first one
that is not is drawn again, from max(p - q, 0), and those behind it are forgotten. What is written has exactly the
distribution of the causal model, whatever q is: a bad draft costs time, not quality. Two passes write 1 to b tokens, b
being the block length.

    text ... t  _  _  _       draft: the last token t and b - 1 masks see the text and each other
    text ... t  1  2  3       check: the causal pass says p of tokens 1, 2 and 3, and of the one behind them

Both passes read a text that is moved right by one column (model.moved_right), so that a causal state in column i is
about token i. Their keys and values are those of the causal model, in its cache.
"""
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import softmax

import diffusion
import model
from system import kernels
from variants import caches, joint


class Window(NamedTuple):
    """The b columns that each row writes next."""

    first: jax.Array  # (B,) the first of them
    z: jax.Array  # (B, b) what stands there
    masked: jax.Array  # (B, b) True where a token is missing


class Sampling(NamedTuple):
    """How tokens are drawn from states."""

    logits: Callable  # states (N, D) -> logits (N, V) of the distribution that tokens are drawn from
    greedy: bool  # take the likeliest token
    at_once: int  # how many positions have logits at a time


def window(z, read, cfg) -> Window:
    """Find the columns to write next: those behind the `read` (B,) ones, or the last b."""
    T = z.shape[1]
    b = min(cfg.block_causal, T)
    first = jnp.minimum(read, T - b)
    here = model.columns(z, (first, b))
    return Window(first, here, here == cfg.mask_id)


def draft(params, z, w: Window, cfg, valid, cache):
    """Compute a denoising pass over a window -> states (B, b, D), [:, i] about token first + i; the last is about none.
    """
    T, b = z.shape[1], w.z.shape[1]
    own, part = joint.autoregressive(cfg), (w.first, b)
    moved, there = model.moved_right(z, valid, own)
    no_later = jnp.arange(T) < (w.first + b)[:, None]
    mask = model.Mask((no_later & there)[:, None], None)
    positions = model.columns(model.positions_of(there, T), part)
    tokens = model.columns(moved, part)
    h, _ = model.forward(params, tokens, own, positions, mask, cache, model.Write(w.first))
    return jnp.roll(h, -1, 1)


def check(params, z, w: Window, cfg, valid, cache):
    """Compute a causal pass over a window -> states (B, b, D), [:, i] about token first + i; the cache that has it."""
    own = joint.autoregressive(cfg)
    moved, there = model.moved_right(z, valid, own)
    part = w.first, w.z.shape[1]
    return caches.compute(params, moved, own, there, cache, part, model.Write(w.first))


def verdict(p, q, token, accept_key, again_key):
    """Accept a token that was drawn from q (V,), or not, so that it has the distribution p (V,) -> (), and the token to
    take otherwise. A q of zeros drew nothing."""
    accepted = jax.random.uniform(accept_key) * q[token] < p[token]
    rest = jnp.maximum(p - q, 0)
    return accepted, kernels.draw(again_key, rest / jnp.maximum(rest.sum(), 1e-30))


class Draft(NamedTuple):
    """What two passes make, of b columns of each row."""

    column: jax.Array  # (B, b)
    commit: jax.Array  # (B, b) True where the token is to be written
    token: jax.Array  # (B, b)
    logp: jax.Array  # (B, b)
    read: jax.Array  # (B,) the columns before it are in the cache for good
    cache: list


def draft_and_check(params, keys, z, read, cfg, valid, cache, how: Sampling) -> Draft:
    """Take two passes over the columns behind the `read` (B,) ones. z (B, T) with masks; keys (B,); cache: of the
    causal model."""
    B, T = z.shape
    w = window(z, read, cfg)
    b = w.z.shape[1]
    column = w.first[:, None] + jnp.arange(b)
    row = jnp.arange(B)[:, None]
    has_draft = jnp.broadcast_to(jnp.arange(b) < b - 1, (B, b))
    # Columns are counted from the right, so that padding changes nothing. Another round may draw for a column again,
    # with the same keys: nothing that was written depends on what the first draw was.
    places = jnp.broadcast_to(row, (B, b)), (T - column) * 4

    def key(place, purpose):
        row, number = place
        return jax.vmap(jax.random.fold_in)(keys[row], number + purpose)

    def guess(place, of_draft):
        logits = how.logits(of_draft)
        return kernels.likeliest(logits) if how.greedy else jax.vmap(kernels.draw)(key(place, 0), softmax(logits))

    def judge(place, of_draft, of_text, token, has_draft):
        logits = how.logits(of_text)
        if how.greedy:
            other = kernels.likeliest(logits)
            accepted = has_draft & (token == other)
        else:
            q = jnp.where(has_draft[:, None], softmax(how.logits(of_draft)), 0)
            accepted, other = jax.vmap(verdict)(softmax(logits), q, token, key(place, 1), key(place, 2))
            accepted &= has_draft
        token = jnp.where(accepted, token, other)
        return accepted, token, diffusion.gather_logp(logits, token)

    def by_chunk(fn, *arrays):
        flat = jax.tree.map(lambda a: a.reshape(B * b, *a.shape[2:]), arrays)
        out = diffusion.in_chunks(fn, how.at_once, w.masked.reshape(-1), *flat)
        return jax.tree.map(lambda a: a.reshape(B, b), out)

    of_draft = draft(params, z, w, cfg, valid, cache)
    guessed = jnp.where(w.masked, by_chunk(guess, places, of_draft), w.z)
    of_text, cache = check(params, z.at[row, column].set(guessed), w, cfg, valid, cache)
    accepted, token, logp = by_chunk(judge, places, of_draft, of_text, guessed, has_draft)
    goes_on = jnp.where(w.masked, accepted, True)
    if cfg.eos_id is not None:  # behind an end nothing is written
        goes_on &= ~(w.masked & (token == cfg.eos_id))
    # A token is written if all before it go on: the first that does not is written itself.
    reached = jnp.cumsum(~goes_on, 1) - ~goes_on == 0
    return Draft(column, w.masked & reached, token, logp, w.first + reached.sum(1), cache)
