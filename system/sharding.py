"""
Split arrays over many devices. (system/hosts.py is about many processes.)

All devices, of this machine or of many, form one mesh with three axes:

    data     rows; every part of this axis has all parameters
    fsdp     rows, and the side of length D of every matrix: a block gathers its weights when it needs them
    tensor   the other side of every matrix: heads, the inside of the mlp, the vocabulary

Programs are written as for one device. From the placements in this file GSPMD derives what each device computes.
Tokens, keys and masks, a few bytes each, are whole on every device. A single device needs no mesh: nothing here changes
anything then.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = "data", "fsdp", "tensor"
ROWS = "data", "fsdp"  # the axes over which rows are split

# Name of a weight: the axes over its last two sides (model.shapes). Weights without an entry are whole everywhere.
Sides = tuple[str | None, str | None]
READS_D: Sides = ("fsdp", "tensor")  # a matrix (D, ...)
WRITES_D: Sides = ("tensor", "fsdp")  # a matrix (..., D)
SIDES: dict[str, Sides] = dict.fromkeys("q k v gate up head".split(), READS_D)
SIDES |= dict.fromkeys("o down embed".split(), WRITES_D)
ADAPTERS: dict[str, Sides] = {}
for _name, (_first, _last) in SIDES.items():
    ADAPTERS |= {f"{_name}_a": (_first, None), f"{_name}_b": (None, _last)}  # (I, rank), (rank, O)
for _name in ("gate", "up", "down"):
    SIDES |= {f"{kind}_{_name}": SIDES[_name] for kind in ("expert", "shared", "dense")}
SIDES |= ADAPTERS | {f"{name}_bias": (None, "tensor") for name in "qkv"}


# ---- the mesh --------------------------------------------------------------------------------------------------------


def make(sizes: tuple[int, int, int] | None, devices: list) -> Mesh:
    """Make a mesh of these devices; sizes (data, fsdp, tensor): cfg.mesh, None: all on fsdp."""
    sizes = sizes or (1, len(devices), 1)
    if math.prod(sizes) != len(devices):
        raise ValueError(
            f"mesh={sizes} is of {math.prod(sizes)} devices, and there are {len(devices)}: data x fsdp x "
            f"tensor, as in --mesh=1,{len(devices)},1"
        )
    return Mesh(np.array(devices).reshape(sizes), AXES)


def use(sizes: tuple[int, int, int] | None = None) -> contextlib.AbstractContextManager:
    """Keep arrays on the mesh of all devices while the context lasts; a single device needs none."""
    here = make(sizes, jax.devices())
    return jax.set_mesh(here) if here.size > 1 else contextlib.nullcontext()


def shape() -> Any:
    """Return {axis: size} of the mesh in use, also while a function is traced; {} without a mesh."""
    return jax.sharding.get_abstract_mesh().shape


def platform() -> str:
    """Return cpu, gpu or tpu: what a function that is traced now is compiled for."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def spec(name: str | None, sides: tuple[int, ...], sizes: Any, but: str = "") -> PartitionSpec:
    """Return how the leaf with this name and the shape `sides` is split over a mesh; sizes: {axis: size} of the mesh,
    but: an axis to leave out.

    An axis that does not divide its side goes to the other side; if it does not divide that either, to none.
    """
    over: list[tuple] = [()] * len(sides)
    preferred = SIDES.get(name or "", ()) if len(sides) > 1 else ()
    for axis, side in zip(preferred, (-2, -1), strict=False):
        for at in (side, -3 - side) if axis else ():
            parts = math.prod(sizes[one] for one in (axis, *over[at]))
            if sides[at] % parts == 0:
                over[at] += (axis,)
                break
    over = [tuple(axis for axis in axes if axis != but) for axes in over]
    return PartitionSpec(*over)


def leaf_name(path):
    """Return the name of the weight at this path, or of the weight whose moment it is; None if it is neither."""
    names = [k.key for k in path if isinstance(k, jax.tree_util.DictKey)]
    return names[-1] if names else None


def specs(tree, sizes=None, but=""):
    """Return the PartitionSpecs of a tree of arrays or shapes (parameters, moments, a State), by their names. sizes and
    but: see `spec`; None: the mesh in use."""
    sizes = sizes or shape()

    def leaf_spec(path, x):
        return spec(leaf_name(path), x.shape, sizes, but)

    return jax.tree_util.tree_map_with_path(leaf_spec, tree)


def shardings(tree: Any, mesh: Mesh) -> Any:
    """Return the NamedShardings of a tree of arrays or shapes on a mesh of any devices."""
    on_mesh = functools.partial(NamedSharding, mesh)
    return jax.tree.map(on_mesh, specs(tree, mesh.shape))


# ---- placement, inside and outside of compiled functions -------------------------------------------------------------


def constrain(tree, where):
    """Place a tree as the tree of PartitionSpecs `where` says."""
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, where)


