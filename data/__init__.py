"""
Read the rows of a data set, and turn them into arrays.

A row is a dict: {"prompt", "completion"?, "answer"?, "tests"?, "language"?, "difficulty"?, ...}. All columns reach the
reward functions by name. A data set is a name (a folder below data/ whose prepare.py makes it on first use), or your
own folder or file:

    FOLDER      train.jsonl and val.jsonl (or .json, .txt, .parquet); without val, the last 5% of train are val
    FILE        the same from one file
    .jsonl      one row per line                  .json   a list of rows or of prompts, or {"prompts": [...]}
    .txt        documents: pages of whole paragraphs, rows with an empty prompt
    .parquet    rows, read by pyarrow
    ORG/NAME    a data set of huggingface.co, or a part of one, ORG/NAME/PART, downloaded by huggingface_hub

Rows of GSM8K, of chats ("messages") and of documents ("text") are recognised by their columns (known.py); the keys
prompt_key, completion_key, ... name the columns of other data sets. A prompt can be a list of chat messages. Preference
rows {"prompt", "chosen", "rejected"} stay as they are.
"""

import collections
import functools
import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from system.disk import regular_file
from system.tokens import bpe
from system.tokens.bpe import Tokenizer

__all__ = ["Tokenizer", "batch_indices", "chat", "encode", "load", "tokenizer"]
ROOT = Path(__file__).parent
Row = dict[str, Any]
SPLITS = {"train": ("train",), "val": ("val", "validation", "test")}  # the names of their files, GSM8K's among them
SUFFIXES = ".jsonl", ".json", ".txt", ".parquet"  # of files of rows
MODELS = {"smollm2", "tiny"}  # folders whose prepare.py makes models
IN_MEMORY = "rows in memory"  # part of the names in MEMORY, also in the config that a run writes
MEMORY: dict[str, dict[str, list[Row]]] = {}  # name: {"train": rows, "val": rows} given to train.train without a file


# ---- rows ------------------------------------------------------------------------------------------------------------


def load(dataset: str, split: str, names: dict[str, str] | None = None) -> list[Row]:
    """Read the rows of a split.

    dataset: a name below data/ or of huggingface.co, a folder or a file
    split: "train" or "val"
    names {our column: theirs}: columns to rename
    """
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}: train or val")
    if dataset in MEMORY:
        from data import known

        return known.read_list(dataset, MEMORY[dataset][split], names)
    path = prepare(find(dataset))
    files = {name: files_of(path, name) for name in SPLITS} if path.is_dir() else {"train": [path], "val": []}
    chosen = files[split] or files["train"]
    rows = [row for file in chosen for row in read_rows(file, names)]
    if rows and files["val"]:
        return rows
    from data import readers  # our data sets have rows for each split

    return readers.held_out_part(rows, split, path)


def files_of(folder, split):
    """Find the file of a split, or its shards as huggingface.co names them (train-00000-of-00002.parquet) -> a list."""
    for name, suffix in itertools.product(SPLITS[split], SUFFIXES):
        if found := sorted(folder.glob(f"{name}{suffix}")) or sorted(folder.glob(f"{name}-[0-9]*-of-*{suffix}")):
            return found
    return []


def tokenizer(dataset: str) -> Tokenizer:
    """Read the tokenizer in the folder of a data set; if there is none, use single bytes."""
    if dataset not in MEMORY:
        path = prepare(find(dataset))
        if any(any(path.glob(name)) for name in ("tokenizer.json", "vocab.json", "*.tiktoken")):
            return open_tokenizer(path)
    return Tokenizer.bytes()


def open_tokenizer(path: str | Path, vocab_size: int | None = None) -> Tokenizer:
    """Read the tokenizer of a folder or a file: tokenizer.json, vocab.json with merges.txt, or NAME.tiktoken.

    If there is no mask token, `<|mask|>` gets the id in config.json, or else the one after the last.

    vocab_size: the model's; every id must be below it, except for the mask of a model that never reads one
    """
    tok = bpe.read_own(Path(path))
    if tok is None:
        from system.tokens import foreign  # for other people's tokenizers

        tok = foreign.open_tokenizer(Path(path))
    highest = max(i for i in tok._bytes if i != tok.mask_id)
    if vocab_size is not None and highest >= vocab_size:
        raise ValueError(
            f"{path}: the tokenizer has ids up to {highest}, its model only {vocab_size} ids: the files belong to "
            "two models, or tokens were added to one of them only"
        )
    return tok


