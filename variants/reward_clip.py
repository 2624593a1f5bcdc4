"""Clip each reward to -clip .. clip, before it is weighed:  --reward_clip=1"""
import dataclasses

import config


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    reward_clip: float | None = config.key(None, "clip each reward to -clip .. clip", config.POSITIVE)

    def reward(self, values, cfg):
        """Clip the values of a reward (n,)."""
        bound = self.reward_clip
        return values.clip(-bound, bound) if bound else values
