"""
Read the config of a run that was recorded when keys had other names (renamed.txt), and its state from when the
layers of a model were stacked.
"""

import functools
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from system.index import file_of

RENAMED = Path(__file__).with_name("renamed.txt")  # each line: how a key was called, and how it is called now
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
    new = dict(line.split() for line in RENAMED.read_text().splitlines())
    new = new | {f"model.{old}": f"model.{now}" for old, now in new.items()}
    may_be_off = {file_of(new.get(old, old)) for old in OFF}
    on = {file_of(new.get(old, old)) for old, value in OFF.items() if was.get(old, value) != value}
    found = {new.get(name, name): value for name, value in was.items() if name not in ("use", "model.use")}
    return {name: value for name, value in found.items() if file_of(name) not in may_be_off - on}


def split_stacks(saved: dict[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """Give each layer its part of leaves {path: resume.Leaf} that were stacked over all layers that had them.

    paths: those of today, ['blocks'][1]['q'] where ['blocks']['q'] had a leading axis"""
    found: dict[str, Any] = {}
    for path, leaf in saved.items():
        stack = re.fullmatch(r"(.*\['blocks'\])\['(?:dense_)?(\w+)'\]", path)
        if not stack:
            found[path] = leaf
            continue
        before, name = stack.groups()
        layers = re.findall(rf"^{re.escape(before)}\[(\d+)\]\['{name}'\]$", "\n".join(paths), re.M)
        number = dict(enumerate(sorted(layers, key=int)))
        for i in range(leaf.shape[0]):  # a layer that is not there today gets a path of no leaf
            part = leaf._replace(shape=leaf.shape[1:], read=functools.partial(read_layer, leaf.read, i))
            found[f"{before}[{number.get(i)}]['{name}']"] = part
    return found


def read_layer(read, i, index):
    """Read the part `index` of layer i of a leaf that is stacked; read: of the whole leaf."""
    return read((slice(i, i + 1), *index))[0]
