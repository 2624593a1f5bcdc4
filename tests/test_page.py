"""tools/page.py: the page of a model computes what JAX computes, fetches nothing, and is used by mouse and keyboard."""
import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from browser import needs_browser
from shared import completed, logits_of, page_data, refused, slow

import data
import model
import sample
from checkpoints import huggingface
from data import learn
from sample import Plan
from system import index
from system.tokens import foreign
from tools import complete, page
from variants import rules  # noqa: F401  (its order)

TOK = data.Tokenizer.bytes()
MASK = TOK.mask_id
PLAIN = model.ModelConfig(vocab_size=259, n_layer=2, n_head=2, d_model=16, mask_id=MASK, eos_id=TOK.eos_id,
                          pad_id=TOK.pad_id, norm_eps=0.05)  # fmt: skip
KINDS = {"plain": PLAIN} | {name: shared.changed(PLAIN, **changes) for name, changes in {
    "shifted": dict(shift=True, qkv_bias=True, n_head=4, n_kv_head=2, d_head=6, d_ff=21),
    "tied": dict(tie_embeddings=True, qk_norm=True, **{"rope.scaling": (8.0, 1.0, 4.0, 16.0)}),
    "causal": dict(causal=True, shift=True),
    "blocks": {"blocks.block": 4}}.items()}  # fmt: skip
HOSTILE = "</script><script>alert(1)</script> <!-- $& %data% %model% ' \" \\ é 日本 \u2028 _ 3_1"


def in_16_bits(params):
    return jax.tree.map(lambda w: w.astype(np.float16).astype(np.float32), params)


def loaded(kind, name=None, seed=0, tok=TOK, trained=None):
    """A model whose predictions differ with the position and what stands around it, its weights numbers of 16 bits."""
    cfg = dataclasses.replace(KINDS[kind], vocab_size=tok.vocab_size, mask_id=tok.mask_id, eos_id=tok.eos_id,
                              pad_id=tok.pad_id)  # fmt: skip
    params = jax.tree.map(np.asarray, model.init(jax.random.key(seed), cfg))
    rng, larger = np.random.default_rng(0), {"q": 3, "k": 3, "o": 8}
    noise = {key: 0.3 * rng.normal(size=(cfg.n_layer, *w.shape)) for key, w in params["blocks"][0].items()
             if key.endswith(("norm", "bias"))}  # fmt: skip
    blocks = [{key: w + noise[key][i] if key in noise else w * larger.get(key, 1) for key, w in layer.items()}
              for i, layer in enumerate(params["blocks"])]  # fmt: skip
    larger = {"embed": 20} if cfg.tie_embeddings else {"embed": 8, "head": 40}
    params = {key: w * larger.get(key, 1) for key, w in params.items() if key != "blocks"} | {"blocks": blocks}
    return complete.Model(name or kind, in_16_bits(params), cfg, tok, trained or {})


def shown(browser, path, models, plan=Plan(steps=4), rows=(), n_new=8, **how):  # noqa: B008
    """Write a page and open it."""
    page.write(str(path), models, page.Setting(plan, n_new, 0), list(rows))
    browser.open(path, **how)


@pytest.fixture(scope="module")
def all_kinds(browser, tmp_path_factory):
    models = [loaded(kind) for kind in KINDS]
    shown(browser, tmp_path_factory.mktemp("kinds") / "all.html", models)
    return dict(zip(KINDS, models, strict=True))


TEXTS = [[65, 66, MASK, MASK, 67, MASK, MASK, MASK, 48, 49, MASK], [MASK] * 11, [*range(40, 51)]]


@needs_browser
@pytest.mark.parametrize("kind", [kind if kind in ("plain", "causal") else slow(kind) for kind in KINDS])
def test_logits_are_those_of_jax(kind, browser, all_kinds):
    one, n = all_kinds[kind], [*KINDS].index(kind)
    for z, expected in zip(TEXTS, logits_of(one.params, jnp.array(TEXTS), one.cfg), strict=True):
        code = f"runs[{n}].model.logits({z}, {[*range(len(z))]}).map(row => [...row])"
        np.testing.assert_allclose(browser.run(code), expected, atol=1e-3)
        assert np.std(np.delete(expected, MASK, 1)) > 1


