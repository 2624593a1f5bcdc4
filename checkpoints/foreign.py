"""
What only other people's model folders have: a class of another network, stretched positions, the mask in the
tokenizer's files, tensors that say nothing new, several files. huggingface.py loads this file for such a folder, and
to say what is wrong with the tensors of one.

theirs: the content of config.json.
"""

import os
import re
from pathlib import Path
from typing import Any, NoReturn

from checkpoints.family import BLOCK_LENGTHS, FAMILIES
from system import disk, sections
from system.tokens import foreign

LLAMA3_ROPE = (  # rope.scaling
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)


def understand(
    folder: str, theirs: dict[str, Any], kind: str, open_as: str | None
) -> dict[str, Any]:
    """Refuse a config.json of another network than its family's -> its content, with every key where we look
    for it."""
    path, family = os.path.join(folder, "config.json"), FAMILIES[kind]
    if not open_as:
        check_network(path, theirs, family)
    rope = theirs.get("rope_scaling") or theirs.get("rope_parameters") or {}
    stretch = read_rope(path, rope)
    theirs = theirs | rope | {"rope_scaling": stretch}  # transformers 5 keeps rope_theta in there
    if open_as:
        unread = {*BLOCK_LENGTHS} - {*family.keys.values()}
        theirs = {key: value for key, value in theirs.items() if key not in unread}
    for field, value in missing_fields(folder, family, theirs, open_as).items():
        if theirs.get(family.keys[field]) is None:
            theirs[family.keys[field]] = value
    return theirs


def check_network(path, theirs, family):
    """Raise ValueError if a config.json seems to belong to another network than the one that its model_type names."""
    named, stem = theirs.get("architectures"), family.architecture.removesuffix("ForCausalLM")
    classes = [family.architecture, f"{stem}Model", f"{stem}ForSequenceClassification"]
    is_foreign = not named or theirs.get("auto_map") or theirs.get("transformers_version")
    mask = theirs.get("mask_token_id") if family.fields.get("causal") and is_foreign else None
    if mask is None and (not named or named in [[name] for name in classes]):
        return
    raise ValueError(
        f"{path}: model_type is {theirs['model_type']!r}, but architectures={named}, mask_token_id={mask}: this is "
        f"another network than {family.architecture}, perhaps a denoiser or one of blocks; "
        f"--checkpoint.open_as=NAME opens it as one of {', '.join(FAMILIES)} (Dream if it sees both sides and predicts "
        "each token one place before it)"
    )


def check_layers(path: str, theirs: dict[str, Any], cfg: Any) -> None:
    """Raise ValueError unless the layers that a config.json lists are those that a ModelConfig computes."""
    gemma = sections.find(cfg, "gemma")
    near = "sliding_attention" if gemma and gemma.window else "full_attention"
    types = ["full_attention" if i % 2 else near for i in range(cfg.n_layer)]
    if theirs.get("layer_types") not in (None, types):
        raise ValueError(f"{path}: layer_types={theirs['layer_types']} is not supported; this code computes {types}")


def missing_fields(folder, family, theirs, open_as):
    """Find fields that a config.json leaves out, in the tokenizer or the name of the folder -> {field: value}.

    theirs: the content of config.json; what it says goes before what is found elsewhere."""
    found, block_key = {}, family.keys.get("blocks.block")
    if family.fields.get("causal"):  # it reads no masks, and may write every id
        found["mask_id"] = theirs.get("vocab_size")
    elif block_key or open_as:
        found["mask_id"] = mask_in_tokenizer(folder)
    in_name = re.search(r"-b(\d+)$|bd3lm", name_of(folder))  # dllm's bd3lm have blocks of 32
    if block_key and block_key not in theirs and in_name:
        found["blocks.block"] = int(in_name[1] or 32)
    return {field: value for field, value in found.items() if value is not None}


def name_of(folder):
    """Return the name of a folder; for one in the cache of huggingface_hub, the name of its repository."""
    parts = Path(os.path.abspath(folder)).parts
    return parts[-3] if "snapshots" in parts[-2:-1] else parts[-1]


