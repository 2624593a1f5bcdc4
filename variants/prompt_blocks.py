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
    own = dataclasses.replace(cfg, use=tuple(section for section in cfg.use if not isinstance(section, Shape)))
    sees = model.chosen(model.MASKS, own, "all")(i, j, z, valid, own, part)
    return sees & (z != HIDDEN)[:, None] | (i == j)


def fill_from_prompt(fill, params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T) as the sampler `fill` does, in blocks that are counted from each row's first mask."""
    b, T = cfg.block_causal, z.shape[1]
    extra = b - 1
    valid = jnp.ones(z.shape, bool) if valid is None else valid
    begin = jnp.argmax(valid, 1)
    length = jnp.argmax(z == cfg.mask_id, 1) - begin
    begin = begin - -length % b + extra
    z = jnp.pad(jnp.where(valid, z, HIDDEN), ((0, 0), (extra, 0)), constant_values=HIDDEN)
    valid = jnp.arange(extra + T) >= begin[:, None]
    cfg = dataclasses.replace(cfg, use=(Shape(), *cfg.use))
    x, trace = fill(params, keys, z, cfg, plan, valid, group)
    return x[:, extra:], trace | {name: trace[name][:, extra:] for name in ("step", "logp")}


model.MASKS["prompt_blocks"] = see_no_hidden
