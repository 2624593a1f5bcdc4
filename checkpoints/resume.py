"""
Read the state of a checkpoint, to resume its run. Each process and each device reads only its part.
"""

import functools
import glob
import math
import os
from typing import Any, NamedTuple

import jax
import numpy as np

from checkpoints import checkpoint
from system import disk, placement, sharding


class Piece(NamedTuple):
    """A part of a leaf in an open file."""

    where: tuple[slice, ...]  # in the leaf
    values: Any  # a slice of the file, read by indexing


def restore(folder: str, state: Any) -> tuple[Any, dict[str, Any]]:
    """Read what `save_run` wrote -> the state, in the shape of `state` (jax.eval_shape's will do), and run.json."""
    run = checkpoint.read_run(folder)
    if not {"step", "best"} <= run.keys():
        raise ValueError(
            f"{folder} has no run.json of this program: it is a model, not a run that can be resumed; "
            "start from it with --init_from and another out_dir"
        )
    saved = read_pieces(folder)
    state = state._replace(step=())
    check_pieces(folder, saved, {path: x.shape for path, x in checkpoint.leaves(state).items()})

    def leaf(path, x):
        fetch = functools.partial(assemble, saved[jax.tree_util.keystr(path)], x.shape)
        return sharding.make_array(placement.leaf_name(path), x.shape, fetch)

    return jax.tree_util.tree_map_with_path(leaf, state)._replace(step=run["step"]), run


def read_pieces(folder: str) -> dict[str, list[Piece]]:
    """Open all state files of a checkpoint -> {path of a leaf: its pieces}."""
    found: dict[str, list[Piece]] = {}
    files = sorted(glob.glob(os.path.join(glob.escape(folder), "state*.safetensors")))
    for file in files or [os.path.join(folder, "state.safetensors")]:
        for name, handle in disk.open_tensors(file).items():
            path, _, ends = name.partition("@")
            values = handle.get_slice(name)
            if ends:
                where = tuple(slice(*map(int, pair.split(":"))) for pair in ends.split(","))
            else:
                where = tuple(slice(0, n) for n in values.get_shape())
            found.setdefault(path, []).append(Piece(where, values))
    return found


def check_pieces(folder, saved, shapes):
    """Raise ValueError unless the pieces make up leaves of these shapes."""
    sizes = {
        path: tuple(max(s.stop for s in axis) for axis in zip(*(piece.where for piece in pieces), strict=True))
        for path, pieces in saved.items()
    }
    different = sorted(path for path in sizes.keys() | shapes.keys() if sizes.get(path) != shapes.get(path))
    if different:
        raise ValueError(
            f"{folder} is of another model or optimizer than this config: {different[0]} and "
            f"{len(different) - 1} more differ; resume with the config of that run, or start elsewhere "
            "with --out_dir"
        )
    for path, shape in shapes.items():
        if sum(math.prod(s.stop - s.start for s in piece.where) for piece in saved[path]) != math.prod(shape):
            raise ValueError(
                f"{folder} lacks a part of {path}, one of its state-... files: delete it to resume from the "
                "checkpoint before it"
            )


def assemble(pieces: list[Piece], shape: tuple[int, ...], index: Any) -> np.ndarray:
    """Read leaf[index] of a leaf with this shape from its pieces."""
    wanted = [slice(*s.indices(n)) for s, n in zip(index, shape, strict=True)]
    out: Any = None
    for piece in pieces:
        both = [slice(max(p.start, w.start), min(p.stop, w.stop)) for p, w in zip(piece.where, wanted, strict=True)]
        if any(s.start >= s.stop for s in both):
            continue
        x = np.asarray(piece.values[relative(both, piece.where)])
        if both == wanted:
            return x
        if out is None:
            out = np.empty([w.stop - w.start for w in wanted], x.dtype)
        out[relative(both, wanted)] = x
    return out


def relative(inner, outer):
    """Shift the slices `inner` so that they count from the starts of the slices `outer`, which contain them."""
    return tuple(slice(s.start - o.start, s.stop - o.start) for s, o in zip(inner, outer, strict=True))
