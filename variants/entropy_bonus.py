"""
The entropy bonus: the more evenly the policy spreads its probability, the smaller the loss:  --entropy_bonus.coef=0.01
"""
import dataclasses

import config
import rl


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    coef: float = config.key(0.01, "weight of the entropy bonus", config.NON_NEGATIVE)
    objective = "grpo"

    @property
    def term(self):
        # The gradient of the entropy needs memory: seven arrays of logits.
        return rl.Term(loss, of_entropy=True)


def loss(logp, entropy, extra, batch, cfg):
    """Compute -coef * the mean entropy of the tokens that were predicted -> scalar, metrics."""
    return -Keys.of(cfg).coef * batch.mean(entropy), {}
