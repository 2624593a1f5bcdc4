"""Noisy copies in pairs with complementary masks: loss and gradient vary less for the same number of forward passes."""
import dataclasses

import jax.numpy as jnp

import config
import diffusion


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    """There are none: --paired=True is all."""

    objective = "pretrain"
    copies = 2

    def noise(self, draw, cfg):
        return noise

    def fits(self, c, shape, where):
        yield shape.causal, "paired=True: a causal model reads from left to right and needs paired=False"

    def between_keys(self, c):
        yield (c.batch_size % (2 * c.gradient_accumulation_steps),
               f"paired=True takes every text twice: batch_size={c.batch_size} must be a multiple of 2 x "
               f"gradient_accumulation_steps={c.gradient_accumulation_steps}")


def noise(key, batch, cfg, norm="token") -> diffusion.NoisyBatch:
    """Draw masks as diffusion.noise does, and add to each copy the one with the complementary masks. Together the two
    mask every maskable token.

    Copies with shares t and 1 - t count half each; t = 1 has no complement and keeps its full weight. So every share
    counts as before: the bound is unbiased, and exact on a uniform model."""
    x, maskable, valid = batch[:3]
    z, masked, t, per_token = diffusion.draw_masks(key, batch, cfg, norm)
    w = masked * diffusion.weight(t) * per_token
    alone = t == 1
    odds = t / jnp.where(alone, 1, 1 - t)
    other = maskable & ~masked
    z_other = jnp.where(other, cfg.mask_id, x)
    w_other = other * diffusion.weight(t) * per_token * odds
    w = jnp.where(alone, w, w / 2)
    z = jnp.stack([z, z_other], 1)
    w = jnp.stack([w, w_other / 2], 1)
    return diffusion.NoisyBatch(x, z, w, valid)