def find(dataset: str) -> Path:
    """Find the folder or file of a data set. The error for an unknown name lists the known ones."""
    made_here = (p.parent.name for pattern in ("prepare.py", "train.jsonl") for p in ROOT.glob(f"*/{pattern}"))
    names = sorted(set(made_here) - MODELS)
    if dataset in names:
        return ROOT / dataset
    from data import hub  # your own, or one of huggingface.co

    return hub.find(dataset, hub.local_copy(prepare(dataset), SUFFIXES), names, files_of)


def cache_folder() -> str:
    """Return the folder for compiled programs."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "unmask")


def is_made(folder):
    """True if prepare.py has made this folder: it writes one of these files last."""
    return any((folder / last).exists() for last in ("config.json", "train.jsonl", "test.jsonl"))


def prepare(path: Any) -> Any:
    """Run prepare.py if `path` is data/NAME or data/NAME/PART and is not made yet -> the path."""
    full = Path(os.path.realpath(path))  # resolve() raises on a link to itself
    home = next((folder for folder in (full, full.parent) if (folder / "prepare.py").exists()), None)
    if home is None or full.is_file() or is_made(full) or ROOT.resolve() not in (home / "prepare.py").resolve().parents:
        return path
    from data import hub  # most folders are there

    hub.make(home, [full.name] if full != home else [])
    return path


# ---- formats ---------------------------------------------------------------------------------------------------------


def read_rows(path: Path, names: dict[str, str] | None = None) -> list[Row]:
    """Read a file with one of SUFFIXES; the error for a bad row says which line, and what to do.

    names {our column: theirs}: columns to rename
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: rows are read from {', '.join(SUFFIXES)}")
    try:
        raw = regular_file(path).read_bytes()
        if path.suffix == ".jsonl":
            rows = read_jsonl(path, raw.decode("utf-8-sig"), names)
        else:
            from data import known, readers  # our data sets are JSON Lines

            rows = known.read_list(path, readers.read(path, raw), names)
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(f"{path} cannot be read: {e}") from e
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def read_jsonl(path, text, names):
    """Read JSON Lines; empty lines are allowed."""
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line.strip():
                rows.append(normalize_row(json.loads(line), names))
        except json.JSONDecodeError as e:
            raise ValueError(
                f"{path}, line {number}: not JSON ({e}); expected one object per line, such as "
                '{"prompt": "2+3=", "answer": "5"}'
            ) from e
        except (ValueError, RecursionError) as e:
            raise ValueError(f"{path}, line {number}: {e}") from e
    return rows


def normalize_row(row: Any, names: dict[str, str] | None = None) -> Row:
    """Turn a row in any format into ours, and check it. names {our column: theirs}: columns to rename."""
    if not names and is_ours(row):
        return row
    from data import known  # a puzzle needs none of it

    return known.normalize_row(row, names or {})


def is_ours(row):
    """True if a row is as we write it and has no tests: a prompt, and else only texts and a number as difficulty."""
    if not isinstance(row, dict) or "prompt" not in row or {"tests", "test_cases"} & row.keys():
        return False
    return all(type(value) is str if name != "difficulty" else type(value) is int for name, value in row.items())


def plain(value: Any) -> Any:
    """Return what JSON has in place of a value of a column that it does not know: numbers or lists of numpy's, else
    text, as of a date from a Parquet file."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


# ---- chat ------------------------------------------------------------------------------------------------------------


CHAT = None, "chatml", "llada", "llama3", "gemma"  # the templates, which chats.py writes


def chat(
    name: str | None, system: str | None, tok: Tokenizer, instruction: str | None = None
) -> Callable[..., str] | None:
    """Return template(prompt, earlier turns), which writes the text with special tokens; None if nothing is added.

    name: one of CHAT
    system: the system prompt; None: the usual one of the template, if it has one
    instruction: text before every prompt in its turn, or around it if it contains {prompt}
    """
    if name is None and instruction is None:
        return None
    from data import chats  # a puzzle is its own prompt

    return chats.template(name, CHAT, system, tok, instruction)


def prompt_text(row: Row, template: Callable[..., str] | None = None) -> str:
    """Write the text that a model is prompted with. template: from `chat`."""
    turns = row.get("messages_before", ())
    if turns and not template:
        from data import chats

        chats.refuse(turns)
    return template(row["prompt"], turns) if template else row["prompt"]


def prompt_ids(row: Row, tok: Tokenizer, template: Callable[..., str] | None = None) -> list[int]:
    """Encode the prompt of a row as a model reads it, behind its first token; without a prompt there is no such token,
    as a window of a document is not its beginning. template: from `chat`."""
    ids = tok.encode(prompt_text(row, template), bool(template), mask=False)
    return tok.add_bos(ids) if ids else ids


# ---- arrays ----------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Texts as arrays, T = prompt_len + completion_len columns."""

    tokens: Any  # (B, T) int32
    maskable: Any  # (B, T) bool: positions that may be masked in training, and are filled in a rollout
    valid: Any = None  # (B, T) bool: False on the padding left of a prompt; None: no padding
    rows: Any = ()  # list of the B rows that the texts were made of; () where only the arrays are needed

    def arrays(self, index: Any = slice(None)) -> "Batch":
        """Select the texts with these indices, without their rows."""
        return Batch(*(None if array is None else array[index] for array in self[:3]))

    def part(self, index: Any) -> "Batch":
        """Select the texts with these indices, and their rows."""
        return self.arrays(index)._replace(rows=[self.rows[i] for i in index])


