"""
LoRA (2106.09685): train two small matrices beside a frozen matrix W (I, O): W + alpha / r * A (I, r) B (r, O):

    python train.py config/x.py --lora.rank=16

The reference of a KL is the base. `model.linear` adds A and B where a layer has them.
"""

import dataclasses

import jax
import jax.numpy as jnp

import config
import model
from checkpoints.adapters import adapter_shapes
from system import sharding

TARGETS = "q", "k", "v", "o", "gate", "up", "down"


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    rank: int = config.key(16, "rank of the adapters", config.POSITIVE_INT)
    alpha: float = config.key(16.0, "adapters are scaled by alpha / rank", config.POSITIVE)
    targets: tuple[str, ...] = config.key(TARGETS, "matrices that get adapters")

    freezes = True

    def split(self, params, key, cfg):
        """Split starting params into new adapters and the frozen base."""
        new = adapters(key, cfg.model, self.targets, self.rank)
        if model.width(params):  # the head of a judge is new
            new["head"] = params["head"]
        base = {name: x for name, x in params.items() if name == "blocks" or name not in new}
        return new, base

    def whole(self, params, base, cfg):
        return adapted(base, params, self.alpha)

    def between_keys(self, c):
        targets = self.targets
        yield (not targets or len({*targets}) < len(targets) or not {*targets} <= {*TARGETS},
               f"lora.targets={targets}: expected one or more of {', '.join(TARGETS)}, each once")  # fmt: skip
        yield config.reshapes(c), "adapt=True changes all weights, and lora keeps them: make the denoiser first"
        yield not (c.init_from or c.resume or c.eval_only), f"lora.rank={self.rank} needs init_from, its base"
        yield (c.ref_from or not config.reference_stays(c),
               "with lora.rank the reference is the base, which never changes: leave out moving_reference and ref_from")


def is_b(name):
    """True for the name of a matrix B."""
    return name.endswith("_b")


def adapters(key: jax.Array, cfg, targets, rank: int) -> dict:
    """Draw new adapters. As in PEFT, A is uniform within 1 / sqrt(I), and B is 0: a model begins as its base."""
    stacks = {}
    shapes = adapter_shapes(cfg, targets, rank)
    keys = jax.random.split(key, len(shapes))
    for name, leaf_key in zip(sorted(shapes, key=is_b), keys, strict=True):
        shape = cfg.n_layer, *shapes[name]
        if is_b(name):
            stacks[name] = jnp.zeros(shape)
        else:
            drawn = jax.random.uniform(leaf_key, shape, minval=-1, maxval=1)
            stacks[name] = drawn * shape[1] ** -0.5
    return {"blocks": sharding.split_layers(stacks, [shapes] * cfg.n_layer)}


def adapted(base: dict, adapters: dict, alpha: float) -> dict:
    """Put adapters, and other new parameters, beside the matrices in the params of their base -> params, in which B is
    multiplied by alpha / r. The arrays of the base are shared."""


    def scaled(name, x):
        return x * (alpha / len(x)) if is_b(name) else x

    blocks = [w | {name: scaled(name, x) for name, x in new.items()}
              for w, new in zip(base["blocks"], adapters["blocks"], strict=True)]  # fmt: skip
    return base | adapters | {"blocks": blocks}
