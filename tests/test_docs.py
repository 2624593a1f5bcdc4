"""The documents: few, short, linked, and true where that can be run."""
import ast
import glob
import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
import tables
from shared import refused

import config
import diffusion
import grpo
import model
import rewards
import rl
import sample
import train
from checkpoints import checkpoint, families, family, foreign, huggingface
from system import index, sections
from tools import complete
from tools import options as options_of_sample
from variants import blocks

TINY = model.ModelConfig(vocab_size=7, n_layer=1, n_head=2, d_model=16, mask_id=6)
PAGES = sorted(glob.glob("docs/*.md"))
LONGEST = {"README.md": 140, "config/README.md": 40, "tests/README.md": 60}  # in lines
MOST_PAGES, MOST_WORDS = 13, 15_000  # of docs/, the notebook and one_file.py apart
READ = [*PAGES, *LONGEST]
CODE = "diffusion", "grpo", "model", "rewards", "rl", "sample", "train", "config"
CODE = {name: name for name in CODE} | {
    "checkpoint": "checkpoints.checkpoint", "runs": "loop.runs",
    "data": "data", "texts": "data.texts", "blocks": "variants.blocks",
    "caches": "variants.caches", "kernels": "system.kernels", "slots": "variants.slots",
    "huggingface": "checkpoints.huggingface", "family": "checkpoints.family", "memory": "loop.memory"}  # fmt: skip


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def test_pages_are_short_and_few():
    words = {path: len(read(path).split()) for path in [*PAGES, "README.md"]}
    assert not {path: most for path, most in LONGEST.items() if len(read(path).splitlines()) > most}
    assert words.pop("README.md") <= 1500 and len(PAGES) <= MOST_PAGES and sum(words.values()) <= MOST_WORDS


def anchors(path):
    """Return the names that links give to the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", read(path), flags=re.S), re.M)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("path", READ)
def test_every_link_and_picture_of_a_page_is_there(path):
    text = re.sub(r"```.*?```", "", read(path), flags=re.S)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        file = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        assert os.path.exists(file), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_every_page_that_the_program_names_is_there():
    files = [*glob.glob("*.py"), *glob.glob("*/*.py"), *glob.glob("*/*.txt"), "docs/walkthrough.ipynb"]
    named = {page for file in files for page in re.findall(r"\bdocs/[\w-]+\.(?:md|py|ipynb)", read(file))}
    assert not [page for page in named if not os.path.exists(page)]


def test_the_readme_links_every_page_and_the_list_has_every_recipe():
    index = read("README.md").split("## Documentation")[1]
    assert not [path for path in PAGES if f"]({path})" not in index]
    assert not [path for path in PAGES if not read(path).splitlines()[0].endswith("?")]
    listed = set(re.findall(r"`(\w+)`", read("config/README.md")))
    assert {os.path.basename(f)[:-3] for f in shared.tracked("config/[a-z]*.py")} <= listed


@pytest.mark.parametrize("path", READ)
def test_every_file_and_function_that_a_page_names_is_there(path):
    text = read(path)
    folders = "assets|checkpoints|config|data|docs|judges|loop|system|tests|tokens|tools|variants"
    for file in re.findall(rf"`((?:{folders})/[\w/]+\.\w+)`", text):
        assert os.path.exists(file), file
    for module, name in re.findall(r"`(\w+)\.(\w+)`", text):
        if module in CODE and name not in ("py", "md", "jsonl"):
            is_key = index.find_key(f"{module}.{name}")
            assert is_key or hasattr(importlib.import_module(CODE[module]), name), f"{module}.{name}"


def commands(text):
    """Find the words of each `python train.py config/...` of a page or a docstring, without those for its other pages.

    They end at a comment, and where prose begins in a column of its own."""
    lines = re.findall(r"python train\.py (config/[^#`\n]*)", re.sub(r" *\\+\n\s*", " ", text))
    words = [re.split(" {3,}|&&", line)[0].replace('"', "'") for line in lines if line.count('"') % 2 == 0]
    return [re.findall(r"(?:^|--(?!model=|plan=|anatomy=|key=)[\w.]+=)(?:'[^']*'|[^\s'])+", line) for line in words]


def test_every_key_in_a_command_of_a_page_or_a_docstring_is_one():
    of_any = config.Config(objective="grpo", init_from="x")
    files, count = [*READ, *glob.glob("*.py"), *glob.glob("*/*.py"), *glob.glob("data/*/*.py")], 0
    for recipe, *flags in (words for file in files for words in commands(read(file))):
        _, args = config.parse_arguments(flag.replace("'", "") for flag in flags)
        cfg = config.run_file(recipe)["config"] if os.path.exists(recipe) else of_any
        config.override(cfg, args | {"out_dir": "out/new"} if "resume" not in args else args)
        count += 1
    assert count > 100


def test_the_flags_with_which_authors_sampled_are_a_plan():
    table = read("docs/checkpoints.md").split("## How did the authors sample?")[1].split("\n## ")[0]
    flags = re.findall("`(--.+=.+?)`", table)
    assert len(flags) == 12
    for found in map(str.split, flags):
        options, others = options_of_sample.parser().parse_known_args(["folder", *found])
        assert not others and sections.changed(sample.Plan(), complete.typed_plan(options))


def test_the_row_that_a_recipe_shows_has_what_its_reward_reads():
    row = json.loads(re.search(r"\{.*\}", read("config/countdown_hour.py").split('"""')[1])[0])
    columns = {name: [value] for name, value in row.items() if name != "prompt"}
    reward = rewards.resolve(["countdown"])["countdown"]
    found = rewards.call_reward("countdown", reward, [row["prompt"]], ["79-44=35,35+15=50"], columns)
    assert np.asarray(found).tolist() == [1.0]