def encode(
    rows: Sequence[Row], tok: Tokenizer, prompt_len: int, completion_len: int, template: Callable | None = None
) -> tuple[Batch, np.ndarray, dict[str, int]]:
    """Encode rows as texts of prompt_len + completion_len tokens -> B texts, the index (B,) of the row of each, and
    notes, why rows were left out or cut: how many.

    Prompts are padded on the left, where valid is False, so that every completion begins at `prompt_len`. Its end of
    text is repeated to the end of the row, as in LLaDA's SFT: these positions are filled, too, so the model learns to
    stop. A row without a completion gets masks. Rows that do not fit are left out; only text without a prompt is cut,
    into windows of completion_len. template: from `chat`.
    """
    examples, notes = fitting(rows, tok, prompt_len, completion_len, template)
    tokens = np.full((len(examples), prompt_len + completion_len), tok.eos_id, np.int32)
    tokens[:, :prompt_len] = tok.pad_id
    valid = np.ones(tokens.shape, bool)
    for n, (_, prompt, completion) in enumerate(examples):
        start = prompt_len - len(prompt)
        valid[n, :start] = False
        tokens[n, start : prompt_len + len(completion)] = prompt + completion
    maskable = np.zeros(tokens.shape, bool)
    maskable[:, prompt_len:] = True
    index = np.array([row for row, _, _ in examples], np.int32)
    return Batch(tokens, maskable, valid), index, notes


def fitting(rows, tok, prompt_len, completion_len, template):
    """Encode the rows that fit -> [(index of the row, prompt, completion or a window of it)], notes."""
    examples, notes, too_long = [], collections.Counter(), collections.defaultdict(list)
    for i, row in enumerate(rows):
        prompt = prompt_ids(row, tok, template)
        completion = tok.encode(row["completion"]) if "completion" in row else [tok.mask_id] * completion_len
        windows = [completion[j : j + completion_len] for j in range(0, len(completion), completion_len)] or [[]]
        if len(prompt) > prompt_len:
            too_long["prompt", prompt_len].append(len(prompt))
        elif prompt and len(windows) > 1:
            too_long["completion", completion_len].append(len(completion))
        else:
            examples += [(i, prompt, window) for window in windows]
            if len(windows) > 1:
                notes[f"windows of {completion_len} tokens, cut from longer documents"] += len(windows)
    for (what, limit), lengths in too_long.items():
        notes[f"left out: {what} longer than {limit} tokens (the longest has {max(lengths)})"] = len(lengths)
    return examples, dict(notes)


def batch_indices(n: int, batch_size: int, step: int, seed: int) -> np.ndarray:
    """Choose the rows of a step's batch among n rows -> indices (batch_size,) int64.

    Each epoch takes every row once, in another order."""
    if n < 1:
        raise ValueError("there are no rows to take batches from")
    place = step * batch_size + np.arange(batch_size)  # in the endless stream of shuffled epochs: no state to save
    rows = zip(place // n, place % n, strict=True)
    return np.array([permutation(n, seed, int(epoch))[i] for epoch, i in rows])


@functools.lru_cache(maxsize=4)
def permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    """Shuffle the n rows for one epoch -> (n,) int64."""
    return np.random.default_rng([seed, epoch]).permutation(n)
