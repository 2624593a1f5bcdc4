"""The dict of rewards, how they are named, called, weighed and reported, and the program that scores a file."""
import contextlib
import io
import json
import math
import os
import sys
import time
import types
from decimal import Decimal

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import jsonl, python, refused, write_splits

import config
import rewards
from judges.sandbox import pool
from loop import run_rewards
from rewards import REWARDS, combine, resolve, summary
from tools import score
from variants import reward_clip

NAMES = """syntax tests tests_all quality performance format fenced exact contains regex keywords json xml xml_tags math
xml_soft xml_strict xml_int xml_answer tests_fenced
countdown sudoku sudoku_all length diversity passes reasoning safety coherence judge""".split()
CODE = "def add(a, b):\n    return "
COLUMNS = {"answer": ["5", "5"], "tests": [["assert add(2, 3) == 5"]] * 2, "pattern": ["5"] * 2,
           "reference": ["def add(a, b): return a + b"] * 2, "keywords": [["5"]] * 2, "numbers": [[2, 3]] * 2,
           "target": [5] * 2, "max_length": [10] * 2, "tokens_per_pass": [4.0, 1.5], "puzzle": ["3.2..1........43"] * 2}


def of_rows(*values):
    """A reward that returns these values, whatever it is shown."""
    return lambda prompts, completions: list(values)


def one(fn, *texts, weights=None, **columns):
    return combine({"r": fn}, weights, ["p"] * len(texts), list(texts), columns)[0].tolist()


def test_rewards_of_code_are_loaded_when_one_of_them_is_asked_for_and_jax_never():
    resolved = "rewards.resolve('exact,{}'); print('judges.programs' in sys.modules, 'jax' in sys.modules)\n"
    code = "import sys, rewards\n" + resolved.format("math") + resolved.format("tests")
    done = python("-c", code)
    assert done.stdout == "False False\nTrue False\n", done.stderr


# ---- the dict -------------------------------------------------------------------------------------------------------


def test_a_reward_that_loads_later_is_in_the_dict_and_leaves_one_of_that_name_alone():
    for name, before in (("length", "json"), ("diversity", "passes"), ("tests", "syntax")):
        code = (f"import rewards; assert {name!r} in rewards.REWARDS and 'nosuch' not in rewards.REWARDS\n"
                f"rewards.REWARDS[{name!r}] = mine = lambda prompts, completions: [7.0] * len(completions)\n"
                f"rewards.resolve({before!r}); assert rewards.resolve({name!r})[{name!r}] is mine")  # fmt: skip
        assert python("-c", code).stderr == ""
    with pytest.raises(KeyError):
        REWARDS["nothing"]


def test_a_reward_of_the_user_is_preferred_to_one_of_that_name_from_a_model(monkeypatch):
    monkeypatch.setitem(REWARDS, "coherence", mine := of_rows(7.0))
    assert resolve("coherence", coherence=of_rows(-12.0)) == {"coherence": mine}


def test_functions_of_a_file_share_what_is_in_it_and_a_change_of_the_file_is_seen(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from __future__ import annotations\nimport dataclasses\nseen = []\n@dataclasses.dataclass\n"
                    "class Row:\n    text: str\ndef a(text): return len(seen)\n"
                    "def b(text): seen.append(Row(text)); return 0")  # fmt: skip
    fns = resolve(f"{path}:a,{path}:b")
    assert one(fns["b"], "x", "y") == [0, 0] and one(fns["a"], "x") == [2]
    path.write_text("def a(text): return 100")
    os.utime(path, (1, 1))
    assert one(resolve(f"{path}:a")["a"], "x") == [100] and sys.modules.get("mine") is None


def test_a_column_of_the_data_set_is_not_replaced_by_what_a_run_adds():
    cfg = types.SimpleNamespace(reward_weights=(), use=(), max_new_tokens=64)
    rows, seen = [{"prompt": "p", "max_length": 3}], []
    fns = {"r": lambda completions, max_length, groups: seen.extend([max_length, groups]) or [0] * len(completions)}
    tok = types.SimpleNamespace(decode=str)
    rewards.score(fns, {}, cfg, tok, rows, [[1], [2]], 2, np.ones(2))
    assert seen == [[3, 3], [0, 0]]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("judge", "coherence")])
