"""Read and write files, so that a crash loses nothing, and name the file when something fails."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import safetensors

LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # the start of a file that Git LFS has not fetched


class Stored(NamedTuple):
    """A tensor to be written."""

    name: str
    like: Any  # has its shape and dtype
    fetch: Callable[[], Any]  # returns its values; called once, when it is written


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Put the path into the body's errors of the disk: those of a write, a sync or a close name no file."""
    try:
        yield
    except OSError as e:
        e.filename = e.filename or path
        raise


@contextlib.contextmanager
def writing(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Open a file to write; all errors name it, those of closing included."""
    with naming(path), open(path, mode, encoding=None if "b" in mode else "utf-8") as f:
        yield f


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[IO]:
    """Open a file that replaces the one at `path` when complete; until then, or after a kill, the old one stays."""
    with writing(f"{path}.new") as f:
        yield f
    os.replace(f"{path}.new", path)


def write_json(path: str | Path, value: Any, ascii_only: bool = True) -> None:
    """Write a value as JSON. ascii_only: escape other characters, also what is not text in the name of a file."""
    with writing(path) as f:
        json.dump(value, f, ensure_ascii=ascii_only, indent=2)


def write_tensors(path: str, tensors: list[Stored]) -> None:
    """Write a safetensors file and sync it. A tensor is fetched only when the one before it is written."""
    kinds = {"float32": "F32", "bfloat16": "BF16", "int32": "I32", "uint32": "U32", "bool": "BOOL"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, x, _ in tensors:
        start, end = end, end + x.size * x.dtype.itemsize
        header[name] = {"dtype": kinds[str(x.dtype)], "shape": list(x.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with writing(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, _, fetch in tensors:
            f.write(np.ascontiguousarray(fetch()).tobytes())
        f.flush()
        os.fsync(f.fileno())


def write_files(folder: str, files: dict[str, Any]) -> None:
    """Write files {name: content} into a folder: a dict as JSON, a list of `Stored` as safetensors."""
    os.makedirs(folder, exist_ok=True)
    for name, content in files.items():
        (write_json if isinstance(content, dict) else write_tensors)(os.path.join(folder, name), content)


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


def open_tensors(file: str) -> dict[str, Any]:
    """Open a safetensors file -> {name of a tensor: the open file}."""
    try:
        handle = safetensors.safe_open(regular_file(file), "numpy")
    except (OSError, safetensors.SafetensorError) as e:
        from system import unknown

        raise ValueError(unknown.tensors(file, e)) from None
    return dict.fromkeys(handle.keys(), handle)


def sync(path: str) -> None:
    """Wait until a file or the entries of a folder are on the disk."""
    with naming(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def delete_folder(folder: str) -> None:
    """Delete a folder, if there is one."""
    if os.path.isdir(folder):
        shutil.rmtree(folder)
