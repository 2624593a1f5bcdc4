"""loop/report.py: pages that fetch nothing, show what the logs say, and take texts as text."""
import os
import re
import types

import numpy as np
import pytest
from browser import needs_browser
from shared import page_data

import config
from checkpoints import checkpoint
from loop import report, runs

HOSTILE = "</script><script>alert(1)</script>\x00\x1b &amp; ]]> ⏎ \ud800 \"'"


@pytest.fixture
def cfg(tmp_path):
    """A run of ten evaluations, of which each wrote two samples."""
    cfg = config.Config(out_dir=f"{tmp_path}/<run>", batch_size=7, max_iters=100)
    log = runs.Log(cfg, -1)
    for step in range(0, 101, 10):
        log.metrics(step, {"loss": 1 / (step + 1), "grad_norm": float("nan") if step else 0.5})
        log.metrics(step, {"val/nelbo": 2.0, "val/greedy": step / 100, "val/greedy_se": 0.1})
        log.metrics(step, {"time/rollout": 1.0 + step, "time/update": 2.0, "tokens": step * 7, "reward": 0.5})
        log.samples(step, [
            {"prompt": HOSTILE, "greedy": f"after {step}", "columns": {"answer": "hidden_answer"},
             "sampled": ["one", "two"], "rewards": [0.5, None]},
            {"prompt": "b", "greedy": HOSTILE, "sampled": []}])  # fmt: skip
    group = {"prompt": "p", "completions": [HOSTILE, "no"], "rewards": {"good": [1, None]}, "advantages": [0.5, -0.5]}
    log.append("rollouts.jsonl", {"step": 100} | group)
    runs.report(cfg)
    return cfg


def page_of(cfg):
    return page_data(f"{cfg.out_dir}/report.html")


def test_a_log_with_a_number_that_is_not_finite_has_the_other_points_of_its_curve(cfg):
    with open(f"{cfg.out_dir}/metrics.jsonl", "a") as log:
        log.write('{"step": 110, "time": 1, "loss": Infinity}\n{"step": 120, "time": 2, "loss": 0.5}\n')
    assert [row.get("loss") for row in runs.read_lines(f"{cfg.out_dir}/metrics.jsonl")][-2:] == [None, 0.5]
    runs.report(cfg)
    (loss,) = [panel["lines"][0] for panel in page_of(cfg)["panels"] if panel["title"] == "loss"]
    assert loss["steps"] == [*range(0, 101, 10), 120] and loss["y"][-1] == 0.5 and loss["minutes"][-1] == 2 / 60


def test_the_page_fetches_nothing_and_says_what_the_run_is(cfg):
    path = f"{cfg.out_dir}/report.html"
    text, found = open(path, encoding="utf-8").read(), page_of(cfg)
    assert not re.search(r"(src|href)=|url\(|@import|fetch\(", text) and text.count("<script") == 2
    assert "default-src 'none'" in text and "hidden_answer" not in text
    assert sorted(os.listdir(cfg.out_dir)) == sorted([*checkpoint.LOGS, "run.json", "report.html"])
    assert found["about"][1].startswith("step 100 of 100 after ") and found["about"][1].endswith(" 700 tokens")
    assert found["group"]["completions"][1] == "no" and found["group"]["rewards"] == {"good": [1, None]}
    keys = {name: (here, usual) for name, here, usual in found["keys"]}
    differ = {name: here for name, (here, usual) in keys.items() if here != usual}
    assert differ == {"out_dir": cfg.out_dir, "batch_size": "7", "max_iters": "100"}
    assert keys.keys() == config.flatten(cfg).keys() and found["done"] is False
    runs.ending(cfg, None)
    assert page_of(cfg)["done"] is True


