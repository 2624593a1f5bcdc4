"""
Warn of a run of GRPO that may be collapsing. It is warned once of each thing, and goes on.

The warnings are rules of thumb about means over WINDOW iterations. They are often wrong, so each says when.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

WINDOW = 10  # iterations


def reward_falls(means: np.ndarray, group_size: int) -> str:
    """Warn if the reward is below half of its best; "" if it is not."""
    best, last = means.max(), means[-1]
    if last > best / 2 or best <= 0:
        return ""
    return (f"the reward has fallen from {best:.3g} to {last:.3g}. Try a lower learning_rate. Likely to be false if "
            "few completions earn anything, if the prompts became harder, or if the reward always goes up and down"
            )  # fmt: skip


def entropy_is_gone(means: np.ndarray, group_size: int) -> str:
    """Warn if the policy is sure of every token; "" if it is not."""
    if means[-1] > 0.02:
        return ""
    return (f"the entropy is {means[-1]:.2g} nats per token, so the policy tries nothing new. Try a lower "
            "learning_rate or a higher temperature. Likely to be false if most completions are right")  # fmt: skip


def completions_are_alike(means: np.ndarray, group_size: int) -> str:
    """Warn if the completions of a prompt are nearly all equal; "" if they are not."""
    different = means[-1] * group_size
    if different > 1 + 0.05 * (group_size - 1):
        return ""
    return (f"the {group_size} completions of a prompt are on average {different:.3g} different texts, so there is "
            "little to compare. Try a higher temperature. Likely to be false if answers are short, or if most "
            "completions are right")  # fmt: skip


# {metric: its means over each WINDOW iterations so far, group_size -> a text, or ""}
WARNINGS: dict[str, Callable] = {
    "reward": reward_falls,
    "entropy": entropy_is_gone,
    "unique_completions": completions_are_alike,
}


class Watch:
    """Looks at the iterations of a run, one after the other. After a run is resumed it begins anew."""

    def __init__(self, group_size: int) -> None:
        self.group_size = group_size
        self.values: dict[str, list] = {name: [] for name in WARNINGS}
        self.told: set[str] = set()

    def see(self, metrics: dict[str, Any]) -> list[str]:
        """Take in the metrics of an iteration -> the warnings that it gives rise to."""
        found = []
        for name, values in self.values.items():
            if not np.isfinite(metrics.get(name, np.nan)):
                continue
            values.append(metrics[name])
            means = np.convolve(values, np.ones(WINDOW) / WINDOW, "valid")
            if len(values) >= WINDOW and name not in self.told and (text := WARNINGS[name](means, self.group_size)):
                self.told.add(name)
                found.append(text)
        return found
