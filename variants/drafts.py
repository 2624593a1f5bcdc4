"""
Lossless drafts: an autoregressive model that writes several tokens at a time (Nemotron's self-speculation; drafts are
accepted as by Leviathan et al., 2211.17192).

A model of variants/joint.py guesses tokens in one denoising pass, all at once, and reads them in one causal pass. A
guess that was drawn from q is accepted with probability min(1, p / q), where p is the causal model's. The first one
that is not is drawn again, from max(p - q, 0), and those after it are forgotten. Up to rounding, what is written has
the distribution of the causal model, whatever q is: a bad guess costs time, not quality. Two passes write up to b
tokens, b being the block length.

    text ... t  _  _  _       draft: the last token t and b - 1 masks see the text and each other
    text ... t  1  2  3       check: the causal pass says p of tokens 1, 2 and 3, and of the one after them

Tokens that are given further right are kept. As in any causal model, what is written before them does not depend on
them.

Both passes read a text that is moved right by one column (causal.moved_right), so that a causal state in column i is
about token i. The cache is the causal model's; what a draft stores in it is thrown away.
"""
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import softmax

import diffusion
import model
import sample
from system import kernels, sharding
from variants import caches, joint
from variants.causal import moved_right


class Window(NamedTuple):
    """The b columns that each row writes next."""

    first: jax.Array  # (B,) the first of them
    z: jax.Array  # (B, b) what stands there
    masked: jax.Array  # (B, b) True where a token is missing


class Sampling(NamedTuple):
    """How tokens are drawn from states h (N, D)."""

    logits: Callable  # states (N, D) -> logits (N, V) of the distribution that tokens are drawn from
    greedy: bool  # take the likeliest token
    at_once: int  # how many positions have logits at a time


class Round(NamedTuple):
    """What two passes write, in b columns of each row."""

    column: jax.Array  # (B, b)
    commit: jax.Array  # (B, b) True: write `token` here
    token: jax.Array  # (B, b) of use only where `commit`, like logp
    logp: jax.Array  # (B, b)
    stored: jax.Array  # (B,) the columns before it are final, in the text and in the cache
    cache: list


def next_window(z, stored, cfg) -> Window:
    """Pick the next b columns of each row: from column `stored` (B,) on, or near the end of a text its last b."""
    T = z.shape[1]
    b = min(cfg.block_causal, T)
    first = jnp.minimum(stored, T - b)
    here = model.columns(z, (first, b))
    return Window(first, here, here == cfg.mask_id)


def draft(params, z, w: Window, cfg, valid, cache):
    """Guess in one pass: the last known token and b - 1 masks see the text and each other -> states (B, b, D), [:, i]
    about token first + i. The last one is about none: there is no guess for it."""
    T, b = z.shape[1], w.z.shape[1]
    part = w.first, b
    causal = joint.autoregressive(cfg)
    moved, is_text = moved_right(z, valid, causal)
    no_later = jnp.arange(T) < (w.first + b)[:, None]
    mask = model.equal_layers((no_later & is_text)[:, None], None, causal)
    positions = model.columns(model.positions_of(is_text, T), part)
    tokens = model.columns(moved, part)
    h, _ = caches.forward(params, tokens, causal, positions, mask, cache, caches.Write(w.first))
    return jnp.roll(h, -1, 1)


def check(params, z, w: Window, cfg, valid, cache):
    """Read a window, guesses included, from left to right -> states (B, b, D), [:, i] about token first + i, from all
    before it; the cache with the window."""
    causal = joint.autoregressive(cfg)
    moved, is_text = moved_right(z, valid, causal)
    part = w.first, w.z.shape[1]
    return caches.compute(params, moved, causal, is_text, cache, part, caches.Write(w.first))


def accept_or_replace(p, q, token, accept_key, replace_key):
    """Accept a token that was drawn from q (V,), or replace it, so that the result has the distribution p (V,) -> True
    if it is accepted (), the token to replace it with if not (). q of zeros: there was no guess."""
    guessed = q[token] > 0
    accepted = guessed & (jax.random.uniform(accept_key) * q[token] < p[token])
    rest = jnp.maximum(p - q, 0)
    rest = jnp.where(rest.sum() > 0, rest, p)  # rounding may leave nothing where p = q
    return accepted, kernels.draw(replace_key, rest / rest.sum())


