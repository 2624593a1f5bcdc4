"""
The sizes of a recipe for a model that has to be downloaded (config/__init__.py): it can be tried without.
"""
import dataclasses
import os
from typing import Any


def changes(file: str, defined: dict[str, Any], size: str) -> dict[str, Any]:
    """Return the keys {name: value} that --model=tiny, small or random changes. A random model has the shape of the
    real one.

    file: the path of the recipe, defined: what it defines"""
    if size not in ("tiny", "small", "random"):
        raise ValueError(f"--model={size}: only tiny, small and random are names; to start from another model, write "
                         "--init_from=FOLDER")  # fmt: skip
    if size == "random" and "shape" in defined:
        name = os.path.basename(file).removesuffix(".py")
        dtype = {"model": dataclasses.replace(defined["tiny"]["model"], dtype="bfloat16", remat=True)}
        return defined["tiny"] | dtype | {"init_from": f"data/tiny/{name}", "out_dir": f"out/random/{name}"}
    if size not in defined:
        why = "is no recipe for a model that has to be downloaded: it needs nothing but its own command"
        raise ValueError(f"--model={size}: {file} {'has only --model=tiny' if 'tiny' in defined else why}")
    return defined[size]
