"""
The entropy bonus: the more evenly the policy spreads its probability, the smaller the loss:  --entropy_coef=0.01
"""
import dataclasses

import config
import rl


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    entropy_coef: float = config.key(0.01, "weight of the entropy bonus", config.NON_NEGATIVE)

    def between_keys(self, c):
        said = f"entropy_coef={self.entropy_coef} changes nothing with objective={c.objective!r}: leave it out"
        yield c.objective != "grpo" and self.entropy_coef > 0, said


def loss(logp, entropy, extra, batch, cfg):
    """Compute -entropy_coef * the mean entropy of the tokens that were predicted -> scalar, metrics."""
    return -cfg.entropy_coef * batch.mean(entropy), {}


# The gradient of the entropy needs memory: seven arrays of logits.
rl.TERMS["entropy_bonus"] = rl.Term(loss, of_entropy=True)