def test_blank_text_earns_nothing_anywhere(name):
    total, _ = combine({name: REWARDS[name]}, None, ["p"] * 2, ["", " \n"], COLUMNS)
    assert all(total <= 0)


class Tracked:
    """A number as a tensor that requires grad has it: float() reads it, and numpy may not."""

    def __array__(self, *_, **__):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")

    def __float__(self):
        return 0.5


def test_scores_may_be_anything_in_an_order():
    for scores in ([1, 2], (1, 2), {"a": 1, "b": 2}.values(), np.array([1, 2]), np.float32([1, 2]), jnp.array([1, 2]),
                   jnp.array([1.0, 2.0]), [True, np.float64(2)]):  # fmt: skip
        assert one(lambda prompts, completions, scores=scores: scores, "x", "y") == [1, 2]
    assert one(lambda *args, completions: [Tracked()], "x") == [0.5]  # and *args names no column
    assert one(lambda *args, **columns: [Tracked() for _ in columns["completions"]], "x", "y") == [0.5, 0.5]


@pytest.mark.parametrize("name, good, bad, worth", [
    ("syntax", "x = 1", "x =", [1, -1]), ("tests", CODE + "a + b", CODE + "a", [1, 0]), ("exact", "5", "6", [1, 0]),
    ("tests_all", CODE + "a + b", CODE + "a", [1, 0]), ("performance", "def add(a, b): return a + b", "", [1, 0]),
    ("fenced", "```\nx = 1\n```", "```\nx =\n```", [1, 0.5]), ("format", "x = 1", "(", [0.5, 0]),
    ("contains", "it is 5", "it is 6", [1, 0]), ("regex", "it is 5", "it is 6", [1, 0]),
    ("keywords", "it is 5", "it is 55", [1, 0]), ("json", "{}", "{", [1, 0]), ("xml", "<a/>", "<a>", [1, 0]),
    ("xml_tags", "<reasoning>\nx\n</reasoning>\n<answer>\n5\n</answer>\n", "5", [0.5, 0]),
    ("xml_soft", "<reasoning>x</reasoning> <answer>5</answer>", "5", [1, 0]),
    ("xml_strict", "<reasoning>\nx\n</reasoning>\n<answer>\n5\n</answer>\n", "5", [1, 0]),
    ("xml_int", "<answer>6</answer>", "<answer>x</answer>", [1, 0]), ("xml_answer", "<answer>5</answer>", "6", [1, 0]),
    ("tests_fenced", f"```python\n{CODE}a + b\n```", CODE + "a + b", [1, 0]),
    ("math", "#### 5", "#### 6", [1, 0]), ("countdown", "2+3", "2+2", [1, 0.1]),
    ("length", "x" * 100, "x" * 150, [1, 0.5]), ("quality", "x = 1", "(", [0.5, 0]),
    ("sudoku", "3421213443121243", "." * 16, [1, 0]), ("sudoku_all", "3421213443121243", "." * 16, [1, 0]),
    ("diversity", "a", "b", [1, 1]), ("passes", "a", "b", [4, 1.5]),
    ("reasoning", "step 1, therefore 5", "5", [0.8, 0.3]), ("safety", "5", "rm -rf / now", [1, 0])])
def test_rewards_by_name_have_their_values(name, good, bad, worth):
    columns = {**COLUMNS, "answer": ["3421213443121243"] * 2} if name == "sudoku" else COLUMNS
    total, _ = combine(resolve(name), None, ["p", "p"], [good, bad], columns)
    assert total.tolist() == worth


def test_a_rule_has_no_opinion_where_a_needed_column_is_empty():
    assert REWARDS["exact"](["p"] * 4, ["5", "5", "5", ""], answer=["5", None, "", "5"]) == [1, None, None, 0]
    assert REWARDS["contains"](["p"] * 2, ["5"] * 2, answer=[" ", "5"]) == [None, 1]      # a blank is in every text
    assert REWARDS["countdown"](["p"], ["5-5"], numbers=[[5, 5]], target=[0]) == [1]
    assert REWARDS["keywords"](["p"] * 2, ["5"] * 2, keywords=[[], None]) == [None, None]
    assert REWARDS["safety"](["p"] * 2, ["cake"] * 2, blocked=[None, "cake"]) == [1, 0]     # the default of a None


