"""
Read the config of a run that was recorded when keys had other names (config/elsewhere.txt).
"""

from typing import Any

from system import unknown
from system.sections import file_of

# The values with which keys once said that a run does not use a variant, by their names then: runs recorded them.
OFF: dict[str, Any] = {
    "lora_rank": None,
    "difficulty": [],
    "curriculum": [],
    "paired": False,
    "adapt": False,
    "wandb_log": False,
    "nll_coef": 0.0,
    "entropy_coef": 0.0,
    "ref_mode": "static",
    "base_bits": None,
    "factor": 1.0,
    "budget": 0.1,
    "repetition_penalty": 1.0,
    "p_mask_prompt": 0.0,
    "cispo_cap": 5.0,
    "reward_clip": None,
    "model.block_causal": None,
    "model.rope_scaling": None,
    "model.gemma": False,
    "model.n_experts": None,
}


def as_named_now(was: dict[str, Any]) -> dict[str, Any]:
    """Return the config in an older run.json with the names that keys have now, without the variants that are off."""
    new = unknown.renamed()
    new = new | {f"model.{old}": f"model.{now}" for old, now in new.items()}
    may_be_off = {file_of(new.get(old, old)) for old in OFF}
    on = {file_of(new.get(old, old)) for old, value in OFF.items() if was.get(old, value) != value}
    found = {new.get(name, name): value for name, value in was.items() if name not in ("use", "model.use")}
    return {name: value for name, value in found.items() if file_of(name) not in may_be_off - on}
