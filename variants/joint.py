"""
One network, both ways. A block model whose finished text is causal (`causal_text`) also is an autoregressive model of
the same weights: one pass over

    [ clean text | noisy copy 1 | noisy copy 2 | ... ]

gives the loss of both, next tokens on the text and masked tokens on its copies (Nemotron-Labs-Diffusion, TiDAR).
"""
import dataclasses

import jax.numpy as jnp

import diffusion
import model


def autoregressive(cfg: model.ModelConfig) -> model.ModelConfig:
    """Return the configuration that reads the same parameters from left to right."""
    return dataclasses.replace(cfg, causal=True, shift=True, block_causal=None, causal_text=False)


def noise(key, batch: tuple, cfg, norm="token", paired=False, causal_weight=0.0) -> diffusion.NoisyBatch:
    """Draw the masks of a batch as `diffusion.noise` does. With a causal_weight the loss gets a second term, the
    autoregressive loss times causal_weight: `weight` has a row more than there are copies, the first, for the text.

    The first token of a text is not in that term: there is nothing before it."""
    noisy = diffusion.noise(key, batch, cfg, norm, paired)
    if not causal_weight:
        return noisy
    text = diffusion.noise(key, batch, autoregressive(cfg), norm)
    has_left = model.positions_of(batch[2], batch[0].shape[1]) > 0
    weight = causal_weight * text.weight * has_left[:, None]
    return noisy._replace(weight=jnp.concatenate([weight, noisy.weight], 1))
