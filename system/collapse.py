"""
Notice while it happens that a run of GRPO collapses, and say which key to change.

A sign of collapse is one function and one line in SIGNS. It looks at the metrics of the iterations so far, as means
over WINDOW of them, and compares the last of these means with the first one. The reward is compared with its best,
over longer windows as well, because a small fall, or one of a rare success, takes long to be told from chance. A sign
that holds for PATIENCE iterations is told once, with the iteration at which it began.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from system import sections

WINDOW, PATIENCE = 5, 5  # iterations
NOISE = 5  # standard errors that a reward must fall by; docs/watching.md has the false alarms and what is missed


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    on_collapse: str = sections.key("warn", "grpo, at a sign of collapse: warn, stop, or restart from the best "
                                    "checkpoint with the key changed", choices=("warn", "stop", "restart"))  # fmt: skip

    def between_keys(self, c):
        yield (self.on_collapse != "warn" and c.objective != "grpo",
               f"on_collapse={self.on_collapse!r}: only runs of objective='grpo' are watched, and this is "
               f"{c.objective!r}")  # fmt: skip


class Curve(NamedTuple):
    """Means of a metric over WINDOW iterations."""

    first: float
    last: float
    noise: float  # the standard error of one such mean

    def has_risen(self) -> bool:
        """True if the last mean is above the first by more than chance."""
        return self.last > self.first + 3 * self.noise


class Collapse(NamedTuple):
    """A sign of collapse that held for PATIENCE iterations, and what to change."""

    sign: str  # its name in SIGNS
    began: int  # the last iteration without the sign, or the first in which it could be judged
    what: str  # what is wrong, in words and numbers
    change: dict[str, Any]  # {key: the value to try}


def curve_of(values: list[float]) -> Curve | None:
    """Smooth the values of a metric, one per iteration -> its Curve; None if fewer than 2 * WINDOW are finite numbers.
    """
    known = finite(values)
    if len(known) < 2 * WINDOW:
        return None
    means = np.convolve(known, np.ones(WINDOW) / WINDOW, "valid")
    return Curve(means[0], means[-1], np.sqrt(wobble(known) / WINDOW))


def finite(values):
    """Return the finite numbers of a list as an array."""
    return np.array([value for value in values if value is not None and np.isfinite(value)], float)


def wobble(values):
    """Estimate the variance of each of the values (..., N >= 3) around their trend, which second differences ignore."""
    return (np.diff(values, 2) ** 2).mean(-1) / 6


class Fall(NamedTuple):
    """A reward that has fallen: the best mean of a window, and the last one."""

    best: np.ndarray
    last: np.ndarray
    real: np.ndarray  # True if it is no chance, and a quarter of the best


def fall(values: np.ndarray) -> list[Fall]:
    """Compare the last window of rewards (..., N) with the best earlier one, for windows of 5, 10, 20, ... iterations.

    The variance per iteration is estimated from all but the last window: from single iterations and, in case
    neighbours are alike, from windows. That of a rare success is proportional to its rate, so the estimate, which
    holds for the mean of all iterations, is scaled to the two windows that are compared.
    """
    found: list[Fall] = []
    window, variance = WINDOW, np.zeros(values.shape[:-1])
    while 5 * window <= 2 * values.shape[-1]:
        blocks = values[..., values.shape[-1] % window :].reshape(*values.shape[:-1], -1, window).mean(-1)
        earlier, known = blocks[..., :-1], values[..., :-window]
        best, last, mean = earlier.max(-1), blocks[..., -1], known.mean(-1)
        if window == WINDOW:
            variance = wobble(known) * (1 + 20 / known.shape[-1])  # few iterations: a rough estimate
        if window <= 2 * WINDOW and earlier.shape[-1] >= 5:
            variance = np.maximum(variance, window * wobble(earlier) * (1 + 7.5 / earlier.shape[-1]))
        rare = (known.min(-1) >= 0) & (mean > 0)
        scale = np.where(rare, (best + last) / 2 / np.where(rare, mean, 1), 1).clip(1)
        chance = NOISE * np.sqrt(2 * scale * variance / window)
        real = (best > last) & (best - last >= np.maximum(chance, abs(best) / 4))
        found.append(Fall(best, last, real))
        window *= 2
    return found


# ---- signs: Seen -> what is wrong in words, or "" --------------------------------------------------------------------


class Seen(NamedTuple):
    """The metrics that a run has logged so far."""

    curves: dict[str, Curve]  # {name of a metric: its curve}
    rewards: np.ndarray  # of each iteration; with a curriculum, of those since it last changed
    evaluations: list[dict]  # the rows of metrics.jsonl that have val/sampled


def reward_fell(seen: Seen) -> str:
    """Say that the reward has fallen far below its best; "" if it has not."""
    for best, last, real in fall(seen.rewards):
        if real:
            return f"the reward has fallen from {best:.3g} to {last:.3g}"
    return ""


def no_signal(seen: Seen) -> str:
    """Say that nearly all groups have equal rewards, and not because all are right; "" if they have not."""
    flat, passed = seen.curves["frac_reward_zero_std"], seen.curves.get("pass_rate")
    if flat.last < 0.97 or passed and passed.last > 0.9:
        return ""
    return f"in {flat.last:.0%} of the groups all rewards are equal, so they teach nothing"


def sure_without_reason(seen: Seen) -> str:
    """Say that the entropy is nearly gone while the reward has not risen; "" if that is not so."""
    entropy = seen.curves["entropy"]
    if entropy.last > 0.1 * entropy.first or seen.curves["reward"].has_risen():
        return ""
    return f"the entropy has fallen from {entropy.first:.3g} to {entropy.last:.3g} nats, and the reward has not risen"


def falls_apart(seen: Seen) -> str:
    """Say that the entropy has grown while the reward has not risen; "" if that is not so."""
    entropy = seen.curves["entropy"]
    if entropy.last < max(2 * entropy.first, 0.2) or seen.curves["reward"].has_risen():
        return ""
    return f"the entropy has grown from {entropy.first:.3g} to {entropy.last:.3g} nats, and the reward has not risen"


def far_from_old_policy(seen: Seen) -> str:
    """Say that updates use completions that the policy would no longer write; "" if it still would."""
    kl = seen.curves["approx_kl"].last
    return f"the policy is {kl:.3g} nats per token away from the one that wrote the completions" if kl > 0.5 else ""


def far_from_reference(seen: Seen) -> str:
    """Say that the policy is far from the reference, by the KL; "" if it is near enough."""
    kl = seen.curves["kl"].last
    return f"the policy is {kl:.3g} nats per token away from the reference" if kl > 2 else ""


def repeats(seen: Seen) -> str:
    """Say that completions repeat themselves far more than at the start; "" if they do not."""
    share = seen.curves["completions/repetition"]
    if share.last < max(0.5, share.first + 0.25):
        return ""
    return f"{share.last:.0%} of what is written repeats what the same completion has already said"


def never_ends(seen: Seen) -> str:
    """Say that completions, which used to end, no longer do; "" if they still do."""
    cut = seen.curves["completions/clipped_ratio"]
    return f"{cut.last:.0%} of the completions have no end" if cut.last > 0.9 and cut.first < 0.5 else ""


def says_nothing(seen: Seen) -> str:
    """Say that completions have shrunk to a quarter of their first length; "" if they have not."""
    length = seen.curves["completions/mean_length"]
    if length.last > 0.25 * length.first:
        return ""
    return f"completions have shrunk from {length.first:.3g} to {length.last:.3g} tokens"


def held_out_fell(seen: Seen) -> str:
    """Say that held-out rows score significantly below their best, while the reward does not; "" if that is not so."""
    scores = [row["val/sampled"] for row in seen.evaluations]
    if len(scores) < 3 or reward_fell(seen):
        return ""
    best = seen.evaluations[int(np.argmax(scores))]
    now = seen.evaluations[-1]
    error = np.hypot(best.get("val/sampled_se", 0), now.get("val/sampled_se", 0))
    if best["val/sampled"] - now["val/sampled"] < 4 * error or not error:
        return ""
    return (f"held-out rows have fallen from {best['val/sampled']:.3g} at step {best['step']} to "
            f"{now['val/sampled']:.3g}, while the reward is {seen.curves['reward'].last:.3g}")  # fmt: skip


# ---- what to change --------------------------------------------------------------------------------------------------


def lower_rate(cfg: Any) -> dict:
    """Propose smaller steps -> {key: value}."""
    return {"learning_rate": cfg.learning_rate / 3}


def more_variety(cfg: Any) -> dict:
    """Propose to draw completions that differ more -> {key: value}."""
    return {"temperature": round(cfg.temperature + 0.3, 2) if cfg.temperature else 1.0}


def fewer_updates(cfg: Any) -> dict:
    """Propose to use each completion for half as many updates; if it is one, smaller steps -> {key: value}."""
    return {"updates_per_rollout": cfg.updates_per_rollout // 2} if cfg.updates_per_rollout > 1 else lower_rate(cfg)


def stay_closer(cfg: Any) -> dict:
    """Propose to stay closer to the reference -> {key: value}."""
    return {"kl_beta": 3 * cfg.kl_beta or 0.02}


class Sign(NamedTuple):
    metrics: str  # names of the metrics whose curves it needs
    holds: Callable  # Seen -> a sentence about what is wrong, or ""
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
    """Looks for signs of collapse in the metrics of a run, one row after the other."""

    def __init__(self, cfg: Any, rows: list[dict]) -> None:
        """cfg: the Config of the run. rows: those of metrics.jsonl, if the run is resumed."""
        self.cfg = cfg
        self.values: dict[str, list] = {name: [] for name in METRICS}
        self.evaluations: list[dict] = []
        self.since_stage = 0  # the first of the rewards since the curriculum changed
        self.since: dict[str, int] = {}  # sign: the last iteration without it, or the first that could have it
        self.held: dict[str, int] = {}  # sign: how many iterations in a row it has held
        self.told: set[str] = set()
        for row in rows:
            self.see(row)

    def see(self, row: dict[str, Any]) -> list[Collapse]:
        """Take in the metrics of an iteration or of an evaluation -> the signs to report now, each once in a run."""
        if row.get("val/sampled") is not None:
            self.evaluations.append(row)
        if "reward" not in row:
            return []
        for name in METRICS & row.keys():
            self.values[name].append(row[name])
        stages = [step for section in getattr(self.cfg, "use", ()) for step in section.stages]
        if row["step"] - 1 in stages:  # other prompts, so another reward
            self.since_stage = len(self.values["reward"]) - 1
        curves = {name: curve for name, values in self.values.items() if (curve := curve_of(values))}
        seen = Seen(curves, finite(self.values["reward"][self.since_stage :]), self.evaluations)
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
                # Where all rewards are equal no step was too large.
                cure = more_variety if sign.cure is lower_rate and len({*seen.rewards}) == 1 else sign.cure
                found.append(Collapse(name, self.since[name], what, cure(self.cfg)))
        return found


def message(found: Collapse) -> str:
    """Write the message about a sign, with the keys to change."""
    changes = " ".join(f"--{key}={value:.3g}" for key, value in found.change.items())
    return f"this looks like a collapse since step {found.began} ({found.sign}): {found.what}. Try {changes}"
