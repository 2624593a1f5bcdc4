"""
The reference of a run, the model that its policy is held near by a KL: its dtype, where it comes from and is kept.
"""

from typing import Any

import config
from checkpoints import checkpoint
from config import Config
from loop import memory
from system import sharding


def dtype(cfg: Config) -> str:
    """Return the dtype of the reference: the model's; float32 if it moves, as 16 bits would lose its small steps."""
    return cfg.model.dtype if config.reference_stays(cfg) else "float32"


def load(cfg: Config) -> dict:
    """Return the parameters of the model in ref_from, which must have the policy's shape."""
    params, shape = checkpoint.load(str(cfg.ref_from), dtype(cfg), checkpoint.Keys.of(cfg).open_as)
    checkpoint.refuse_judge(cfg.ref_from, params)
    theirs, ours = vars(shape), vars(cfg.model)
    for key in ours:
        if ours[key] != theirs[key] and key not in ("dtype", "remat", "eos_id", "end_ids", "max_positions"):
            raise ValueError(f"ref_from={cfg.ref_from!r}: the model there has {key}={theirs[key]}, the policy "
                             f"{ours[key]}: the two must be of one shape and vocabulary")  # fmt: skip
    return params


def put_away(state: Any, cfg: Config) -> Any:
    """Move the reference of a State to the memory of the host, if the run keeps it there -> the State."""
    if memory.Keys.of(cfg).ref_offload:
        return state._replace(reference=sharding.to_host(state.reference))
    return state
