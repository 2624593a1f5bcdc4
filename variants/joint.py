"""
One network, both ways. A block model whose finished text is causal (`causal_text`) is also an autoregressive model with
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
    """Draw the masks of a batch as `diffusion.noise` does, and with a causal_weight also add the loss of next tokens,
    times causal_weight: NoisyBatch.weight then is (B, 1 + copies, T), and [:, 0] weighs the tokens of the clean text.

    That loss has the tokens up to the first end, where a causal model stops, but not the first token of a text: there
    is nothing before it to predict it from."""
    noisy = diffusion.noise(key, batch, cfg, norm, paired)
    if not causal_weight:
        return noisy
    x, maskable, valid = batch
    eos_id = -1 if cfg.eos_id is None else cfg.eos_id
    ends = maskable & (x == eos_id)
    has_left = model.positions_of(valid, x.shape[1]) > 0
    written = maskable & has_left & (jnp.cumsum(ends, 1) - ends == 0)
    batch = x, written, valid
    text = diffusion.noise(key, batch, autoregressive(cfg), norm)
    weight = jnp.concatenate([causal_weight * text.weight, noisy.weight], 1)
    return noisy._replace(weight=weight)
