"""
What only other people's model folders have: keys of config.json that say the network is another, stretched positions,
the mask in the tokenizer's files, tensors that say nothing new. huggingface.py loads this file for such a folder.

families: huggingface.FAMILIES. theirs: the content of config.json.
"""

import math
import os
import re
import sys
from pathlib import Path
from typing import Any

from data import bpe
from data import foreign as tokenizers

MISSING = {  # the class in a config.json: what this code lacks for it, though its model_type is one of FAMILIES
    "LLaDAMoEModelLM": "this is LLaDA-MoE, whose mixture of experts has keys and tensors that no family here has: its "
    "entry in system/families.py is missing",
    "DreamForCausalLM": "this is DreamReasoner, a block model made of Qwen3, which Dream is not: --open_as=sdar reads "
    "it if it is not shifted, and --explain tests that",
}
BLOCK_LENGTHS = ("block_size", "bd_size", "block_length")  # keys of config.json that say that a model has blocks
ROPES = {  # rope_type -> the keys of the numbers in cfg.rope_scaling
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "beta_slow", "beta_fast", "original_max_position_embeddings", "attention_factor"),
}


def understand(folder: str, theirs: dict[str, Any], kind: str, open_as: str | None, families: dict) -> dict[str, Any]:
    """Refuse a config.json of another network than its family's -> its content, with every key where we look
    for it."""
    path = os.path.join(folder, "config.json")
    check_kind(path, theirs, kind, open_as, families)
    stretch = read_rope(path, theirs)
    for key in ("rope_scaling", "rope_parameters"):  # where transformers 5 keeps rope_theta
        theirs |= {name: value for name, value in (theirs.get(key) or {}).items() if name != "rope_type"}
    theirs |= {"rope_scaling": stretch}
    theirs.setdefault("num_experts", theirs.get("num_local_experts"))  # as transformers 5 writes it
    return theirs


def check_layers(path: str, theirs: dict[str, Any], cfg: Any) -> None:
    """Raise ValueError unless the layers that a config.json lists are those that a ModelConfig computes."""
    near = "sliding_attention" if getattr(cfg, "window", None) else "full_attention"
    types = ["full_attention" if i % 2 else near for i in range(cfg.n_layer)]
    if theirs.get("layer_types") not in (None, types):
        raise ValueError(f"{path}: layer_types={theirs['layer_types']} is not supported; this code computes {types}")


def written_rope(stretch: tuple[float, ...]) -> dict[str, Any]:
    """Write how positions are stretched, cfg.rope_scaling, as a config.json says it."""
    kind = "llama3" if len(stretch) == 4 else "yarn"
    return {"rope_type": kind, **dict(zip(ROPES[kind], stretch, strict=True))}


def say_mask(folder: str) -> None:
    """Say on the terminal if other people's causal model has a tokenizer with a mask: it may be a denoiser."""
    if is_foreign(bpe.read_json(Path(folder, "config.json"))):
        named = tokenizers.text_of(bpe.read_json(Path(folder, "tokenizer_config.json")).get("mask_token"))
        if named is not None:
            note = (f"{folder} is read as a causal model, though its tokenizer has a mask, {named}: if it is a "
                    "denoiser, --open_as=NAME opens it as one, and sample.py FOLDER --explain tests which")  # fmt: skip
            print(note, file=sys.stderr)


def check_kind(path, theirs, kind, open_as, families):
    """Raise ValueError if a config.json belongs to another network than its model_type, or to weights that are packed.
    """
    if packed := theirs.get("quantization_config"):
        method = packed.get("quant_method") if isinstance(packed, dict) else packed
        raise ValueError(f"{path}: quantization_config says that the weights are quantized ({method}), which this code "
                         "does not read: take the model in 16 or 32 bits")  # fmt: skip
    if open_as:
        return
    named = theirs.get("architectures")
    if isinstance(named, list) and (found := [MISSING[name] for name in named if name in MISSING]):
        raise ValueError(f"{path}: architectures={named}: {found[0]}")
    family = families[kind]
    for key in BLOCK_LENGTHS:
        if theirs.get(key) and key not in family.keys.values():
            blocks = ", ".join(name for name, other in families.items() if "block_causal" in other.keys)
            raise ValueError(f"{path}: {key}={theirs[key]!r} says that this is a model of blocks, and the family "
                             f"{kind} has none; families that may have blocks are {blocks}: --open_as=NAME opens it "
                             "as one of them")  # fmt: skip
    if family.fields.get("causal"):
        check_causal(path, theirs, family.architecture, families)


def missing_fields(folder, family, theirs, open_as):
    """Find fields that a config.json leaves out, in the tokenizer or the name of the folder -> {field: value}.

    theirs: the content of config.json; what it says goes before what is found elsewhere."""
    found = {}
    if family.fields.get("causal"):  # it reads no masks, and may write every id
        found["mask_id"] = theirs.get("vocab_size")
    elif theirs.get("mask_token_id") is None and ("block_causal" in family.keys or open_as):
        if (mask := mask_in_tokenizer(folder)) is not None:
            found["mask_id"] = mask
    if "block_causal" in family.keys and family.keys["block_causal"] not in theirs:
        name = name_of(folder)
        if in_name := re.search(r"-b(\d+)$", name):
            found["block_causal"] = int(in_name[1])
        elif "bd3lm" in name.lower():  # dllm's
            found["block_causal"] = 32
    return found