def test_the_flags_of_experts_make_a_model_that_a_folder_can_hold():
    flags = re.search(r"`(--moe[^`]*)`", read("docs/checkpoints.md"))[1].split()
    _, args = config.parse_arguments(flags)
    assert huggingface.family_of(config.override(config.Config(), args).model) == "sdar_moe"


def test_the_lines_of_the_page_draw_two_runs_over_each_other(tmp_path, monkeypatch):
    plots = pytest.importorskip("matplotlib.pyplot")
    code = read("docs/watching.md").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    for n, run in enumerate(("sudoku_grpo", "elbo")):
        (tmp_path / "out" / run).mkdir(parents=True)
        rows = [{"step": 0, "val/greedy": 0.5}, {"step": 1, "reward": 0.1 * n}, {"step": 2, "reward": None}]
        (tmp_path / "out" / run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    exec(code, {})
    assert [line.get_ydata()[0] for line in plots.gca().lines] == [0, 0.1] and os.path.exists("compare.png")


def test_the_iteration_of_the_readme_calls_what_the_program_calls_in_this_order():
    code = read("README.md").split("## The whole algorithm")[1].split("```python\n")[1].split("```")[0]
    calls = re.findall(r"([\w.]+\()", re.sub(r" *#.*", "", code))
    source = "".join(inspect.getsource(f) for f in (train.iteration, rl.policy_loss))
    assert re.search(".*?".join(map(re.escape, calls)), source, re.S) and len(calls) == 11


@pytest.mark.slow
def test_the_core_copied_into_another_folder_runs_the_lines_of_the_page(tmp_path):
    section = read("docs/own-task.md").split("## In your own code")[1]
    words, code, _ = section.split("```", 2)
    for file in re.findall(r"`([\w/]+\.py|\w+/)`", words):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (shutil.copytree if file.endswith("/") else shutil.copy)(file, tmp_path / file)
    code = code.removeprefix("python\n")
    ran = shared.python("-c", code, cwd=tmp_path)
    assert ran.stdout.strip() == code.rsplit("# ", 1)[1].strip() == "[[3 4 5 6 7 8 9 0]]", ran.stderr
    (tmp_path / "alone").mkdir()
    shutil.copy("grpo.py", tmp_path / "alone")
    assert shared.python("-c", "import grpo", cwd=tmp_path / "alone").returncode == 0


# ---- docs/results/: the tables of the pages --------------------------------------------------------------------------


@pytest.mark.parametrize("path", tables.PAGES)
def test_the_tables_of_a_page_are_those_of_the_results(path):
    assert read(path) == tables.written(path), "python tests/tables.py writes them"
    there = re.findall(r"<!-- results: (\w+) -->", read(path))
    assert there == {"README.md": ["six"], "docs/results.md": ["recipes", "machines"], "docs/hardware.md": ["cards"],
                     "docs/estimators.md": ["sudoku", "countdown"]}[path]  # fmt: skip


def test_every_result_says_what_was_run():
    recipes, machines = {r["recipe"] for r in tables.rows("recipes")}, {r["machine"] for r in tables.rows("machines")}
    for r in tables.rows("runs"):
        assert r["recipe"] in recipes and os.path.exists(f"config/{r['recipe']}.py")
        assert r["command"].startswith(f"python train.py config/{r['recipe']}.py")
        assert r["machine"] in machines | {""} and re.fullmatch(r"(\d{4}-\d\d-\d\d)?", r["date"])
        assert float(r["after"].rstrip("%")) >= 0 and r["metric"]


def test_the_hash_of_a_result_changes_with_its_recipe_and_the_frozen_numbers_and_not_with_prose(tmp_path, monkeypatch):
    def bare(text):
        tables.bare.cache_clear()
        (tmp_path / "a.py").write_text(text)
        return tables.bare(str(tmp_path / "a.py"))

    code = 'x = [\n    "a",\n    "b"]\ndef f():\n    return "c"\n'
    prose = '"""Two\nlines."""\n\nx = [\n    "a",  # why\n    "b"]\ndef f():\n    # also\n    "Say."\n    return "c"\n'
    assert bare(prose) == bare(code) != bare(code.replace('"b"', '"d"'))
    tables.bare.cache_clear()
    record, recipes = json.load(open(tables.NUMBERS)), ("sudoku_grpo", "code_grpo")
    before = [tables.code(name) for name in recipes]
    monkeypatch.setattr(tables, "NUMBERS", str(tmp_path / "numbers.json"))
    for changed, differ in (("rows arith_ar_grpo", [False, True]), ("steps sudoku_base", [True, True])):
        (tmp_path / "numbers.json").write_text(json.dumps(record | {changed: 0}))
        assert [tables.code(name) != was for name, was in zip(recipes, before, strict=True)] == differ


# ---- docs/adding.md: every example runs ------------------------------------------------------------------------------

BLOCKS = re.findall(r"```(\w+)\n(.*?)```", read("docs/adding.md"), re.S)
EXAMPLES = {re.match(r"# (\S+)", code)[1]: code for kind, code in BLOCKS if kind == "python"}


@pytest.fixture
def added(monkeypatch):
    """Run an example at the end of the file that it is for; the table that it extends is restored afterwards."""

    def run(file, module, *tables):
        for table in tables:
            monkeypatch.setattr(module, table, dict(getattr(module, table)))
        exec(EXAMPLES[file], dict(vars(module)))

    return run


def as_file(path, monkeypatch):
    """Run an example as the file that it is for -> its module."""
    module = types.ModuleType(path.removesuffix(".py").replace("/", "."))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(EXAMPLES[path], vars(module))
    return module


def test_the_rule_of_the_page_fills_a_part_of_the_masks_that_are_left(monkeypatch):
    monkeypatch.setitem(sample.RULES, "portion", None)  # so that it is taken out again
    portion = as_file("variants/portion.py", monkeypatch)
    b = sample.Block(jnp.ones((1, 4), bool), jnp.array([[2, 0, 3, 1]]), jnp.ones((1, 4)), jnp.zeros((1, 4)),
                     jnp.array([[0]]), jnp.array([[4]]))  # fmt: skip
    for share, fills in ((0.1, [False, True, False, False]), (0.6, [True, True, False, True])):
        plan = types.SimpleNamespace(use=(portion.Keys(share),))
        assert sample.RULES["portion"](b, plan).tolist() == [fills]


USED = """if True:
    import jax, jax.numpy as jnp
    import config, model, sample
    cfg = config.load(["config/sudoku_grpo.py", "--rule=portion", "--portion.share=0.3"])
    plan = sample.plan(cfg, 1.0)
    shape = model.ModelConfig(vocab_size=7, n_layer=1, n_head=2, d_model=16, mask_id=6)
    params, z = model.init(jax.random.key(0), shape), jnp.full((2, 6), 6)
    x, _ = sample.generate(params, jax.random.key(1), z, shape, plan)
    print(plan.use[0].share, (x == 6).any(), config.load(["config/sudoku_grpo.py", "--rule=portion"]).use[0].share)
    try:
        config.load(["config/sudoku_grpo.py", "--portion.share=0.3"])
    except ValueError as unused:
        print(unused)
    config.load(["config/sudoku_grpo.py", "--rule=portion", "--portion.share=3.0"])"""


@pytest.mark.slow
def test_the_rule_of_the_page_is_used_with_its_parameter_from_the_command_line(tmp_path):
    for path in glob.glob("*.py") + glob.glob("*/*.py") + glob.glob("data/sudoku*/*.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / path)
    (tmp_path / "variants/portion.py").write_text(EXAMPLES["variants/portion.py"])
    ran = shared.python("-c", USED, cwd=tmp_path)
    assert ran.stdout.startswith("0.3 False 0.1\nthe keys of portion change nothing here, they are for rule='portion'")
    assert "portion.share=3.0 must be from 0 to 1" in ran.stderr, ran.stderr


def test_the_estimator_of_the_page_masks_every_token_once_in_five_views(added):
    added("diffusion.py", diffusion, "ESTIMATORS")
    assert [config.views_made(diffusion.ESTIMATORS["fifths"], n) for n in (1, 2)] == [5, 5]  # whatever logp_views is
    completion = jnp.ones((4000, 3), bool)
    masked, weight, share = diffusion.views(jax.random.key(0), "fifths", completion, n=2)
    assert masked.shape == weight.shape == (4000, 5, 3) and (share == 1).all()
    np.testing.assert_array_equal(weight, masked)
    np.testing.assert_array_equal(masked.sum(1), 1)
    np.testing.assert_allclose(masked.mean((0, 2)), 0.2, atol=0.02)


def test_the_loss_of_the_page_and_of_the_readme_weighs_reinforce_with_what_is_left_of_a_probability(added):
    assert re.search(r"return -.*", EXAMPLES["grpo.py"])[0] in read("README.md")
    added("grpo.py", grpo, "LOSSES")
    logp, mask = jnp.log(jnp.array([[0.5, 0.9, 0.1]] * 2)), jnp.ones((2, 3), bool)
    weight = grpo.token_weights("unsure", mask, 3)
    batch = grpo.LossBatch(jnp.array([1.0, -2.0]), mask, weight, weight)
    gradient = jax.jit(jax.grad(lambda logp: grpo.loss(logp, batch, grpo.LossConfig(loss="unsure"))[0]))(logp)
    np.testing.assert_allclose(gradient, -batch.adv[:, None] * weight * (1 - jnp.exp(logp)), rtol=1e-6)


def test_the_reward_of_the_page_is_one_from_a_file(tmp_path):
    (tmp_path / "my.py").write_text(EXAMPLES["my.py"])
    short = rewards.resolve((f"{tmp_path}/my.py:short",))["short"]
    assert rewards.call_reward("short", short, [""] * 3, ["a" * 20, "a" * 30, "a" * 40], {}) == [1.0, 0.5, 0.0]
    assert rewards.call_reward("short", short, [""], ["abcdef"], {"target": [4]}) == [0.5]


def test_the_attention_of_the_page_is_a_variant_that_adds_its_mask(monkeypatch):
    monkeypatch.setitem(model.MASKS, "local", None)  # so that it is taken out again
    local = as_file("variants/local.py", monkeypatch)
    cfg, z = model.ModelConfig(use=(local.Shape(reach=2),)), jnp.zeros((1, 4), int)
    far = model.attention_mask(cfg, None, z)(0).mask
    assert far[0].tolist() == (np.abs(np.subtract.outer(np.arange(4), np.arange(4))) < 2).tolist()
    assert model.attention_mask(model.ModelConfig(), None, z)(0).mask is None and cfg.mask == "local"
    refused("blocks.Shape and local.Shape exclude each other", model.ModelConfig, use=(local.Shape(), blocks.Shape()))
    refused("together: .*local.reach=2; there are none; .*LLADA_KEYS in check", huggingface.family_of, cfg)
    monkeypatch.setitem(family.LLADA_KEYS, "local.reach", "local_reach")  # as the page says
    assert huggingface.family_of(cfg) == "llada"


def test_the_step_of_the_page_changes_advantages(monkeypatch):
    champion = as_file("variants/champion.py", monkeypatch)
    keys = dict(objective="grpo", init_from="x", batch_size=2, group_size=2, adv_negative=1.0)
    cfg = shared.run(use=(champion.Keys(factor=3.0),), **keys)
    found = types.SimpleNamespace(rollout=jnp.zeros((4, 3)))
    adv = rl.select_completions(found, jnp.array([[1.0, -1.0], [-2.0, 2.0]]), cfg).advantage
    assert adv.tolist() == [3, -1, -2, 6]
    bare = EXAMPLES["variants/champion.py"].replace("@dataclasses.dataclass(frozen=True)\n", "")
    monkeypatch.setitem(EXAMPLES, "variants/champion.py", bare)
    as_file("variants/champion.py", monkeypatch)
    misspelt = {"credits": lambda self, found, adv, cfg: adv}
    refused("a Section has no method credits: did you mean credit?", type, "Keys", (config.Section,), misspelt)
    command = ["config/sudoku_grpo.py", "--champion.factor=2"]
    refused("variants.champion.Keys lacks @dataclasses.dataclass", config.load, command)


def test_the_family_of_the_page_opens(added, tmp_path, monkeypatch):
    cfg = model.ModelConfig(vocab_size=12, n_layer=1, n_head=2, d_model=16, causal=True, shift=True)
    params = model.init(jax.random.key(0), cfg)
    huggingface.save(tmp_path, params, cfg)
    file = tmp_path / "config.json"
    theirs = json.loads(file.read_text()) | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    file.write_text(json.dumps(theirs))
    refused("known families", checkpoint.load, tmp_path)
    added("checkpoints/families.py", families, "FAMILIES")
    for file_of_ours in (foreign, huggingface):
        monkeypatch.setattr(file_of_ours, "FAMILIES", families.FAMILIES)
    opened, shape = checkpoint.load(tmp_path)
    assert shape.causal and jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), opened, params))
    file.write_text(json.dumps(theirs | {"sliding_window": 4096}))
    refused("sliding_window=4096", checkpoint.load, tmp_path)


def test_the_page_has_no_other_examples():
    files = {"variants/portion.py", "diffusion.py", "my.py", "grpo.py", "checkpoints/families.py", "variants/local.py",
             "variants/champion.py"}
    assert {*EXAMPLES} == files
    for kind, code in BLOCKS:
        assert kind == "diff" or ast.parse(code)


def test_one_batch_has_the_shapes_that_the_page_says():
    from config.sudoku_grpo import config as cfg
    assert (cfg.batch_size, cfg.group_size, cfg.keep_completions, cfg.updates_per_rollout) == (128, 4, 96, 4)
    assert (cfg.max_prompt_len, cfg.max_new_tokens, cfg.diffusion_steps, cfg.rollout_chunk) == (0, 16, 4, 128)
    completion = jax.ShapeDtypeStruct((96, 16), bool)
    masked, _, share = jax.eval_shape(
        lambda completion: diffusion.views(jax.random.key(0), cfg.logp_est, completion, n=cfg.logp_views), completion)
    assert masked.shape == (96, 2, 16) and share.shape == (96, 16)
