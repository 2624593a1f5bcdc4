"""tests/compare.py: its statistics against scipy, its jobs, and runs that are found again."""
import subprocess
import sys
import types

import compare
import numpy as np
import pytest
import scipy.stats
from test_bench import small_run

import config
from checkpoints import checkpoint
from config.sudoku_d1_grpo import config as grpo_config

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


def test_all_methods_have_the_same_forward_passes():
    jobs = compare.compare_jobs(types.SimpleNamespace(**(vars(OPTIONS) | {"tasks": "sudoku"})))
    assert len(jobs) == 3 * len(compare.METHODS)
    for (_, strength, name, _), job in jobs.items():
        if strength == 30:
            cfg = config.load(job.command.split())
            views = compare.METHODS[name][1]
            spent = cfg.max_iters * (64 * 4 * 4 + 64 * 4 * 4 * views)
            assert spent == pytest.approx(compare.BUDGET, rel=0.06), name


def test_the_runs_of_the_docs_are_found_in_the_record():
    """A result is found by a digest of its command, so none of these may change."""
    kept = compare.read_record()
    found = lambda jobs: sum(compare.record_key(job, OPTIONS) in kept for job in jobs)
    assert found(compare.compare_jobs(OPTIONS).values()) == 72
    assert found(compare.ladder_job("countdown", "d1", rung, 1e-4, 0, OPTIONS) for rung in compare.RUNGS) == 8
    assert found(compare.arm_job("sudoku", "d1", arm, 3e-5, 0, OPTIONS) for arm in compare.ARMS) == 5


@pytest.mark.parametrize("task, paper", [("sudoku", "d1"), ("sudoku", "DiffuCoder"), ("countdown", "ESPO")])
def test_a_ladder_goes_from_a_papers_settings_to_ours_and_each_rung_changes_only_its_own_keys(task, paper):
    loaded = []
    for rung in compare.RUNGS:
        job = compare.ladder_job(task, paper, rung, 1e-4, 0, OPTIONS)
        loaded.append(config.flatten(config.load(job.command.split())))
    keys = [key for of_rung in compare.RUNGS.values() for key in of_rung.split()]
    theirs = config.flatten(config.load([f"config/{compare.PAPERS[paper]}.py", "--model=small"]))
    ours = config.flatten(config.read_file(f"config/{task}_grpo.py")) | (
        {"learning_rate": 3e-4} if task == "sudoku" else {}
    )
    assert [loaded[0].get(key) for key in keys] == [theirs.get(key) for key in keys]
    assert [loaded[-1].get(key) for key in keys] == [ours.get(key) for key in keys]
    for before, after, of_rung in zip(loaded, loaded[1:], list(compare.RUNGS.values())[1:], strict=False):
        changed = {key for key in after | before if after.get(key) != before.get(key)}
        changed -= {"max_iters", "eval_interval", "moving_reference.decay", "losses"}
        assert changed <= set(of_rung.split())


@pytest.mark.slow
def test_runs_are_found_again_and_show_starts_none(tmp_path):
    small_run(tmp_path / "base")
    small = "--n_layer=1 --d_model=16 --eval_size=4 --evaluation.samples=1 --batch_size=2 --keep_completions=None"
    command = [sys.executable, "tests/bench.py", "compare", "--toy", "--tasks=sudoku", "--seeds=1",
               f"--out={tmp_path}"]  # fmt: skip
    flags = f"--flags=--init_from={tmp_path / 'base'} {small}"
    (tmp_path / "sudoku-30-base").symlink_to(tmp_path / "base")  # or it would be trained

    def printed(*more):
        done = subprocess.run([*command, *more], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "0 of 2 runs are there" in printed("--show")
    first = printed(flags, f"--picture={tmp_path / 'x.png'}")
    assert all(text in first for text in ("2 of 2 runs are there", "| one_step", "one seed"))
    assert (tmp_path / "x.png").exists()
    saved = checkpoint.steps(tmp_path / "sudoku-30-positive-one_step-0")
    assert saved == [1] and printed(flags).splitlines() == first.splitlines()[:-1]
    failed = subprocess.run([*command, "--flags=--group_size=1", "--seeds=2"], capture_output=True, text=True)
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "group_size=1 " in failed.stderr and "python train.py config/sudoku_d1_grpo.py" in failed.stderr


def test_a_result_that_is_kept_counts_as_finished_until_its_command_changes(tmp_path, monkeypatch):
    small_run(tmp_path / "a", grpo_config)
    (tmp_path / "a/metrics.jsonl").write_text(
        '{"step": 0, "val/greedy": 0.1, "val/sampled": 0.05}\n'
        '{"step": 1, "val/greedy": 0.25, "val/sampled": 0.125, "reward": 0.5}\n'
    )
    monkeypatch.setattr(compare, "RECORD", str(tmp_path / "kept.jsonl"))

    def options(**change):
        return types.SimpleNamespace(**(vars(OPTIONS) | {"out": str(tmp_path)} | change))

    def found(options, more=""):
        job = compare.Job(f"{options.out}/a", f"config/sudoku_d1_grpo.py --init_from={options.out}/base{more}")
        return compare.results_of({"key": job}, options), job

    found(options())
    assert not (tmp_path / "kept.jsonl").exists()
    found(options(record=True, toy=True))  # nor is a toy run kept
    assert not (tmp_path / "kept.jsonl").exists()
    for more in ({}, {}, {"fresh": True}):  # after the first time there is nothing new
        found(options(record=True, **more))
    assert len((tmp_path / "kept.jsonl").read_text().splitlines()) == 1
    elsewhere = options(out=str(tmp_path / "elsewhere"))  # where no run is
    results, job = found(elsewhere)
    assert [results["key"].before.tolist(), results["key"].after.tolist()] == [[10, 5], [25, 12.5]]
    assert results["key"].reward == 0.5
    monkeypatch.setattr(compare.subprocess, "run", None)  # would fail if a run were started
    compare.run_all([job], options(out=elsewhere.out, show=False))
    assert found(elsewhere, " --seed=2")[0] == {}
    assert found(options(out=elsewhere.out, fresh=True))[0] == {}
