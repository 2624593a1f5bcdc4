"""
Read the state of a checkpoint, to resume its run; and change what its run.json says. Each device reads only its part.
"""

import glob
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from checkpoints import checkpoint
from system import disk, placement, sharding


class Leaf(NamedTuple):
    """A leaf of a state in an open file."""

    shape: tuple[int, ...]
    read: Callable  # slices of its sides -> that part of it


def restore(folder: str, state: Any) -> tuple[Any, dict[str, Any]]:
    """Read what `save_run` wrote -> the state, in the shape of `state` (jax.eval_shape's will do), and run.json."""
    run = checkpoint.read_run(folder)
    if not {"step", "best"} <= run.keys():
        raise ValueError(
            f"{folder} has no run.json of this program: it is a model, not a run that can be resumed; "
            "start from it with --init_from and another out_dir"
        )
    saved = open_state(folder)
    state = state._replace(step=())
    shapes = {path: x.shape for path, x in checkpoint.leaves(state).items()}
    if any("['blocks']['" in path for path in saved):
        from checkpoints import older  # layers were stacked

        saved = older.split_stacks(saved, shapes)
    check_shapes(folder, saved, shapes)

    def leaf(path, x):
        return sharding.make_array(placement.leaf_name(path), x.shape, saved[jax.tree_util.keystr(path)].read)

    return jax.tree_util.tree_map_with_path(leaf, state)._replace(step=run["step"]), run


def open_state(folder: str) -> dict[str, Leaf]:
    """Open the state of a checkpoint -> {path: leaf}."""
    if glob.glob(os.path.join(glob.escape(folder), "state-*.safetensors")):
        raise ValueError(f"{folder} was written by several processes, and a run is one process now: docs/tried.md has "
                         "the commit that can continue it; its model opens as init_from")  # fmt: skip
    files = disk.open_tensors(os.path.join(folder, "state.safetensors"))
    slices = {path: file.get_slice(path) for path, file in files.items()}
    return {path: Leaf(tuple(values.get_shape()), values.__getitem__) for path, values in slices.items()}


def check_shapes(folder, saved, shapes):
    """Raise ValueError unless a state file has leaves of these shapes, {path: shape}."""
    sizes = {path: leaf.shape for path, leaf in saved.items()}
    different = sorted(path for path in sizes.keys() | shapes.keys() if sizes.get(path) != shapes.get(path))
    if different:
        raise ValueError(
            f"{folder} is of another model or optimizer than this config: {different[0]} and "
            f"{len(different) - 1} more differ; resume with the config of that run, or start elsewhere "
            "with --out_dir"
        )


def has_passed(run: dict[str, Any], cfg: Any) -> bool:
    """True if a run has ended because its best evaluation, which was not that of its start, is better than stop_at."""
    best = run["best"]
    if not (run.get("finished") and best and cfg.stop_at is not None and best["score"] > cfg.stop_at):
        return False
    return bool(best["step"] or run["step"] < run["config"]["max_iters"])


def update_run(cfg: Any, step: int, **changes: Any) -> None:
    """Change entries of the run.json of a checkpoint that is there."""
    folder = checkpoint.checkpoint_folder(cfg.out_dir, step)
    found = checkpoint.read_run(folder) | changes
    with disk.replacing(os.path.join(folder, "run.json")) as f:
        json.dump(found, f, indent=2)
