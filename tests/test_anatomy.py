"""tools/anatomy.py: the numbers on the page are those of the run, for every kind of model."""
import ast
import functools
import json
import re
import runpy
import shutil

import jax
import numpy as np
import pytest
from browser import needs_browser
from shared import byte_model, compiled_once, lines

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
    "block": (dict(**{"blocks.block": 3}), dict(logp_est="coupled_elbo", diffusion_steps=2)),
}


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("causal", "block")]
EACH = pytest.mark.parametrize("kind", ["denoiser", *SLOW])


@pytest.fixture(scope="module", autouse=True)
def one_step_for_all_runs():
    with compiled_once():
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A data set, two rewards, and random models of every kind."""
    folder = tmp_path_factory.mktemp("place")
    rows = [json.dumps({"prompt": f"{i} <b>", "answer": chr(65 + i)}) + "\n" for i in range(20)]
    (folder / "train.jsonl").write_text("".join(rows))
    (folder / "val.jsonl").write_text("".join(rows[:4]))
    (folder / "my.py").write_text(REWARDS)
    for kind, (switches, _) in KINDS.items():
        byte_model(folder / kind, **switches)
    return folder


def arguments(place, kind, out_dir, **changes):
    """The command line of a GRPO run of seconds: two passes over 4 prompts, with ratios and a narrow clip."""
    my = f"{place}/my.py"
    keys = dict(ratio_level="token", adv_negative=1.0)
    keys |= dict(objective="grpo", dataset=place, init_from=place / kind, out_dir=out_dir,
                rewards=f"{my}:low,{my}:near", reward_weights="1,0.5",
                max_prompt_len=8, max_new_tokens=6, batch_size=4, group_size=4, max_iters=2,
                eval_interval=9, save_interval=1, log_interval=1, eval_size=4, **{"runs.log_samples": 0},
                diffusion_steps=3,
                updates_per_rollout=2, ratio_level="token", clip_low=1e-3, clip_high=1e-3, learning_rate=1e-2,
                warmup_iters=0, lr_schedule="constant", keep_completions=12, minibatch_size=6)  # fmt: skip
    recipe = place / "recipe.py"
    recipe.write_text("from config import Config\nconfig = Config()\n")
    return [str(recipe), *(f"--{key}={value}" for key, value in (keys | KINDS[kind][1] | changes).items())]


def write(path, argv):
    anatomy.write(argv, str(path))
    return json.loads(path.read_text(encoding="utf-8").split('type="application/json">')[1].split("</script>")[0])


@pytest.fixture(scope="module")
def pages(place):
    """pages(kind) -> the folder of a run of two iterations, the page of its second, the path of the page."""
    @functools.cache
    def made(kind):
        out, path = place / f"run_{kind}", place / f"{kind}.html"
        train.train(config.load(arguments(place, kind, out)))
        return out, write(path, arguments(place, kind, f"{out}/step-000001")), path
    return made


@EACH
def test_the_page_has_the_numbers_that_the_run_logged(kind, pages):
    out, page, _ = pages(kind)
    logged = next(row for row in lines(out) if row["step"] == 2 and "loss" in row)
    assert page["iteration"] == 2 and page["kind"] == kind and len(page["updates"]) == 4
    rule = {"denoiser": "sample.py: quota", "block": "variants/rules.py: static"}.get(kind)
    assert (page["functions"]["rule"] or {}).get("at") == rule
    for name in ("loss", "pg_loss", "grad_norm", "logp", "update_ratio", "clip_ratio/region_mean"):
        np.testing.assert_allclose(np.mean([u[name] for u in page["updates"]]), logged[name], rtol=1e-4, atol=1e-7)
    for name in ("reward", "reward_std", "adv/std", "completions/mean_length"):
        np.testing.assert_allclose(page["notes"][name], logged[name], rtol=1e-5)
    group = next(row for row in lines(out, "rollouts.jsonl") if row["step"] == 2)
    shown = [p for p in page["prompts"] if p["text"] == group["prompt"]]
    assert shown, "all four prompts are shown"
    assert [c["text"] for c in shown[0]["completions"]] == group["completions"]
    np.testing.assert_allclose([c["advantage"] for c in shown[0]["completions"]], group["advantages"], atol=1e-5)
    for name, values in group["rewards"].items():
        assert [c["rewards"][name] for c in shown[0]["completions"]] == pytest.approx(values)


@EACH
def test_log_probs_ratios_and_parts_are_those_of_the_formulas(kind, pages):
    out, page, _ = pages(kind)
    completions = [c for p in page["prompts"] for c in p["completions"]]
    parts = np.zeros(4)
    moved = clipped = 0
    for c in completions:
        assert (c["in_loss"] is None) == (not c["updates"])
        assert c["in_loss"] in (None, c["advantage"])  # adv_negative=1 changes none
        for u in c["updates"]:
            logp, old, ratio, push = (np.array(u[name]) for name in ("logp", "old_logp", "ratio", "push"))
            summed = np.zeros(6)
            for view in u["views"]:
                np.add.at(summed, view["scored"], np.multiply(view["weight"], view["logp"]))
            np.testing.assert_allclose(summed, logp, atol=1e-5)
            counts, share = np.array(u["counts"]), np.array(u["share"])
            np.testing.assert_allclose(ratio, np.exp(logp - old), rtol=1e-4)
            bounded = np.clip(ratio, 1 - 1e-3, 1 + 1e-3)
            loss = -np.minimum(ratio * c["in_loss"], bounded * c["in_loss"])
            np.testing.assert_allclose(u["token_loss"], loss, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(u["part"], loss * share * u["token_weight"], rtol=1e-4, atol=1e-7)
            parts[u["number"]] += np.sum(u["part"])
            moved += int((ratio != 1).sum())
            beyond = (np.sign(c["in_loss"]) * (ratio - 1) > 1.1e-3) & counts & (share > 0)
            assert (push[beyond] == 0).all()
            clipped += int(beyond.sum())
    np.testing.assert_allclose(parts, [u["pg_loss"] for u in page["updates"]], rtol=1e-3, atol=1e-6)
    assert moved and clipped and all((np.array(u["ratio"]) == 1).all() for c in completions for u in c["updates"]
                                     if u["number"] == 0)  # fmt: skip


@EACH
def test_log_probs_before_and_after_are_those_of_the_checkpoints(kind, pages):
    """The checkpoints before and after the iteration score the completions."""
    out, page, _ = pages(kind)
    compared, score = 0, jax.jit(diffusion.view_logp, static_argnames=("cfg", "start"))
    for step, name, number in ((1, "logp", 0), (2, "after", 3)):
        params, shape = checkpoint.load(f"{out}/step-{step:06d}")
        for prompt in page["prompts"]:
            ids = TOK.encode(prompt["text"])
            valid = np.arange(14)[None] >= 8 - len(ids)
            for c in prompt["completions"]:
                x = np.array([[TOK.pad_id] * (8 - len(ids)) + ids + c["ids"]])
                for u in (u for u in c["updates"] if u["number"] == number):
                    masked, weight = np.zeros((1, 8, 14), bool), np.zeros((8, 6))  # of at most 8 views
                    for i, view in enumerate(u["views"]):
                        masked[0, i, 8:], weight[i, view["scored"]] = view["masked"], view["weight"]
                    each, _ = score(params, x, masked, cfg=shape, valid=valid, start=8)
                    counts, expected = np.array(u["counts"]), (weight * each[0, :, 8:]).sum(0)
                    np.testing.assert_allclose(np.array(u[name])[counts], expected[counts], atol=1e-4)
                    compared += 1
    assert compared == 12


def test_rewards_say_what_they_looked_at_and_functions_where_they_are(pages):
    _, page, _ = pages("denoiser")
    prompt = page["prompts"][0]
    low, near = prompt["reads"].values()
    assert low == {"completions": None, "token_ids": None}
    assert near == {"completions": None, "answer": chr(65 + int(prompt["text"].split()[0]))}
    assert page["functions"]["estimator"]["at"] == "variants/estimators.py: trace"
    assert page["functions"]["token_loss"]["says"].startswith("PPO")
    assert not {"out_dir", "init_from"} & page["keys"].keys()


def test_every_function_that_the_page_names_is_there():
    named = re.findall(r'"([\w/]+\.py): (\w+)"', open("tools/anatomy.html", encoding="utf-8").read())
    assert len(named) >= 15
    for file, name in named:
        functions = {n.name for n in ast.walk(ast.parse(open(file).read())) if isinstance(n, ast.FunctionDef)}
        assert name in functions, f"{file}: {name}"


def test_a_finished_run_shows_its_first_iteration_and_its_folder_is_only_read(pages, place, tmp_path, capsys):
    """The iteration after the end learns nothing. The first one starts from what the run started from, whatever
    init_from is now, and has the numbers that the run logged."""
    out, *_ = pages("denoiser")
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    page = write(tmp_path / "finished.html", arguments(place, "denoiser", out, init_from=place / "causal"))
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    logged = next(row for row in lines(out) if row["step"] == 1 and "loss" in row)
    assert page["iteration"] == 1 and page["start"] == "denoiser"
    np.testing.assert_allclose(np.mean([u["loss"] for u in page["updates"]]), logged["loss"], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(page["notes"]["reward"], logged["reward"], rtol=1e-5)
    said = capsys.readouterr().out
    assert f"{out} is finished, so this is its first iteration" in said and "/tmp/tmp" not in said
    assert "iteration 1 of run_denoiser, from denoiser" in said and "resuming" not in said


def test_an_unfinished_run_goes_on_from_its_newest_checkpoint_and_a_new_one_begins(pages, place, tmp_path, capsys):
    out, *_ = pages("denoiser")
    shutil.copytree(out, tmp_path / "run_denoiser")
    shutil.rmtree(tmp_path / "run_denoiser/step-000002")
    page = write(tmp_path / "on.html", arguments(place, "denoiser", tmp_path / "run_denoiser"))
    assert page["iteration"] == 2 and page["start"] == "its checkpoint step-000001"
    new = write(tmp_path / "first.html", arguments(place, "denoiser", tmp_path / "new"))
    assert (new["iteration"], new["start"]) == (1, "denoiser") and not (tmp_path / "new").exists()
    assert "iteration 2 of run_denoiser, from its checkpoint step-000001" in capsys.readouterr().out
    shutil.copytree(out, tmp_path / "run")  # finished, and what it started from is gone
    run = json.loads((tmp_path / "run/step-000002/run.json").read_text())
    run["config"]["init_from"] = "/gone"
    (tmp_path / "run/step-000002/run.json").write_text(json.dumps(run))
    with pytest.raises(ValueError, match=r"began from /gone, which is not there: .* --out_dir=\S+/run/step-000001"):
        write(tmp_path / "x.html", arguments(place, "denoiser", tmp_path / "run"))


@pytest.mark.parametrize("flag, changes, message", [
    ("x.html", dict(objective="pretrain", init_from="None"), "shows an iteration of objective='grpo', and this config"),
    ("train.jsonl", {}, "train.jsonl is there already, and nothing is overwritten"),
    ("train.jsonl/x.html", {}, "train.jsonl cannot be written to; name a file in another one"),
    ("x.html", dict(seed=5), "this would be another: seed=5 (it was 0)"),
    ("x.html", dict(out_dir="out/none/step-000007"), "'out/none/step-000007' is not a folder"),
])  # fmt: skip
def test_what_cannot_work_is_refused(flag, changes, message, pages, place):
    out, *_ = pages("denoiser")
    if changes.get("objective"):
        argv = [str(place / "recipe.py"), "--objective=pretrain"]
    else:
        argv = arguments(place, "denoiser", **{"out_dir": out} | changes)
    with pytest.raises(ValueError, match=re.escape(message)):
        anatomy.write(argv, str(place / flag))


def test_the_flag_is_one_of_train_py(monkeypatch, place):
    called = []
    monkeypatch.setattr(anatomy, "write", lambda *given: called.append(given))
    monkeypatch.setattr("sys.argv", ["train.py", "recipe", "--anatomy=b.html", "--anatomy=a.html", "--seed=1"])
    with pytest.raises(SystemExit) as e:
        runpy.run_path("train.py", run_name="__main__")
    assert called == [(["recipe", "--seed=1"], "a.html")] and not e.value.code


@needs_browser
@EACH
def test_the_page_shows_nine_stations_and_fetches_nothing(kind, pages, browser):
    _, page, path = pages(kind)
    browser.open(path)
    assert browser.run("[...document.querySelectorAll('h2')].map(h => h.textContent[0]).join('')") == "123456789"
    text = browser.run("document.body.innerText")
    assert not re.search("undefined|NaN|\\[object", text)
    about = browser.run("find('about').innerText")
    assert about.startswith(f"Iteration 2 of run_{kind}, from its checkpoint step-000001: GRPO with")
    assert "<b>" in browser.run("find('s1').innerText").replace("\n", "")
    words = {"denoiser": "left and to the right", "causal": "No masked copies are needed", "block": "blocks of 3"}
    assert words[kind] in text
    masks = browser.run("document.querySelectorAll('#s6 .mask').length")
    assert masks == 0 if kind == "causal" else masks > 0
    assert not browser.errors and browser.requests == [path.resolve().as_uri()]


@needs_browser
def test_the_keyboard_reaches_every_station_completion_update_and_step(pages, browser):
    _, page, path = pages("denoiser")
    browser.open(path)
    for key in "19573":
        browser.press(key)
        assert browser.run("document.activeElement.id") == f"h{key}"
    browser.press("j")
    assert browser.run("document.activeElement.id") == "h4"
    browser.press("k")
    assert browser.run("document.activeElement.id") == "h3"
    steps = browser.run("now.step")
    unwritten = "document.querySelectorAll('.unwritten').length"
    assert browser.run(unwritten) == 0
    browser.press(*["ArrowLeft"] * steps)
    assert browser.run(unwritten) == 24 and browser.run("slid.textContent") == "before step 1"
    browser.press("ArrowRight")
    written = sum(step == 0 for c in page["prompts"][0]["completions"] for step in c["step"])
    assert browser.run(unwritten) == 24 - written
    browser.press("u")
    assert browser.run("now.update") == 1 and "The ratio says how far" in browser.run("find('s8').innerText")
    before = browser.run("now.completion")
    browser.press("c")
    assert browser.run("now.completion") == (before + 1) % 4
    browser.press("p")
    assert browser.run("[now.prompt, find('prompt').value]") == [1, "1"]
    assert not browser.errors


@needs_browser
@pytest.mark.parametrize("width, dark", [(1280, False), (400, True)])
def test_the_page_fits_wide_and_narrow_light_and_dark(width, dark, pages, browser):
    browser.open(pages("denoiser")[2], width=width, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
    browser.looks(width, dark)