def filled(browser, n, z, plan, seed=0):
    """What runs[n] makes of z -> its tokens, the steps and the probabilities."""
    plan = json.dumps({name: value for name, value in vars(plan).items() if name != "use"})
    code = f"""(() => {{ const s = begin({z}, {seed}, {MASK});
        while (s.z.includes({MASK})) fillStep(runs[{n}].model, s, {plan});
        return [s.z, s.step, s.p] }})()"""
    return browser.run(code)


PLANS = [Plan(rule="quota", steps=3), Plan(rule="threshold", threshold=0.3)]
MORE = [Plan(rule="static", steps=5), Plan(order="left"),
        Plan(rule="dynamic", steps=6, threshold=0.4), Plan(order="margin", steps=3), Plan(order="entropy", steps=3),
        Plan(block_len=3, steps=5), Plan(order="sampled", steps=2),
        Plan(early_end=True, steps=7), Plan(order="random", steps=1)]  # fmt: skip
CASES = [("plain", plan, ()) for plan in PLANS] + [("plain", plan, pytest.mark.slow) for plan in MORE]
CASES += [(kind, plan, pytest.mark.slow) for kind in KINDS if kind not in ("plain", "causal") for plan in PLANS[1:2]]
CASES += [("causal", Plan(order="left"), pytest.mark.slow)]


