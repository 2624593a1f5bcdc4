"""
Data sets that are not there yet, or not below data/: those that a prepare.py makes, your own, and those of
huggingface.co, which, as its models, the package huggingface_hub downloads.
"""
import difflib
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def find(dataset: str, path: Any, names: list[str], files_of: Callable[[Path, str], list]) -> Path:
    """Find the folder or file of a data set; the error says what there is.

    path: of its files here, if they are; names: the data sets below data/; files_of: data.files_of
    """
    there = Path(path)
    if not path or not there.exists():
        raise ValueError(f"no data set {str(dataset)!r}: {what_else(str(dataset), names)}")
    if not (there.is_file() or there.is_dir()):
        raise ValueError(f"{path} is neither a file nor a folder, so it has no rows")
    if path == dataset:
        return there
    return part_with_rows(there, [p for p in (there, *there.glob("*/")) if files_of(p, "train")])


def what_else(dataset, names):
    """Say what to write in place of the name of a data set that there is not."""
    if Path(dataset).suffix in (".jsonl", ".json", ".txt", ".parquet"):
        return "there is no such file. In README.md, 'Your own task' writes one: a row is a prompt and its completion"
    close = difflib.get_close_matches(dataset, names, 1)
    mistyped = f"did you mean {close[0]!r}? " if close else ""
    return f"{mistyped}There are {', '.join(names)}, or give a folder or a file of your own"


@functools.cache
def local_copy(name: Any, suffixes: tuple[str, ...] = ()) -> Any:
    """Download a model or data set ORG/NAME of huggingface.co, or a part of one, ORG/NAME/PART -> its folder; a path of
    this machine stays as it is. suffixes: of the files of a data set's rows; (): it is a model."""
    asked = str(name)
    org, *parts = asked.split("/")
    # A path whose first part is here is mistyped, or the folder of a run that is still to come.
    is_local = org == "out" or Path(org).exists() or (Path(__file__).parents[1] / org).exists()
    if is_local or not re.fullmatch(r"[\w.-]*\w/[\w.-]+(/[\w.-]+)?", asked):
        return name
    repo, under = (*parts, "")[:2]
    kind = "dataset" if suffixes else "model"
    try:
        import huggingface_hub

        of_model = ["*.safetensors", "*.json", "*.txt", "*.jinja", "*.tiktoken"]
        files = [f"{under}*{suffix}" for suffix in suffixes] or of_model
        copy = huggingface_hub.snapshot_download(f"{org}/{repo}", repo_type=kind, allow_patterns=files)
        return os.path.join(copy, under)
    except ImportError:
        why = "that needs the package huggingface_hub: pip install huggingface_hub"
    except Exception as e:  # the network, a licence to be accepted, an unknown name
        why = (str(e).strip() or type(e).__name__).splitlines()[0]
    raise ValueError(f"{asked!r} is nothing here, and as a {kind} of huggingface.co it cannot be had: {why}")


def part_with_rows(folder: Path, with_rows: list[Path]) -> Path:
    """Choose the folder with rows in a data set; if there are several, main or default.

    with_rows: those that have rows, of the folder itself and the folders in it
    """
    with_rows = sorted(with_rows)
    if len(with_rows) < 2:
        return with_rows[0] if with_rows else folder
    chosen = [p for p in with_rows if p.name in (folder.name, "main", "default")]
    if len(chosen) != 1:
        raise ValueError(
            f"{folder} has several parts: add one to the name, as in ORG/NAME/{with_rows[-1].name}; there "
            f"are {', '.join(p.name for p in with_rows)}"
        )
    return chosen[0]


def make(home: Path, part: list[str]) -> None:
    """Run the prepare.py in a folder. part: [the name of what it should make], if it makes several."""
    if not os.access(home, os.W_OK):
        raise ValueError(f"{home} cannot be written, and prepare.py makes its files there on first use: copy the "
                         "project to a folder of your own")  # fmt: skip
    script = home / "prepare.py"
    name = "/".join([home.name, *part])
    print(f"data/{name} is used for the first time: running {script}", file=sys.stderr, flush=True)
    # In a session of its own, so that only this process gets ctrl-C; it ends the other without a traceback.
    if subprocess.run([sys.executable, str(script), *part], start_new_session=True).returncode:
        raise ValueError(f"{script} failed, for the reason above; it can be run by itself")