def test_diversity_is_against_the_nearest_of_the_group():
    texts = ["a b c d", "a b c d", "a b c e", "x y z w", "", "alone"]
    scores = REWARDS["diversity"](["p"] * 5 + ["q"], texts)
    assert scores == [0, 0, pytest.approx(2 / 3), 1, 0, None]
    assert REWARDS["diversity"](["p"] * 4, ["a"] * 4, groups=[0, 0, 1, 2]) == [0, 0, None, None]


def test_speed_counts_only_where_the_first_reward_says_that_the_answer_is_right():
    texts, columns = ["5", "6", "5", " "], {"answer": ["5"] * 4, "tokens_per_pass": [1.0, 8.0, 4.0, 9.0]}
    total, _ = combine(resolve("exact,passes"), None, ["p"] * 4, texts, columns)
    assert total.tolist() == [2, 8, 5, 0]
    total, right = combine(resolve("exact,passes(right=1)"), None, ["p"] * 4, texts, columns)
    assert total.tolist() == [2, 0, 5, 0]
    np.testing.assert_array_equal(right["passes"], [1, np.nan, 4, np.nan])
    _, shy = combine({"shy": of_rows(None, 1), **resolve("passes(right=0)")}, None, ["p"] * 2, ["a", "b"],
                     {"tokens_per_pass": [2.0, 3.0]})  # fmt: skip
    np.testing.assert_array_equal(shy["passes"], [np.nan, 3])


@settings(max_examples=10, deadline=None)
@given(st.lists(st.text(max_size=50), min_size=2, max_size=2))
def test_any_text_gets_finite_numbers_from_all_rewards(texts):
    fns = resolve(name for name in NAMES if name not in ("sudoku", "judge", "coherence"))
    _, parts = combine(fns, None, [CODE] * 2, texts, COLUMNS)
    parts |= combine(resolve("sudoku"), None, [COLUMNS["puzzle"][0]] * 2, texts, {})[1]
    assert all(np.isfinite(part).all() for name, part in parts.items() if name not in ("performance", "diversity"))


# ---- names ----------------------------------------------------------------------------------------------------------


def test_a_reward_has_the_settings_in_its_parentheses_whatever_columns_there_are(tmp_path):
    (tmp_path / "my.py").write_text("def longer(completions, than, by=0):\n"
                                    "    return [float(len(c) > than + by) for c in completions]\n")
    fns = resolve(f"length(target=4), regex(pattern=^(\\d{{1,3}},?)+$),{tmp_path}/my.py:longer(than=2, by=1),exact")
    assert list(fns) == ["length", "regex", "longer", "exact"]
    columns = {"pattern": ["x"] * 3, "target_length": [9] * 3, "answer": ["12"] * 3}
    _, parts = combine(fns, None, ["p"] * 3, ["1,23", "ab", "12"], columns)
    assert {k: v.tolist() for k, v in parts.items()} == {
        "length": [1, 0.5, 0.5], "regex": [1, 0, 1], "longer": [1, 0, 0], "exact": [0, 0, 1]}
    assert resolve("regex(pattern=5)")["regex"](["p"], ["it is 5"]) == [1]  # a text, though it looks like a number
    assert resolve("keywords(keywords=['a', 'b'])")["keywords"](["p"] * 2, ["b and a", "c"]) == [1, 0]
    assert REWARDS["length"](["p"], ["x" * 100]) == [1]
    (tmp_path / "short.py").write_text("def short(completion, target=20):\n    return 2 - len(completion) / target\n")
    (short,) = resolve(f"{tmp_path}/short.py:short(target=4)").values()  # a function of one text
    assert short(["p"] * 2, ["abcd", "abcdef"]) == [1, 0.5]


FILES = {"file.py": "import json\nnumber = 5\ndef good(prompts, completions): return [0.0] * len(prompts)\n",
         "broken.py": "def (", "text.txt": "words", "exits.py": "import sys\nsys.exit(0)\n",
         "plain.py": "\ndef mine(answers):\n    return 1.0\n"}  # fmt: skip


