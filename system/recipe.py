"""
The sizes of a recipe for a model that has to be downloaded (config/__init__.py): it can be tried without.
"""
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
