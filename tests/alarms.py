"""
How often `reward_fell` is a false alarm, and which falls it misses:  python tests/alarms.py    prints tables, which
docs/watching.md sums up, from runs of 300 iterations whose rewards are the pass rates of n completions.
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from system import collapse

SIZES, RATES = (16, 64, 512), (0, 0.0005, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99)
STEPS, FALL = 300, 150  # iterations; the one at which a rate falls


def wave(runs, keeps, rng):
    """Draw standard normal numbers (runs, STEPS), each correlated with the one before by `keeps`."""
    z = rng.normal(size=(runs, STEPS))
    for t in range(1, STEPS):
        z[:, t] = keeps * z[:, t - 1] + np.sqrt(1 - keeps**2) * z[:, t]
    return z


def independent(p, n, runs, rng):
    return rng.binomial(n, np.broadcast_to(p, (runs, STEPS))) / n


def groups(p, n, runs, rng):
    """Groups of eight whose prompts differ in difficulty."""
    each = rng.beta(p / 2 + 1e-9, (1 - p) / 2, (runs, STEPS, n // 8))
    return rng.binomial(8, each).mean(-1) / 8


def wobbling(p, n, runs, rng):
    """The rate itself goes up and down by 5%, over about ten iterations."""
    return independent(np.clip(p * np.exp(0.05 * wave(runs, 0.9, rng)), 0, 1), n, runs, rng)


def correlated(p, n, runs, rng, keeps=0.3):
    """The noise of an iteration is correlated with that of the one before."""
    z = wave(runs, keeps, rng)
    ranks = z.ravel().argsort().argsort().reshape(z.shape)  # copula: the values of independent draws, in this order
    return np.sort(independent(p, n, runs, rng), axis=None)[ranks]


def correlated_more(p, n, runs, rng):
    """As `correlated`, by 0.5."""
    return correlated(p, n, runs, rng, 0.5)


def learning(p, n, runs, rng):
    """The rate rises from a tenth of p to p within 100 iterations."""
    return independent(p * np.interp(np.arange(STEPS), (0, 100), (0.1, 1)), n, runs, rng)


HEALTHY = independent, groups, wobbling, correlated, correlated_more, learning


def alarms(values):
    """Return the iteration (R,) of the first alarm in rewards (R, STEPS); 0: none."""
    held, told = np.zeros((2, len(values)), int)
    for t in range(2 * collapse.WINDOW, STEPS + 1):
        now = np.any([fall.real for fall in collapse.fall(values[:, :t])] or [held < 0], 0)
        held = np.where(now, held + 1, 0)
        told = np.where((held >= collapse.PATIENCE) & (told == 0), t, told)
    return told


def false_alarms(kind, n, runs, rng, rates=RATES):
    """Return the share of healthy runs with an alarm, for each pass rate."""
    return [float((alarms(kind(p, n, runs, rng)) > 0).mean()) for p in rates]


def caught(to, n, runs, rng, rates=RATES[1:]):
    """For rates p that fall to `to` * p -> the share of runs in which it is told within 150 iterations, how many
    standard errors of the whole run the fall measures, and the median delay in iterations; for each p."""
    out = []
    for p in rates:
        told = alarms(independent(np.where(np.arange(STEPS) < FALL, p, to * p), n, runs, rng))
        errors = p * (1 - to) / np.sqrt((p * (1 - p) + to * p * (1 - to * p)) / (n * FALL))
        delay = float(np.median(told[told > FALL])) - FALL if (told > FALL).any() else np.nan
        out.append((float((told > FALL).mean()), float(errors), delay))
    return out


def main(runs=400):
    rng = np.random.default_rng(0)
    print("| pass rate |", *(f"{p:.4g} |" for p in RATES), "\n|---|", "---|" * len(RATES), sep="")
    for kind in HEALTHY:
        pooled = np.mean([false_alarms(kind, n, runs, rng) for n in SIZES], 0)
        print(f"| {kind.__name__} |", *(f"{100 * x:.1f} |" for x in pooled))
    for to in (0.7, 0.5, 0):
        for n in SIZES:
            cells = caught(to, n, runs, rng)
            print(f"| to {to}, {n} |  |", *(f"{100 * x:.0f} ({z:.0f}) |" for x, z, _ in cells))


if __name__ == "__main__":
    main()
