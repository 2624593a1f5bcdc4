"""
LoRA (2106.09685): beside a frozen matrix W (I, O) two small ones are trained, W + alpha / r * A (I, r) B (r, O).
"""
import jax
import jax.numpy as jnp

import model


def adapter_shapes(cfg, targets, rank):
    """As `model.shapes`, of the adapters beside the matrices in targets: {name: shape}, with a leading L axis."""
    sizes = [(name, *model.shapes(cfg)["blocks"][name]) for name in targets]
    return {n + "_a": (L, I, rank) for n, L, I, _ in sizes} | {n + "_b": (L, rank, O) for n, L, _, O in sizes}


def adapters(key, cfg, targets, rank):
    """key -> new adapters. As in PEFT, A is uniform within 1 / sqrt(I), and B is 0: a model begins as its base."""
    table = adapter_shapes(cfg, targets, rank)
    k_leaf = dict(zip(table, jax.random.split(key, len(table)), strict=True))
    uniform = lambda name, shape: jax.random.uniform(k_leaf[name], shape, minval=-1, maxval=1) * shape[1] ** -0.5
    return {"blocks": {n: jnp.zeros(s) if n.endswith("_b") else uniform(n, s) for n, s in table.items()}}


def adapted(base, adapters, alpha):
    """Params of a base, adapters and what else is new -> params of the model that they make, with the base's arrays."""
    scaled = {name: x * (alpha / x.shape[1]) if name.endswith("_b") else x for name, x in adapters["blocks"].items()}
    return base | adapters | {"blocks": base["blocks"] | scaled}


def split(params, key, cfg):
    """Params of a start -> what is trained, and what stays as it is: the base of LoRA, else None."""
    if not cfg.lora_rank:
        return params, None
    new = adapters(key, cfg.model, cfg.lora_targets, cfg.lora_rank)
    new |= {"head": params["head"]} if model.width(params) else {}  # the head of a judge is new
    return new, {name: x for name, x in params.items() if name == "blocks" or name not in new}


def whole(params, base, cfg):
    """What is trained (or None), the base -> the params of a model."""
    return params if base is None or params is None else adapted(base, params, cfg.lora_alpha)


def seen(state, base, cfg):
    """The state as a Task sees it: all params are those of models, and with LoRA the reference is the base."""
    if base is None:
        return state
    return state._replace(params=whole(state.params, base, cfg), average=whole(state.average, base, cfg),
                          reference=base)  # fmt: skip
