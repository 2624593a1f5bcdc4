"""tools/anatomy.py: the numbers on the page are those of the run, for every kind of model."""
import ast
import functools
import re
import runpy

import jax
import numpy as np
import pytest
from browser import needs_browser
from shared import byte_model, lines, page_data, refused, write_splits

import config
import data
import diffusion
import train
from checkpoints import checkpoint
from tools import anatomy

TOK = data.Tokenizer.bytes()
REWARDS = """
def low(completions, token_ids):
    return [sum(i < 128 for i in ids) / 6 for ids in token_ids]

def near(completions, answer):
    return [None if not text else float(abs(ord(text[0]) - ord(right[0])) < 90)
            for text, right in zip(completions, answer)]
"""
KINDS = {  # the model, and the keys that go with it
    "denoiser": ({}, dict(logp_est="trace", logp_views=3)),
    "causal": (dict(causal=True, shift=True), dict(logp_est="exact", order="left")),
    "block": ({"blocks.block": 3}, dict(logp_est="coupled_elbo", diffusion_steps=2)),
}
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("causal", "block")]
EACH = pytest.mark.parametrize("kind", ["denoiser", *SLOW])
pytestmark = pytest.mark.usefixtures("one_step_for_all_runs")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A data set, two rewards, and random models of every kind."""
    folder = tmp_path_factory.mktemp("place")
    rows = [{"prompt": f"{i} <b>", "answer": chr(65 + i)} for i in range(20)]
    write_splits(folder, rows, rows[:4])
    (folder / "my.py").write_text(REWARDS)
    for kind, (switches, _) in KINDS.items():
        byte_model(folder / kind, **switches)
    return folder


def arguments(place, kind, out_dir, **changes):
    """The command line of a GRPO run of seconds: two passes over 4 prompts, with ratios and a narrow clip."""
    my = f"{place}/my.py"
    keys = dict(objective="grpo", dataset=place, init_from=place / kind, out_dir=out_dir,
                rewards=f"{my}:low,{my}:near", reward_weights="1,0.5", adv_negative=1.0,
                max_prompt_len=8, max_new_tokens=6, batch_size=4, group_size=4, max_iters=2,
                eval_interval=9, save_interval=1, log_interval=1, eval_size=4,
                diffusion_steps=3, updates_per_rollout=2, ratio_level="token", clip_low=1e-3, clip_high=1e-3,
                learning_rate=1e-2, warmup_iters=0, lr_schedule="constant", keep_completions=12, minibatch_size=6)
    recipe = place / "recipe.py"
    recipe.write_text("from config import Config\nconfig = Config()\n")
    return [str(recipe), *(f"--{key}={value}" for key, value in (keys | KINDS[kind][1] | changes).items())]


def write(path, argv):
    anatomy.write(argv, str(path))
    return page_data(path)


@pytest.fixture(scope="module")
def pages(place):
    """pages(kind) -> the folder of a finished run of two iterations, the page of its first, the path of the page."""
    @functools.cache
    def made(kind):
        out, path = place / f"run_{kind}", place / f"{kind}.html"
        train.train(config.load(arguments(place, kind, out)))
        before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
        page = write(path, arguments(place, kind, out))
        assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*")}, "the folder of the run is not written into"
        return out, page, path
    return made


def completions_of(page):
    return [c for prompt in page["prompts"] for c in prompt["completions"]]


@EACH
def test_the_page_has_the_numbers_that_the_run_logged(kind, pages):
    out, page, _ = pages(kind)
    logged = next(row for row in lines(out) if row["step"] == 1 and "loss" in row)
    assert len(page["updates"]) == 4 and page["learning"] == 12 and page["start"].endswith(f"/{kind}")
    for name in ("loss", "pg_loss", "grad_norm", "logp", "update_ratio", "clip_ratio/region_mean"):
        np.testing.assert_allclose(np.mean([u[name] for u in page["updates"]]), logged[name], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(np.mean([c["total"] for c in completions_of(page)]), logged["reward"], rtol=1e-5)
    group = next(row for row in lines(out, "rollouts.jsonl") if row["step"] == 1)
    shown = [p for p in page["prompts"] if p["text"] == group["prompt"]]
    assert shown, "all four prompts are shown"
    assert [c["text"] for c in shown[0]["completions"]] == group["completions"]
    learnt = [c["in_loss"] or np.nan for c in shown[0]["completions"]]  # a completion that does not learn has none
    np.testing.assert_allclose(learnt, np.array(group["advantages"], float), atol=1e-5)
    for name, values in group["rewards"].items():
        assert [c["rewards"][name] for c in shown[0]["completions"]] == pytest.approx(values)


@EACH
def test_log_probs_ratios_and_parts_are_those_of_the_formulas(kind, pages):
    _, page, _ = pages(kind)
    parts, moved, clipped = np.zeros(4), 0, 0
    for c in completions_of(page):
        assert (c["in_loss"] is None) == (not c["updates"])
        assert c["in_loss"] in (None, c["advantage"])  # adv_negative=1 changes none
        for u in c["updates"]:
            logp, ratio, push, share, part = (np.array(u[name]) for name in ("logp", "ratio", "push", "share", "part"))
            np.testing.assert_allclose((np.array(u["weight"]) * u["view_logp"]).sum(0), logp, atol=1e-5)
            bounded = np.clip(ratio, 1 - 1e-3, 1 + 1e-3)
            loss = -np.minimum(ratio * c["in_loss"], bounded * c["in_loss"]) * share
            weight = part[loss != 0] / loss[loss != 0]  # one for all tokens in the loss
            np.testing.assert_allclose(weight, weight[:1].repeat(len(weight)), rtol=1e-3)
            assert not part[loss == 0].any()
            parts[u["number"]] += part.sum()
            moved += int((ratio != 1).sum())
            assert u["number"] or (ratio == 1).all(), "in the first update the policy is the one that wrote"
            beyond = (np.sign(c["in_loss"]) * (ratio - 1) > 1.1e-3) & np.array(c["counts"]) & (share > 0)
            assert (push[beyond] == 0).all()
            clipped += int(beyond.sum())
    np.testing.assert_allclose(parts, [u["pg_loss"] for u in page["updates"]], rtol=1e-3, atol=1e-6)
    assert moved and clipped


@EACH
def test_log_probs_before_and_after_are_those_of_the_checkpoints(kind, pages, place):
    """The model that the run starts from and its first checkpoint score the completions."""
    out, page, _ = pages(kind)
    compared, score = 0, jax.jit(diffusion.view_logp, static_argnames=("cfg", "start"))
    for folder, name, number in ((place / kind, "logp", 0), (f"{out}/step-000001", "after", 3)):
        params, shape = checkpoint.load(folder)
        for prompt in page["prompts"]:
            ids = TOK.encode(prompt["text"])
            valid = np.arange(14)[None] >= 8 - len(ids)
            for c in prompt["completions"]:
                x = np.array([[TOK.pad_id] * (8 - len(ids)) + ids + c["tokens"]])
                for u in (u for u in c["updates"] if u["number"] == number):
                    masked = np.pad(u["masked"], ((0, 0), (8, 0)))[None]
                    each, _ = score(params, x, masked, cfg=shape, valid=valid, start=8)
                    counts, expected = np.array(c["counts"]), (np.array(u["weight"]) * each[0, :, 8:]).sum(0)
                    np.testing.assert_allclose(np.array(u[name])[counts], expected[counts], atol=1e-4)
                    compared += 1
    assert compared == 12


def test_every_function_that_the_page_names_is_there():
    named = re.findall(r'([\w/]+\.py): (\w+)[",]', open("tools/anatomy.html", encoding="utf-8").read())
    assert len(named) == 9
    for file, name in named:
        functions = {n.name for n in ast.walk(ast.parse(open(file).read())) if isinstance(n, ast.FunctionDef)}
        assert name in functions, f"{file}: {name}"


def test_the_page_starts_from_the_model_that_is_named_also_a_checkpoint_in_out_dir(pages, place, tmp_path, capsys):
    out, page, _ = pages("denoiser")
    found = write(tmp_path / "x.html", arguments(place, "denoiser", out, init_from=out / "step-000001"))
    assert found["start"] == "run_denoiser/step-000001" and found["updates"][0]["loss"] != page["updates"][0]["loss"]
    assert f"the first iteration from {out}/step-000001" in capsys.readouterr().out


@pytest.mark.parametrize("flag, changes, message", [
    ("x.html", dict(resume=True), "the first iteration from init_from, without resume and eval_only: to see the one"),
    ("train.jsonl", {}, "train.jsonl must name a new file, as in --anatomy=step.html"),
])  # fmt: skip
def test_what_cannot_work_is_refused(flag, changes, message, place):
    argv = arguments(place, "denoiser", place / "new", **changes)
    refused(re.escape(message), anatomy.write, argv, str(place / flag))
    of_pretraining = "shows an iteration of objective='grpo', and this"
    refused(of_pretraining, anatomy.write, ["config/sudoku.py"], str(place / "x.html"))


def test_the_flag_is_one_of_train_py(monkeypatch, place):
    called = []
    monkeypatch.setattr(anatomy, "write", lambda *given: called.append(given))
    monkeypatch.setattr("sys.argv", ["train.py", "recipe", "--anatomy=b.html", "--anatomy=a.html", "--seed=1"])
    with pytest.raises(SystemExit) as e:
        runpy.run_path("train.py", run_name="__main__")
    assert called == [(["recipe", "--seed=1"], "a.html")] and not e.value.code


@needs_browser
@EACH
@pytest.mark.parametrize("width, dark", [(1280, False), (400, True)])
def test_the_page_shows_six_stations_and_fetches_nothing(kind, width, dark, pages, browser):
    _, page, path = pages(kind)
    browser.requests.clear()
    browser.open(path, width=width, dark=dark)
    browser.looks(width, dark)
    assert browser.run("[...document.querySelectorAll('h2')].map(h => h.textContent[0]).join('')") == "123456"
    text = browser.run("document.body.innerText")
    assert not re.search("undefined|NaN|\\[object", text)
    assert f"The first iteration from {page['start']}" in text and " <b>" in text
    words = {"denoiser": "left and to the right", "causal": "No masked copies are needed", "block": "blocks of 3"}
    assert words[kind] in text
    masks = browser.run("document.querySelectorAll('#s4 .mask').length")
    assert masks == 0 if kind == "causal" else masks > 0
    assert not browser.errors and browser.requests == [path.resolve().as_uri()]
    cut = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth).length"
    assert browser.run(cut) == 0


@needs_browser
def test_the_menus_choose_a_prompt_a_completion_an_update_and_a_step(pages, browser):
    _, page, path = pages("denoiser")
    browser.open(path)
    unwritten = "document.querySelectorAll('.unwritten').length"
    choose = "find('{0}').value = {1}, find('{0}').oninput()"
    assert browser.run(unwritten) == 0
    browser.run(choose.format("step", 0))
    assert browser.run(unwritten) == 24 and "before step 1" in browser.run("find('s2').innerText")
    browser.run(choose.format("step", 1))
    written = sum(step == 0 for c in page["prompts"][0]["completions"] for step in c["step"])
    assert browser.run(unwritten) == 24 - written
    browser.run(choose.format("update", 1))
    assert browser.run("now.update") == 1 and "The ratio says how far" in browser.run("find('s5').innerText")
    other = (browser.run("now.completion") + 1) % 4
    browser.run(f"document.querySelectorAll('#s2 button')[{other}].click()")
    assert browser.run("now.completion") == other
    browser.run(choose.format("prompt", 1))
    assert browser.run("[now.prompt, find('prompt').value]") == [1, "1"] and not browser.errors


@needs_browser
def test_a_sudoku_is_shown_as_its_grid_with_pale_givens(tmp_path, browser):
    small = "--batch_size=8 --keep_completions=16 --minibatch_size=16 --eval_size=8".split()
    anatomy.write(["config/sudoku_grpo.py", "--init_from=assets/sudoku_base", *small], f"{tmp_path}/x.html")
    browser.open(tmp_path / "x.html")
    lefts = "[...find('s1').querySelectorAll('.t')].map(cell => cell.getBoundingClientRect().left)"
    assert browser.run(f"[{lefts}.length, new Set({lefts}).size]") == [16, 4]
    given = browser.run("completion().completion.filter(masked => !masked).length")
    assert browser.run("find('s2').querySelectorAll('.off').length") == 4 * given > 0
    marked = "[...find('s2').querySelectorAll('.across > *')].map(one => one.querySelectorAll('.wrong').length > 0)"
    right = browser.run("group().completions.map(c => c.total === 1)")
    assert browser.run(marked) == [not one for one in right] and {*right} == {True, False}
