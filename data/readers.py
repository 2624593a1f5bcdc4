"""
Read files of rows other than .jsonl: JSON, Parquet and plain text. A reader returns a list of rows in any format.
"""

import json
from pathlib import Path
from typing import Any

from system.unknown import quote


def read(path: Path, raw: bytes) -> list:
    """Read the content of a file of the kind that its suffix says."""
    if path.suffix == ".parquet":
        return read_parquet(path, raw)
    text = raw.decode("utf-8-sig")
    if path.suffix == ".txt":
        return [{"prompt": "", "completion": page} for page in pages(text)]
    return read_json(path, text)


def read_parquet(path: Path, raw: bytes) -> list:
    """Read the bytes of a Parquet file, the format of most data sets on huggingface.co."""
    try:
        from pyarrow import BufferReader, lib, parquet
    except ImportError:
        raise ValueError(
            f"{path}: Parquet is read by the package pyarrow: pip install pyarrow, or give the rows as JSONL"
        ) from None
    try:
        return parquet.read_table(BufferReader(raw)).to_pylist()
    except lib.ArrowException as e:
        raise ValueError(f"{path} cannot be read: {e}") from e


def read_json(path: Path, text: str) -> list:
    """Read a JSON list of rows or prompts, or {"prompts": such a list}."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{path}: not JSON ({e})") from e
    value = value["prompts"] if isinstance(value, dict) and "prompts" in value else value
    if not isinstance(value, list):
        raise ValueError(f'{path}: expected a list of rows, or {{"prompts": [...]}}, found {quote(value)}')
    return [{"prompt": row} if isinstance(row, str) else row for row in value]


PAGE = 2000  # characters: long enough that few windows end with their page


def pages(text: str) -> list[str]:
    """Cut text into pages: a page ends with the paragraph in which it becomes long enough."""
    size = min(PAGE, len(text) // 20)  # so that 5% of a short text are a page, too
    out, page, length = [], [], 0
    for line in text.splitlines(keepends=True):
        page.append(line)
        length += len(line.strip())
        if length > 2 * size or length > size and not line.strip():  # without paragraphs, pages end with lines
            out.append("".join(page))
            page, length = [], 0
    rest = "".join(page)
    if rest.strip() or not out:
        return [*out, rest] if rest.strip() else []
    return [*out[:-1], out[-1] + rest]


HELD_OUT = 0.05


def held_out_part(rows: list, split: str, path: Any) -> list:
    """Return the rows of a split if all are in one file: the last 5%, at least one, are val. path: where they are."""
    if not rows:
        found = ", ".join(sorted(p.name for p in path.iterdir())) or "an empty folder"
        raise ValueError(f"{path} has no training rows: expected train.jsonl, .json, .txt or .parquet; found {found}")
    n = max(round(HELD_OUT * len(rows)), int(len(rows) > 1))
    if split == "val" and n == 0:
        raise ValueError(f"{path} has a single row, so there is nothing to hold out: give a val.jsonl")
    return rows[len(rows) - n :] if split == "val" else rows[: len(rows) - n]
