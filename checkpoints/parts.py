"""
Tensors in a file that are no leaf of our params: those of single experts, which we stack, and those that hold the rows
of several leaves, as LLaDA2's of q, k and v.
"""

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from checkpoints.huggingface import Place, is_transposed, leaf_at, stored_shape
from system import disk


def by_name(places: Iterable[Place]) -> Iterator[tuple[str, list[Place]]]:
    """Group consecutive places that are parts of one tensor in a file -> (its name, [Place, ...]) for each tensor."""
    return ((name, list(parts)) for name, parts in itertools.groupby(places, operator.attrgetter("name")))


def shapes_of(parts: list[Place], tree: Any) -> tuple[list, tuple]:
    """Return the shapes that the parts of a tensor have in a file, and that of the tensor. tree: of shapes."""
    shapes = [stored_shape(part.path, leaf_at(tree, part.path)[len(part.at) :]) for part in parts]
    return shapes, (sum(shape[0] for shape in shapes), *shapes[0][1:])


class Rows(NamedTuple):
    """Some rows of a tensor in a file."""

    tensor: Any
    rows: range

    def __getitem__(self, index: tuple) -> np.ndarray:
        some, *others = index
        chosen = self.rows[some]
        return self.tensor[(slice(chosen.start, chosen.stop), *others)]


class Stack(NamedTuple):
    """The matrices of E experts, each (O, I) in a file, as one array (E, I, O)."""

    experts: list

    def __getitem__(self, index: tuple) -> np.ndarray:
        some, *inner = index
        return np.stack([x[tuple(inner[::-1])].T for x in self.experts[some]])


def join(places: Iterable[Place], shapes: Any, checked: Callable) -> dict[tuple, Any]:
    """Find the tensors of all leaves -> {path: what is indexed as the tensor in a file}.

    shapes: the tree, with a shape for each leaf; checked(name, shape) returns the open tensor of a file"""
    found: dict[tuple, list] = {}
    for name, parts in by_name(places):
        sizes, whole = shapes_of(parts, shapes)
        x, first = checked(name, whole), 0
        for part, (n, *_) in zip(parts, sizes, strict=True):
            found.setdefault(part.path, []).append(Rows(x, range(first, first + n)) if len(parts) > 1 else x)
            first += n
    stacked = {place.path for place in places if place.at}
    return {path: Stack(tensors) if path in stacked else tensors[0] for path, tensors in found.items()}


def to_store(params: Any, places: Iterable[Place]) -> list[disk.Stored]:
    """Prepare all tensors of a model for writing, as a file stores them."""
    shapes = jax.tree.map(np.shape, params)
    return [stored(params, name, parts, shapes_of(parts, shapes)[1]) for name, parts in by_name(places)]


def stored(params, name, parts, shape):
    """Prepare the tensor `name` of this shape; parts: the places of its rows in params."""

    def fetch():
        leaves = [np.asarray(leaf_at(params, part.path)[part.at]) for part in parts]
        values = [x.T if is_transposed(part.path, x.ndim) else x for x, part in zip(leaves, parts, strict=True)]
        return np.concatenate(values)

    return disk.Stored(name, jax.ShapeDtypeStruct(shape, leaf_at(params, parts[0].path).dtype), fetch)
