"""
Where arrays lie on a mesh of many devices (sharding.py calls most of these functions, while there is one).
"""
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.lax import with_sharding_constraint as constrain  # a tree of arrays, PartitionSpecs of them all or one of each
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = "data", "fsdp", "tensor"
ROWS = "data", "fsdp"  # the axes over which rows are split

# Name of a weight: the axes over its last two sides (model.shapes). Weights without an entry are whole everywhere.
Sides = tuple[str | None, str | None]
READS_D: Sides = ("fsdp", "tensor")  # a matrix (D, ...)
WRITES_D: Sides = ("tensor", "fsdp")  # a matrix (..., D)
SIDES: dict[str, Sides] = dict.fromkeys("q k v gate up head".split(), READS_D)
SIDES |= dict.fromkeys("o down embed".split(), WRITES_D)
for _name, (_first, _last) in [*SIDES.items()]:
    SIDES |= {f"{_name}_a": (_first, None), f"{_name}_b": (None, _last)}  # adapters (I, rank), (rank, O)
for _name in ("gate", "up", "down"):
    SIDES |= {f"{kind}_{_name}": SIDES[_name] for kind in ("expert", "shared")}
SIDES |= {f"{name}_bias": (None, "tensor") for name in "qkv"}


def make(sizes: tuple[int, int, int] | None, devices: list) -> Mesh:
    """Make a mesh of these devices; sizes (data, fsdp, tensor): cfg.mesh, None: all on fsdp."""
    sizes = sizes or (1, len(devices), 1)
    if math.prod(sizes) != len(devices):
        raise ValueError(
            f"mesh={sizes} is of {math.prod(sizes)} devices, and there are {len(devices)}: data x fsdp x "
            f"tensor, as in --mesh=1,{len(devices)},1"
        )
    return Mesh(np.array(devices).reshape(sizes), AXES)


def spec(name: str | None, sides: tuple[int, ...], sizes: Any, but: str = "") -> PartitionSpec:
    """Return how the leaf with this name and the shape `sides` is split over a mesh; sizes: {axis: size} of the mesh,
    but: an axis to leave out.

    An axis that does not divide its side goes to the other side; if it does not divide that either, to none.
    """
    over: list[tuple] = [()] * len(sides)
    for axis, side in zip(SIDES.get(name or "", ()), (-2, -1), strict=False):
        for at in (side, -3 - side) if axis else ():
            if -at > len(sides):  # a bias has the last side alone
                continue
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


def in_use() -> Any:
    """Return {axis: size} of the mesh in use."""
    return jax.sharding.get_abstract_mesh().shape


def specs(tree, sizes=None, but=""):
    """Return the PartitionSpecs of a tree of arrays or shapes (parameters, moments, a State), by their names. sizes and
    but: see `spec`; None: the mesh in use."""
    sizes = sizes or in_use()

    def leaf_spec(path, x):
        return spec(leaf_name(path), x.shape, sizes, but)

    return jax.tree_util.tree_map_with_path(leaf_spec, tree)


def shardings(tree: Any, mesh: Mesh) -> Any:
    """Return the NamedShardings of a tree of arrays or shapes on a mesh of any devices."""
    on_mesh = functools.partial(NamedSharding, mesh)
    return jax.tree.map(on_mesh, specs(tree, mesh.shape))


# ---- placement, inside and outside of compiled functions -------------------------------------------------------------


def shard(tree):
    """Split parameters, moments or gradients over the mesh."""
    return constrain(tree, specs(tree))


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


def shard_rows(x, embedded):
    """Split activations x (B, ...) by rows.

    embedded: x comes from a table whose columns are split over fsdp. It then takes one exchange over fsdp, which GSPMD
    does not find by itself.
    """
    if embedded:
        x = constrain(x, PartitionSpec("data", None, "fsdp"))
    return constrain(x, PartitionSpec(ROWS))


def shard_heads(*xs: jax.Array) -> tuple[jax.Array, ...]:
    """Split q, k and v (B, T, H or KV, K) all in the same way, as a kernel needs them."""
    if not in_use():
        return xs
    axis = tensor_axis(*(x.shape[2] for x in xs))
    return constrain(xs, PartitionSpec(ROWS, None, axis))


def tensor_axis(*sides):
    """Return "tensor" if that axis divides all of these sides, else None."""
    return None if any(side % in_use()["tensor"] for side in sides) else "tensor"


def split_inside(fn: Callable, rows: tuple, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Compute fn(*rows, gate, up, down), which adds up over F: rows (B, ...), gate and up (E, D, F), down (E, F, D).

    Each device takes its rows and, over `tensor`, a part of F. GSPMD would sort the tokens of all devices together.
    """
    if not in_use():
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


def replicate(tree):
    """Place a tree whole on every device, inside a compiled function."""
    return constrain(tree, PartitionSpec())


def round_up(n):
    """Round n rows up to a multiple of the devices over which rows are split."""
    parts = math.prod(in_use()[axis] for axis in ROWS)
    return -(-n // parts) * parts


def make_array(name, sides, fetch):
    """Make an array of this name and shape; fetch(slices) returns the part of it that a device needs."""
    where = NamedSharding(jax.sharding.get_mesh(), spec(name, sides, in_use()))
    return jax.make_array_from_callback(sides, where, fetch)


def to_host(tree):
    """Move a tree of arrays to the memory of the machine."""
    where = shardings(tree, jax.sharding.get_mesh())
    return jax.device_put(tree, jax.tree.map(lambda x: x.with_memory_kind("pinned_host"), where))


def to_device(tree):
    """Move the result of `to_host` back to the devices."""
    where = shardings(tree, jax.sharding.get_mesh())
    return jax.device_put(tree, where)