def mask_in_tokenizer(folder):
    """Find the id of the mask token in the files of a tokenizer by a usual name; or None."""
    listed = disk.read_json(f"{folder}/tokenizer.json").get("added_tokens", [])
    ids = {token["content"]: token["id"] for token in listed} | disk.read_json(f"{folder}/added_tokens.json")
    return next((ids[name] for name in foreign.MASKS if name in ids), None)


def read_rope(path, rope):
    """Read how a config.json stretches rotary positions -> rope.scaling, None if it does not."""
    kind = rope
    if isinstance(rope, dict):
        kind = rope.get("rope_type") or rope.get("type", "default")
    if kind == "default":
        return None
    if kind != "llama3" or not rope.keys() >= {*LLAMA3_ROPE}:
        raise ValueError(f"{path}: rope_scaling={rope} is not supported; this code computes rope_type='default', and "
                         f"'llama3' with {', '.join(LLAMA3_ROPE)}")  # fmt: skip
    return tuple(rope[key] for key in LLAMA3_ROPE)


def written_rope(stretch: tuple[float, ...]) -> dict[str, Any]:
    """Write how positions are stretched, rope.scaling, as a config.json says it."""
    return {"rope_type": "llama3", **dict(zip(LLAMA3_ROPE, stretch, strict=True))}


def without_copies(folder, files, places, names):
    """Leave out tensors {name: open file} that say nothing new: the rotary frequencies of Llama 2, and a head that is
    the embeddings again, as in Qwen3-0.6B. Raise ValueError if it is another one.

    names: our leaf -> the name of its tensor"""
    files = {name: file for name, file in files.items() if not name.endswith("rotary_emb.inv_freq")}
    embed, head = (names[leaf] + ".weight" for leaf in ("embed", "head"))
    if not {embed, head} <= files.keys() or head in {place.name for place in places}:
        return files
    ours = files[embed].get_slice(embed)[:]
    theirs = files[head].get_slice(head)[:]
    if ours.tobytes() != theirs.tobytes():
        raise ValueError(f"{folder}: config.json says tie_word_embeddings, but {head} is not {embed}: if the model has "
                         'a head of its own, write "tie_word_embeddings": false into config.json')  # fmt: skip
    return {name: file for name, file in files.items() if name != head}


def open_all(index: str) -> dict[str, Any]:
    """Open the files of tensors that an index lists -> {name of a tensor: open file}."""
    listed = disk.read_json(index).get("weight_map")
    if not (isinstance(listed, dict) and all(isinstance(file, str) for file in listed.values())):
        raise ValueError(f"{index} has no weight_map, the file of each tensor")
    found: dict[str, Any] = {}
    for file in sorted(set(listed.values())):
        path = os.path.join(os.path.dirname(index), file)
        found |= disk.open_tensors(path)
    return found


def refuse_tensor(named: str, x: Any, file: str, expected: tuple, floats: tuple) -> NoReturn:
    """Raise a ValueError for a tensor in a file that is packed, or has another shape than `file` says.

    named: the folder and the tensor; floats: the dtypes that can be read"""
    if x.get_dtype() not in floats:
        raise ValueError(f"{named} is of the type {x.get_dtype()}, a packed or quantized tensor; this code reads "
                         f"{', '.join(floats)}: take the model in 16 or 32 bits")  # fmt: skip
    raise ValueError(f"{named} has the shape {tuple(x.get_shape())}, but {file} makes it {expected}")


def refuse_names(problem: str, there: set[str], expected: set[str]) -> NoReturn:
    """Raise a ValueError with some names of tensors that are there and not expected, or the reverse."""

    def some(names):
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return ", ".join(sorted(names)[:4]) + more or "none"

    raise ValueError(f"{problem}: missing tensors: {some(expected - there)}; unknown tensors: {some(there - expected)}")


def dtype_in(files, places):
    """Return the dtype for the tensors in files {name: open file}: bfloat16 if the first of the places that is there
    has 16 bits."""
    first = next((place.name for place in places if place.name in files), None)
    kind = first and files[first].get_slice(first).get_dtype()
    return "bfloat16" if kind in ("BF16", "F16") else "float32"
