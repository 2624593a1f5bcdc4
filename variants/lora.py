"""
LoRA (2106.09685): train two small matrices beside a frozen matrix W (I, O): W + alpha / r * A (I, r) B (r, O).
"""

import jax
import jax.numpy as jnp

import model


def adapter_shapes(cfg, targets, rank: int) -> dict:
    """List the adapters of the matrices in targets as {name: shape}, as `model.shapes` does, with a leading L axis."""
    shapes = {}
    for name in targets:
        n_layer, n_in, n_out = model.shapes(cfg)["blocks"][name]
        shapes[name + "_a"] = n_layer, n_in, rank
        shapes[name + "_b"] = n_layer, rank, n_out
    return shapes


def is_b(name):
    """True for the name of a matrix B."""
    return name.endswith("_b")


def adapters(key: jax.Array, cfg, targets, rank: int) -> dict:
    """Draw new adapters. As in PEFT, A is uniform within 1 / sqrt(I), and B is 0: a model begins as its base."""
    blocks = {}
    shapes = adapter_shapes(cfg, targets, rank)
    keys = jax.random.split(key, len(shapes))
    for name, leaf_key in zip(sorted(shapes, key=is_b), keys, strict=True):
        shape = shapes[name]
        if is_b(name):
            blocks[name] = jnp.zeros(shape)
        else:
            drawn = jax.random.uniform(leaf_key, shape, minval=-1, maxval=1)
            blocks[name] = drawn * shape[1] ** -0.5
    return {"blocks": blocks}


def adapted(base: dict, adapters: dict, alpha: float) -> dict:
    """Put adapters, and other new parameters, beside the matrices in the params of their base -> params, in which B is
    multiplied by alpha / r. The arrays of the base are shared."""
    scaled = {}
    for name, x in adapters["blocks"].items():
        scaled[name] = x * (alpha / x.shape[1]) if is_b(name) else x
    return base | adapters | {"blocks": base["blocks"] | scaled}


def split(params: dict, key: jax.Array, cfg) -> tuple[dict, dict | None]:
    """Split starting params into those that are trained and, with LoRA, the frozen base; without, the base is None."""
    if not cfg.lora_rank:
        return params, None
    new = adapters(key, cfg.model, cfg.lora_targets, cfg.lora_rank)
    if model.width(params):  # the head of a judge is new
        new["head"] = params["head"]
    base = {name: x for name, x in params.items() if name == "blocks" or name not in new}
    return new, base


def whole(params: dict | None, base: dict | None, cfg) -> dict | None:
    """Make the params of a model from the trained params and the base. Without LoRA (base None) they are the trained
    ones; None stays None."""
    if base is None or params is None:
        return params
    return adapted(base, params, cfg.lora_alpha)


def merged(state, base: dict | None, cfg):
    """Make the State that a Task sees: with LoRA, params and average are those of the whole model, see `adapted`, and
    the reference is the base."""
    if base is None:
        return state
    params = whole(state.params, base, cfg)
    average = whole(state.average, base, cfg)
    return state._replace(params=params, average=average, reference=base)
