"""Clip each reward to -bound .. bound, before it is weighed:  --reward_clip.bound=1"""
import dataclasses

import config


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    bound: float = config.key(1.0, "clip each reward to -bound .. bound", config.POSITIVE)

    def reward(self, values, cfg):
        """Clip the values of a reward (n,)."""
        return values.clip(-self.bound, self.bound)