@pytest.mark.parametrize("names, message", [
    ("overlong(soft_length=3)", r"no reward 'overlong'. It is gone: docs/tried.md"),
    ("length(max=3)", "'length' has no setting 'max'; there are target_length"),
    ("passes(first_reward=1)", "'passes' has no setting 'first_reward'; there are right"),
    ("passes(right=x)", "right=x should be a number, as in right=1"),
    ("length(goal=4)", "'length' has no setting 'goal'; there are target_length"),
    ("length(target=four)", "target=four should be a number, as in target=1"), ("length(4)", r"no reward 'length\(4"),
    ("length(target=4,target_length=5)", "'length' has no setting 'target_length'; there are token_ids|none"),
    ("syntax(x=1)", "'syntax' has no setting 'x'"), ("length(target=4),length(target=5)", "two rewards are called"),
    ("test", "no reward 'test'. Did you mean 'tests'"), ("zzz", "There are syntax, tests,"), ("", "no reward ''"),
    ("tests,tests", "two rewards are called 'tests'"), ("nowhere.py:f", "there is no Python file 'nowhere.py'"),
    ("{}/file.py:missing", "'missing' is not there; the functions in .* are good"),
    ("{}/file.py", "without its function: write .*file.py:FUNCTION"),
    ("{}/file.py:number", "'number' is not a function"),
    ("{0}/file.py:good,{0}/file.py:good", "two rewards are called 'good'"),
    ("{}/broken.py:f", "cannot be imported: SyntaxError"), ("{}/text.txt:f", "there is no Python file"),
    ("{}/exits.py:mine", "cannot be imported: SystemExit: 0"),
    ("{}/plain.py:mine", r"it is mine\(answers\) \(line 2\); expected mine\(prompts, .* or mine\(completion\), one"),
    ("judge", "'judge' is made from a judge: set judge_from"), ("coherence", "made from the model in init_from")])
def test_resolve_says_what_is_wrong_with_a_name(names, message, tmp_path):
    for name, source in FILES.items():
        (tmp_path / name).write_text(source)
    refused(message, resolve, names.format(tmp_path))


@pytest.mark.parametrize("source", [
    "def mine(completions, **kwargs):\n    return [float(a == c) for a, c in zip(kwargs['answer'], completions)]\n",
    "def mine(completions, answer):\n    return [float(a == c) for a, c in zip(answer, completions)]\n",
    "def mine(*, prompts, answer, completions):\n    return [float(a == c) for a, c in zip(answer, completions)]\n",
    "def mine(completion, answer):\n    return float(completion == answer)\n",
    "mine = lambda text, prompt, answer: float(text == answer and prompt == 'p')\n"])
def test_a_reward_takes_what_it_names_as_those_of_trl_do(source, tmp_path):
    (tmp_path / "my.py").write_text(source)
    assert combine(resolve(f"{tmp_path}/my.py:mine"), None, ["p"] * 2, ["5", "6"], {"answer": ["5"] * 2})[0][0] == 1


OF_OTHERS = """
def accuracy_reward(completions, solution, log_extra=None, log_metric=None, **kwargs):
    return [float(sol in content) for content, sol in zip(completions, solution)]

def of_chats(completions, **kwargs):
    return [len(completion[0]["content"]) for completion in completions]

class RepetitionPenalty:  # as TRL has it
    def __call__(self, completion_ids, **kwargs):
        return [-1.0 * (len(ids) - len(set(ids))) for ids in completion_ids]

repetition = RepetitionPenalty()

def lengths(completion_ids):
    return [len(ids) for ids in completion_ids]
"""


def test_rewards_of_trl_do_as_they_are_pasted_and_those_of_chats_are_told_what_to_write(tmp_path):
    (tmp_path / "r1.py").write_text(OF_OTHERS)
    names = "accuracy_reward", "repetition", "lengths"
    texts = ["<think>\n1\n</think>\n<answer>\n5\n</answer>", "6", ""]
    columns = {"completion": ["5", "5", "5"], "token_ids": [[1, 1, 1], [1, 2], []]}
    fns = resolve(",".join(f"{tmp_path}/r1.py:{name}" for name in names))
    _, parts = combine(fns, None, ["p"] * 3, texts, columns)
    assert {name: parts[name].tolist() for name in names} == {
        "accuracy_reward": [1, 0, 0], "repetition": [-2, 0, 0], "lengths": [3, 2, 0]}
    with pytest.raises(ValueError, match="texts here, not chats: write completion, without"):
        combine(resolve(f"{tmp_path}/r1.py:of_chats"), None, ["p"] * 3, texts, columns)


