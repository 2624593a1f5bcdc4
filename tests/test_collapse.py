"""system/collapse.py: planted collapses are named while they happen, healthy runs are left alone."""
import dataclasses

import alarms
import numpy as np
import pytest

import config
from system import collapse
from system.rollout_log import repetition

CFG = config.Config(learning_rate=3e-4, temperature=1.0, updates_per_rollout=4)


def rows(n=60, noise=0.02, seed=0, **curves):
    """Metrics of n iterations of a healthy run, in which some metrics follow curves: functions of 0..1."""
    rng, at = np.random.default_rng(seed), np.linspace(0, 1, n)
    usual = {"reward": lambda t: 0.3 + 0.4 * t, "entropy": lambda t: 0.5 - 0.3 * t, "approx_kl": lambda t: 0.01 + 0 * t,
             "frac_reward_zero_std": lambda t: 0.3 + 0.3 * t, "pass_rate": lambda t: 0.3 + 0.4 * t,
             "completions/mean_length": lambda t: 20 + 0 * t, "completions/clipped_ratio": lambda t: 0.1 + 0 * t,
             "completions/repetition": lambda t: 0.1 + 0 * t, "kl": lambda t: 0.1 * t} | curves  # fmt: skip
    drawn = {name: curve(at) * (1 + noise * rng.normal(size=n)) for name, curve in usual.items() if curve}
    return [{"step": step + 1} | {name: values[step] for name, values in drawn.items()} for step in range(n)]


def watched(given, cfg=CFG):
    """Each sign that is told -> {name: (when, Collapse)}."""
    watch = collapse.Watch(cfg, [])
    return {found.sign: (row["step"], found) for row in given for found in watch.see(row)}


def late(before, after):
    """A curve that changes in the middle of a run."""
    return lambda t: np.where(t < 0.5, before, after)


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_a_healthy_run_is_left_alone(noise):
    for seed in range(8):
        assert watched(rows(noise=noise, seed=seed)) == {}
        flat = rows(noise=noise, seed=seed, reward=lambda t: 0.4 + 0 * t, entropy=lambda t: 0.5 - 0.2 * t)
        assert watched(flat) == {}, "a run that does not learn has not collapsed"


PLANTED = {
    "reward_fell": dict(reward=late(0.6, 0.1)),
    "no_signal": dict(frac_reward_zero_std=late(0.5, 1.0)),
    "sure_without_reason": dict(entropy=late(0.5, 0.005), reward=late(0.3, 0.3)),
    "falls_apart": dict(entropy=late(0.5, 1.5), reward=late(0.3, 0.25)),
    "far_from_old_policy": dict(approx_kl=late(0.01, 2.0)),
    "far_from_reference": dict(kl=late(0.1, 4.0)),
    "repeats": dict({"completions/repetition": late(0.1, 0.8)}),
    "never_ends": dict({"completions/clipped_ratio": late(0.1, 0.99)}),
    "says_nothing": dict({"completions/mean_length": late(20, 2)}),
    # An evaluation at each iteration: 0.6, two of 0.58, which is noise, then 0.2.
    "held_out_fell": {"val/sampled": lambda t: np.where(t < 0.5, 0.6, np.where(t < 0.53, 0.58, 0.2)),
                      "val/sampled_se": lambda t: 0.02 + 0 * t},
}  # fmt: skip


@pytest.mark.parametrize("sign", collapse.SIGNS)
def test_a_planted_collapse_is_named_soon_with_its_beginning_and_a_key_that_can_be_set(sign):
    found = watched(rows(**PLANTED[sign]))
    assert set(found) == {sign}
    when, what = found[sign]
    assert 30 < when <= 31 + collapse.WINDOW + collapse.PATIENCE and 30 < what.began <= 31 + collapse.WINDOW
    message = collapse.message(what)
    (key,) = what.change
    assert f"since step {what.began} ({sign})" in message and f"Try --{key}=" in message
    config.load(["config/sudoku_grpo.py", f"--{key}={what.change[key]}"])
    for loss, level in (("dapo", "sequence"), ("wd1", "none")):
        cfg = config.Config(objective="grpo", init_from="x", rewards=("exact",), loss_type=loss, logp_est="elbo",
                            ratio_level=level, updates_per_rollout=4)  # fmt: skip
        for _, found in watched(rows(**PLANTED[sign]), cfg).values():
            dataclasses.replace(cfg, **found.change)