def test_curves_have_their_units_and_the_standard_error_as_a_band(cfg):
    panels = {panel["title"]: panel for panel in page_of(cfg)["panels"]}
    assert list(panels) == ["reward", "held-out rows", "gradient norm", "loss"]
    (line,) = panels["held-out rows"]["lines"]
    assert line["name"] == "greedy" and line["y"] == [step / 100 for step in range(0, 101, 10)]
    np.testing.assert_allclose(line["low"], np.array(line["y"]) - 0.1)
    np.testing.assert_allclose(line["high"], np.array(line["y"]) + 0.1)
    assert panels["gradient norm"]["lines"][0]["steps"] == [0], "nan is no number"
    assert [line["name"] for line in panels["loss"]["lines"]] == ["loss", "nelbo"]
    rows = [{"step": step, "time": 60.0 * step, "loss": step} for step in range(1, 1005)]
    line = report.line_of(rows, "loss")  # a long one is thinned, and keeps its last point
    assert len(line["y"]) <= report.POINTS + 1
    assert line["y"][0] == 1 and line["y"][-1] == line["minutes"][-1] == 1004
    assert report.line_of(rows, "val/none") == {}


@pytest.mark.parametrize("rewards, steps, shown", [
    ([[0, 0], [0, 1], [1, 1]], True, 2), ([[0, 0], [1, 1]], False, 2), ([], False, None),
    ([[None, 1], [0, 0]], True, 1),
])  # fmt: skip
def test_the_group_that_is_shown_is_the_last_whose_rewards_differ(rewards, steps, shown):
    rows = [{"step": n, "prompt": "", "masked": "1<|mask|>", "completions": ["12", "13"], "rewards": {"good": values}}
            for n, values in enumerate(rewards, 1)]  # fmt: skip
    group = report.telling_group(rows)
    assert (group and group["step"]) == shown and bool(group and group["differ"]) == steps
    assert not group or group["prompt"] == "1_"


def test_an_evaluation_prints_three_short_lines_with_a_sample_of_the_first_one_beside_it(tmp_path, capsys):
    cfg = config.Config(out_dir=f"{tmp_path}/run")
    run = types.SimpleNamespace(cfg=cfg, log=runs.Log(cfg, -1))
    for step, greedy in (0, "a"), (40, "b" * 99):
        values = {"val/greedy": step / 100, "val/greedy_se": 0.1, "val/distinct_3": 1.0, "val/pass@4": 0.5}
        runs.show(run, step, values, [{"prompt": "ask", "greedy": greedy, "sampled": ["c"], "columns": {}}] * 2)
    run.cfg = config.Config(out_dir=f"{tmp_path}/judge")
    run.log = runs.Log(run.cfg, -1)
    runs.show(run, 50, {"val/pair_acc": 0.5, "val/pair_acc/cut": 1.0}, [{"prompt": "ask", "better": "x", "worse": "y"}])
    assert capsys.readouterr().out.splitlines() == [
        "step      0  val/greedy 0.0000  val/pass@4 0.5000", "    prompt 'ask'", "    greedy 'a'",
        "step     40  val/greedy 0.4000  val/pass@4 0.5000", "    prompt 'ask'",
        f"    at step 0 'a', now '{'b' * 79}",
        "step     50  val/pair_acc 0.5000", "    prompt 'ask'", "    better 'x', worse 'y'"]  # fmt: skip
    assert runs.read_lines(f"{cfg.out_dir}/metrics.jsonl")[1]["val/distinct_3"] == 1


@pytest.mark.parametrize("rows, line", [
    ([{"step": 0, "time": 9, "val/greedy": 0.461, "val/sampled": 0.272, "val/sampled_se": 0.1}, {"step": 1, "time": 10},
      {"step": 1200, "time": 280.6, "val/greedy": 0.817, "val/sampled": None}],
     "greedy 0.461 → 0.817, sampled 0.272 → none in steps 0 to 1,200, 4:41 minutes"),
    ([{"step": 5, "time": 9, "val/nelbo": 0.9}, {"step": 9, "time": 60, "val/nelbo": 0.4}],
     "nelbo 0.900 → 0.400 in steps 5 to 9, 1:00 minutes"),
    ([{"step": 0, "time": 0, "val/greedy": -3.0}, {"step": 9, "time": 59.9, "val/greedy": 3.0}],
     "greedy -3.000 → 3.000 in steps 0 to 9, 1:00 minutes"),
    ([{"step": 0, "time": 9, "val/greedy": 0.5}], ""), ([{"step": 3, "time": 9, "loss": 0.5}], ""),
])  # fmt: skip
def test_the_result_is_the_first_and_the_last_evaluation_in_a_line(rows, line):
    assert runs.result(rows) == line


