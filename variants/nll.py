"""
The negative log-likelihood of right completions, added to the loss (LightningRL, weight 0.1):  --nll.coef=0.1

A completion is right if its first reward reaches pass_at; without pass_at, if its advantage is above 0. Only right
completions that learn (keep_completions) are in the loss, with the log-probs of the run's estimator.
"""
import dataclasses

import jax.numpy as jnp

import config
import grpo
import rewards
import rl


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    coef: float = config.key(0.1, "weight of the negative log-likelihood of right completions", config.NON_NEGATIVE)
    objective = "grpo"

    @property
    def term(self):
        return rl.Term(loss, rewards.right, weights)


def weights(right, rollout, cfg):
    """Weigh the tokens of the right completions of a minibatch, right (B,), so that they sum to 1 -> (B, T); 0 if there
    is none."""
    in_right = rollout.counts & right[:, None]
    return grpo.per_token(in_right, cfg.max_new_tokens, 1)


def loss(logp, entropy, weight, batch, cfg):
    """Compute coef * the negative log-likelihood of the right completions, per token -> scalar, metrics."""
    nll = -jnp.sum(weight * batch.share * logp)
    return Keys.of(cfg).coef * nll, {"nll_loss": nll}