def test_groups_without_signal_are_no_collapse_if_all_is_right():
    assert watched(rows(frac_reward_zero_std=late(0.5, 1.0), pass_rate=late(0.5, 0.97), reward=late(0.5, 0.97))) == {}


def test_held_out_rows_that_fall_while_the_reward_rises_are_named():
    scores = {10: 0.5, 20: 0.6, 30: 0.5, 40: 0.4, 50: 0.3}
    given = []
    for row in rows():
        evaluation = {"step": row["step"], "val/sampled": scores.get(row["step"]), "val/sampled_se": 0.02}
        given += [row, evaluation] if row["step"] in scores else [row]
    found = watched(given)
    assert set(found) == {"held_out_fell"} and 40 < found["held_out_fell"][0] <= 41 + collapse.PATIENCE
    assert "from 0.6 at step 20 to 0.4" in found["held_out_fell"][1].what


def test_a_sign_is_told_once_and_a_run_that_goes_on_remembers():
    given = rows(**PLANTED["reward_fell"])
    assert len(watched(given)) == 1
    watch = collapse.Watch(CFG, given)  # from its log
    assert watch.told == {"reward_fell"} and not watch.see(given[-1] | {"step": 61})


def test_metrics_that_are_missing_or_not_finite_say_nothing():
    given = rows(kl=None, entropy=late(np.nan, np.nan))
    assert watched(given) == {} and watched([{"step": 1, "loss": 0.5}]) == {}


def test_what_a_completion_repeats_is_counted():
    tokens = np.array([[1, 2, 3, 1, 2, 3, 1], [1, 2, 3, 4, 5, 6, 7], [5, 5, 5, 5, 5, 5, 5]])
    counts = np.ones_like(tokens, bool)
    assert repetition(tokens[:1], counts[:1]) == 2 / 5  # 123 231 312 123 231
    assert repetition(tokens[1:2], counts[1:2]) == 0 and repetition(tokens[2:], counts[2:]) == 4 / 5
    counts[2, 2:] = False  # no three in a row are left
    assert repetition(tokens[1:], counts[1:]) == 0


@pytest.mark.parametrize("kind", alarms.HEALTHY, ids=lambda kind: kind.__name__)
def test_a_pass_rate_that_does_not_fall_gives_no_alarm_however_small(kind):
    rng = np.random.default_rng(0)
    assert np.mean(alarms.false_alarms(kind, 64, 20, rng, (0, 0.0005, 0.01, 0.1, 0.5, 0.99))) <= 0.01


def test_a_fall_that_can_be_told_from_chance_is_not_missed():
    for to, p, n, most in ((0.7, 0.5, 64, 60), (0.7, 0.9, 16, 25), (0.5, 0.01, 512, 110), (0, 0.01, 512, 40)):
        ((share, errors, delay),) = alarms.caught(to, n, 40, np.random.default_rng(0), (p,))
        assert errors > 10 and share > 0.95 and delay < most


def test_a_curriculum_is_no_collapse_but_a_fall_within_one_of_its_stages_is():
    harder = rows(reward=late(0.6, 0.2), pass_rate=None)
    cfg = dataclasses.replace(CFG, curriculum=((0, 1), (30, 2)))
    assert "reward_fell" in watched(harder) and "reward_fell" not in watched(harder, cfg)
    falls = rows(n=90, reward=lambda t: np.where(t < 0.3, 0.9, np.where(t < 0.7, 0.6, 0.1)))
    assert 63 < watched(falls, cfg)["reward_fell"][0] < 80


def test_where_nothing_is_ever_right_no_sign_advises_a_lower_rate():
    given = rows(reward=late(0, 0), pass_rate=late(0, 0), frac_reward_zero_std=late(1, 1), entropy=late(0.5, 0.005))
    found = watched(given)
    assert set(found) == {"no_signal", "sure_without_reason"}
    assert all("learning_rate" not in what.change for _, what in found.values())
