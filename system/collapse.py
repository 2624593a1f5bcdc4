"""
Notice while it happens that a run of GRPO collapses, and say which key to change.

A sign of collapse is one function and one line in SIGNS. It looks at the metrics of the iterations so far, as means
over WINDOW of them, and compares the last of these means with the first or with the best one. A sign that holds for
PATIENCE iterations is told once, with the iteration at which it began.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

WINDOW, PATIENCE = 5, 5  # iterations
NOISE = 6  # standard errors of a mean over WINDOW iterations that a reward must fall by


class Curve(NamedTuple):
    """Means of a metric over WINDOW iterations."""

    first: float
    last: float
    best: float  # the highest
    noise: float  # of one such mean, its standard error

    def has_risen(self) -> bool:
        """True if the last mean is above the first by more than chance."""
        return self.last > self.first + NOISE / 2 * self.noise


class Collapse(NamedTuple):
    """What was noticed."""

    sign: str  # its name in SIGNS
    began: int  # the last iteration at which it did not hold, or the first that was looked at
    what: str  # in words, with the numbers
    change: dict[str, Any]  # {key: the value to try}


def curve_of(values: list[float]) -> Curve | None:
    """Smooth the values of a metric; None: too few yet."""
    known = np.array([value for value in values if value is not None and np.isfinite(value)], float)
    if len(known) < 2 * WINDOW:
        return None
    means = np.convolve(known, np.ones(WINDOW) / WINDOW, "valid")
    # Neighbours differ by noise, not by the trend. (The median ignores a few large steps.)
    noise = np.median(np.abs(np.diff(known))) / 0.954 / np.sqrt(WINDOW)
    return Curve(means[0], means[-1], means.max(), noise)


# ---- signs: Seen -> what is wrong in words, or "" --------------------------------------------------------------------


class Seen(NamedTuple):
    """What a run has logged so far."""

    curves: dict[str, Curve]  # by the names of metrics
    evaluations: list[dict]  # rows that have val/sampled


def reward_fell(seen: Seen) -> str:
    """The reward is far below its best."""
    reward = seen.curves["reward"]
    if reward.best - reward.last < max(NOISE * reward.noise, 0.25 * abs(reward.best)):
        return ""
    return f"the reward has fallen from {reward.best:.3g} to {reward.last:.3g}"


def no_signal(seen: Seen) -> str:
    """Nearly all groups have equal rewards, and not because all is right."""
    flat, passed = seen.curves["frac_reward_zero_std"], seen.curves.get("pass_rate")
    if flat.last < 0.97 or passed and passed.last > 0.9:
        return ""
    return f"in {flat.last:.0%} of the groups all rewards are equal, so they teach nothing"


def sure_without_reason(seen: Seen) -> str:
    """The entropy is nearly gone, and the reward has not risen."""
    entropy = seen.curves["entropy"]
    if entropy.last > 0.1 * entropy.first or seen.curves["reward"].has_risen():
        return ""
    return f"the entropy has fallen from {entropy.first:.3g} to {entropy.last:.3g} nats, and the reward has not risen"


def falls_apart(seen: Seen) -> str:
    """The entropy grows, and the reward has not risen."""
    entropy = seen.curves["entropy"]
    if entropy.last < max(2 * entropy.first, 0.2) or seen.curves["reward"].has_risen():
        return ""
    return f"the entropy has grown from {entropy.first:.3g} to {entropy.last:.3g} nats, and the reward has not risen"


def far_from_old_policy(seen: Seen) -> str:
    """Updates go on with completions that the policy would no longer write."""
    kl = seen.curves["approx_kl"].last
    return f"the policy is {kl:.3g} nats per token away from the one that wrote the completions" if kl > 0.5 else ""


def far_from_reference(seen: Seen) -> str:
    """The KL to the reference is out of bounds."""
    kl = seen.curves["kl"].last
    return f"the policy is {kl:.3g} nats per token away from the reference" if kl > 2 else ""


def repeats(seen: Seen) -> str:
    """Completions repeat themselves far more than at the start."""
    share = seen.curves["completions/repetition"]
    if share.last < max(0.5, share.first + 0.25):
        return ""
    return f"{share.last:.0%} of what is written repeats what the same completion has already said"


def never_ends(seen: Seen) -> str:
    """Completions had ends, and have none any more."""
    cut = seen.curves["completions/clipped_ratio"]
    return f"{cut.last:.0%} of the completions have no end" if cut.last > 0.9 and cut.first < 0.5 else ""


def says_nothing(seen: Seen) -> str:
    """Completions have become a fraction of what they were."""
    length = seen.curves["completions/mean_length"]
    if length.last > 0.25 * length.first:
        return ""
    return f"completions have shrunk from {length.first:.3g} to {length.last:.3g} tokens"


def held_out_fell(seen: Seen) -> str:
    """The score of held-out rows is significantly below its best, while the reward is not below its own."""
    reward, scores = seen.curves["reward"], [row["val/sampled"] for row in seen.evaluations]
    if len(scores) < 3 or reward.best - reward.last > NOISE * reward.noise:
        return ""
    best = seen.evaluations[int(np.argmax(scores))]
    now = seen.evaluations[-1]
    error = np.hypot(best.get("val/sampled_se", 0), now.get("val/sampled_se", 0))
    if best["val/sampled"] - now["val/sampled"] < 4 * error or not error:
        return ""
    return (f"held-out rows have fallen from {best['val/sampled']:.3g} at step {best['step']} to "
            f"{now['val/sampled']:.3g}, while the reward is {reward.last:.3g}")  # fmt: skip


# ---- what to change --------------------------------------------------------------------------------------------------


def lower_rate(cfg: Any) -> dict:
    """Take smaller steps."""
    return {"learning_rate": cfg.learning_rate / 3}


def more_variety(cfg: Any) -> dict:
    """Draw completions that differ more."""
    return {"temperature": round(cfg.temperature + 0.3, 2) if cfg.temperature else 1.0}


def fewer_updates(cfg: Any) -> dict:
    """Use each completion fewer times."""
    return {"updates_per_rollout": cfg.updates_per_rollout // 2} if cfg.updates_per_rollout > 1 else lower_rate(cfg)


def stay_closer(cfg: Any) -> dict:
    """Keep the policy near the model that it was."""
    return {"kl_beta": 3 * cfg.kl_beta or 0.02}


class Sign(NamedTuple):
    metrics: str  # whose curves it needs
    holds: Callable  # Seen -> words or ""
    cure: Callable  # Config -> {key: value}


SIGNS = {
    "reward_fell": Sign("reward", reward_fell, lower_rate),
    "no_signal": Sign("frac_reward_zero_std", no_signal, more_variety),
    "sure_without_reason": Sign("entropy reward", sure_without_reason, lower_rate),
    "falls_apart": Sign("entropy reward", falls_apart, lower_rate),
    "far_from_old_policy": Sign("approx_kl", far_from_old_policy, fewer_updates),
    "far_from_reference": Sign("kl", far_from_reference, stay_closer),
    "repeats": Sign("completions/repetition", repeats, stay_closer),
    "never_ends": Sign("completions/clipped_ratio", never_ends, stay_closer),
    "says_nothing": Sign("completions/mean_length", says_nothing, stay_closer),
    "held_out_fell": Sign("reward", held_out_fell, stay_closer),
}
METRICS = {name for sign in SIGNS.values() for name in sign.metrics.split()} | {"pass_rate"}


# ---- watching --------------------------------------------------------------------------------------------------------


class Watch:
    """Looks at the metrics of a run, one row after the other."""

    def __init__(self, cfg: Any, rows: list[dict]) -> None:
        """cfg: of the run. rows: of metrics.jsonl, if it goes on."""
        self.cfg = cfg
        self.values: dict[str, list] = {name: [] for name in METRICS}
        self.evaluations: list[dict] = []
        self.since: dict[str, int] = {}  # sign: the last iteration at which it did not hold, or the first that was seen
        self.held: dict[str, int] = {}  # sign: for how many iterations
        self.told: set[str] = set()
        for row in rows:
            self.see(row)

    def see(self, row: dict[str, Any]) -> list[Collapse]:
        """Take in the metrics of an iteration or of an evaluation -> what has to be told now."""
        if row.get("val/sampled") is not None:
            self.evaluations.append(row)
        if "reward" not in row:
            return []
        for name in METRICS & row.keys():
            self.values[name].append(row[name])
        curves = {name: curve for name, values in self.values.items() if (curve := curve_of(values))}
        seen = Seen(curves, self.evaluations)
        found = []
        for name, sign in SIGNS.items():
            if not {*sign.metrics.split()} <= curves.keys():
                continue
            what = sign.holds(seen)
            self.since.setdefault(name, row["step"])
            if not what:
                self.held[name], self.since[name] = 0, row["step"]
                continue
            self.held[name] = self.held.get(name, 0) + 1
            if self.held[name] == PATIENCE and name not in self.told:
                self.told.add(name)
                found.append(Collapse(name, self.since[name], what, sign.cure(self.cfg)))
        return found


def message(found: Collapse) -> str:
    """Tell a person what was noticed."""
    changes = " ".join(f"--{key}={value:.3g}" for key, value in found.change.items())
    return f"this looks like a collapse since step {found.began} ({found.sign}): {found.what}. Try {changes}"
