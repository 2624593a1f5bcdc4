"""
Read and write small files.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # the start of a file that Git LFS has not fetched


def write_whole(path: str | Path, text: str) -> None:
    """Write a file that nobody can see half written: under another name, renamed when it is complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as JSON that a person can read."""
    write_whole(path, json.dumps(value, ensure_ascii=False, indent=1))


def regular_file(file: Any) -> Any:
    """Return the path itself; raise ValueError for a pipe or a device, which might never end, and for a pointer that
    Git LFS left in place of the file."""
    if os.path.exists(file) and not os.path.isfile(file):
        raise ValueError(f"{file} is not an ordinary file but a folder, a pipe or a device: put the file there itself")
    with contextlib.suppress(OSError), open(file, "rb") as f:  # the caller, who reads it, reports these errors
        if f.read(len(LFS_POINTER)) == LFS_POINTER:
            raise ValueError(f"{file} is only a pointer of Git LFS to the file: git lfs pull fetches it")
    return file


def read_json(file: str | Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; {} if there is no such file."""
    file = Path(file)
    try:
        found = json.loads(regular_file(file).read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"{file} cannot be read as JSON: {e}") from e
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds a {type(found).__name__}, expected an object such as {{...}}")
    return found
