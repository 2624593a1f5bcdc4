"""
Split arrays over many devices.

All devices of the machine form one mesh with three axes:

    data     rows; every part of this axis has all parameters
    fsdp     rows, and the side of length D of every matrix: a block gathers its weights when it needs them
    tensor   the other side of every matrix: heads, the inside of the mlp, the vocabulary

Programs are written as for one device. From the placements (placement.py) GSPMD derives what each device computes.
Tokens, keys and masks, a few bytes each, are whole on every device. A single device needs no mesh: nothing here changes
anything then.
"""

import contextlib
import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# ---- the mesh --------------------------------------------------------------------------------------------------------


def use(sizes: tuple[int, int, int] | None = None) -> contextlib.AbstractContextManager:
    """Keep arrays on the mesh of all devices while the context lasts; a single device needs none."""
    devices = jax.devices()
    if len(devices) == 1 and sizes in (None, (1, 1, 1)):
        return contextlib.nullcontext()
    from system import placement  # also says why these sizes cannot be

    return jax.set_mesh(placement.make(sizes, devices))


def shape() -> Any:
    """Return {axis: size} of the mesh in use, also while a function is traced; {} without a mesh."""
    return jax.sharding.get_abstract_mesh().shape


def platform() -> str:
    """Return cpu, gpu or tpu: what a function that is traced now is compiled for."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def on_cpu():
    """True if the function that is traced now is compiled for a CPU."""
    return platform() == "cpu"


def on_one_cpu():
    """True if the function that is traced now is compiled for a single device, a CPU."""
    return on_cpu() and not shape()


# ---- placement, inside and outside of compiled functions -------------------------------------------------------------


def many() -> types.ModuleType | None:
    """Return the module that places arrays on the mesh in use; None if there is no mesh."""
    if not shape():
        return None
    from system import placement  # a single device needs none of it

    return placement


def shard(tree: Any) -> Any:
    """Split parameters, moments or gradients over the mesh."""
    on = many()
    return on.shard(tree) if on else tree


def gather_weights(weights: Any) -> Any:
    """Gather weights over fsdp, as a block needs them; without a mesh return them as they are."""
    on = many()
    return on.gather_over_fsdp(weights) if on else weights


def gather_layer(x: Any, weights: Any, waits: bool) -> tuple:
    """Gather the weights of a layer over fsdp -> its input x, weights. They wait for x on a mesh, or if `waits`.

    Otherwise XLA gathers, or transposes for the gradient, those of all layers early, and holds them. Compiled for 8
    H100, the update of 24 layers of LLaDA's shape then takes 23.2 GB of temporaries, and 10.3 if they wait; with remat,
    4 layers of LLaDA's recipe on one H100 1.7 and 0.8 GB. (XLA's CPU knows no waiting.)"""
    if many() or waits:
        x, weights = jax.lax.optimization_barrier((x, weights))
    return x, gather_weights(weights)


def shard_rows(x: jax.Array, embedded: bool = False) -> jax.Array:
    """Split activations x (B, ...) by rows. embedded: x comes from a table whose columns are split over fsdp."""
    on = many()
    return on.shard_rows(x, embedded) if on else x


def replicate(tree: Any) -> Any:
    """Place a tree whole on every device, inside a compiled function."""
    on = many()
    return on.replicate(tree) if on else tree


def round_up(n: int) -> int:
    """Round n rows up to a multiple of the devices over which rows are split."""
    on = many()
    return on.round_up(n) if on else n


def take(tree: Any, rows: Any) -> Any:
    """Take these rows of every array of a tree; of one row, given as an int, the axis goes. Scalars stay."""

    def take_rows(a):
        return a[rows] if a.ndim else a

    return jax.tree.map(take_rows, tree)


# For use outside of compiled functions, where `take` would compile several programs for each array: one for all.
take_together = jax.jit(take)


def cut(tree: Any, n: int) -> Any:
    """Cut the rows of every array of a tree into n equal parts: (B, ...) -> (n, B / n, ...)."""

    def cut_rows(a):
        return a.reshape(n, len(a) // n, *a.shape[1:])

    return jax.tree.map(cut_rows, tree)


def joined(tree: Any) -> Any:
    """Join the first two axes of every array of a tree: (n, m, ...) -> (n * m, ...), the inverse of `cut`."""

    def join_rows(a):
        return a.reshape(-1, *a.shape[2:])

    return jax.tree.map(join_rows, tree)


def stacked(layers: list) -> dict:
    """List the parameters of layers [{name: shape}, ...] as stacks {name: (n, *shape)} over the n layers that have the
    name. A new model is drawn in stacks, so that a seed gives the numbers that it gave when layers were stored so."""
    shapes = {name: shape for layer in layers for name, shape in layer.items()}
    return {name: (sum(name in layer for layer in layers), *shape) for name, shape in shapes.items()}


def split_layers(stacks: dict, layers: list) -> list:
    """Give each layer its own of the stacks {name: (n, ...)}. layers: a dict of names for each layer."""
    numbers = {name: itertools.count() for name in stacks}  # not iter(stack), which leaves the mesh
    return [{name: stacks[name][next(numbers[name])] for name in layer} for layer in layers]


def in_chunks(fn: Callable, size: int, *trees: Any) -> Any:
    """Apply fn to `size` rows of trees (B, ...) at a time -> a tree of (B, ...), in which scalars are the mean over the
    chunks.

    The last chunk repeats its last row to be as long as the others, so that one shape is compiled.
    """
    n = len(jax.tree.leaves(trees)[0])
    size = round_up(min(size, n))
    if size == n:
        return fn(*trees)
    out = []
    for first in range(0, n, size):
        at = np.arange(first, first + size).clip(max=n - 1)
        out.append(fn(*take_together(trees, at)))

    return join_chunks(out, n)


@functools.partial(jax.jit, static_argnames="n")
def join_chunks(chunks, n):
    """Join the rows of trees of arrays, up to row n -> one tree; scalars become their mean."""

    def join(*parts):
        if parts[0].ndim == 0:
            return sum(parts) / len(parts)
        return jnp.concatenate(parts)[:n]

    return jax.tree.map(join, *chunks)


def make_array(name: str | None, sides: tuple[int, ...], fetch: Callable) -> jax.Array:
    """Make an array of this name and shape; fetch(slices) returns the part of it that a device needs."""
    if on := many():
        return on.make_array(name, sides, fetch)
    everything = (slice(None),) * len(sides)
    return jax.device_put(fetch(everything))


def to_host(tree: Any) -> Any:
    """Move a tree of arrays to the memory of the machine."""
    on = many()
    return on.to_host(tree) if on else jax.device_get(tree)


def to_device(tree: Any) -> Any:
    """Move the result of `to_host` back to the devices."""
    on = many()
    return on.to_device(tree) if on else jax.device_put(tree)