# ---- combine --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("a, b, weights, total", [
    ((1, 2), (0.5, None), [2, 10], [7, 4]), ((1, None, None), (None, 0, None), None, [1, 0, np.nan]),
    ((None, 1), (1, 1), [1, 0], [np.nan, 1])])  # an opinion that weighs nothing does not judge
def test_combine_weighs_every_part_without_those_that_have_no_opinion(a, b, weights, total):
    found, parts = combine({"a": of_rows(*a), "b": of_rows(*b)}, weights, ["p"] * len(a), ["x"] * len(a), {})
    np.testing.assert_array_equal(found, total)
    np.testing.assert_array_equal([parts["a"], parts["b"]], np.array([a, b], float))


@pytest.mark.parametrize("fns, columns, message", [
    (resolve("exact"), {"level": [1], "tests": [[]]}, "'exact' needs .* 'answer'; there are level, tests"),
    (resolve("exact"), {}, "there are none"),
    (resolve("passes"), {}, "needs the column 'tokens_per_pass'.*: only a run knows how fast"),
    (resolve("passes(right=1)"), {"tokens_per_pass": [1.0]},
     r"passes\(right=1\) asks what the reward before it says.*: name it first")])
def test_columns_that_are_not_there_are_errors(fns, columns, message):
    refused(message, combine, fns, None, ["p"], ["x"], columns)


def test_summary_names_means_spreads_shares_and_what_a_reward_notes_besides():
    _, parts = combine({"a": of_rows(1, 3, None), "b": of_rows(None, None, None)}, None, ["p"] * 3, ["x"] * 3, {})
    assert summary(parts) == {
        "rewards/a/mean": 2, "rewards/a/std": 1, "rewards/a/none_frac": pytest.approx(1 / 3), "rewards/a/min": 1,
        "rewards/a/max": 3, "rewards/b/none_frac": 1}  # fmt: skip
    columns = rewards.as_columns([{"prompt": "p", "tests": ["assert add(2, 3) == 5"]}, {"prompt": "q", "b": 2}])
    assert columns == {"tests": [["assert add(2, 3) == 5"], None], "b": [None, 2]}
    _, parts = combine(resolve("tests,quality"), None, [CODE] * 2, ["a + b", "a"], columns)
    metrics = summary(parts)
    assert metrics["rewards/tests/mean"] == 0.5 and metrics["rewards/tests/none_frac"] == 0  # without tests: 0.0
    assert metrics["rewards/tests/timeout_frac"] == 0 and metrics["rewards/quality/proper_naming"] == 1


def test_the_completion_of_a_row_is_the_reference_and_the_answer_if_there_is_no_other():
    def echo(prompts, completions, reference, answer):
        return [float(reference == ["r"]) + float(answer == ["a"])]
    assert one(echo, "x", completion=["r"]) == [1]
    assert one(echo, "x", completion=["r"], answer=["a"]) == [2]
    assert one(echo, "x", completion=["other"], reference=["r"], answer=["a"]) == [2]


class Column(float):
    """A number as torch's tensor([1.0]) has it: of one dimension, and yet finite."""

    ndim = 1


@pytest.mark.parametrize("scores, message", [
    ([1.0], "returned 1, not one entry for each of 2 completions"), (5.0, "returned a float, not one entry"),
    (None, "returned a NoneType"), ({0.5: 1, 0.25: 2}, "returned a dict, not one entry for each of 2 completions"),
    ({0.5, 0.25}, "returned a set"), ({0.5: 1, 0.25: 2}.keys(), "returned a dict_keys"),
    ([1, math.nan], r"'r' returned nan for row 1 \(prompt 'p', completion 'y'\)"),
    ([math.inf, 1], "returned inf for row 0"), (["1", 2], "returned '1' for row 0"),
    ([[1], 2], r"returned \[1\] for row 0"),
    (np.array([1, np.nan]), r"returned .*nan.* for row 1"),
    (np.array(1.0), "returned a ndarray, not one entry for each of 2"),
    ([np.array([1.0]), 2], r"returned array\(\[1.\]\) for row 0"), ([1, 10**400], "for row 1"),
    ([Decimal("sNaN"), 1], r"returned Decimal\('sNaN'\) for row 0"), ([Column(1.0), 1], "returned 1.0 for row 0")])