def write_round(params, keys, z, stored, cfg, valid, cache, sampling: Sampling) -> Round:
    """Guess the next b - 1 tokens of each row (b: the length of a block), check them, and say which to write -> Round.

    z (B, T) with masks, keys (B,). stored (B,): the columns before it are final, in z and in the causal cache. The b-th
    token is not guessed: the causal pass gives it, and it is written if all guesses are accepted."""
    B, T = z.shape
    w = next_window(z, stored, cfg)
    b = w.z.shape[1]
    column = w.first[:, None] + jnp.arange(b)
    row = jnp.arange(B)[:, None]
    has_guess = jnp.broadcast_to(jnp.arange(b) < b - 1, (B, b))
    # Columns are counted from the right, so that padding changes nothing. A later round may decide a column again with
    # the same keys. That is safe: the tokens left of it never depended on its keys.
    places = jnp.broadcast_to(row, (B, b)), (T - column) * 4

    def key(place, purpose):
        row, number = place
        return jax.vmap(jax.random.fold_in)(keys[row], number + purpose)

    def guess(place, of_draft):
        logits = sampling.logits(of_draft)
        if sampling.greedy:
            return kernels.likeliest(logits)
        return jax.vmap(kernels.draw)(key(place, 0), softmax(logits))

    def decide(place, of_draft, of_text, token, has_guess):
        logits = sampling.logits(of_text)
        if sampling.greedy:
            other = kernels.likeliest(logits)
            accepted = has_guess & (token == other)
        else:
            q = jnp.where(has_guess[:, None], softmax(sampling.logits(of_draft)), 0)
            p = softmax(logits)
            accepted, other = jax.vmap(accept_or_replace)(p, q, token, key(place, 1), key(place, 2))
        token = jnp.where(accepted, token, other)
        return accepted, token, diffusion.gather_logp(logits, token)

    def by_chunk(fn, *arrays):
        flat = sharding.joined(arrays)
        out = diffusion.wanted_in_chunks(fn, sampling.at_once, w.masked.reshape(-1), *flat)
        return sharding.cut(out, B)

    of_draft = draft(params, z, w, cfg, valid, cache)
    guessed = jnp.where(w.masked, by_chunk(guess, places, of_draft), w.z)
    z = z.at[row, column].set(guessed)
    of_text, cache = check(params, z, w, cfg, valid, cache)
    accepted, token, logp = by_chunk(decide, places, of_draft, of_text, guessed, has_guess)
    keeps_next = jnp.where(w.masked, accepted, True)
    if cfg.ends:  # after an end nothing is written
        keeps_next &= ~(w.masked & jnp.isin(token, jnp.array(cfg.ends)))
    # A token is written if all before it keep the next: the first that does not is written itself.
    reached = jnp.cumsum(~keeps_next, 1) - ~keeps_next == 0
    return Round(column, w.masked & reached, token, logp, w.first + reached.sum(1), cache)


# ---- the sampler -----------------------------------------------------------------------------------------------------


def check_plan(cfg, plan):
    """Raise ValueError if a model or a plan cannot be used with rule="drafts"."""
    text, block = (getattr(cfg, name, None) for name in ("causal_text", "block_causal"))
    if not text or block < 2:
        raise ValueError("rule='drafts' needs a model that is autoregressive and a denoiser at once: causal_text=True "
                         f"with blocks of 2 or more, now causal_text={text}, block_causal={block}; for other models "
                         "take another rule, such as quota")
    needed = {"order": "left", "cache": "none", "block_len": None, "repetition_penalty": 1}
    for name, value in needed.items():
        if getattr(plan, name, value) != value:
            raise ValueError(f"{name}={getattr(plan, name)!r}: rule='drafts' writes from left to right, with a cache "
                             f"of its own, what the causal model would write; it needs {name}={value!r}")


def fill_by_drafts(params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T) in rounds, of which each counts as two steps; its tokens get the number of the second.
    Every `group` rows have one prompt, which is read once."""
    params = model.gather_head(params, cfg)
    causal = joint.autoregressive(cfg)

    def logits(h):
        return sample.filtered(model.readout(params, h, cfg), plan)

    sampling = Sampling(logits, not plan.temperature, sample.positions_at_once(cfg))

    def step(state):
        s, stored, cache = state
        r = write_round(params, keys, s.z, stored, cfg, valid, cache, sampling)
        w = sample.Window(s.block, r.column, r.commit, s.i, s.i)
        s = sample.write(s._replace(n=s.n + 1), w, r.commit, r.token, r.logp)
        s = sample.fill_rest(s, sample.behind_the_end, causal)
        return s, sharding.replicate(r.stored), r.cache

    def unfinished(state):
        return jnp.any(state[0].z == cfg.mask_id)

    prompt_end = jnp.argmax(z == cfg.mask_id, 1)
    state = sample.begin(z), prompt_end, caches.prefill(params, z, causal, valid, group)
    s, _, _ = jax.lax.while_loop(unfinished, step, state)
    return sample.result(s, 2 * caches.distinct_steps(s.step))  # a draft and its check


sample.RULES["drafts"] = write_round
sample.SAMPLERS["drafts"] = fill_by_drafts
sample.CHECKS["drafts"] = check_plan
sample.SCORED_AS["drafts"] = joint.autoregressive
