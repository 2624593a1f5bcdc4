"""
Block models whose blocks are counted from the prompt's end, as some authors' samplers count them. In training, and in
block_steps.py, they are counted from the text's beginning.

A row gets hidden tokens in front, so many that its first mask begins a block. Nobody sees them, and rotary positions
only differ by a constant, so nothing else changes.
"""
import dataclasses

import jax.numpy as jnp

import model
from system.sections import Section
from variants import blocks, joint  # noqa: F401  (whose masks this one is built on)

HIDDEN = 2**31 - 1  # the id of a hidden token, in no vocabulary


@dataclasses.dataclass(frozen=True)
class Shape(Section):
    """Marks a ModelConfig whose rows have hidden tokens."""


def see_no_hidden(i, j, z, valid, cfg, part):
    """A token sees what it would see otherwise, but no hidden ones. Those see themselves."""
    others = [section for section in cfg.use if not isinstance(section, Shape)]
    own = dataclasses.replace(cfg, use=tuple(others))
    mask = model.chosen(model.MASKS, own, "all")
    sees = mask(i, j, z, valid, own, part)
    return sees & (z != HIDDEN)[:, None] | (i == j)


def with_hidden(z, valid, cfg):
    """Put hidden tokens in front of the rows z (B, T), so that the first mask of each begins a block -> z and valid
    (B, T + block_causal - 1)."""
    extra = cfg.block_causal - 1
    column = jnp.arange(z.shape[1] + extra)
    is_text = jnp.ones(z.shape, bool) if valid is None else valid
    begin = jnp.argmax(is_text, 1)
    first_mask = jnp.argmax(z == cfg.mask_id, 1)
    hidden = (begin - first_mask) % cfg.block_causal
    z = jnp.where(is_text, z, HIDDEN)
    z = jnp.pad(z, ((0, 0), (extra, 0)), constant_values=HIDDEN)
    return z, column >= (begin + extra - hidden)[:, None]


def fill_from_prompt(fill, params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T) as the sampler `fill` does, in blocks that are counted from each row's first mask."""
    extra = cfg.block_causal - 1
    longer, visible = with_hidden(z, valid, cfg)
    cfg = dataclasses.replace(cfg, use=(Shape(), *cfg.use))
    x, trace = fill(params, keys, longer, cfg, plan, visible, group)
    x = x[:, extra:]
    for name in ("step", "logp"):
        trace[name] = trace[name][:, extra:]
    return jnp.where(x == HIDDEN, z, x), trace  # padding was hidden, too


model.MASKS["prompt_blocks"] = see_no_hidden
