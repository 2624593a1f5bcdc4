"""
Autoregressive models: every token is predicted from those left of it, as in all models before diffusion.

A text is moved right by one column before the network reads it, with a start token in front. So the state in a column
is about the token of that column, as in a denoiser, and nothing outside the network has to know.
"""
import jax.numpy as jnp

import diffusion
import model
import sample


def start_id(cfg):
    """Return the id that a causal model reads before a text: begin of text, else end of text, else 0."""
    return next(i for i in (cfg.bos_id, cfg.eos_id, 0) if i is not None)


def moved_right(z, valid, cfg):
    """Move texts one column to the right, so that a causal model's state in column i predicts token i.

    z (B, T), valid (B, T) or None -> both (B, T), with a start token in front and without the last token. The start
    token counts as padding, so no later column sees it."""
    there = jnp.ones((1, z.shape[1]), bool) if valid is None else valid

    def move(a):
        return jnp.pad(a, ((0, 0), (1, 0)))[:, :-1]

    z, there = move(z), move(there)
    return jnp.where(there, z, start_id(cfg)), there


def state_left(params, z, cfg, valid, start, length):
    """Predict a token from the tokens left of it."""
    z, valid = moved_right(z, valid, cfg)
    return model.own_state(params, z, cfg, valid, start, length)


def see_left(i, j, z, valid, cfg, part):
    """A column sees itself and those left of it."""
    return j <= i


def mask_nothing(key, x, maskable, valid, cfg):
    """Mask no token: a causal model never sees the one that it predicts."""
    return x, maskable, jnp.ones((1, 1))


model.READS["causal"] = state_left
model.MASKS["causal"] = see_left
sample.STEPS["causal"] = "causal_steps"
diffusion.NOISES["causal"] = mask_nothing