def test_a_reward_that_returns_nonsense_is_named_with_the_row(scores, message):
    refused(message, one, lambda prompts, completions: scores, "x", "y")


def test_a_reward_that_hangs_is_named(capsys, monkeypatch):
    monkeypatch.setattr(rewards, "SLOW", 0.01)
    assert one(lambda completions: time.sleep(0.3) or [1.0], "x") == [1]
    assert "reward 'r' takes more than 0.01 s for 1 completions" in capsys.readouterr().out
    one(lambda completions: [1.0], "x")
    time.sleep(0.1)
    assert not capsys.readouterr().out


def test_an_exception_in_a_reward_is_named_with_the_row_and_the_line():
    def fragile(prompts, completions, answer):
        return [float(a) for a in answer]
    with pytest.raises(ValueError, match=r"'r' failed on row 1 \(prompt 'p', completion 'y'\): ValueError: could not"
                                         r" convert .*test_rewards.py:\d+"):
        one(fragile, "x", "y", answer=["5", "five"])

    for stop in (RuntimeError("mine"), SystemExit(0)):
        def stops(prompts, completions, stop=stop):
            json.loads("[]")
            raise stop
        refused(rf"failed on row 0 .*{type(stop).__name__}: .*test_rewards.py:\d+", one, stops, "x", "y")

    def picky(prompts, completions):
        return [1.0] if len(prompts) == 1 else completions[99]
    refused("failed on the batch as a whole, no single row: IndexError", one, picky, "x", "y")


# ---- the program ----------------------------------------------------------------------------------------------------

ROWS = [{"prompt": CODE, "completion": "a + b", "tests": ["assert add(2, 3) == 5", "assert add(0, 1) == 1"], "id": 7},
        {"prompt": CODE, "completion": "a", "tests": ["assert add(2, 3) == 5", "assert add(0, 0) == 0"]},
        {"prompt": "other", "completion": "def add(a, b):", "tests": ["assert add(2, 3) == 5"]}]


def program(*args, rows=None, path=None):
    """Run rewards.py in this process -> exit code, last line of stdout as JSON if it is, stderr, all of stdout."""
    if rows is not None:
        jsonl(path, rows)
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["rewards.py", *map(str, args)])
        try:
            code = score.main()
        except SystemExit as e:
            code = e.code
    last = (out.getvalue().strip().split("\n") or [""])[-1]
    return code or 0, json.loads(last) if last.startswith("{") else out.getvalue(), err.getvalue(), out.getvalue()


def test_the_program_scores_a_file_and_ends_with_one_json_line(tmp_path):
    path, out = jsonl(tmp_path / "rows.jsonl", ROWS), tmp_path / "scored.jsonl"
    run = python("rewards.py", path, "--rewards=tests,syntax", "--reward_weights=2,0.5", f"--out={out}")
    last, err = json.loads(run.stdout.splitlines()[-1]), run.stderr
    assert (run.returncode, last) == (0, {"n": 3, "tests": 0.5, "syntax": pytest.approx(1 / 3, abs=1e-5),
                                "reward": pytest.approx((2.5 + 1.5 - 0.5) / 3, abs=1e-5)}), err
    scored = [json.loads(line) for line in out.read_text().splitlines()]
    assert scored[0] == ROWS[0] | {"rewards": {"tests": 1.0, "syntax": 1.0}, "reward": 2.5}
    assert err == ""                                                            # a bar is for a terminal


