"""loop/rollout_log.py: a planted collapse is warned of while it happens, healthy runs are left alone."""
import numpy as np
import pytest

from loop import rollout_log

GROUP = 8


def rows(n=60, noise=0.02, seed=0, **curves):
    """Metrics of n iterations of a healthy run, in which some metrics follow curves: functions of 0..1."""
    rng, at = np.random.default_rng(seed), np.linspace(0, 1, n)
    usual = {"reward": lambda t: 0.3 + 0.6 * t, "entropy": lambda t: 0.5 - 0.45 * t,
             "unique_completions": lambda t: 0.9 - 0.6 * t} | curves  # fmt: skip
    drawn = {name: curve(at) * (1 + noise * rng.normal(size=n)) for name, curve in usual.items() if curve}
    return [{"step": step + 1} | {name: values[step] for name, values in drawn.items()} for step in range(n)]


def warned(given, group_size=GROUP):
    """The warnings of a run -> [(step, text)]."""
    watch = rollout_log.Watch(group_size)
    return [(row["step"], text) for row in given for text in watch.see(row)]


def late(before, after):
    """A curve that changes in the middle of a run."""
    return lambda t: np.where(t < 0.5, before, after)


HEALTHY = {
    "a run that learns": {}, "a fall by a third": dict(reward=late(0.6, 0.4)),
    "a run that does not learn": dict(reward=lambda t: 0.4 + 0 * t, entropy=lambda t: 0.5 - 0.2 * t),
    "a reward without a half": dict(reward=late(0, 0)), "and below zero": dict(reward=late(-1, -5)),
    "metrics that are missing or not finite": dict(reward=None, unique_completions=None, entropy=late(np.nan, np.nan)),
}


@pytest.mark.parametrize("what", HEALTHY)
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_a_healthy_run_is_left_alone(noise, what):
    for seed in range(8):
        assert warned(rows(noise=noise, seed=seed, **HEALTHY[what])) == []


PLANTED = {  # what is said -> the curve
    "the reward has fallen from 0.6": dict(reward=late(0.6, 0.1)),
    "the entropy is 0.0": dict(entropy=late(0.5, 0.002)),
    "the 8 completions of a prompt are on average 1.": dict(unique_completions=late(0.5, 0.13)),
}


@pytest.mark.parametrize("words", PLANTED)
def test_a_planted_collapse_is_warned_of_soon_and_once_with_what_to_try_and_when_it_is_false(words):
    ((step, text),) = warned(rows(**PLANTED[words]))
    assert 30 < step <= 31 + rollout_log.WINDOW
    assert words in text and ". Try a " in text and ". Likely to be false if " in text


def test_every_warning_has_been_planted():
    assert {name for curves in PLANTED.values() for name in curves} == rollout_log.Watch(GROUP).values.keys()


def test_a_run_can_be_warned_of_its_start():
    ((step, text),) = warned(rows(entropy=lambda t: 0.001 + 0 * t))
    assert step == rollout_log.WINDOW and "the entropy is 0.001 nats" in text


@pytest.mark.parametrize("size, alike, unlike", [(2, 0.51, 0.6), (4, 0.27, 0.33), (16, 0.1, 0.2)])
def test_completions_are_alike_if_nearly_all_of_the_others_equal_one(size, alike, unlike):
    assert len(warned(rows(noise=0, unique_completions=late(0.9, alike)), size)) == 1
    assert warned(rows(noise=0, unique_completions=late(0.9, unlike)), size) == []
