"""system/report.py: a page that is whole, fetches nothing, and takes what a model wrote as text."""
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from browser import NONE_HERE, chromium

import checkpoint
import config
import runs
from system import report

HOSTILE = "<script>alert(1)</script>\x00\x1b &amp; ]]> ⏎ \ud800 \"'"
SVG = "{http://www.w3.org/1999/xhtml}"


@pytest.fixture
def cfg(tmp_path):
    """A run of ten evaluations, of which each wrote two samples."""
    cfg = config.Config(out_dir=f"{tmp_path}/<run>", batch_size=7, max_iters=100)
    log = runs.Log(cfg, -1)
    for step in range(0, 101, 10):
        log.metrics(step, {"loss": 1 / (step + 1), "grad_norm": float("nan") if step else 0.5})
        log.metrics(step, {"val/nelbo": 2.0, "val/greedy": step / 100})
        film = [["3", 0, 0.25], ["\n", 1, 1.0], ["12", -1, 0.0], [HOSTILE, 2, 0.5]]
        log.samples(step, [
            {"prompt": HOSTILE, "greedy": f"after {step}", "film": film, "columns": {"answer": "hidden"},
             "sampled": ["one", "two"], "rewards": [0.5, None], "advantages": [1.0, 0.0]},
            {"prompt": "b", "greedy": HOSTILE, "sampled": []}])  # fmt: skip
    runs.report(cfg)
    return cfg


def test_a_log_with_a_number_that_is_not_finite_has_the_other_points_of_its_curve(cfg):
    with open(f"{cfg.out_dir}/metrics.jsonl", "a") as log:
        log.write('{"step": 110, "time": 1, "loss": Infinity}\n{"step": 120, "time": 2, "loss": 0.5}\n')
    assert [row.get("loss") for row in runs.read_lines(f"{cfg.out_dir}/metrics.jsonl")][-2:] == [None, 0.5]
    runs.report(cfg)
    curves = re.findall(r'points="([^"]*)"', open(f"{cfg.out_dir}/report.html", encoding="utf-8").read())
    assert curves and not re.search("nan|inf", " ".join(curves))


def parsed(cfg):
    """Strictly: one tag that is not closed, one sign that XML does not know, and there is no page."""
    return ElementTree.parse(f"{cfg.out_dir}/report.html").getroot()


def test_the_page_is_well_formed_fetches_nothing_and_runs_nothing(cfg):
    text, root = open(f"{cfg.out_dir}/report.html", encoding="utf-8").read(), parsed(cfg)
    assert not re.search(r"(src|href)=|url\(|@import", text) and not root.findall(f".//{SVG}script")
    assert not [k for e in root.iter() for k in e.attrib if k.startswith("on")]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;··" in text and "hidden" not in text
    assert sorted(os.listdir(cfg.out_dir)) == sorted([*checkpoint.LOGS, "run.json", "report.html"])


def test_curves_are_drawn_over_steps_and_over_minutes_without_what_is_no_number(cfg):
    root = parsed(cfg)
    for unit in ("steps", "minutes"):
        figures = root.find(f".//{SVG}div[@class='curves {unit}']").findall(f"{SVG}figure")
        titles = ["".join(f.find(f"{SVG}figcaption").itertext()) for f in figures]
        assert titles == ["loss: loss 0.009901, val/nelbo 2", "val: val/greedy 1", "gradient norm: grad_norm 0.5"]
    line = root.find(f".//{SVG}div[@class='curves steps']").findall(f".//{SVG}polyline")[2].get("points").split()
    assert len(line) == 12 and line[0] == "45.0,150.0" and line[10] == "325.0,20.0"  # its last point is there twice


def test_samples_of_the_first_the_last_and_some_evaluations_stand_beside_each_other(cfg):
    table = parsed(cfg).find(f".//{SVG}div[@class='scroll']/{SVG}table")
    head, first, second = (["".join(cell.itertext()) for cell in row] for row in table)
    assert head == ["", *(f"step {n}" for n in range(0, 101, 20))] and len(first) == len(second) == 7
    assert first[1] == "greedy after 0sampled 0.5 onesampled two" and first[-1].startswith("greedy after 100")


def test_a_film_shows_every_token_at_its_step_as_blue_as_the_model_was_sure(cfg):
    films = parsed(cfg).findall(f".//{SVG}svg[@class='film']")
    assert len(films) == 2  # before and after
    seconds = [float(a.get("keyTimes").split(";")[1]) * (4 * report.SECONDS + report.PAUSE)
               for a in films[0].findall(f".//{SVG}animate")]  # fmt: skip
    np.testing.assert_allclose(seconds, [1, 2, 2, 3], atol=1e-3)  # the line break has a rest, which is empty
    sure = [r.get("opacity") for r in films[0].findall(f".//{SVG}rect[@class='sure']")]
    assert sure == ["0.19", "0.75", "0.75", "0.38"]
    long = ElementTree.fromstring(report.denoising_animation([["x", step, 0.5] for step in range(128)]))
    whole = f"{report.MAX_SECONDS + report.PAUSE}s"  # nobody waits for minutes
    assert {a.get("dur") for a in long.iter("animate")} == {whole}
    assert "12" in [t.text for t in films[0].findall(f"{SVG}text")]  # what was given is there from the start


def test_keys_are_told_with_their_defaults_first_those_that_differ(cfg):
    differ, every = ({row[0].text: row[1].text for row in table.findall(f"{SVG}tr")[1:]}
                     for table in parsed(cfg).findall(f".//{SVG}table")[1:])  # fmt: skip
    assert differ == {"out_dir": cfg.out_dir, "batch_size": "7", "max_iters": "100"}
    assert every.keys() == config.flatten(cfg).keys()


@pytest.mark.slow
@pytest.mark.skipif(not chromium(), reason=NONE_HERE)
def test_a_browser_shows_the_page_without_an_error(cfg, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    done = subprocess.run(
        [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
         "--enable-logging=stderr", "--window-size=1000,1400", "--hide-scrollbars", "--virtual-time-budget=3000",
         f"--screenshot={tmp_path}/page.png", f"file://{cfg.out_dir}/report.html".replace("<run>", "%3Crun%3E")],
        capture_output=True, text=True, timeout=120)  # fmt: skip
    assert "CONSOLE" not in done.stderr and "written to file" in done.stderr, done.stderr
    pixels = (image.imread(f"{tmp_path}/page.png")[..., :3] * 255).astype(int)
    near = lambda color: (abs(pixels - np.array([*bytes.fromhex(color[1:])])).sum(-1) < 12).sum()
    background = pixels[0, 0]
    assert min(near(color) for color in report.COLORS[:2]) > 100  # the curves
    assert 0.02 < (abs(pixels - background).sum(-1) > 60).mean() < 0.5  # text and lines on an empty ground