def test_the_program_checks_references_and_names_the_rows_that_fail(tmp_path):
    path, right = tmp_path / "rows.jsonl", [{"prompt": "p", "completion": "{}"}]
    found = program(path, "--rewards=json", "--check", rows=right, path=path)
    assert found[:2] == (0, {"n": 1, "json": 1, "reward": 1})
    rows = [*right, {"prompt": "p", "completion": "{"}, {"prompt": "p", "completion": "}"}]
    code, last, _, out = program(path, "--rewards=json", "--check", rows=rows, path=path)
    assert code == 1 and last["n"] == 3
    assert "row 1 is not 1.0: {'json': 0.0}" in out and "row 2 is not 1.0" in out and "row 0" not in out


def test_a_group_is_judged_together_wherever_its_rows_stand_and_no_opinion_anywhere_is_null(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": str(i % 300), "completion": str(i)} for i in range(600)]         # partners are 300 rows apart
    assert program(path, "--rewards=diversity", rows=rows, path=path)[1] == {"n": 600, "diversity": 1, "reward": 1}
    assert program(path, "--rewards=diversity", rows=rows[:1], path=path)[:2] == (
        0, {"n": 1, "diversity": None, "reward": None})  # fmt: skip


def test_the_samples_of_a_run_are_scored(tmp_path):
    row = {"step": 4, "prompt": "2+3", "greedy": "5", "sampled": ["5", "6", "7", "8"], "rewards": [1, 0, 0, 0],
           "columns": {"answer": "5", "level": 1}}
    single = {"step": 0, "prompt": "2+3", "greedy": "6", "sampled": "5", "columns": {"answer": "5"}}
    path, out = tmp_path / "samples.jsonl", tmp_path / "new" / "scored.jsonl"
    assert program(path, "--rewards=exact,diversity", f"--out={out}", rows=[single, row], path=path)[:2] == (
        0, {"n": 7, "exact": pytest.approx(3 / 7, abs=1e-5), "diversity": 1,
            "reward": pytest.approx(3 / 7 + 4 / 7, abs=1e-5)})  # fmt: skip
    first, *_, last = map(json.loads, out.read_text().splitlines())
    assert (first["how"], first["rewards"]) == ("greedy", {"exact": 0.0, "diversity": None})
    assert (last["how"], last["completion"], last["level"], last["rewards"]["exact"]) == ("sampled", "8", 1, 0.0)


def test_nothing_is_written_over_a_file(tmp_path, monkeypatch):
    path, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows = [{"prompt": "1", "completion": "1"}]
    assert program(path, "--rewards=diversity", f"--out={out}", rows=rows, path=path)[0] == 0
    for wrong in (f"{path}/x", out):     # before a single row is scored
        monkeypatch.setattr(rewards, "combine", lambda *_: pytest.fail("scored"))
        code, _, said, _ = program(path, "--rewards=diversity", f"--out={wrong}")
        assert code == 2
    assert "is there already, and nothing is overwritten" in said


@pytest.mark.parametrize("args, message", [
    (["nowhere.jsonl", "--rewards=tests"], "no data set 'nowhere.jsonl'"),
    (["{file}", "--rewards=test"], "Did you mean 'tests'"),
    (["{file}", "--rewards=math"], "needs the column 'answer'; there are"), (["{file}"], "--rewards"),
    (["{file}", "--rewards=exact"], "counts as it, but there is none (rewards.py: only with --check)"),
    (["{file}", "--rewards=tests", "--reward_weights=1,2"], "1 rewards (tests) but 2 reward_weights"),
    (["{file}", "--rewards=tests", "--reward_weights=nan"], "--reward_weights=nan: expected a tuple"),
    (["{file}", "--rewards=tests", "--reward_weights=x"], "--reward_weights=x: expected a tuple"),
    (["{bad}", "--rewards=tests"], "expected one object per line"),
    (["{prompts}", "--rewards=tests"], "row 0 has no completion to score"),
    *((["{file}", "--rewards=tests", f"--{flag}=gravity,read"], "gravity is not among process, network") for flag in (
        "unsafe", "programs.unsafe"))])
def test_a_mistake_gets_one_sentence_and_exit_code_2(args, message, tmp_path):
    (tmp_path / "file.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    (tmp_path / "bad.jsonl").write_text("{\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "p"}\n')
    code, _, err, _ = program(*[arg.format(**{n: tmp_path / f"{n}.jsonl" for n in ("file", "bad",
    "prompts")}) for arg in args])
    assert code == 2 and message in err and "Traceback" not in err


@pytest.mark.parametrize("reward, message", [
    ("sudoku_all", "the reward 'sudoku_all' .* cannot score its first row, prompt '2.2=', completion '4': 16 or 81 "
     "cells.*another task than the recipe's, name rewards that fit them"), ("exact,length", None)])  # fmt: skip
def test_rows_of_another_task_are_refused_before_anything_is_trained(tmp_path, reward, message, capsys):
    rows = [{"prompt": f"{i}+{i}=", "completion": str(2 * i), "masked": "_"} for i in range(4)]
    place = write_splits(tmp_path, rows, rows[2:])
    cfg = config.Config(objective="grpo", init_from="x", dataset=place, rewards=tuple(reward.split(",")))
    with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
        run_rewards.check_early(cfg)
    assert "train: only fill_in=True reads `masked`" in capsys.readouterr().out


# ---- the completions of a run ----


def test_the_tokens_that_were_written_are_counted_up_to_the_first_end():
    """Columns 0 and 1 are a prompt with an end in it; 9 and 8 end a text."""
    tokens = np.array([[9, 1, 2, 3, 4], [9, 1, 2, 9, 4], [1, 1, 8, 9, 9], [9, 9, 2, 3, 9]])
    completion = np.arange(5) >= np.array([[2]] * 4)
    assert rewards.written(tokens, completion, (9, 8)).tolist() == [3, 2, 1, 3]
    per_pass = rewards.written_per_pass(tokens, completion, np.array([2, 0, 1, 4]), (9, 8))
    assert per_pass.tolist() == [1.5, 2, 1, 0.75]


def test_rewards_of_evaluations_weigh_nothing_and_speed_is_a_column():
    cfg = types.SimpleNamespace(reward_weights=(2.0,), max_new_tokens=4, use=())
    tok = types.SimpleNamespace(decode=lambda ids: "".join(map(str, ids)))
    seen = []

    def trained(completions, max_length, **columns):
        seen.append(columns)
        return [float(len(text)) for text in completions]

    def shown(completions):
        return [100.0] * len(completions)

    rows, ids = [{"prompt": "a", "answer": "x"}, {"prompt": "b", "answer": "y"}], [[1], [2, 3], [4], []]
    fast = np.array([1.0, 2.0, 3.0, 4.0])
    found = rewards.score({"trained": trained}, {"shown": shown}, cfg, tok, rows, ids, 2, fast)
    assert found.completions == ["1", "23", "4", ""] and found.rewards.tolist() == [[[1, 2], [1, 0]]]
    assert found.parts["shown"].tolist() == [100] * 4
    assert seen[0]["tokens_per_pass"] == [1, 2, 3, 4]
    assert seen[0]["answer"] == ["x", "x", "y", "y"] and seen[0]["groups"] == [0, 0, 1, 1]
    cfg.use, cfg.pass_at = (reward_clip.Keys(bound=1.5),), 3  # clipped before it is weighed, and passing before that
    clipped = rewards.score({"trained": trained}, {"shown": shown}, cfg, tok, rows, ids, 2, fast)
    assert rewards.total_rewards(clipped.rewards, cfg).tolist() == [[2, 3], [2, 0]]
    assert rewards.apply_pass_at(clipped.parts["trained"], cfg).tolist() == [0] * 4


def test_a_users_reward_with_the_name_of_one_of_code_starts_no_sandbox(tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text("def tests(completions):\n    return [1.0] * len(completions)\n")
    monkeypatch.setattr(pool, "run", lambda *_, **__: pytest.fail("a sandbox was started"))
    cfg = config.Config(rewards=(f"{tmp_path}/my.py:tests",))
    assert [*run_rewards.reward_functions(cfg, None, [{"prompt": "a"}])[0]] == ["tests"]


def test_the_total_of_a_completion_is_that_of_the_rewards_that_have_an_opinion():
    nan, cfg = math.nan, config.Config(rewards=("exact", "contains"), reward_weights=(1.0, 2.0))
    table = np.array([[[1.0, nan, nan]], [[3.0, 3.0, nan]]])
    np.testing.assert_array_equal(rewards.total_rewards(table, cfg), [[7, 6, nan]])
