"""
How fast a completion was filled: its denoising passes, and tokens per pass.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.partial(jax.jit, static_argnames=("cfg", "plan"))
def passes(step, cfg, plan):
    """Count the denoising passes of each row (B,), from the step (B, T) that committed each token, -1 if given.

    Not every pass of the batch counts for every row: a row may be waiting for others, or a pass may only store it in a
    cache. So with a cache (also a causal model's, or that of drafts) only steps that committed one of its tokens count,
    which leaves out those in which the rule dream commits none. Without a cache a row is at work until its last token.
    """
    if plan.cache == "none" and plan.rule != "drafts" and not cfg.causal:
        return step.max(1) + 1
    step = jnp.pad(step, ((0, 0), (1, 0)), constant_values=-1)
    ordered = jnp.sort(step, 1)
    different = (ordered[:, 1:] > ordered[:, :-1]).sum(1)
    return 2 * different if plan.rule == "drafts" else different  # a draft and its check


def written(tokens, completion, ends):
    """Count the tokens that were written in each row (B,), up to and including the first end of text.

    tokens (B, T); completion (B, T), True where a token was to be written. ends: the ids that end a text."""
    completion = np.asarray(completion)
    ends = completion & np.isin(tokens, ends)
    to_end = ends.cumsum(1) - ends == 0
    return (completion & to_end).sum(1)


def tokens_per_pass(tokens, completion, passes, ends):
    """Divide what `written` counts in each row by its passes (B,) -> (B,)."""
    return written(tokens, completion, ends) / np.maximum(np.asarray(passes), 1)