def shard(tree: Any) -> Any:
    """Split parameters, moments or gradients over the mesh."""
    return constrain(tree, specs(tree)) if shape() else tree


@jax.custom_vjp
def gather_over_fsdp(weights):
    """Gather weights that are split over fsdp; their gradient is summed and split over fsdp in one step."""
    return constrain(weights, specs(weights, but="fsdp"))


def gathered_weights(weights):
    """Return the gathered weights, and no residuals: the gradient needs none."""
    return gather_over_fsdp(weights), None


def split_gradient(_, grads):
    """Return the gradient of the weights before they were gathered."""
    return (shard(grads),)


gather_over_fsdp.defvjp(gathered_weights, split_gradient)


def gather_weights(weights: Any) -> Any:
    """Gather weights over fsdp, as a block needs them; without a mesh return them as they are."""
    return gather_over_fsdp(weights) if shape() else weights


def shard_rows(x: jax.Array, embedded: bool = False) -> jax.Array:
    """Split activations x (B, ...) by rows.

    embedded: x comes from a table whose columns are split over fsdp. It then takes one exchange over fsdp, which GSPMD
    does not find by itself.
    """
    if not shape():
        return x
    if embedded:
        x = constrain(x, PartitionSpec("data", None, "fsdp"))
    return constrain(x, PartitionSpec(ROWS))


def shard_heads(*xs: jax.Array) -> tuple[jax.Array, ...]:
    """Split q, k and v (B, T, H or KV, K) all in the same way, as a kernel needs them."""
    if not shape():
        return xs
    axis = tensor_axis(*(x.shape[2] for x in xs))
    by_head = PartitionSpec(ROWS, None, axis)
    return constrain(xs, (by_head,) * len(xs))


def tensor_axis(*sides):
    """Return "tensor" if that axis divides all of these sides, else None."""
    return None if any(side % shape()["tensor"] for side in sides) else "tensor"


def split_inside(fn: Callable, rows: tuple, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Compute fn(*rows, gate, up, down), which adds up over F: rows (B, ...), gate and up (E, D, F), down (E, F, D).

    Each device takes its rows and, over `tensor`, a part of F. GSPMD would sort the tokens of all devices together.
    """
    if not shape():
        return fn(*rows, gate, up, down)
    B, F = len(rows[0]), gate.shape[-1]
    over = ROWS if round_up(B) == B else None
    axis = tensor_axis(F)

    def local(*args):
        out = fn(*args)
        return jax.lax.psum(out, axis) if axis else out

    by_rows = PartitionSpec(over)
    writes_f, reads_f = PartitionSpec(None, None, axis), PartitionSpec(None, axis)
    where = (by_rows,) * len(rows) + (writes_f, writes_f, reads_f)
    split = jax.shard_map(local, in_specs=where, out_specs=by_rows)
    return split(*rows, gate, up, down)


def replicate(tree: Any) -> Any:
    """Place a tree whole on every device, inside a compiled function, so that every host can read its results."""

    def everywhere(x):
        return constrain(x, PartitionSpec())

    return jax.tree.map(everywhere, tree) if shape() else tree


def round_up(n: int) -> int:
    """Round n rows up to a multiple of the devices over which rows are split."""
    parts = math.prod(shape().get(axis, 1) for axis in ROWS)
    return -(-n // parts) * parts


def take(tree: Any, rows: Any) -> Any:
    """Take these rows of every array of a tree; of one row, given as an int, the axis goes. Scalars stay."""

    def take_rows(a):
        return a[rows] if a.ndim else a

    return jax.tree.map(take_rows, tree)


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
        out.append(fn(*take(trees, at)))

    def join(*chunks):
        if chunks[0].ndim == 0:
            return sum(chunks) / len(chunks)
        return jnp.concatenate(chunks)[:n]

    return jax.tree.map(join, *out)


def make_array(name: str | None, sides: tuple[int, ...], fetch: Callable) -> jax.Array:
    """Make an array of this name and shape; fetch(slices) returns the part of it that a device needs."""
    if not shape():
        everything = (slice(None),) * len(sides)
        return jnp.asarray(fetch(everything))
    where = NamedSharding(jax.sharding.get_mesh(), spec(name, sides, shape()))
    return jax.make_array_from_callback(sides, where, fetch)


def to_host(tree: Any) -> Any:
    """Move a tree of arrays to the memory of the hosts, to each the parts of its devices."""
    if not shape():
        return jax.device_get(tree)
    where = shardings(tree, jax.sharding.get_mesh())
    return jax.device_put(tree, jax.tree.map(lambda x: x.with_memory_kind("pinned_host"), where))


def to_device(tree: Any) -> Any:
    """Move the result of `to_host` back to the devices."""
    if not shape():
        return tree
    where = shardings(tree, jax.sharding.get_mesh())
    return jax.device_put(tree, where)
