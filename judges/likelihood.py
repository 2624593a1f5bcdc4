"""
Bound the log-likelihood of texts: a measure of evaluations, and a reward (model_judge.coherence).
"""

import jax
import jax.numpy as jnp

import diffusion
from system import sharding


def likelihood(params, batch, key, cfg, n=8, start=0) -> jax.Array:
    """Bound the log-likelihood of each text (B,) in nats, from n masks each (LLaDA's rule); a causal model's is exact.

    batch: as for `diffusion.noise`. With one key all rows share their masks, so a text scores the same in any row or
    padding. With keys (B,) each row has its own, and a mean over rows varies less."""
    x, maskable, valid = batch[:3]
    if cfg.causal:
        share = maskable[:, None]
        masked = jnp.zeros_like(share)
    else:
        masked, share = likelihood_masks(key.reshape(-1), maskable, n)
    chunk = len(x) if diffusion.in_rows(cfg) else None  # as many copies at a time as there are texts

    def logp_alone(logits, x, place):
        return (diffusion.gather_logp(logits, x),)

    scored = share > 0
    (logp,) = diffusion.view_logp(params, x, masked, cfg, valid, start, chunk, scored, logp_alone)
    return sharding.replicate((share * logp).sum((1, 2)))


def likelihood_masks(keys, maskable, n):
    """Draw n masks of evenly spread sizes for each row: keys (B or 1,), maskable (B, T) -> masked, weight (B, n, T)."""
    L = maskable.sum(1)
    T = maskable.shape[1]

    def uniform(i, *shape):
        return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, i), shape))(keys)

    first = jnp.floor(uniform(n) * L) + 1  # in 1..L; the others follow at distances of L / n

    def one(j):
        # Round halves up. (LLaDA rounds to even: of 3 tokens it masks 1, 1, 2 instead of 1, 2, 3.)
        count = jnp.floor(first + j * L / n + 0.5)
        count = (count - 1) % jnp.maximum(L, 1) + 1
        draws = uniform(j, T)[:, ::-1]  # a token's number depends on its distance from the end, not on padding
        return diffusion.least_noisy(draws, maskable, count), L / count / n

    masked, w = jax.vmap(one, out_axes=1)(jnp.arange(n))
    return masked, masked * w[..., None]
