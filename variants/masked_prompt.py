"""d1 also masks tokens of the prompt, at random:  --logp_est=one_step --masked_prompt.share=0.15"""
import dataclasses

import jax

import config


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    share: float = config.key(0.15, "one_step: probability that a prompt token is masked", config.FRACTION)

    def between_keys(self, c):
        yield (self.share and c.objective == "grpo" and c.logp_est != "one_step",
               f"masked_prompt.share={self.share} changes nothing here, it is for logp_est='one_step'")

    def views(self, key, views, rollout, cfg):
        """Mask each token of the prompts with probability `share` in views of completions."""
        if not self.share:
            return views
        prompt = ~rollout.completion & (True if rollout.valid is None else rollout.valid)
        draws = jax.random.uniform(key, prompt.shape)
        return views._replace(masked=views.masked | (prompt & (draws < self.share))[:, None])