def test_samples_of_the_first_the_last_and_some_evaluations_stand_beside_each_other(cfg):
    found = page_of(cfg)["evaluations"]
    assert found["steps"] == [*range(0, 101, 20)] and [len(row["cells"]) for row in found["rows"]] == [6, 6]
    first, second, *_ = found["rows"][0]["cells"]
    assert first == [["greedy", "after 0"], ["sampled 0.5", "one"], ["sampled", "two"]]
    assert second[0] == ["greedy", "after 20"]


@needs_browser
@pytest.mark.parametrize("width, dark", [(1280, False), (400, True)])
def test_the_page_fits_wide_and_narrow_light_and_dark_and_runs_nothing_of_a_text(width, dark, cfg, browser):
    browser.open(f"{cfg.out_dir}/report.html", width=width, dark=dark)
    browser.looks(width, dark)
    assert browser.run("document.querySelectorAll('#curves figure').length") == 4 and len(browser.requests) == 1
    assert browser.run("document.scripts.length") == 2
    shown = browser.run("document.querySelector('#group td').textContent")
    assert "</script><script>alert(1)</script>" in shown
    cells = "[...document.querySelectorAll('#evaluations > .scroll td')].map(cell => cell.clientWidth)"
    assert browser.run(f"Math.min(...{cells})") > 140  # a table that is too wide is moved sideways; words stay whole


@needs_browser
def test_a_sudoku_is_shown_as_a_grid(cfg, browser):
    browser.open(f"{cfg.out_dir}/report.html")
    for text, rows in {"1342423124133_24:": "1 3 4 2\n4 2 3 1\n2 4 1 3\n3 _ 2 4", "13 42": "13 42", "a" * 16: "a" * 16,
                       "." * 81: "\n".join([" ".join("." * 9)] * 9)}.items():  # fmt: skip
        assert browser.run(f"grid('{text}')") == rows


@needs_browser
def test_a_keyboard_and_a_pointer_read_the_numbers_of_a_curve(cfg, browser):
    browser.open(f"{cfg.out_dir}/report.html")
    browser.run("document.querySelectorAll('figure')[1].focus()")
    browser.press("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft")
    said = "document.querySelectorAll('figure output')[1].textContent"
    assert browser.run(said) == "step 10: greedy 0.1 (0 to 0.2)"
    browser.run("""(() => { const svg = document.querySelectorAll('figure svg')[1], box = svg.getBoundingClientRect();
        svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.right - 20 * box.width / 400})) })()""")
    assert browser.run(said).startswith("step 100: greedy 1 (0.9 to 1.1)")
    browser.run("document.querySelector('input[value=minutes]').click()")
    assert browser.run("location.hash") == "#minutes"
    assert browser.run("document.querySelectorAll('figure svg')[1].textContent").endswith("minutes1")


@needs_browser
def test_a_page_that_goes_on_is_loaded_again_and_stays_as_it_was(cfg, browser):
    browser.open(f"{cfg.out_dir}/report.html")
    assert not browser.run("find('renews').hidden")
    browser.run("document.querySelector('input[value=minutes]').click(); window.beforeReload = true")
    browser.reload()
    assert not browser.run("window.beforeReload")
    browser.wait("document.readyState === 'complete' && document.querySelector('input[value=minutes]').checked")
    runs.ending(cfg, None)
    browser.open(f"{cfg.out_dir}/report.html")
    assert browser.run("find('renews').hidden")
