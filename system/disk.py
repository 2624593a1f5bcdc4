"""Write files so that a crash loses nothing, and name the file when something fails."""

import contextlib
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import numpy as np
import safetensors

from system import files

SHARD = 5_000_000_000  # bytes of a file of tensors; a larger model is several files


class Stored(NamedTuple):
    """A tensor to be written."""

    name: str
    like: Any  # has its shape and dtype
    fetch: Callable[[], Any]  # returns its values; called once, when it is written


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Put the path into the body's errors of the disk: those of a write, a sync or a close name no file."""
    try:
        yield
    except OSError as e:
        e.filename = e.filename or path
        raise


@contextlib.contextmanager
def writing(path: str, mode: str = "w") -> Iterator[IO]:
    """Open a file to write; all errors name it, those of closing included."""
    with naming(path), open(path, mode, encoding=None if "b" in mode else "utf-8") as f:
        yield f


@contextlib.contextmanager
def replacing(path: str, mode: str = "w") -> Iterator[IO]:
    """Open a file that replaces the one at `path` when complete; until then, or after a kill, the old one stays."""
    with writing(f"{path}.new", mode) as f:
        yield f
    os.replace(f"{path}.new", path)


def write_json(path: str, value: Any) -> None:
    """Write a value as JSON."""
    with writing(path) as f:
        json.dump(value, f, indent=2)


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


def split_into_files(stem: str, tensors: list[Stored]) -> dict[str, Any]:
    """Split tensors into files of about SHARD bytes -> {name: content} as `write_files` takes them.

    stem: one file is called stem.safetensors, of several the first stem-00001-of-00002.safetensors.
    """
    sizes = [tensor.like.size * tensor.like.dtype.itemsize for tensor in tensors]
    total = sum(sizes)
    n_files = math.ceil(total / SHARD)
    starts = itertools.accumulate(sizes[:-1], initial=0)
    numbers = [start * n_files // total for start in starts]
    used = sorted(set(numbers))  # a number is left out where a tensor is larger than a file
    if len(used) == 1:
        return {f"{stem}.safetensors": tensors}
    names = [f"{stem}-{used.index(number) + 1:05d}-of-{len(used):05d}.safetensors" for number in numbers]
    found: dict[str, Any] = {}
    for tensor, name in zip(tensors, names, strict=True):
        found.setdefault(name, []).append(tensor)
    index = {
        "metadata": {"total_size": total},
        "weight_map": {tensor.name: name for tensor, name in zip(tensors, names, strict=True)},
    }
    return found | {f"{stem}.safetensors.index.json": index}


def read_json(path: str) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    if not os.path.exists(path):
        raise ValueError(f"{path} cannot be read as JSON: there is no such file")
    return files.read_json(path)


def open_tensors(file: str) -> dict[str, Any]:
    """Open a safetensors file -> {name of a tensor: the open file}."""
    try:
        handle = safetensors.safe_open(files.regular_file(file), "numpy")
    except (OSError, safetensors.SafetensorError) as e:
        folder = os.path.dirname(file)
        is_of_run = re.fullmatch(r"step-\d+", os.path.basename(folder))  # checkpoint.py names its folders so
        cure = f"; delete {folder} to use the checkpoint before it" if is_of_run else ""
        raise ValueError(f"{file} is missing, truncated or not a safetensors file: {e}{cure}") from None
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
