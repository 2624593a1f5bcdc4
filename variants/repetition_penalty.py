"""
Make tokens that a row has already less likely (CTRL, 1909.05858):  --repetition_penalty.penalty=1.2

Log-probs of what was drawn so are computed alike. A model with blocks scores all blocks at once, and each was sampled
with other tokens there, so that cannot be.
"""
import dataclasses

import jax.numpy as jnp

from system import sections


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    penalty: float = sections.key(1.2, "above 1: make tokens that a row already has less likely", sections.POSITIVE)

    in_sampling = True

    def row_logits(self, z, valid, cfg, plan):
        """Make the function that changes the logits (N, V) of rows (N,) of z (B, T), padding and masks left out."""
        penalty, there = self.penalty, z != cfg.mask_id
        if penalty == 1:
            return None
        present = ids_of(z, there if valid is None else there & valid, cfg.vocab_size)

        def change(logits, row):
            return penalized(logits, present[row], penalty)

        return change

    def logits(self, logits, place, rollout, cfg):
        """Change the logits (N, V) of the tokens of a Rollout at a diffusion.Place, as when they were drawn."""
        if self.penalty == 1:
            return logits
        there = (place.z != cfg.model.mask_id) & (True if rollout.valid is None else rollout.valid[place.row])
        if cfg.model.causal:  # tokens of the completion were there if they are to the left
            earlier = jnp.arange(place.z.shape[-1]) < place.column[..., None]
            there &= ~rollout.completion[place.row] | earlier
        return penalized(logits, ids_of(place.z, there, logits.shape[-1]), self.penalty)

    def fits(self, c, shape, where):
        yield (self.penalty != 1 and shape.block and c.objective == "grpo",
               f"repetition_penalty.penalty={self.penalty}: grpo scores all blocks of a model at once, and each was "
               "sampled with other tokens there: 1.0")  # fmt: skip


def ids_of(z, there, V):
    """Say which ids a row z (..., T) has in the places where `there` (..., T) is True -> (..., V) bool."""
    rows = jnp.indices(z.shape, sparse=True)[:-1]
    nothing = jnp.zeros((*z.shape[:-1], V), bool)
    return nothing.at[(*rows, z)].max(there)


def penalized(logits, present, penalty):
    """Make the ids that a row has already, present (..., V), less likely."""
    lower = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(present, lower, logits)