def starts(n=12):
    """Texts of 16 tokens, between 6 and 16 of which are masked."""
    rng = np.random.default_rng(0)
    z = rng.integers(48, 58, (n, 16))
    z[:, 4:] = MASK
    z[: n // 2] = np.where(rng.random((n // 2, 16)) < 0.5, rng.integers(48, 58, (n // 2, 16)), MASK)
    return z


@needs_browser
@pytest.mark.parametrize("kind, plan", [pytest.param(kind, plan, marks=marks) for kind, plan, marks in CASES])
def test_tokens_at_temperature_0_and_their_steps_are_those_of_generate(kind, plan, browser, all_kinds):
    one, z = all_kinds[kind], starts()
    z = z[6:] if kind == "causal" else z  # there a given token between masks takes a step, in the page none
    x, trace = sample.generate(one.params, jax.random.key(0), jnp.array(z), one.cfg, plan)
    step, p = np.asarray(trace["step"]), np.where(z == MASK, np.exp(trace["logp"]), 0)
    for b, row in enumerate(z.tolist()):
        ours = filled(browser, [*KINDS].index(kind), row, plan)
        assert ours[0] == x[b].tolist() and ours[1] == step[b].tolist()
        np.testing.assert_allclose(ours[2], p[b], atol=1e-4)
    assert len({*np.asarray(x)[z == MASK].tolist()}) > 5


@needs_browser
def test_the_rest_is_filled_with_ends_of_text(browser, tmp_path):
    one = loaded("plain")
    head = np.where(np.arange(259) == TOK.eos_id, 3, 1) * one.params["head"]
    one = one._replace(params=one.params | {"head": in_16_bits(head)})
    shown(browser, tmp_path / "ends.html", [one])
    z, plan = starts(), Plan(steps=12, early_end=True)
    x, trace = sample.generate(one.params, jax.random.key(0), jnp.array(z), one.cfg, plan)
    ours = [filled(browser, 0, row, plan) for row in z.tolist()]
    assert [row[0] for row in ours] == x.tolist() and [row[1] for row in ours] == trace["step"].tolist()
    assert ((np.asarray(x) == TOK.eos_id) & (z == MASK)).sum() > 5


@needs_browser
def test_tokens_are_drawn_as_often_as_they_are_probable(browser, all_kinds):
    z, n = [65, MASK, 67], 2000
    p = np.asarray(jax.nn.softmax(logits_of(all_kinds["plain"].params, jnp.array([z]), PLAIN)[0, 1] / 1.3))
    code = f"""Array.from({{length: {n}}}, (_, seed) => {{ const s = begin({z}, seed, {MASK});
        fillStep(runs[0].model, s, {{...data.plan, temperature: 1.3}}); return s.z[1] }})"""
    count = np.bincount(browser.run(code), minlength=259)
    often = n * p > 5
    assert often.sum() > 5 and ((count - n * p)[often] ** 2 / (n * p)[often]).sum() < 3 * often.sum()
    rows = np.array(browser.run("Array.from({length: 20000}, (_, n) => uniform(n % 50, n / 50 | 0, n % 7, 0))"))
    assert 0 < rows.min() and rows.max() < 1 and abs(np.histogram(rows, 20, (0, 1))[0] - 1000).max() < 150


@needs_browser
@pytest.mark.parametrize("kind", ["bytes", slow("trained")])
def test_texts_become_the_tokens_of_the_tokenizer_and_back(kind, browser, tmp_path):
    tok = TOK if kind == "bytes" else learn.tokenizer([HOSTILE, "the other thing 123 123\n    then"] * 9, 300)
    shown(browser, tmp_path / "tokens.html", [loaded("plain", tok=tok)], n_new=5)
    texts = [HOSTILE, "", "1_3__", "the _ thing", "f(x_1) __init__", r"1\_3_ \__", "a<|mask|>b<|eos|>",
             "e\u0301 123\n    the", "né_ _è a1_2 _"]  # fmt: skip
    for text in texts:
        ids, start = complete.encode(text, tok, tok.mask_id, "auto", 5)
        assert browser.run(f"encodePrompt({json.dumps(text)})") == {"ids": ids, "start": start}
        plain = tok.encode(text)
        assert browser.run(f"encode({json.dumps(text)})") == plain
        assert browser.run(f"decode({plain})") == tok.decode(plain)
    assert browser.run(f"decode([226, 128, 65, {tok.eos_id}])") == tok.decode([226, 128, 65, tok.eos_id])


GRID = "1234341221434321"
ROWS = [{"prompt": "".join("." if i % 4 == n else digit for i, digit in enumerate(GRID)) + ":", "completion": GRID}
        for n in range(3)]  # fmt: skip
SUDOKU = {"max_prompt_len": 17, "max_new_tokens": 16, "rewards": ["sudoku_all"], "eval_rewards": []}


def state(browser, n=0):
    return browser.run(f"({{...runs[{n}].s, seed: 0}})")


@pytest.fixture
def pair(browser, tmp_path):
    """A page of two models that have not been trained, before and after."""
    models = [loaded("plain", name, seed, trained=SUDOKU) for seed, name in enumerate(("before", "after"))]
    shown(browser, tmp_path / "pair.html", models, rows=ROWS, n_new=16)
    return browser


@needs_browser
def test_masks_are_filled_in_both_panels_and_nothing_is_fetched(pair):
    assert pair.run("document.title") == "before and after"
    assert pair.run("document.querySelectorAll('.token.mask').length") == 32
    pair.run("find('step').click()")
    assert pair.run("document.querySelectorAll('.token.mask').length") == 24  # a quarter of each
    pair.run("find('fill').click()")
    pair.wait("runs.every(isDone)")
    assert pair.run("runs.map(run => run.s.n)") == [4, 4]
    for n in range(2):
        s = state(pair, n)
        blue = pair.run(f"[...runs[{n}].tokens.children].map(b => +b.style.getPropertyValue('--sure'))")
        np.testing.assert_allclose(blue, s["p"][17:], atol=1e-6)
        assert pair.run(f"runs[{n}].status.textContent").endswith(": wrong")
    assert state(pair, 0)["z"] != state(pair, 1)["z"]
    assert not pair.errors and all(url.startswith("file:") for url in pair.requests) and len(pair.requests) == 1


@needs_browser
@pytest.mark.parametrize("text, masks", [("3.4. 0.13\\n1_32\\n....", 9), ("3142421313242431", 0), ("", 16), ("31", 0)])
def test_a_sudoku_may_be_typed_with_points_zeros_and_line_breaks(browser, tmp_path, text, masks):
    rows = [{"prompt": "", "masked": "<|mask|>" + GRID[1:], "completion": GRID}]
    shown(browser, tmp_path / "x.html", [loaded("plain", trained=SUDOKU)], rows=rows, n_new=16)
    browser.run(f"find('prompt').value = '{text}'; restart()")
    assert browser.run("runs[0].s.z.filter(id => id === data.mask).length") == masks
    assert browser.run("prompt.ids.length") == (2 if text == "31" else 16) and not browser.errors


@needs_browser
def test_both_models_draw_with_the_same_random_numbers(browser, tmp_path):
    shown(browser, tmp_path / "same.html", [loaded("plain", name) for name in ("one", "two")], Plan(temperature=2.0))
    assert browser.run("find('prompt').value + find('note').textContent") == ""
    assert browser.run("find('rows').hidden")
    fill = "while (!runs.every(isDone)) onePass()"
    browser.run(fill)
    first = state(browser)["z"]
    assert state(browser, 1)["z"] == first
    browser.run("find('seed').value = 5; restart(); " + fill)
    assert state(browser)["z"] != first


@needs_browser
def test_the_keyboard_reaches_everything(pair):
    pair.run("while (!runs.every(isDone)) onePass(); find('clear').focus()")
    pair.press("Tab")
    assert pair.run("document.activeElement.dataset.column") == "17"
    pair.press("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowUp")
    assert pair.run("document.activeElement.dataset.column") == "21"
    before = state(pair)
    head = pair.run("runs[0].details.firstChild.textContent")
    assert head.startswith("Token 5: ") and f"written in pass {before['step'][21] + 1}" in head
    assert pair.run("runs[0].details.querySelectorAll('button').length") == 5
    pair.press("Enter")  # takes it back
    taken = state(pair)
    assert taken["z"][21] == MASK and taken["z"][:21] == before["z"][:21] and taken["z"][22:] == before["z"][22:]
    assert pair.run("find('fill').textContent") == "Go on"
    pair.press("Tab", "Tab", "Enter")  # the second alternative
    assert state(pair)["z"][21] == before["top"][21][1][0] and state(pair)["p"][21] == before["top"][21][1][1]
    pair.run("for (const column of [21, 22, 30]) takeBack(runs[0], column); find('fill').click()")
    pair.wait("runs.every(isDone)")
    assert state(pair)["n"] == before["n"] + 3 and state(pair, 1)["n"] == 4  # four passes are enough for one at a time


@needs_browser
def test_the_page_begins_with_a_row_that_tells_the_models_apart(browser, tmp_path):
    trained = SUDOKU | {"rewards": ["exact"]}  # the answer decides, not the rules of sudoku
    models = [loaded("plain", name, seed, trained=trained) for seed, name in enumerate(("before", "after"))]
    ids, plan = TOK.encode(ROWS[1]["prompt"]) + [MASK] * 16, Plan(steps=4, block_len=16)
    x = sample.generate(models[1].params, jax.random.key(0), jnp.array([ids]), models[1].cfg, plan)[0]
    rows = [ROWS[0], ROWS[1] | {"completion": TOK.decode(np.asarray(x)[0, 17:])}]
    shown(browser, tmp_path / "rows.html", models, Plan(steps=4), rows, 16)
    assert browser.run("[find('row').value, find('prompt').value]") == ["1", rows[1]["prompt"]]
    begins = "The page begins with a row that before gets wrong and after right."
    assert browser.run("find('note').textContent") == begins and browser.run("find('threshold').parentNode.hidden")
    browser.run("find('rule').value = 'threshold'; showNumbers(); while (!runs.every(isDone)) onePass()")
    assert not browser.run("find('threshold').parentNode.hidden")


ALMOST = "12343412214343__"
OWN = [  # a puzzle, the digits for its masks -> the cells that are marked, the verdict
    (ALMOST, "21", [], "right"),
    (ALMOST, "22", [7, 14, 15], "wrong"),  # in the same column, row and square
    (ALMOST, "1_", [6, 14], None),
    ("1" + "_" * 15, "234341221434321", [], "right"),
    ("11" + "_" * 14, "34341221434321", [0, 1, 9], "wrong"),
    ("." + "_" * 15, "", [0], None),
    ("5" + "_" * 15, "", [0], None),
    ("1_1", "1", [], None),
]
TYPE = """find('prompt').value = %s; restart(); %s.forEach((digit, n) => {
    if (digit !== "_") put(runs[0], runs[0].s.asked.indexOf(true) + n, digit.charCodeAt(0), 1) });
    [[...runs[0].tokens.children].flatMap((e, n) => e.classList.contains("bad") ? [n] : []),
     runs[0].status.textContent.split(": ")[1] ?? null]"""


@needs_browser
def test_the_rules_of_sudoku_decide_about_a_puzzle_of_ones_own(browser, tmp_path):
    in_place = loaded("plain", trained=SUDOKU | {"max_prompt_len": 0})
    shown(browser, tmp_path / "own.html", [in_place], n_new=16)
    for puzzle, digits, *expected in OWN:
        assert browser.run(TYPE % (json.dumps(puzzle), [*digits])) == expected, (puzzle, digits)
    shown(browser, tmp_path / "d1.html", [loaded("plain", trained=SUDOKU)], n_new=16)
    for digits, *expected in [(GRID, [], "right"), ("2143432112343412", [*range(14)], "wrong")]:
        assert browser.run(TYPE % (json.dumps(ALMOST.replace("_", ".") + ":"), [*digits])) == expected
    assert not browser.errors


@needs_browser
@pytest.mark.parametrize("width, dark", [(1280, False), (400, True)])
def test_the_page_fits_wide_and_narrow_light_and_dark(width, dark, browser, tmp_path):
    models = [loaded("plain", name, trained=SUDOKU) for name in ("before", "after_" + "x" * 30)]
    shown(browser, tmp_path / "fits.html", models, rows=ROWS, n_new=16, width=width, dark=dark)
    browser.run("while (!runs.every(isDone)) onePass(); showDetails(runs[0], 20)")
    browser.looks(width, dark)
    tops = browser.run("[...document.querySelectorAll('article')].map(e => e.getBoundingClientRect().top)")
    assert (tops[0] == tops[1]) == (width == 1280)  # side by side, or one below the other
    browser.run("find('prompt').value = 'x'.repeat(300); restart()")
    browser.looks(width, dark)
    assert browser.run("find('note').textContent") == "316 tokens: the model was trained on at most 33."


@needs_browser
def test_hostile_rows_and_names_are_text(browser, tmp_path):
    one = loaded("plain", "a<b>&amp;%model%", trained=SUDOKU)
    shown(browser, tmp_path / "hostile.html", [one], rows=[{"prompt": HOSTILE, "completion": HOSTILE}])
    assert browser.run("document.title + runs[0].name") == 2 * "a<b>&amp;%model%"
    assert browser.run("data.rows") == [{"prompt": HOSTILE, "answer": HOSTILE, "holes": False}]
    assert browser.run("prompt.ids.slice(0, -8)") == TOK.encode(HOSTILE)  # a _ in a row is no hole
    assert not browser.errors and browser.run("document.scripts.length") == 2


COMMITTED = "assets/play.html"


def test_the_committed_page_is_what_the_command_writes_now():
    source = open(COMMITTED, encoding="utf-8").read()
    words = re.split("%(?:title|data|model)%", open("tools/page.html", encoding="utf-8").read())
    assert all(word in source for word in [*words, open("tools/page.js", encoding="utf-8").read()]), (
        f"write it anew: python sample.py assets/sudoku_base assets/sudoku_grpo --page={COMMITTED}")  # fmt: skip


def test_the_page_is_short_knows_every_order_and_rule_and_refuses_what_is_added_later():
    assert {*page.ORDERS} == {*sample.ORDERS} and {*page.RULES} <= {*sample.RULES}
    source = open("tools/page.js").read()
    for table, names in (("ORDERS", page.ORDERS), ("RULES", page.RULES)):
        body = source.split(f"const {table} = {{")[1].split("\n};")[0]
        assert {*re.findall(r"^  (\w+): ", body, re.M)} == {*names}
    assert sum(not re.fullmatch(r"\s*(//.*)?", line) for line in source.splitlines()) <= 220
    later = dataclasses.make_dataclass("Later", [("new", int, 3)], bases=(Plan,), frozen=True)
    assert page.differing(later(order="left"), page.PLAN) == {}
    assert page.differing(later(new=4), page.PLAN) == {"new": 4}
    fields = {field.name for field in dataclasses.fields(model.ModelConfig)} | index.all_keys().keys()
    assert page.SWITCHES <= fields and page.PLAN <= fields | vars(Plan()).keys()


@pytest.fixture
def folder(tmp_path):
    """The out_dir of a run with one checkpoint."""
    one = loaded("plain")
    place = tmp_path / "tiny_grpo" / "step-000003"
    huggingface.save(place, one.params, one.cfg)
    TOK.save(place)
    run = {"config": SUDOKU | {"dataset": "sudoku", "order": "margin", "diffusion_steps": 4, "difficulty": [12, 12]}}
    (place / "run.json").write_text(json.dumps(run))
    return str(tmp_path / "tiny_grpo")


def test_sample_py_writes_the_page_of_a_run_with_its_held_out_rows(folder, capsys, tmp_path):
    target = f"{tmp_path}/new/play.html"
    second = f"{folder}/step-000003"
    code, out, err = completed(capsys, folder, second, f"--page={target}", "--rule=threshold", "--seed=7")
    assert code == 0 and "step-000003" in err
    assert out == f"{target}: open it in a browser\n"
    content = page_data(target)
    assert [spec["name"] for spec in content["models"]] == ["tiny_grpo/step-000003"] * 2 and content["seed"] == 7
    assert page.names_of(["out/a/step-000003", "out/b"]) == ["a", "b"]
    assert (content["plan"]["order"], content["plan"]["rule"], content["plan"]["steps"]) == ("margin", "threshold", 4)
    rows = content["rows"]
    assert len(rows) == 100 and content["exact"] and content["n_new"] == 16 and content["longest"] == 33
    assert all(row["prompt"].count(".") == 12 and len(row["answer"]) == 16 for row in rows)
    assert not re.search(r"(src|href)=|url\(|@import", open(target).read().split("<body>")[0])
    code, _, err = completed(capsys, folder, f"--page={target}")
    assert code == 2 and "is there already, and nothing is overwritten" in err


@pytest.mark.parametrize("name", ["base", "grpo"])
def test_the_page_of_one_run_that_fills_in_texts_has_its_held_out_rows(name, capsys, tmp_path):
    code, _, err = completed(capsys, f"assets/sudoku_{name}", f"--page={tmp_path}/x.html")
    rows = page_data(f"{tmp_path}/x.html")["rows"]
    assert code == 0 and not err and len(rows) == 100 and rows[0]["holes"] and "_" in rows[0]["prompt"]


def test_rows_come_from_a_file_and_a_model_without_a_run_has_none(folder, capsys, tmp_path):
    (tmp_path / "my.jsonl").write_text('{"prompt": "1", "answer": 2}\n')
    assert completed(capsys, folder, f"--page={tmp_path}/1.html", f"--data={tmp_path}/my.jsonl")[0] == 0
    assert page_data(f"{tmp_path}/1.html")["rows"] == [{"prompt": "1", "answer": "2", "holes": False}]
    (tmp_path / "tiny_grpo/step-000003/run.json").write_text(json.dumps({"config": SUDOKU | {"dataset": "not there"}}))
    code, _, err = completed(capsys, folder, f"--page={tmp_path}/2.html")
    assert code == 0 and "the page has no held-out rows, --data=FILE gives it some (no data set 'not there'" in err
    (tmp_path / "tiny_grpo/step-000003/run.json").unlink()
    code, _, err = completed(capsys, folder, f"--page={tmp_path}/3.html")
    content = page_data(f"{tmp_path}/3.html")
    assert code == 0 and content["rows"] == [] and not content["exact"] and content["n_new"] == 128


@pytest.mark.parametrize("arguments, message", [
    (["--page=X", "--rule=factor"], "rule='factor': the page has only quota, threshold, static, dynamic; give --rule="),
    (["--page=X", "--top_k=3"], "top_k=3: the page has no such setting, give --top_k=None"),
    (["--page=X", "--repetition_penalty.penalty=1.3"], "penalty=1.3: the page has no such setting, leave it out"),
    (["--page=X", "--prompt=a"], "--page and --prompt do not"), (["--page=X", "--show"], "--show and --page do not"),
    (["--page=X", "--out=x.jsonl"], "--page and --out do not go together"),
    (["out/other"], "error: only --page=FILE.html takes a second folder, to show two models side by side\n"),
])  # fmt: skip
def test_flags_that_the_page_does_not_have_are_refused(folder, capsys, tmp_path, arguments, message):
    code, out, err = completed(capsys, folder, *(word.replace("X", f"{tmp_path}/x.html") for word in arguments))
    assert code == 2 and message in err and not (tmp_path / "x.html").exists()


def test_a_run_with_a_rule_that_the_page_lacks_has_a_page_with_another_rule(folder, capsys, tmp_path):
    of_run = {"config": SUDOKU | {"rule": "entropy", "entropy.budget": 0.3, "model.mlp": "dense"}}
    (tmp_path / "tiny_grpo/step-000003/run.json").write_text(json.dumps(of_run))
    code, _, err = completed(capsys, folder, f"--page={tmp_path}/x.html")
    assert code == 2 and "rule='entropy': the page has only quota" in err and "give --rule=quota" in err
    code, _, err = completed(capsys, folder, f"--page={tmp_path}/x.html", "--rule=quota")
    assert code == 0 and page_data(f"{tmp_path}/x.html")["plan"]["rule"] == "quota", err


def test_models_that_the_page_cannot_run_are_refused(tmp_path):
    one, setting = loaded("plain"), page.Setting(Plan(), 8, 0)
    of = lambda **changes: [one._replace(cfg=shared.changed(one.cfg, **changes))]
    other = data.Tokenizer.from_ranks({bytes([b]): b for b in range(256)} | {b"ab": 256})
    engine = foreign.package().Tokenizer.from_str(json.dumps(TOK.content()))
    elsewhere = foreign.Foreign(engine, TOK.roles, bos=("<|eos|>",))
    for models, message in [
        (of(gemma=True), "has mlp=gemma, which the page lacks"),
        (of(**{"gemma.window": 4}), "has mlp=gemma"),
        (of(**{"moe.n_experts": 4}), "has mlp=moe"),
        (of(**{"blocks.block": 4}, shift=True), "blocks.block=4 and shift=True"),
        (of(mask_id=None), "has no mask token"),
        ([one._replace(params={"x": np.zeros(5_000_001)})], "has 5,000,001 parameters, and a page takes at most 5,0"),
        ([one._replace(params=model.init(jax.random.key(0), one.cfg, 1))], "is a judge"),
        ([one._replace(tok=elsewhere)], "has a tokenizer from elsewhere"),
        ([one, loaded("plain", tok=other)], "have two tokenizers"),
        ([one._replace(trained={"texts.instruction": "Add."})], "texts.instruction=Add., which the page lacks"),
        ([one._replace(params=jax.tree.map(lambda w: w * 1e6, one.params))], "weights that float16 cannot hold"),
    ]:
        refused(re.escape(message), page.write, f"{tmp_path}/x.html", models, setting, [])
    assert not (tmp_path / "x.html").exists()
