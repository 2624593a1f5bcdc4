"""
Where arrays live: one mesh of all devices, of this machine or of many, and what is split over each of its three axes.

    data     rows; every part of it has all params
    fsdp     rows, and of every matrix the side of width D: it is gathered for the block that it belongs to
    tensor   the other side of every matrix: heads, the inside of the mlp, the vocabulary

Programs are written as for one device, and GSPMD makes of them what each device does, from what is said here. Tokens,
keys and masks, a few bytes each, are whole everywhere; what is computed of them is not. One device is no mesh, and
then nothing here changes anything.
"""
import contextlib
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = "data", "fsdp", "tensor"
ROWS = "data", "fsdp"  # what rows are split over

# Name of a weight -> the axes of the mesh over its last two sides (model.shapes). What is not here is whole everywhere.
IN, OUT = ("fsdp", "tensor"), ("tensor", "fsdp")  # of a matrix that reads a width of D, and of one that writes it
SIDES = dict.fromkeys(("q", "k", "v", "gate", "up", "head"), IN) | dict.fromkeys(("o", "down", "embed"), OUT)
SIDES |= {f"{name}_a": (side[0], None) for name, side in SIDES.items()} | {  # adapters: (I, r), (r, O)
    f"{name}_b": (None, side[1]) for name, side in SIDES.items()} | {f"{name}_bias": (None, "tensor") for name in "qkv"}  # fmt: skip


def make(sizes, devices):
    """cfg.mesh, devices -> their Mesh; None: all of them on fsdp."""
    sizes = sizes or (1, len(devices), 1)
    if math.prod(sizes) != len(devices):
        raise ValueError(f"mesh={sizes} is of {math.prod(sizes)} devices, and there are {len(devices)}: data x fsdp x "
                         f"tensor, as in --mesh=1,{len(devices)},1")
    return Mesh(np.array(devices).reshape(sizes), AXES)


def use(sizes=None):
    """While this lasts, arrays live on the mesh of all devices; one device is none."""
    here = make(sizes, jax.devices())
    return jax.set_mesh(here) if here.size > 1 else contextlib.nullcontext()


def shape():
    """-> {axis: size} of the mesh that is used, also while a function is traced; {} without one."""
    return jax.sharding.get_abstract_mesh().shape


def spec(name, sides, sizes, but=""):
    """The name and shape of a leaf, {axis: size} -> its PartitionSpec. An axis that does not divide its side lies over
    the other one, and if it does not divide that, either, or is `but`, over none."""
    over = [()] * len(sides)
    wanted = dict(zip(SIDES.get(name, ()), (-2, -1), strict=False))
    for axis, side in wanted.items():
        for at in (side, -3 - side) if axis and len(sides) > 1 else ():
            if sides[at] % math.prod([sizes[axis], *(sizes[other] for other in over[at])]) == 0:
                over[at] += (axis,)
                break
    return PartitionSpec(*(tuple(axis for axis in axes if axis != but) for axes in over))


def specs(tree, sizes=None, but=""):
    """A tree of arrays or shapes: params, moments, a State, of LoRA or not -> their PartitionSpecs, by their names."""
    name = lambda path: next((k.key for k in path[::-1] if isinstance(k, jax.tree_util.DictKey)), None)
    return jax.tree_util.tree_map_with_path(lambda path, x: spec(name(path), x.shape, sizes or shape(), but), tree)


def split(tree, here):
    """A tree of arrays or shapes, a Mesh of any devices -> their NamedShardings."""
    return jax.tree.map(lambda x: NamedSharding(here, x), specs(tree, here.shape))


def placed(tree):
    """Params, moments, gradients -> the same where they live: inside and outside of compiled functions."""
    return constrain(tree, specs(tree)) if shape() else tree


def constrain(tree, where):
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, where)


@jax.custom_vjp
def together(weights):
    return constrain(weights, specs(weights, but="fsdp"))


together.defvjp(lambda weights: (together(weights), None), lambda _, grads: (placed(grads),))


def gathered(weights):
    """The weights of a block -> the same, gathered over fsdp. Their gradients are summed and split over it at once."""
    return together(weights) if shape() else weights


def rows(x, embedded=False):
    """x (B, ...), activations -> the same, each device with its rows. What was embedded comes from a table of which
    each device has some columns: that is one exchange among fsdp, which GSPMD does not find by itself."""
    if not shape():
        return x
    x = jax.lax.with_sharding_constraint(x, PartitionSpec("data", None, "fsdp")) if embedded else x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(ROWS))


def everywhere(tree):
    """Results of a compiled function -> the same, whole on every device, so that every host can read them."""
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec()), tree) if shape() else tree


def up(n):
    """n rows -> how many of them, at least, all devices get equally many of."""
    parts = math.prod(shape().get(axis, 1) for axis in ROWS)
    return -(-n // parts) * parts


def array(name, sides, fetch):
    """The name and shape of a leaf, fetch(slices) -> the array, of which each device is given its part."""
    if not shape():
        return jnp.asarray(fetch((slice(None),) * len(sides)))
    where = NamedSharding(jax.sharding.get_mesh(), spec(name, sides, shape()))
    return jax.make_array_from_callback(sides, where, fetch)
