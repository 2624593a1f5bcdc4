"""
Turn a causal model into a denoiser, to train it further (adapt=True).
"""

import dataclasses

import jax.numpy as jnp

import model
from model import ModelConfig
from system import sections


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    """There are none: --adapt=True makes a denoiser of the causal model in init_from."""

    reshapes = True

    def between_keys(self, c):
        yield (c.objective != "pretrain" or not c.init_from,
               "adapt=True makes a denoiser of a causal model: set init_from to it, and objective='pretrain'")


def adapt(params: dict, cfg: ModelConfig, mask_id: int, wanted: ModelConfig) -> tuple[dict, ModelConfig]:
    """Turn a causal model into a denoiser -> its params and ModelConfig. The blocks of `wanted` say into which:

    None    bidirectional, still shifted by one, with biases (0 if there were none), as Dream was made from Qwen2
    n       the same in blocks, as Fast-dLLM v2; a model with qk_norm as SDAR from Qwen3: not shifted, and no biases are
            added

    The mask token is initialized to the mean embedding (even if the table has an unused row: Qwen2 has 152,064, of
    which 151,665 mean something).
    """
    is_shifted = not (cfg.qk_norm and wanted.block)
    size = max(cfg.vocab_size, mask_id + 1)
    extra = size - cfg.vocab_size
    changes = {
        "causal": False,
        "shift": is_shifted,
        "qkv_bias": is_shifted or cfg.qkv_bias,
        "mask_id": mask_id,
        "vocab_size": size,
    }
    cfg = sections.changed(cfg, changes | ({"blocks.block": wanted.block} if wanted.block else {}))

    def with_mask(rows):
        """Add rows of the mean to a table (V, D), and set the mask's row to the mean."""
        mean = rows.mean(0)
        return jnp.concatenate([rows, jnp.repeat(mean[None], extra, 0)]).at[mask_id].set(mean)

    shapes = {name: shape for name, shape in model.shapes(cfg)["blocks"][0].items() if name.endswith("_bias")}
    # Each layer gets arrays of its own: an update donates all parameters, and XLA refuses to take an array twice.
    blocks = [{name: jnp.zeros(shape) for name, shape in shapes.items()} | w for w in params["blocks"]]
    head = {} if cfg.tie_embeddings else {"head": with_mask(params["head"].T).T}
    return params | head | {"embed": with_mask(params["embed"]), "blocks": blocks}, cfg
