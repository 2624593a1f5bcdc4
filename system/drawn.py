"""
Random tensors in place of a file of weights: what a model of this shape costs, without its download.

A folder whose model.safetensors.index.json places its tensors in a file drawn.json, {name: shape}, has weights that are
made when they are read. Nothing can be learnt from them.
"""

import functools
import math
import zlib
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from system.files import read_json

FILE = "drawn.json"
POOL = 2**24  # so many normal numbers are drawn; every tensor is cut from them


@functools.cache
def pool(width):
    """Draw the numbers that the rows of this width are cut from, with a standard deviation of 1 / sqrt(width)."""
    drawn = np.random.default_rng(0).standard_normal(POOL, np.float32)
    return (drawn * width**-0.5).astype(jnp.bfloat16)


class Drawn(NamedTuple):
    """A tensor that is made when it is read, as a slice of an open safetensors file: norms of 1, biases of 0, matrices
    (O, I) of std 1 / sqrt(I)."""

    name: str
    shape: tuple[int, ...]

    def get_shape(self):
        return [*self.shape]

    def get_dtype(self):
        return "BF16"

    def __getitem__(self, index):
        rows, *others = index
        whole = self.rows(range(*rows.indices(self.shape[0])))
        return whole[(slice(None), *others)]

    def rows(self, rows):
        """Make some rows, the same numbers whichever others are asked for with them."""
        inner = self.shape[1:]
        if not inner:
            return np.full(len(rows), 0 if self.name.endswith("bias") else 1, jnp.bfloat16)
        size = math.prod(inner)
        first = (zlib.crc32(self.name.encode()) + rows.start * size) % POOL
        numbers, n = pool(inner[-1]), len(rows) * size
        made, at = np.empty(n, numbers.dtype), 0
        while at < n:  # from `first` to the end of the pool, then all of it again and again
            part = numbers[first : first + n - at]
            made[at : at + len(part)] = part
            at, first = at + len(part), 0
        return made.reshape(len(rows), *inner)


class Open(NamedTuple):
    """A file of such tensors, with what is used of an open safetensors file."""

    shapes: dict[str, Any]

    def get_slice(self, name):
        return Drawn(name, tuple(self.shapes[name]))


def open_tensors(file: str) -> dict[str, Any]:
    """Open drawn.json -> {name of a tensor: the open file}."""
    shapes = read_json(file)
    return dict.fromkeys(shapes, Open(shapes))
