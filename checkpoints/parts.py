"""
Tensors in a file that are no leaf of our params: those of single experts, which we stack, and those that hold the rows
of several leaves, as LLaDA2's of q, k and v.
"""

import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from checkpoints.family import Place, is_transposed, leaf_at, stored_shape
from system import disk

NAME = operator.attrgetter("name")


def by_name(places: Iterable[Place]) -> Iterator[tuple[str, list[Place]]]:
    """Group consecutive places that are parts of one tensor in a file -> (its name, [Place, ...]) for each tensor."""
    for name, parts in itertools.groupby(places, NAME):
        yield name, list(parts)


def shapes_of(parts: list[Place], tree: Any) -> tuple[list, tuple]:
    """Return the shapes that the parts of a tensor have in a file, and that of the tensor. tree: of shapes."""
    shapes = []
    for part in parts:
        whole = leaf_at(tree, part.path)
        of_part = whole[len(part.at) :]
        shapes.append(stored_shape(part.path, of_part))
    rows = sum(shape[0] for shape in shapes)
    return shapes, (rows, *shapes[0][1:])


# ---- reading ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Rows:
    """Some rows of a tensor in a file."""

    tensor: Any
    rows: range

    def __getitem__(self, index: tuple) -> np.ndarray:
        some, *others = index
        rows = self.rows[some]
        return self.tensor[(slice(rows.start, rows.stop), *others)]


@dataclasses.dataclass(frozen=True)
class Stack:
    """The matrices of E experts, each (O, I) in a file, as one array (E, I, O)."""

    experts: list

    def __getitem__(self, index: tuple) -> np.ndarray:
        some, inputs, outputs = index
        matrices = [expert[outputs, inputs].T for expert in self.experts[some]]
        return np.stack(matrices)


def join(places: Iterable[Place], shapes: Any, checked: Callable) -> dict[tuple, Any]:
    """Find the tensors of all leaves -> {path of a leaf: an object with the indices of an open tensor}.

    shapes: the tree, with a shape for each leaf; checked(name, shape) returns the open tensor of a file"""
    found: dict[tuple, Any] = {}
    for name, parts in by_name(places):
        sizes, whole = shapes_of(parts, shapes)
        tensor, first = checked(name, whole), 0
        for part, size in zip(parts, sizes, strict=True):
            end = first + size[0]
            if part.at:
                found.setdefault(part.path, Stack([])).experts.append(tensor)
            else:
                found[part.path] = Rows(tensor, range(first, end))
            first = end
    return found


# ---- writing ---------------------------------------------------------------------------------------------------------


def to_store(params: Any, places: Iterable[Place]) -> list[disk.Stored]:
    """Prepare all tensors of a model for writing, as a file stores them."""
    shapes = jax.tree.map(np.shape, params)
    tensors = []
    for name, parts in by_name(places):
        _, shape = shapes_of(parts, shapes)
        tensors.append(stored(params, name, parts, shape))
    return tensors


def stored(params, name, parts, shape):
    """Prepare the tensor `name` of this shape; parts: the places of its rows in params."""

    def fetch():
        rows = []
        for part in parts:
            leaf = leaf_at(params, part.path)
            x = np.asarray(leaf[part.at] if part.at else leaf)
            rows.append(x.T if is_transposed(part.path, x.ndim) else x)
        return np.concatenate(rows)

    dtype = leaf_at(params, parts[0].path).dtype
    return disk.Stored(name, jax.ShapeDtypeStruct(shape, dtype), fetch)
