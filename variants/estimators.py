"""
More estimators of the log-probabilities of a completion (--logp_est): `one_step` (d1), `coupled` (DiffuCoder), `exact`
for causal models, `trace` for the path on which it was written, `quadrature` (GDPO) and `strata` (DACA-GRPO). And d1's
masks in the prompt:  --logp_est=one_step --masked_prompt.share=0.15
"""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import diffusion
from system import sections


def one_step(key, completion, inputs):
    """d1: mask the whole completion. (With MaskedPrompt also tokens of the prompt.)"""
    masked = completion[:, None]
    return diffusion.Views(masked, masked, completion)


def coupled(key, completion, inputs):
    """DiffuCoder: mask everything; a random part of ratio t; the rest. The weights belong to the definition (Eq. 7,
    lambda = 1) and sum to 1.5 on average, which stretches ratios and KL by as much."""
    t_key, mask_key = jax.random.split(key)
    low, high = inputs.t_range
    t = low + (high - low) * diffusion.strata(t_key, len(completion))
    t = t[:, None]
    draws = jax.random.uniform(mask_key, completion.shape)
    part = completion & (draws < t)
    rest = completion & ~part
    masked = jnp.stack([completion, part, rest], 1)
    weights = jnp.stack([completion, part / t, rest / (1 - t)], 1)
    return diffusion.Views(masked, weights / 2, completion)


def trace(key, completion, inputs):
    """TraceRL, CJ-GRPO: score each token at the step that committed it, given the tokens committed before. With fewer
    views n than the S steps that committed a token of the loss, take every (S / n)-th of these from a random start,
    each standing for S / n (AGRPO). Exact if every step has a view and tokens behind an end of text are scored, too."""
    counts = completion if inputs.counts is None else inputs.counts
    number, scored_at = step_numbers(counts, inputs)
    S = jnp.max(jnp.where(counts, scored_at, -1), 1, keepdims=True) + 1  # (B, 1)
    n_views = jnp.clip(S, 1, inputs.n)
    u = jax.random.uniform(key, S.shape)
    k = jnp.arange(inputs.n)
    every_nth = jnp.floor((u + k) * (S / n_views))
    step = jnp.where(S <= inputs.n, k, every_nth)[..., None]  # (B, n, 1)
    in_view = completion[:, None] & (k < n_views)[..., None]
    stands_for = jnp.maximum(S, 1) / n_views  # steps
    weights = in_view * (scored_at[:, None] == step) * stands_for[..., None]
    masked = in_view & (number[:, None] >= step)
    return diffusion.split_weight(masked, weights)


def step_numbers(counts, inputs):
    """Number the denoising steps that commit a token of the loss, from 0: counts (B, T), True on those tokens -> for
    each token (B, T) the number of its step, or of the last numbered one before it; -1 before the first. Twice: by the
    first a view masks tokens, by the second it scores them. Steps 0 0 2 5 have the numbers 0 0 1 2; if the token of
    step 2 is not in the loss, 0 0 0 1.

    The steps of each block are numbered anew, so that one view serves the first step of every block. A shifted model
    predicts the first token of a block from the text before it. So that token needs no view of its own: its step is not
    numbered, and a view scores it although it does not mask it."""
    T = counts.shape[1]
    part, begins = diffusion.noise_of(inputs.cfg).parts(inputs.valid, T, inputs.cfg)
    counts = counts & jnp.logical_not(begins)
    same_part = part[:, None] == part[..., None]
    mine = inputs.step[..., None]
    others = inputs.step[:, None]
    further_left = jnp.tri(T, k=-1, dtype=bool)
    repeats = same_part & (mine == others) & counts[:, None] & further_left
    leftmost = counts & ~repeats.any(-1)  # of the tokens that one step committed
    not_later = same_part & leftmost[:, None] & (others <= mine)
    number = not_later.sum(-1) - 1
    return number, jnp.where(begins, jnp.maximum(number, 0), number)


def quadrature(key, completion, inputs):
    """GDPO: n views whose shares of masks t are the points of Gauss-Legendre quadrature, with its weights, instead of
    random shares. The count t L + 1/2 (`elbo` masks ceil(t L)) is rounded up or down at random, right on average."""
    round_key, mask_key = jax.random.split(key)
    L = completion.sum(1, keepdims=True)
    points, weights = np.polynomial.legendre.leggauss(inputs.n)  # on -1..1, with weights that sum to 2
    t = (1 + points) / 2
    u = jax.random.uniform(round_key, (inputs.n, len(L))).T
    count = jnp.clip(jnp.floor(t * L + 0.5 + u), 1, jnp.maximum(L, 1))
    masked = diffusion.random_subsets(mask_key, completion, count)
    each = weights / 2 * L / count
    return diffusion.split_weight(masked, masked * each[..., None])


def strata(key, completion, inputs):
    """Divide the tokens of the completion at random into n strata of equal size; each view masks one, so
    that every token is scored once, given all other strata. n=1 is `one_step` without its masks in the prompt."""
    noise = jnp.where(completion, jax.random.uniform(key, completion.shape), 2.0)
    stratum = jnp.argsort(jnp.argsort(noise, 1), 1) % inputs.n
    masked = completion[:, None] & (stratum[:, None] == jnp.arange(inputs.n)[:, None])
    return diffusion.Views(masked, masked, completion)


def exact(key, completion, inputs):
    """Every autoregressive GRPO: mask nothing, one pass."""
    return diffusion.Views(jnp.zeros_like(completion)[:, None], completion[:, None], completion)


sections.add(
    diffusion.ESTIMATORS,
    one_step=one_step,
    coupled=coupled,
    exact=exact,
    trace=trace,
    quadrature=quadrature,
    strata=strata,
)


@dataclasses.dataclass(frozen=True)
class MaskedPrompt(sections.Section):
    """d1 also masks tokens of the prompt, at random."""

    typed_as = "masked_prompt"
    objective = "grpo"
    share: float = sections.key(0.15, "one_step: probability that a prompt token is masked", sections.FRACTION)

    def between_keys(self, c):
        yield (c.logp_est != "one_step",
               f"masked_prompt.share={self.share} changes nothing here, it is for logp_est='one_step'")

    def views(self, key, views, rollout, cfg):
        """Mask each token of the prompts with probability `share` in views of completions."""
        prompt = ~rollout.completion & (True if rollout.valid is None else rollout.valid)
        draws = jax.random.uniform(key, prompt.shape)
        return views._replace(masked=views.masked | (prompt & (draws < self.share))[:, None])
