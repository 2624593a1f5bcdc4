"""
The samplers of dllm (github.com/ZHZisZZ/dllm):  --rule=dllm

Its rule fills round(masks / steps left) tokens at a step, and takes no step that would fill none. Its blocks begin at
the prompt's end, also in a block model, whose training counts them from the text's beginning; in a text with holes
they begin at the text's beginning. Each block has ceil(steps / blocks) steps, and in a block model plan.steps.
"""
import functools

import jax
import jax.numpy as jnp
import numpy as np

import model
import sample
from variants import block_steps, prompt_blocks


@functools.cache
def halves(steps):
    """Say how dllm rounds halves, for 1 .. steps steps (rows) of which 1 .. steps are left (columns): 1 up, -1 down, 0
    to the even number. It multiplies with a share that was computed in float32, so that halves are rarely exact."""
    number = np.arange(1, steps + 1)
    total, left = np.maximum(number[:, None], number), number  # more steps than there are cannot be left
    one = np.float32(1)

    def noise(left):
        """Compute the share of masks when so many steps are left, as theirs does: 1 - alpha, alpha = 1 - t."""
        return one - (one - (left / total).astype(np.float32))

    remain = (noise(left - 1) / noise(left)).astype(np.float64)
    return np.sign((1 - remain) * left - 1).astype(np.int8)


def dllm(b, plan):
    """dllm: round(masks / steps left), at least one."""
    left = jnp.maximum(b.steps - b.i, 1)
    n = b.masked.sum(1, keepdims=True)
    share, rest = n // left, n % left
    half = jnp.asarray(halves(plan.steps))[b.steps - 1, left - 1]
    up = jnp.where(half == 0, share % 2 == 1, half > 0)
    share += jnp.where(2 * rest == left, up, 2 * rest > left)
    return b.rank < jnp.maximum(share, 1)


def block_window(s, cfg, plan, valid):
    """Find the block that each row works on, and its steps -> sample.Window."""
    T = s.z.shape[1]
    L = sample.block_length(s, plan)
    asked = sample.masked_at_start(s, cfg)
    first = jnp.argmax(asked, 1)
    has_holes = asked.sum(1) < T - first  # a token is given right of a mask
    text = 0 if valid is None else jnp.argmax(valid, 1)
    origin = jnp.where(has_holes, text, first)
    next_mask = jnp.argmax(s.z == cfg.mask_id, 1)
    block = origin + jnp.maximum(next_mask - origin, 0) // L * L
    blocks = -(-(T - origin) // L)
    i = jnp.where(block == s.block, s.i, 0)
    return sample.window(s.z, block, i, -(-plan.steps // blocks), cfg, L)


def fill_in_blocks(params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T) of a denoiser without blocks of its own."""

    def step(s, group=1):
        w = block_window(s, cfg, plan, valid)
        h = sample.states(params, s.z, w, cfg, valid, group)
        s = sample.write(s, w, *sample.choose(params, keys, h, s.z, w, valid, cfg, plan, dllm))
        return sample.fill_rest(s, sample.behind_the_end, cfg) if plan.early_end else s

    def unfinished(s):
        return jnp.any(s.z == cfg.mask_id)

    s = sample.begin(z)
    if group > 1:
        s = step(s, group)
    s = jax.lax.while_loop(unfinished, step, s)
    return sample.result(s, s.step.max(1) + 1)


def fill(params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T) as dllm does, in a model with blocks or without."""
    if hasattr(cfg, "block_causal"):
        filler = block_steps.fill_in_blocks
        return prompt_blocks.fill_from_prompt(filler, params, keys, z, cfg, plan, valid, group)
    return fill_in_blocks(params, keys, z, cfg, plan, valid, group)


def check(cfg, plan):
    """Raise a ValueError for a model or a plan that dllm has no sampler for."""
    if cfg.causal or hasattr(cfg, "causal_text") or hasattr(cfg, "noise"):
        raise ValueError("rule='dllm' is for models that fill in masks, with blocks or without, and this one is not: "
                         "take another rule, such as quota")
    if hasattr(cfg, "block_causal"):
        return block_steps.check(cfg, plan)
    if plan.cache != "none":
        raise ValueError(f"cache={plan.cache!r}: dllm's sampler has none, except for block models: leave it out, or "
                         "take another rule, such as quota")


def scored_as(cfg: model.ModelConfig) -> model.ModelConfig:
    """Return the ModelConfig that scores what was sampled, which has to see the same blocks."""
    if hasattr(cfg, "block_causal"):
        raise ValueError("rule='dllm' counts the blocks of a block model from the prompt's end, and training from the "
                         "text's beginning, so log-probs would be others: take rule='quota'")
    return cfg


sample.RULES["dllm"] = dllm
sample.SAMPLERS["dllm"] = fill
sample.CHECKS["dllm"] = check
sample.SCORED_AS["dllm"] = scored_as
