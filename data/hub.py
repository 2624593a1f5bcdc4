"""
Models and data sets of huggingface.co, downloaded by the package huggingface_hub.
"""
import os
from collections.abc import Iterable
from pathlib import Path


def download(name: str, kind: str, suffixes: Iterable[str]) -> str:
    """Download a model or data set ORG/NAME, or a part of one, ORG/NAME/PART -> its folder.

    kind: "model" or "dataset"
    suffixes: of the files of rows of a data set
    """
    org, repo, under = (*name.split("/"), "")[:3]
    try:
        import huggingface_hub

        files = ["*.safetensors", "*.json", "*.txt", "*.jinja", "*.tiktoken"]
        if kind == "dataset":
            files = [f"{under}*{suffix}" for suffix in suffixes]
        copy = huggingface_hub.snapshot_download(f"{org}/{repo}", repo_type=kind, allow_patterns=files)
        return os.path.join(copy, under)
    except ImportError:
        why = "that needs the package huggingface_hub: pip install huggingface_hub"
    except Exception as e:  # the network, a licence to be accepted, an unknown name
        why = (str(e).strip() or type(e).__name__).splitlines()[0]
    raise ValueError(f"{name!r} is nothing here, and as a {kind} of huggingface.co it cannot be had: {why}")


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