def name_of(folder):
    """Return the name of a folder; for one in the cache of huggingface_hub, the name of its repository."""
    parts = Path(os.path.abspath(folder)).parts
    return parts[-3] if parts[-2:-1] == ("snapshots",) else parts[-1]


def mask_in_tokenizer(folder):
    """Find the id of the mask token in the files of a tokenizer, by the name they give it or a usual one; or None."""
    spec = bpe.read_json(Path(folder, "tokenizer.json"))
    added = tokenizers.added_tokens(Path(folder), {"added_tokens": spec.get("added_tokens", [])})
    named = tokenizers.text_of(bpe.read_json(Path(folder, "tokenizer_config.json")).get("mask_token"))
    return next((added[name]["id"] for name in (named, *tokenizers.USUAL_NAMES["mask"]) if name in added), None)


def read_rope(path, theirs):
    """Read how a config.json stretches rotary positions -> cfg.rope_scaling, None if it does not."""
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(theirs.get(key) or {}, dict):
            raise ValueError(f"{path}: {key}={theirs[key]!r}: expected an object or null")
    found = theirs.get("rope_scaling") or theirs.get("rope_parameters") or {}
    kind = found.get("rope_type", found.get("type", "default"))
    by_length = found.get("llama_4_scaling_beta")  # Ministral 3 scales its queries, which this code does not
    if kind == "default" and not by_length:
        return None
    given = {key: value for key, value in found.items() if value not in (None, 0)}
    if kind == "yarn" and "factor" in given:
        given = {"beta_slow": 1, "beta_fast": 32, "attention_factor": attention_factor(path, given)} | given
    keys = ROPES.get(kind, ())
    if not keys or by_length or not set(keys) <= given.keys() or not found.get("truncate", True):
        raise ValueError(
            f"{path}: rope_scaling={found} is not supported; this code computes rope_type='default', "
            f"'llama3' with {', '.join(ROPES['llama3'])}, and 'yarn' with factor and original_max_position_embeddings"
        )
    return tuple(given[key] for key in keys)


def attention_factor(path, yarn):
    """Return the number that YaRN multiplies cosines and sines by."""
    numbers = [yarn["factor"], yarn.get("mscale") or 1, yarn.get("mscale_all_dim") or 0]
    if not all(type(x) in (int, float) for x in numbers):
        raise ValueError(f"{path}: rope_scaling={yarn}: expected numbers as factor, mscale and mscale_all_dim")
    factor, above, below = numbers
    growth = 0.1 * math.log(max(factor, 1))
    return (1 + above * growth) / (1 + below * growth) if yarn.get("mscale") and below else 1 + growth


def check_causal(path, theirs, architecture, families):
    """Raise ValueError if the config.json of a causal family seems to be a denoiser's: it would be computed left to
    right."""
    stem, named = architecture.removesuffix("ForCausalLM"), theirs.get("architectures") or []
    known = {(stem + task).lower() for task in ("ForCausalLM", "ForSequenceClassification", "Model")}
    named = named if isinstance(named, list) else [named]
    signs = [f"architectures={named}"] if any(str(name).lower() not in known for name in named) else []
    signs += [f"{key}={value!r}" for key, value in theirs.items() if key.startswith("dlm_")]
    signs += ["is_causal=False"] if theirs.get("is_causal") is False else []
    if is_foreign(theirs) and theirs.get("mask_token_id") is not None:
        signs += [f"mask_token_id={theirs['mask_token_id']!r}"]
    if signs:
        denoisers = ", ".join(kind for kind, family in families.items() if not family.fields.get("causal"))
        raise ValueError(
            f"{path}: model_type is {theirs['model_type']!r}, a causal family, but {', '.join(signs)}: "
            f"this is another network, perhaps one that sees both sides, and {architecture} would compute it "
            f"left to right. The denoisers that this code computes are {denoisers}: --open_as=NAME opens it as one of "
            f"them (Dream if it predicts each token one place before it), --open_as={theirs['model_type']} as it says"
        )


def is_foreign(theirs):
    """True if another program wrote this config.json. Our own causal models have a mask token, as their tokenizer
    does; they name their class and bring no code along."""
    return bool(theirs) and bool(
        not theirs.get("architectures") or theirs.get("auto_map") or theirs.get("transformers_version")
    )


def without_copies(folder, files, places, names):
    """Leave out tensors {name: open file} that say nothing new: the rotary frequencies of Llama 2, and a head that is
    the embeddings again, as in Qwen3-0.6B. Raise ValueError if it is another one.

    names: our leaf -> the name of its tensor"""
    files = {name: file for name, file in files.items() if not name.endswith("rotary_emb.inv_freq")}
    embed, head = (names[leaf] + ".weight" for leaf in ("embed", "head"))
    if not {embed, head} <= files.keys() or head in {place.name for place in places}:
        return files
    both = [files[name].get_slice(name) for name in (embed, head)]
    rows = both[0].get_shape()[0]
    parts = ([x[i : min(i + 4096, rows)] for x in both] for i in range(0, rows, 4096))
    if both[0].get_shape() != both[1].get_shape() or any(x.tobytes() != y.tobytes() for x, y in parts):
        raise ValueError(f"{folder}: config.json says tie_word_embeddings, but {head} is not {embed}: if the model has "
                         'a head of its own, write "tie_word_embeddings": false into config.json')  # fmt: skip
    return {name: file for name, file in files.items() if name != head}
