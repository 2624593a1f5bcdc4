"""tests/bench.py: every command runs, at sizes that say nothing about speed."""
import importlib.util
import json
import pathlib
import re
import sys
from dataclasses import replace

import bench
import gpu
import jax
import pytest
import shared

import data
import model
from checkpoints import checkpoint
from config.sudoku_d1 import config
from loop import runs
from loop.setup import with_ids
from train import State


def cells(out):
    """What it printed -> the cells of the rows of its tables by their label."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line[:2] == "| "]
    return {label: cells for label, *cells in rows}


def started(*args):
    """`python tests/bench.py ...` -> what it prints, and its cells."""
    run = shared.python("tests/bench.py", *args)
    assert run.returncode == 0, run.stderr
    assert "..." in run.stderr or "/1 [" in run.stderr  # what it was at
    return run.stdout, cells(run.stdout)


@pytest.fixture
def here(monkeypatch, capsys):
    """here(...) -> the same, in this process."""
    def main(*args):
        monkeypatch.setattr(sys, "argv", ["bench.py", *args])
        monkeypatch.setattr(runs, "prepare_process", lambda: None)
        bench.main()
        out = capsys.readouterr().out
        return out, cells(out)
    return main


def test_every_command_that_a_page_names_is_one(monkeypatch):
    pages = [page.read_text() for page in pathlib.Path("docs").glob("*.md")]
    named = [line.split("#")[0].split() for page in pages for line in re.findall(r"python tests/bench\.py (.*)", page)]
    assert len(named) > 12
    for words in named:
        monkeypatch.setattr(sys, "argv", ["bench.py", *words])
        assert bench.read_options().command == words[0]


def test_neither_a_benchmark_nor_a_run_imports_what_starts_jax():
    """runs.keep_memory has to come first: otherwise a step takes half as long again."""
    last = "jax.config.update('jax_num_cpu_devices', 2)"  # an error once JAX has its devices
    done = shared.python("-c", f"import sys; sys.path[:0] = ['tests', '.']; import bench, train, jax; {last}")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_train_compares_a_model_with_the_same_model():
    out, rows = started("train", "--toy")
    who = ["jax"] + ["torch eager"] * bool(importlib.util.find_spec("torch"))
    assert all(float(rows[f"{name} {what}"][0]) > 0 for name in who for what in ("step", "gradient"))
    assert len(who) == 2 or out.count("PyTorch is not installed") == 1


@pytest.mark.slow
def test_sample_compares_samplers_that_agree():
    pytest.importorskip("torch")
    _, rows = started("sample", "--toy")
    (cells,) = (cells for label, cells in rows.items() if label.startswith("toy"))
    ours, theirs = float(cells[1]), float(cells[3])
    assert float(cells[5]) == pytest.approx(ours / theirs, rel=0.1)


@pytest.mark.slow
def test_sample_has_its_own_rates_without_torch(here, monkeypatch):
    monkeypatch.setattr(bench, "prepare", lambda: (None, None))
    _, rows = here("sample", "--toy")
    (cells,) = (cells for label, cells in rows.items() if label.startswith("toy"))
    assert len(cells) == 3 and float(cells[1]) > 0


@pytest.mark.parametrize("words", [["bench.py", "truth", "--picture=x.png"], ["controls.py", "--show", "--picture=x"]])
def test_a_picture_without_matplotlib_is_refused_before_anything_is_measured(words):
    done = shared.without("matplotlib", f"tests/{words[0]}", *words[1:])
    assert not done.stdout and done.stderr == "error: --picture needs matplotlib, which is not installed: " \
                                              "pip install matplotlib\n"  # fmt: skip


def test_a_report_of_changes_that_were_not_made_says_so(tmp_path):
    done = shared.python("tests/mutate.py", "--report", f"--out={tmp_path}/none.jsonl")
    assert done.stderr == f"error: {tmp_path}/none.jsonl is not there: tests/mutate.py without --report writes it\n"


@pytest.mark.slow
def test_rewards_bills_every_way_of_scoring():
    out, rows = started("rewards", "--toy")
    assert [float(rows[name][3]) > 0 for name in rows if name.startswith(("sandbox", "("))] == [True] * 4
    assert float(re.search(r"10 completions, every tenth loops forever, limit 1 s: ([\d.]+) s", out)[1]) >= 1


def small_run(folder, config=config):
    """A run of a config file with a tiny model that never learnt anything."""
    tok = data.tokenizer(config.dataset)
    cfg = replace(config, out_dir=str(folder), model=with_ids(shared.changed(config.model, n_layer=1, d_model=16), tok))
    state = State(1, model.init(jax.random.key(0), cfg.model), (), None, None)
    checkpoint.save_run(cfg, state, tok, None, finished=True)


@pytest.mark.slow
def test_order_is_a_table_of_orders_and_steps(tmp_path, here):
    small_run(tmp_path)
    _, rows = here("order", str(tmp_path), "--toy")
    assert rows["order"] == ["1"]
    assert all(rows[order] == ["0.0%"] for order in ("random", "confidence", "margin", "entropy", "left"))


@pytest.mark.slow
def test_frontier_is_a_table_of_rules_and_caches_and_a_picture(tmp_path, here, monkeypatch):
    small_run(tmp_path)
    monkeypatch.setattr(bench, "find_or_train", lambda *_: str(tmp_path))
    out, rows = here("frontier", "--toy", "--tasks=sudoku_d1", f"--picture={tmp_path}/new/frontier.png")
    assert rows["sudoku_d1: quota"][:4] == ["steps 16", "0.0%", "16", "1.000"] and "4 rows of val, 16 new tokens" in out
    assert rows["sudoku_d1: threshold, blocks of 4, dual"][1] == "0.0%"
    assert (tmp_path / "new" / "frontier.png").read_bytes()[:4] == b"\x89PNG"
    out, rows = here("frontier", "--toy", "--tasks=sudoku_d1", f"--runs={tmp_path}", f"--picture={tmp_path}/runs.png")
    assert rows[tmp_path.name][0].startswith("0.0%, ") and len(rows[tmp_path.name]) == 5
    assert (tmp_path / "runs.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_truth_is_a_table_of_gradients_beside_the_exact_one_and_a_picture(tmp_path, here):
    _, rows = here("truth", "--toy", f"--picture={tmp_path}/truth.png")
    assert rows["one_step"] == ["1", "0.805", "0.240"]  # as in docs/estimators.md: there is one way to mask everything
    assert rows["trace"][:2] == ["3", "1.000"] and float(rows["strata"][1]) < 0.9
    assert (tmp_path / "truth.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_growth_is_a_table_of_what_is_measured_beside_what_is_counted_and_a_picture(tmp_path, here):
    out, rows = here("growth", "--toy", f"--picture={tmp_path}/growth.png")
    assert "T 8, batch 2, V 16 where no other number is given; d_model 16, n_layer 2" in out
    (step, x, _, more, share), first, views = rows["T 8"][:5], rows["T 4"], rows["views 2"]
    step, x, alone = float(step), float(x), float(first[0])  # each rounded to a tenth
    assert more == "2.1" and share[-1] == "%" and step == pytest.approx(x * alone, abs=0.05 * (1 + x + alone) + 0.01)
    assert first[1:4:2] == ["1.0", "1.0"] and views[3] == "2.0" and views[5:] == [""] * 5
    assert (tmp_path / "growth.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_grpo_compares_an_iteration_with_one_that_has_the_same_loss_and_gradient(here):
    pytest.importorskip("torch")
    out, rows = here("grpo", "--toy")
    assert re.search(r"loss (-?\d\.\d+), PyTorch's \1; gradients differ by \S+e-0[5-9]", out)
    number = lambda stage, who: float(rows[stage][who])
    for who in (0, 1):
        parts = [number(stage, who) for stage in ("rollout", "rewards (one call for both)", "old log-probs", "update")]
        assert sum(parts) == pytest.approx(number("iteration", who), abs=0.5) and min(parts) > 0
    assert number("iteration", 2) == pytest.approx(number("iteration", 1) / number("iteration", 0), rel=0.1)


@pytest.mark.slow
def test_gpu_has_figures_of_every_part_in_one_json_and_one_table(tmp_path):
    run = shared.python("tests/bench.py", "gpu", "--tiny", f"--json={tmp_path}/gpu.json")
    assert run.returncode == 0, run.stderr
    parts, rows = json.loads((tmp_path / "gpu.json").read_text())["parts"], cells(run.stdout)
    assert {*parts} == {*gpu.PARTS}
    assert [file.name for file in tmp_path.iterdir()] == ["gpu.json"]
    for name, part in parts.items():
        if "torch" in name and not importlib.util.find_spec("torch"):
            assert "PyTorch is not installed" in rows[f"**{name}**"][1]
            continue
        assert part["ended"] == "whole" and part["figures"], run.stderr
        assert {"device", "versions", "date", "commit"} <= part.keys()  # what the table of the page prints
        assert all(figure["holds"] is not False and figure["name"] in rows for figure in part["figures"]), part
    assert "only the form" in run.stdout and "no cuDNN on a CPU" in run.stdout and "no GPU here" in run.stdout
