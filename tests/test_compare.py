"""tests/compare.py: its statistics against scipy, its jobs, and runs that are found again."""
import types

import compare
import controls
import numpy as np
import pytest
import scipy.stats
from shared import python
from test_bench import small_run

from checkpoints import checkpoint

OPTIONS = types.SimpleNamespace(
    tasks="", seeds=1, out="out/x", flags="", toy=False, show=True, picture="", record=False, fresh=False,
)  # fmt: skip


def test_the_mean_and_its_interval_are_those_of_scipy_and_of_the_seeds():
    rng = np.random.default_rng(1)
    runs_of = [rng.normal(0, 1, 10), rng.normal(5, 1, 10)]
    mean, low, high = compare.mean_with_interval(runs_of)
    assert mean == pytest.approx(scipy.stats.trim_mean(np.concatenate(runs_of), 0.25))
    assert low < mean < high and high - low < 3
    # Drawn within each task, the two tasks stay as many. Drawn from both together, the mean would spread much more.
    mixed = np.concatenate(runs_of)
    together = compare.mean_with_interval([mixed])
    assert together[2] - together[1] > 1.5 * (high - low)
    assert compare.mean_with_interval([np.ones(3)]) == (1, 1, 1)
    mean, *ends = compare.mean_with_interval([np.ones(3), np.ones(1)])  # what one seed says of others is not known
    assert mean == 1 and np.isnan(ends).all()


def test_the_chance_to_win_is_the_statistic_of_mann_and_whitney():
    rng = np.random.default_rng(2)
    a, b = [rng.integers(0, 5, 8) for _ in range(3)], [rng.integers(0, 5, 6) for _ in range(3)]
    expected = np.mean([scipy.stats.mannwhitneyu(x, y).statistic / 48 for x, y in zip(a, b, strict=True)])
    assert compare.chance_to_win(a, b) == pytest.approx(expected)
    chance, low, high = compare.chance_with_interval([np.array([2, 3])], [np.array([0, 1])])
    assert (chance, low, high) == (1, 1, 1)


def test_the_runs_of_the_docs_are_found_in_the_record():
    """A result is found by a digest of its command, so none of these may change."""
    kept = compare.read_record()
    found = lambda jobs: sum(compare.record_key(job, OPTIONS) in kept for job in jobs)
    assert found(compare.compare_jobs(OPTIONS).values()) == 72
    assert found(compare.ladder_job("countdown", "d1", rung, 1e-4, 0, OPTIONS) for rung in compare.RUNGS) == 8
    assert found(compare.arm_job("sudoku", "d1", arm, 3e-5, 0, OPTIONS) for arm in compare.ARMS) == 5


@pytest.mark.slow
def test_runs_are_found_again_and_show_starts_none(tmp_path):
    small_run(tmp_path / "base")
    small = "--n_layer=1 --d_model=16 --eval_size=4 --evaluation.samples=1 --batch_size=2 --keep_completions=None"
    command = "tests/bench.py", "compare", "--toy", "--tasks=sudoku", "--seeds=1", f"--out={tmp_path}"
    flags = f"--flags=--init_from={tmp_path / 'base'} {small}"
    (tmp_path / "sudoku-30-base").symlink_to(tmp_path / "base")  # or it would be trained

    def printed(*more):
        done = python(*command, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "0 of 2 runs are there" in printed("--show")
    first = printed(flags, f"--picture={tmp_path / 'x.png'}")
    assert all(text in first for text in ("2 of 2 runs are there", "| one_step", "one seed"))
    assert (tmp_path / "x.png").exists()
    saved = checkpoint.steps(tmp_path / "sudoku-30-positive-one_step-0")
    assert saved == [1] and printed(flags).splitlines() == first.splitlines()[:-1]
    failed = python(*command, "--flags=--group_size=1", "--seeds=2")
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "group_size=1 " in failed.stderr and "python train.py config/sudoku_d1_grpo.py" in failed.stderr


def test_a_task_without_controls_is_answered_with_those_that_have_some():
    done = python("tests/controls.py", "--show", "--tasks=foo")
    assert done.returncode and not done.stdout
    assert done.stderr == "error: --tasks=foo: expected some of sudoku,countdown\n"


def test_all_seeds_of_a_control_run_with_the_best_setting_of_seed_0(monkeypatch):
    results, asked = {}, []
    monkeypatch.setattr(controls, "METHODS", {"one": controls.Method("", "", {"sudoku": ["--top_k=1", "--top_k=2"]})})
    monkeypatch.setattr(controls, "kept", lambda: dict(results))
    monkeypatch.setattr(controls, "keep", lambda key, *_: results.update({key: {"sampled after": key[2][-1]}}))
    monkeypatch.setattr(compare, "run_all", lambda jobs, options: asked.append([job.out for job in jobs]))
    controls.run_all(types.SimpleNamespace(tasks="sudoku", seeds=3, out="out", machine=""))
    assert [[name.removeprefix("out/sudoku-") for name in names] for names in asked] == [
        ["base-0"], ["one-1-0", "one-2-0"], ["base-1", "base-2"], ["one-2-1", "one-2-2"]]  # fmt: skip
    program = "import sys; sys.path.insert(0, 'tests'); import controls, compare"  # as `python tests/controls.py` does
    assert python("-P", "-c", program).returncode == 0
