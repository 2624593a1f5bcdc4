"""
Uniform noise: a denoiser that never sees a mask. Where a token is missing it reads a random one, and it is not told
which tokens are noise (as DiffusionGemma and UDLM, 2412.10193).

Everything outside the network keeps the mask: z says where tokens are missing, as in all other models. The reading
`state_in_noise` replaces each mask just before the network reads it. The random tokens are picked by a hash of what
stands in the row:

    1 _ _ 4      the network reads      1 7 3 4
    1 2 _ 4                             1 2 9 4      another state, so all noise is new

So a model still is one function of z. It reads a state in the sampler, in training and when log-probs are computed with
the same noise, and nothing has to be stored for that. Other rows, padding and chunks change nothing.
"""
import dataclasses

import jax
import jax.numpy as jnp

import model
from system.sections import Section

SEED = 20  # of the hash; any number


@dataclasses.dataclass(frozen=True)
class Shape(Section):
    """The field of a ModelConfig that says what the network reads where a token is missing."""

    noise: str | None = "uniform"  # where a token is missing the network reads a random one, not a mask

    def between_keys(self, c):
        yield self.noise != "uniform", f"noise={self.noise!r}: expected uniform, or None for masks"
        block = getattr(c, "block_causal", None)
        yield c.causal or block or c.shift, (
            "noise='uniform' is for denoisers that see the whole text and predict a token in its own place, now "
            f"causal={c.causal}, block_causal={block}, shift={c.shift}: leave these out, or leave noise out")


def noisy(z, valid, cfg):
    """Replace the masks of z (B, T) by random tokens -> (B, T). Every id but the mask is equally likely.

    valid (B, T): False on left padding; None: there is none."""
    T = z.shape[1]
    key = jax.random.key(SEED)

    def number(token, place):
        """Give a token in a place a random number of 32 bits."""
        return jax.random.bits(jax.random.fold_in(jax.random.fold_in(key, place), token))

    def draw(row):
        """Draw T ids with the number of a row."""
        return jax.random.randint(jax.random.fold_in(key, row), (T,), 0, cfg.vocab_size - 1)

    places = jnp.broadcast_to(T - jnp.arange(T), z.shape)  # from the right, where padding changes no place
    numbers = jax.vmap(jax.vmap(number))(z, places)
    rows = numbers.sum(1, where=valid, dtype=jnp.uint32)
    ids = jax.vmap(draw)(rows)[:, ::-1]
    ids += ids >= cfg.mask_id
    return jnp.where(z == cfg.mask_id, ids.astype(z.dtype), z)


def state_in_noise(params, z, cfg, valid, start, length):
    """Predict a token from the state in its own place, in a text with random tokens in place of masks."""
    return model.own_state(params, noisy(z, valid, cfg), cfg, valid, start, length)


model.READS["uniform"] = state_in_noise
