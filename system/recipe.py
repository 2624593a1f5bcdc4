"""
A recipe for a model that has to be downloaded (config/__init__.py): whether that is there, and the sizes with which it
can be tried without.
"""
import os
from collections.abc import Callable
from typing import Any

from system import unknown


def changes(file: str, defined: dict[str, Any], size: str) -> dict[str, Any]:
    """Return the keys {name: value} that --model=tiny or small changes.

    file: the path of the recipe, defined: what it defines"""
    if size not in ("tiny", "small"):
        message = unknown.value("--model", size, ("tiny", "small"))
        raise ValueError(f"{message}; to start from another model, write --init_from=FOLDER")
    if size not in defined:
        why = "is no recipe for a model that has to be downloaded: it needs nothing but its own command"
        raise ValueError(f"--model={size}: {file} {'has only --model=tiny' if 'tiny' in defined else why}")
    return defined[size]


def check_downloads(file: str, defined: dict[str, Any], cfg: Any, resolve_path: Callable) -> None:
    """Raise a ValueError if the model or data of a recipe is not there. cfg: the Config of the run, resolve_path: that
    of config"""
    lacking = []
    for name, source in defined["downloads"].items():
        path = getattr(cfg, name)
        if path == getattr(defined["config"], name) and not os.path.exists(resolve_path(path)):
            lacking.append(f"{path} ({source})")
    if lacking:
        raise ValueError(f"{file} needs {' and '.join(lacking)}, which you have to download to that place, or to "
                         "name as ORG/NAME to have it fetched; with --model=tiny it can be tried without")  # fmt: skip
