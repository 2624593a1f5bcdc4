"""
Read and write models and checkpoints.

There is no private format. A model is a Hugging Face folder, adapters are a PEFT folder. A checkpoint of a run is such
a folder with two more files: state.safetensors (everything that the next step depends on) and run.json (the step, the
best step so far, the config). A checkpoint appears whole or not at all.

The first part of this file writes files, the second reads and writes other people's folders, the third checkpoints.
"""

import contextlib
import dataclasses
import functools
import glob
import json
import math
import operator
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

import config
import model
from data import bpe
from data.bpe import Tokenizer
from machine import lora, mesh

# ==== files ===========================================================================================================


class Stored(NamedTuple):
    """A tensor to be written."""

    name: str
    like: Any  # has its shape and dtype
    fetch: Callable[[], Any]  # returns its values; called once, when it is written


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Put the path into errors of the disk: those of a write, a sync or a close name no file."""
    try:
        yield
    except OSError as e:
        e.filename = e.filename or path
        raise


@contextlib.contextmanager
def writing(path: str, mode: str = "w") -> Iterator[IO]:
    """Open a file to write; all errors name it, those of closing included."""
    with naming(path), open(path, mode, encoding=None if "b" in mode else "utf-8") as f:
        yield f


def write_json(path: str, value: Any) -> None:
    """Write a value as JSON."""
    with writing(path) as f:
        json.dump(value, f, indent=2)


def write_tensors(path: str, tensors: list[Stored]) -> None:
    """Write a safetensors file and sync it. A tensor is fetched only when the one before it is written."""
    kinds = {"float32": "F32", "bfloat16": "BF16", "int32": "I32", "uint32": "U32", "bool": "BOOL"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, x, _ in tensors:
        start, end = end, end + x.size * x.dtype.itemsize
        header[name] = {"dtype": kinds[str(x.dtype)], "shape": list(x.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with writing(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, _, fetch in tensors:
            f.write(np.ascontiguousarray(fetch()).tobytes())
        f.flush()
        os.fsync(f.fileno())


def write_files(folder: str, files: dict[str, Any]) -> None:
    """Write files {name: content} into a folder: a dict as JSON, a list of `Stored` as safetensors."""
    os.makedirs(folder, exist_ok=True)
    for name, content in files.items():
        (write_json if isinstance(content, dict) else write_tensors)(os.path.join(folder, name), content)


def split_among_processes(stem: str, tensors: list[Stored]) -> dict[str, Any]:
    """Choose what this process writes of the tensors of a file -> files, as `write_files` takes them.

    With several processes, each writes some tensors, gathering one at a time, and the first writes the index.
    """
    n, me = mesh.processes()
    if n == 1:
        return {f"{stem}.safetensors": tensors}
    names = [f"{stem}-{i + 1:05d}-of-{n:05d}.safetensors" for i in range(n)]
    owner = [i * n // len(tensors) for i in range(len(tensors))]
    mine = []
    for tensor, writer in zip(tensors, owner, strict=True):
        x = tensor.fetch()  # every process takes part in every gather
        if writer == me:
            mine.append(tensor._replace(fetch=functools.partial(np.asarray, x)))
    index = {
        "metadata": {"total_size": sum(t.like.size * t.like.dtype.itemsize for t in tensors)},
        "weight_map": {t.name: names[writer] for t, writer in zip(tensors, owner, strict=True)},
    }
    return {names[me]: mine} | ({} if me else {f"{stem}.safetensors.index.json": index})


def read_json(path: str) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    if not os.path.exists(path):
        raise ValueError(f"{path} cannot be read as JSON: there is no such file")
    return bpe.read_json(path)


def open_tensors(file: str) -> dict[str, Any]:
    """Open a safetensors file -> {name of a tensor: the open file}."""
    try:
        handle = safetensors.safe_open(bpe.regular_file(file), "numpy")
    except (OSError, safetensors.SafetensorError) as e:
        with contextlib.suppress(OSError), open(file, "rb") as head:
            if head.read(len(bpe.LFS_POINTER)) == bpe.LFS_POINTER:
                raise ValueError(
                    f"{file} is only a pointer of Git LFS to the tensors: git lfs pull fetches them"
                ) from None
        raise ValueError(f"{file} is missing, truncated or not a safetensors file: {e}") from None
    return dict.fromkeys(handle.keys(), handle)


def sync(path: str) -> None:
    """Wait until a file or the entries of a folder are on the disk."""
    with naming(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def delete_folder(folder: str) -> None:
    """Delete a folder, if there is one."""
    if os.path.isdir(folder):
        shutil.rmtree(folder)


# ==== other people's folders: families ================================================================================

# Our tensor -> theirs, without .weight or .bias; {} is the layer. They store (out, in), we compute (in, out).
LLAMA_TENSORS = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attn_norm": "model.layers.{}.input_layernorm",
    "mlp_norm": "model.layers.{}.post_attention_layernorm",
    "q_norm": "model.layers.{}.self_attn.q_norm",
    "k_norm": "model.layers.{}.self_attn.k_norm",
    "q": "model.layers.{}.self_attn.q_proj",
    "k": "model.layers.{}.self_attn.k_proj",
    "v": "model.layers.{}.self_attn.v_proj",
    "o": "model.layers.{}.self_attn.o_proj",
    "gate": "model.layers.{}.mlp.gate_proj",
    "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj",
}
GEMMA_TENSORS = LLAMA_TENSORS | {
    "attn_out_norm": "model.layers.{}.post_attention_layernorm",
    "mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
    "mlp_out_norm": "model.layers.{}.post_feedforward_layernorm",
}
LLADA_TENSORS = {
    "embed": "model.transformer.wte",
    "norm": "model.transformer.ln_f",
    "head": "model.transformer.ff_out",
    "attn_norm": "model.transformer.blocks.{}.attn_norm",
    "mlp_norm": "model.transformer.blocks.{}.ff_norm",
    "q": "model.transformer.blocks.{}.q_proj",
    "k": "model.transformer.blocks.{}.k_proj",
    "v": "model.transformer.blocks.{}.v_proj",
    "o": "model.transformer.blocks.{}.attn_out",
    "gate": "model.transformer.blocks.{}.ff_proj",
    "up": "model.transformer.blocks.{}.up_proj",
    "down": "model.transformer.blocks.{}.ff_out",
}

# Our field of ModelConfig -> their key in config.json. A key whose field has a default can be missing.
TOKEN_KEYS = {"mask_id": "mask_token_id", "eos_id": "eos_token_id", "pad_id": "pad_token_id", "bos_id": "bos_token_id"}
LLAMA_KEYS = TOKEN_KEYS | {
    "vocab_size": "vocab_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "d_head": "head_dim",
    "n_kv_head": "num_key_value_heads",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "tie_embeddings": "tie_word_embeddings",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "rope_scaling": "rope_scaling",
}
GEMMA_KEYS = LLAMA_KEYS | {
    "window": "sliding_window",
    "query_scale": "query_pre_attn_scalar",
    "attn_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping",
}
LLADA_KEYS = TOKEN_KEYS | {
    "vocab_size": "embedding_size",
    "n_layer": "n_layers",
    "n_head": "n_heads",
    "n_kv_head": "n_kv_heads",
    "d_model": "d_model",
    "d_ff": "mlp_hidden_size",
    "tie_embeddings": "weight_tying",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "qkv_bias": "include_qkv_bias",
}

# The values that config.json has to give these keys, if it has them, for our model to be that network.
LLAMA_REQUIRES = {
    "hidden_act": "silu",
    "rope_type": "default",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
}
GEMMA_REQUIRES = LLAMA_REQUIRES | {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "use_bidirectional_attention": False,
}
LLADA_REQUIRES = {
    "rope_scaling": None,
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "block_group_size": 1,
    "alibi": False,
    "include_bias": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
}


class Family(NamedTuple):
    """How a family of models names things. A family that differs in names only is one entry of FAMILIES."""

    architecture: str  # the class in config.json
    fields: dict[str, Any]  # the values of ModelConfig that config.json does not or need not give
    tensors: dict[str, str] = LLAMA_TENSORS
    keys: dict[str, str] = LLAMA_KEYS
    requires: dict[str, Any] = LLAMA_REQUIRES


CAUSAL = {"causal": True, "shift": True}
FAMILIES = {  # by the model_type in config.json
    "llada": Family("LLaDAModelLM", {}, LLADA_TENSORS, LLADA_KEYS, LLADA_REQUIRES),
    "Dream": Family("DreamModel", {"shift": True, "qkv_bias": True}),
    "llama": Family("LlamaForCausalLM", CAUSAL),
    "qwen2": Family("Qwen2ForCausalLM", CAUSAL | {"qkv_bias": True}),
    "qwen3": Family("Qwen3ForCausalLM", CAUSAL | {"qk_norm": True}),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        CAUSAL | {"gemma": True, "tie_embeddings": True},
        GEMMA_TENSORS,
        GEMMA_KEYS,
        GEMMA_REQUIRES,
    ),
    # A block model's config.json need not give the block length: it is in the folder's name, or the usual one.
    "sdar": Family(  # and TraDo
        "SDARForCausalLM", {"block_causal": 4, "qk_norm": True}, keys=LLAMA_KEYS | {"block_causal": "block_size"}
    ),
    "Fast_dLLM_Qwen": Family(
        "Fast_dLLM_QwenForCausalLM",
        {"block_causal": 32, "shift": True, "qkv_bias": True},
        keys=LLAMA_KEYS | {"block_causal": "bd_size"},
    ),
}
ANY_FAMILY = ("dtype", "remat", "d_head")  # fields that do not tell families apart
JUDGE_HEAD = "score.weight"  # (1, D), as in transformers' ...ForSequenceClassification
LLAMA3_ROPE = "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"  # cfg.rope_scaling


def family_of(cfg: model.ModelConfig) -> str:
    """Find the name of the family whose folders can hold this configuration."""
    default = {f.name: f.default for f in dataclasses.fields(cfg) if f.name not in ANY_FAMILY}
    for name, family in FAMILIES.items():
        fits_heads = "d_head" in family.keys or cfg.head_dim * cfg.n_head == cfg.d_model
        fits_blocks = (cfg.block_causal is not None) == ("block_causal" in family.keys)
        fixed = {field: v for field, v in (default | family.fields).items() if field not in family.keys}
        if fits_heads and fits_blocks and all(getattr(cfg, field) == v for field, v in fixed.items()):
            return name
    switches = (
        "causal", "block_causal", "shift", "qkv_bias", "qk_norm", "gemma", "window", "query_scale", "attn_cap",
        "logit_cap", "rope_scaling", "d_head",
    )  # fmt: skip
    raise ValueError(
        "no Hugging Face family has these switches together: "
        + ", ".join(f"{field}={getattr(cfg, field)}" for field in switches)
        + "; there are "
        + "; ".join(f"{name}: {family.fields or 'none'}" for name, family in FAMILIES.items())
    )


class Place(NamedTuple):
    """A tensor in a file, and where its values are in our params."""

    path: tuple[str, ...]  # ("embed",) or ("blocks", "q")
    layer: int | None  # the first index into a leaf of "blocks"
    name: str  # theirs


def tensor_places(cfg: model.ModelConfig, n_out: int | None) -> Iterator[Place]:
    """List every tensor in a folder of this configuration. n_out: outputs of the head, None for the vocabulary."""
    names, shapes = FAMILIES[family_of(cfg)].tensors, model.shapes(cfg, n_out)
    for leaf in shapes:
        if leaf == "head" and n_out is not None:
            yield Place(("head",), None, JUDGE_HEAD)
        elif leaf != "blocks":
            yield Place((leaf,), None, names[leaf] + ".weight")
    for i in range(cfg.n_layer):
        for leaf in shapes["blocks"]:
            matrix = leaf.removesuffix("_bias")
            yield Place(("blocks", leaf), i, names[matrix].format(i) + (".weight" if leaf == matrix else ".bias"))


def leaf_at(tree, path):
    """Return the leaf of a tree of dicts."""
    return functools.reduce(operator.getitem, path, tree)


def is_transposed(path, ndim):
    """True for a leaf that a file stores transposed: every matrix but the embedding."""
    return ndim - (path[0] == "blocks") == 2 and path != ("embed",)


# ==== other people's folders: writing =================================================================================


def save(folder: str, params: Any, cfg: model.ModelConfig) -> None:
    """Write a Hugging Face folder: config.json and model.safetensors (a tokenizer writes its own files)."""
    write_files(folder, model_files(params, cfg))


def model_files(params: Any, cfg: model.ModelConfig) -> dict[str, Any]:
    """Make the files of a Hugging Face folder, as `write_files` takes them."""
    n_out, kind = model.width(params), family_of(cfg)
    family = FAMILIES[kind]
    filled = dataclasses.replace(
        cfg, d_head=cfg.head_dim, n_kv_head=cfg.kv_heads, d_ff=cfg.ff, query_scale=cfg.query_scale or cfg.head_dim
    )
    theirs: dict[str, Any] = {"model_type": kind, "architectures": [family.architecture], "torch_dtype": "float32"}
    theirs |= {key: value for key, value in family.requires.items() if value is not None}
    if n_out:
        theirs["num_labels"] = 1
    theirs |= {key: getattr(filled, field) for field, key in family.keys.items()}
    theirs["vocab_size"] = cfg.vocab_size
    theirs["mask_token_id"] = None if cfg.mask_id == cfg.vocab_size else cfg.mask_id
    if cfg.rope_scaling is not None:
        theirs["rope_scaling"] = {"rope_type": "llama3", **dict(zip(LLAMA3_ROPE, cfg.rope_scaling, strict=True))}
        del theirs["rope_type"]
    tensors = [to_store(params, place) for place in tensor_places(cfg, n_out)]
    return {"config.json": theirs} | split_among_processes("model", tensors)


def to_store(params, place):
    """Prepare a tensor of the params for writing, as a file stores it."""
    x, layer = leaf_at(params, place.path), place.layer
    transposed = is_transposed(place.path, x.ndim)
    shape = x.shape if layer is None else x.shape[1:]

    def fetch():
        values = mesh.gather(x if layer is None else x[layer])
        return values.T if transposed else values

    return Stored(place.name, jax.ShapeDtypeStruct(shape[::-1] if transposed else shape, x.dtype), fetch)


# ==== other people's folders: reading =================================================================================


def read_config(folder: str) -> model.ModelConfig:
    """Read config.json of a Hugging Face folder. A ValueError names what our model cannot compute."""
    path = os.path.join(folder, "config.json")
    theirs = read_json(path)
    kind = theirs.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"{path}: model_type is {kind!r}; known families: {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    if family.fields.get("causal"):
        check_causal(path, theirs, family.architecture)
    inside = theirs.get("rope_parameters")
    theirs |= inside if isinstance(inside, dict) else {}  # where transformers 5 keeps rope_theta
    theirs |= {"rope_scaling": llama3_rope(path, theirs)}
    check_requirements(path, theirs, family.requires)
    fields = {field: theirs[key] for field, key in family.keys.items() if theirs.get(key) is not None}
    fields = family.fields | missing_fields(folder, family, fields) | fields
    if isinstance(fields.get("eos_id"), list):
        fields["eos_id"] = fields["eos_id"][0] if fields["eos_id"] else None
    if isinstance(fields.get("n_layer"), int) and fields["n_layer"] > 10_000:  # we make a name for each
        raise ValueError(f"{path}: {family.keys['n_layer']}={fields['n_layer']}: no model has more than 10,000 layers")
    missing = [family.keys[f] for f in ("vocab_size", "n_layer", "n_head", "d_model", "d_ff") if f not in fields]
    if missing:
        raise ValueError(f"{path}: missing {', '.join(missing)}")
    try:
        cfg = model.ModelConfig(**fields)
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from None
    types = ["sliding_attention" if cfg.window and i % 2 == 0 else "full_attention" for i in range(cfg.n_layer)]
    if theirs.get("layer_types") not in (None, types):
        raise ValueError(f"{path}: layer_types={theirs['layer_types']} is not supported; this code computes {types}")
    return cfg


def missing_fields(folder, family, fields):
    """Find the fields that config.json leaves out elsewhere -> {field: value}; those in `fields` count more."""
    found = {}
    if family.fields.get("causal"):  # it reads no masks, and may write every id
        found["mask_id"] = fields.get("vocab_size")
    if "block_causal" in family.keys:
        if in_name := re.search(r"-b(\d+)$", os.path.basename(os.path.abspath(folder))):
            found["block_causal"] = int(in_name[1])
        if "mask_id" not in fields:
            found["mask_id"] = mask_in_tokenizer(folder)
    return found


def mask_in_tokenizer(folder):
    """Find the id of the mask in the files of a tokenizer; None if they do not say it."""
    spec = bpe.read_json(Path(folder, "tokenizer.json"))
    added = bpe.added_tokens(Path(folder), {"added_tokens": spec.get("added_tokens", [])})
    named = bpe.text_of(bpe.read_json(Path(folder, "tokenizer_config.json")).get("mask_token"))
    return next((added[name]["id"] for name in (named, *bpe.USUAL_NAMES["mask"]) if name in added), None)


def check_requirements(path, theirs, requires):
    """Raise ValueError unless the JSON at path has these values or lacks the keys."""
    for key, value in requires.items():
        if (theirs.get(key, value) or None) != (value or None):  # null is no
            raise ValueError(f"{path}: {key}={theirs[key]!r} is not supported; this code computes {key}={value!r}")


def llama3_rope(path, theirs):
    """Read the RoPE scaling of a config.json -> cfg.rope_scaling. Remove its rope_type if we compute it."""
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(theirs.get(key) or {}, dict):
            raise ValueError(f"{path}: {key}={theirs[key]!r}: expected an object or null")
    found = theirs.get("rope_scaling") or (theirs if theirs.get("rope_type") == "llama3" else {})
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3" or not set(LLAMA3_ROPE) <= found.keys():
        raise ValueError(
            f"{path}: rope_scaling={found} is not supported; this code computes rope_type='default', and "
            f"'llama3' with {', '.join(LLAMA3_ROPE)}"
        )
    theirs.pop("rope_type", None)
    return tuple(found[key] for key in LLAMA3_ROPE)


def check_causal(path, theirs, architecture):
    """Refuse a denoiser with the model_type of a causal family, which would be computed left to right."""
    stem, named = architecture.removesuffix("ForCausalLM"), theirs.get("architectures") or []
    known = {(stem + task).lower() for task in ("ForCausalLM", "ForSequenceClassification", "Model")}
    named = named if isinstance(named, list) else [named]
    signs = [f"architectures={named}"] if any(str(name).lower() not in known for name in named) else []
    signs += [f"{key}={value!r}" for key, value in theirs.items() if key.startswith("dlm_")]
    signs += ["is_causal=False"] if theirs.get("is_causal") is False else []
    # Our own causal models have a mask token, as their tokenizer does; they name their class and bring no code along.
    if theirs.get("mask_token_id") is not None and (not named or theirs.get("auto_map")):
        signs += [f"mask_token_id={theirs['mask_token_id']!r}"]
    if signs:
        denoisers = ", ".join(kind for kind, family in FAMILIES.items() if not family.fields.get("causal"))
        raise ValueError(
            f"{path}: model_type is {theirs['model_type']!r}, a causal family, but {', '.join(signs)}: "
            f"this is another network, perhaps one that sees both sides, and {architecture} would compute it "
            f"left to right. The denoisers that this code computes are {denoisers}"
        )


def check_mask(folder: str, cfg: model.ModelConfig, tok: Tokenizer) -> None:
    """Raise ValueError if the config.json and the tokenizer of a folder name different masks."""
    if not cfg.causal and tok.mask_id != cfg.mask_id:
        raise ValueError(
            f"{folder}: config.json says that the mask is id {cfg.mask_id}, and the tokenizer that "
            f"it is id {tok.mask_id}: one of the files belongs to another model"
        )


def load_folder(folder: str, dtype: str, find_base: Callable[[str], str], above: tuple = ()) -> tuple[Any, Any]:
    """Load a model's folder -> params, ModelConfig; for adapters, those of their base with the adapters merged in.

    Every device reads only its part of each leaf, one matrix of all layers, and stores it as `dtype`.

    find_base: finds the folder of the base from the path that adapters give
    above: the folders of adapters whose base this is
    """
    if os.path.exists(os.path.join(folder, ADAPTER_CONFIG)):
        return load_merged(folder, dtype, find_base, above)
    cfg = read_config(folder)
    index = os.path.join(folder, "model.safetensors.index.json")
    listed = read_json(index).get("weight_map") if os.path.exists(index) else {"": "model.safetensors"}
    if not (isinstance(listed, dict) and all(isinstance(file, str) for file in listed.values())):
        raise ValueError(f"{index} has no weight_map, the file of each tensor")
    files: dict[str, Any] = {}
    for file in sorted(set(listed.values())):
        files |= open_tensors(os.path.join(folder, file))
    n_out, kind = 1 if JUDGE_HEAD in files else None, family_of(cfg)
    if cfg.mask_id is None and not cfg.causal and n_out is None:
        raise ValueError(
            f"{folder}/config.json has no mask_token_id: a model of the family {kind} fills masks, "
            f"so one of its {cfg.vocab_size} ids is the mask; add the one that it was trained with"
        )
    places, shapes = list(tensor_places(cfg, n_out)), model.shapes(cfg, n_out)
    return load_tensors(folder, files, places, shapes, dtype, (f"{kind} model", "config.json")), cfg


def load_tensors(folder, files, places, shapes, dtype, described):
    """Load tensors into a tree of leaves.

    files {name: open file}, places: of all tensors that should be there
    shapes: the tree, with a shape for each leaf
    described (kind, file): what the folder should hold, and the file that says so
    """
    kind, file = described
    check_names(f"{folder} is not the {kind} that its {file} describes", set(files), {place.name for place in places})
    found = {}
    for path, layer, name in places:
        shape, x = leaf_at(shapes, path), files[name].get_slice(name)
        inner = shape if layer is None else shape[1:]
        expected = inner[::-1] if is_transposed(path, len(shape)) else inner
        if tuple(x.get_shape()) != expected:
            raise ValueError(f"{folder}: {name} has the shape {tuple(x.get_shape())}, but {file} makes it {expected}")
        found.setdefault(path, {})[layer] = x

    def leaf(path, shape):
        path = tuple(key.key for key in path)
        stacked, transposed = path[0] == "blocks", is_transposed(path, len(shape))
        stored_as = model.stored_dtype(path[-1], dtype)

        def fetch(index):
            inner = tuple(index[stacked:][:: -1 if transposed else 1])
            layers = range(*index[0].indices(shape[0])) if stacked else [None]
            parts = [np.asarray(found[path][layer][inner]).astype(stored_as, copy=False) for layer in layers]
            x = np.stack(parts) if stacked else parts[0]
            return x.swapaxes(-1, -2) if transposed else x

        return mesh.make_array(path[-1], shape, fetch)

    return jax.tree_util.tree_map_with_path(leaf, shapes, is_leaf=is_shape)


def is_shape(x):
    """True for a leaf of a tree of shapes."""
    return isinstance(x, tuple)


def check_names(problem, there, expected):
    """Raise ValueError, with some of the names, unless the tensors that are there are the expected ones."""
    if there == expected:
        return
    lists = []
    for names in (sorted(expected - there), sorted(there - expected)):
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        lists.append(", ".join(names[:4]) + more or "none")
    raise ValueError(f"{problem}: missing tensors: {lists[0]}; unknown tensors: {lists[1]}")


# ==== other people's folders: adapters, in PEFT's format ==============================================================

ADAPTER_CONFIG = "adapter_config.json"
PEFT_PREFIX = "base_model.model."  # of the names of the base's tensors
PEFT_REQUIRES = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "use_dora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
}


def adapter_places(cfg, targets, n_out):
    """List every tensor in a folder of adapters: A (r, I) and B (O, r) of each target, and the head of a judge."""
    for path, layer, name in tensor_places(cfg, n_out):
        if path[-1] in targets:
            stem = PEFT_PREFIX + name.removesuffix("weight")
            yield Place(("blocks", path[-1] + "_a"), layer, stem + "lora_A.weight")
            yield Place(("blocks", path[-1] + "_b"), layer, stem + "lora_B.weight")
        elif name == JUDGE_HEAD:
            yield Place(("head",), None, PEFT_PREFIX + name)


def adapter_files(params: Any, cfg: model.ModelConfig, base: str, alpha: float) -> dict[str, Any]:
    """Make the files of a PEFT folder, as `write_files` takes them. base: the folder of the base model."""
    names, n_out = FAMILIES[family_of(cfg)].tensors, model.width(params)
    ranks = {leaf[:-2]: x.shape[-1] for leaf, x in params["blocks"].items() if leaf.endswith("_a")}
    theirs: dict[str, Any] = PEFT_REQUIRES | {
        "base_model_name_or_path": base,
        "r": max(ranks.values()),
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(names[leaf].rpartition(".")[2] for leaf in ranks),
        "inference_mode": True,
        "task_type": "SEQ_CLS" if n_out else "CAUSAL_LM" if cfg.causal else None,
        "modules_to_save": [JUDGE_HEAD.removesuffix(".weight")] if n_out else None,
    }
    if names["head"].rpartition(".")[2] in theirs["target_modules"]:  # LLaDA's head and its down matrices: ff_out
        theirs["exclude_modules"] = [names["head"]]
    tensors = [to_store(params, place) for place in adapter_places(cfg, ranks, n_out)]
    tensors = [tensor._replace(fetch=functools.partial(np.asarray, tensor.fetch())) for tensor in tensors]
    return {ADAPTER_CONFIG: theirs, "adapter_model.safetensors": tensors}


def read_adapters(folder: str) -> tuple[str, int, Any]:
    """Read adapter_config.json -> the folder of the base, the rank r, alpha."""
    path = os.path.join(folder, ADAPTER_CONFIG)
    theirs = read_json(path)
    check_requirements(path, theirs, PEFT_REQUIRES)
    base, rank, alpha = (theirs.get(key) for key in ("base_model_name_or_path", "r", "lora_alpha"))
    if not (type(rank) is int and rank > 0 and type(alpha) in (int, float) and isinstance(base, str)):
        raise ValueError(
            f"{path}: expected the numbers r and lora_alpha and the text base_model_name_or_path, got "
            f"{rank!r}, {alpha!r} and {base!r}"
        )
    if not os.path.isdir(base):
        raise ValueError(
            f"{path}: the base of these adapters, base_model_name_or_path={base!r}, is not a folder here: "
            "bring it back, or write there where it is now"
        )
    return base, rank, alpha


def load_merged(folder, dtype, find_base, above):
    """Load a folder of adapters -> params of the base with the adapters merged in, ModelConfig."""
    base, rank, alpha = read_adapters(folder)
    above = *above, os.path.realpath(folder)
    base = find_base(base)
    if (found := os.path.realpath(base)) in above:
        raise ValueError(
            f"adapters that are their own base: {' -> '.join([*above, found])}; write the folder of the "
            f"model that they were trained on into {os.path.join(folder, ADAPTER_CONFIG)}"
        )
    params, cfg = load_folder(base, dtype, find_base, above)
    files = open_tensors(os.path.join(folder, "adapter_model.safetensors"))
    n_out = 1 if PEFT_PREFIX + JUDGE_HEAD in files else None
    matrices = [leaf for leaf, shape in model.shapes(cfg)["blocks"].items() if len(shape) == 3]
    targets = {place.path[-1][:-2] for place in adapter_places(cfg, matrices, None) if place.name in files}
    shapes = {"blocks": lora.adapter_shapes(cfg, targets, rank)} | ({"head": (cfg.d_model, 1)} if n_out else {})
    places, described = list(adapter_places(cfg, targets, n_out)), (f"LoRA of a {family_of(cfg)} model", ADAPTER_CONFIG)
    new = load_tensors(folder, files, places, shapes, "float32", described)
    for leaf in targets:  # one after the other, so that memory never holds two copies of all
        a, b = (new["blocks"][leaf + end] for end in ("_a", "_b"))
        merged = params["blocks"][leaf] + jnp.matmul(a, b * (alpha / rank), precision="highest")
        params["blocks"][leaf] = merged.astype(dtype)
    return params | {leaf: x for leaf, x in new.items() if leaf != "blocks"}, cfg


# ==== checkpoints: finding ============================================================================================

LOGS = "metrics.jsonl", "samples.jsonl", "rollouts.jsonl"
WRITING = ".writing"  # the folder in out_dir of a checkpoint that is being written or deleted


class Found(NamedTuple):
    """A folder, and why it was chosen."""

    folder: str
    reason: str


def steps(out_dir: str) -> list[int]:
    """List the steps of the checkpoints in out_dir, ascending."""
    wait_for_writer()
    names = os.listdir(out_dir) if os.path.isdir(out_dir) else []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))


def checkpoint_folder(out_dir: str, step: int) -> str:
    """Return the folder of the checkpoint of a step."""
    return os.path.join(out_dir, f"step-{step:06d}")


def step_in_name(folder: str) -> int:
    """Return the step in the name of a checkpoint's folder; 0 for other folders."""
    return int(found[1]) if (found := re.search(r"step-(\d+)$", folder)) else 0


def find(path: str) -> str:
    """Find the folder of a model or of adapters: `path` itself, or the newest checkpoint in a run's out_dir."""
    if not os.path.isdir(path):
        name = os.path.basename(os.path.normpath(path))
        makes_it = f"; python train.py config/{name}.py makes out/{name}"
        raise ValueError(
            f"{path!r} is not a folder: give the out_dir of a run or a folder with config.json in it"
            + (makes_it if os.path.isfile(config.resolve_path(f"config/{name}.py")) else "")
        )
    if any(os.path.exists(os.path.join(path, name)) for name in ("config.json", ADAPTER_CONFIG)):
        return path
    if not steps(path):
        raise ValueError(f"{path!r} holds no model: neither a config.json nor a checkpoint step-... of a run")
    return checkpoint_folder(path, steps(path)[-1])


def best(path: str) -> Found:
    """Find the folder to use, not to train on: `path` itself, or the best checkpoint in a run's out_dir."""
    newest = find(path)
    if newest == path:
        return Found(path, "asked for")
    known = read_run(newest).get("best")
    if not known:
        return Found(newest, "the newest; none was evaluated")
    folder = checkpoint_folder(path, known["step"])
    if not os.path.isdir(folder):
        return Found(newest, f"the newest; the best by {known['measure']}, step {known['step']}, is not here")
    return Found(folder, f"the best by {known['measure']}" + (", and the newest" if folder == newest else ""))


def retry_if_deleted(choose: Callable[[], Any], read: Callable[..., Any]) -> Any:
    """Return read(folder, ...) for choose() -> folder, ...; choose again if a run deleted the folder meanwhile."""
    while True:
        folder, *rest = choose()
        try:
            found = read(folder, *rest)
            if not folder or os.path.isdir(folder):
                return found
        except (OSError, ValueError):
            if not folder or os.path.isdir(folder):
                raise


def load(path: str, dtype: str = "float32") -> tuple[Any, model.ModelConfig]:
    """Load a model's folder, or the newest checkpoint in a run's out_dir -> params, ModelConfig (`load_folder`)."""
    return load_folder(find(path), dtype, find)


def read_run(folder: str) -> dict[str, Any]:
    """Read run.json of a checkpoint; {} for another model's folder."""
    path = os.path.join(folder, "run.json")
    try:
        with naming(path), open(bpe.regular_file(path)) as f:
            return dict(json.load(f))
    except FileNotFoundError:
        return {}
    except (TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"{path} is damaged ({e}): delete {folder} to resume from the checkpoint before it") from None


# ==== checkpoints: writing ============================================================================================

IN_FLIGHT: list[Future] = []  # the checkpoint that a thread is writing, at most one


def save_run(
    cfg: Any, state: Any, tok: Tokenizer, best: dict[str, Any] | None, finished: bool, in_background: bool = False
) -> None:
    """Write a checkpoint, out_dir/step-NNNNNN: the weights or adapters, and all that the next step depends on.

    in_background: copy the state to the host now, write it while training continues
    """
    wait_for_writer()
    if os.path.isdir(checkpoint_folder(cfg.out_dir, state.step)):
        return
    n, me = mesh.processes()
    if in_background and n == 1:  # updates overwrite the arrays of the state
        state = jax.tree.map(np.array, state)
    files = checkpoint_files(cfg, state, best, finished)
    if me:  # the first process writes the files that are the same on all
        files = {name: content for name, content in files.items() if f"-{me + 1:05d}-of-" in name}
    work = functools.partial(finish if n > 1 else finish_or_retry, cfg, int(state.step), tok, best, files)
    if not in_background:
        return work()
    IN_FLIGHT.append(Future())
    threading.Thread(target=fulfil, args=(IN_FLIGHT[0], work), daemon=True).start()


def checkpoint_files(cfg, state, best, finished):
    """Make the files of a checkpoint, as `write_files` takes them. Each process writes its parts of the state."""
    if cfg.lora_rank:
        files = adapter_files(state.weights, cfg.model, cfg.init_from, cfg.lora_alpha)
    else:
        files = model_files(state.weights, cfg.model)
    n, me = mesh.processes()
    files["state.safetensors" if n == 1 else f"state-{me + 1:05d}-of-{n:05d}.safetensors"] = [
        Stored(path + (f"@{where}" if where else ""), part, functools.partial(np.asarray, part))
        for path, x in leaves(state._replace(step=())).items()
        for where, part in mesh.local_shards(x).items()
    ]
    files["run.json"] = {"step": int(state.step), "finished": finished, "best": best, "config": config.flatten(cfg)}
    return files


def fulfil(future, work):
    """Do the work of a thread, and keep its result or error for whoever asks for it."""
    try:
        future.set_result(work())
    except BaseException as e:
        future.set_exception(e)


def wait_for_writer() -> None:
    """Wait for the checkpoint that is being written; raise its error if it failed."""
    while IN_FLIGHT and threading.current_thread() is threading.main_thread():
        IN_FLIGHT.pop().result()


def finish_or_retry(cfg, step, *rest):
    """Write a checkpoint, and once more if out_dir was deleted meanwhile."""
    try:
        finish(cfg, step, *rest)
    except FileNotFoundError:
        if not os.path.isdir(checkpoint_folder(cfg.out_dir, step)):
            finish(cfg, step, *rest)


def finish(cfg, step, tok, best, files):
    """Write the files of a checkpoint, each process its own; when all are written, make them a checkpoint."""
    temporary, final = os.path.join(cfg.out_dir, WRITING), checkpoint_folder(cfg.out_dir, step)
    is_first = mesh.processes()[1] == 0
    if is_first:
        delete_folder(temporary)  # of a run that was killed: none of its files may be in this checkpoint
    mesh.barrier(f"{final} can be written")
    write_files(temporary, files)
    mesh.barrier(f"{final} is written")
    if is_first:
        with naming(temporary):
            tok.save(temporary)
        publish(cfg, temporary, final, best, files)
    mesh.barrier(f"{final} is there")


def publish(cfg, temporary, final, best, files):
    """Rename a folder that is complete to a checkpoint, and delete old checkpoints."""
    for name in [*{*os.listdir(temporary), *files}, "."]:  # fails if a file was deleted meanwhile
        sync(os.path.join(temporary, name))
    for name in set(LOGS) & set(os.listdir(cfg.out_dir)):  # their lines up to this step belong to it
        sync(os.path.join(cfg.out_dir, name))
    os.rename(temporary, final)
    sync(cfg.out_dir)
    to_keep = steps(cfg.out_dir)[-cfg.keep_checkpoints :] + [best and best["step"]]
    for step in steps(cfg.out_dir):
        if step not in to_keep:  # renamed first: a half deleted folder must not look like a checkpoint
            os.rename(checkpoint_folder(cfg.out_dir, step), temporary)
            delete_folder(temporary)


# ==== checkpoints: resuming ===========================================================================================


def leaves(tree: Any) -> dict[str, Any]:
    """List the leaves of a tree by path, without copying them."""
    return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def flat(tree: Any) -> dict[str, np.ndarray]:
    """List the arrays of a tree by path, on the host."""
    return {path: np.asarray(x) for path, x in leaves(tree).items()}


class Piece(NamedTuple):
    """A part of a leaf in an open file."""

    where: tuple[slice, ...]  # in the leaf
    values: Any  # a slice of the file, read by indexing


def restore(folder: str, state: Any) -> tuple[Any, dict[str, Any]]:
    """Read the state that `save_run` wrote, in the shape of `state` (jax.eval_shape's will do), and run.json."""
    run = read_run(folder)
    if not {"step", "best"} <= run.keys():
        raise ValueError(
            f"{folder} has no run.json of this program: it is a model, not a run that can be resumed; "
            "start from it with --init_from and another out_dir"
        )
    try:
        saved = read_pieces(folder)
    except ValueError as e:
        raise ValueError(f"{e}: delete {folder} to resume from the checkpoint before it") from None
    state = state._replace(step=())
    check_pieces(folder, saved, {path: x.shape for path, x in leaves(state).items()})

    def leaf(path, x):
        fetch = functools.partial(assemble, saved[jax.tree_util.keystr(path)], x.shape)
        return mesh.make_array(mesh.leaf_name(path), x.shape, fetch)

    return jax.tree_util.tree_map_with_path(leaf, state)._replace(step=run["step"]), run


def read_pieces(folder: str) -> dict[str, list[Piece]]:
    """Open all state files of a checkpoint -> {path of a leaf: its pieces}."""
    found: dict[str, list[Piece]] = {}
    files = sorted(glob.glob(os.path.join(glob.escape(folder), "state*.safetensors")))
    for file in files or [os.path.join(folder, "state.safetensors")]:
        for name, handle in open_tensors(file).items():
            path, _, ends = name.partition("@")
            values = handle.get_slice(name)
            if ends:
                where = tuple(slice(*map(int, pair.split(":"))) for pair in ends.split(","))
            else:
                where = tuple(slice(0, n) for n in values.get_shape())
            found.setdefault(path, []).append(Piece(where, values))
    return found


def check_pieces(folder, saved, shapes):
    """Raise ValueError unless the pieces make up leaves of these shapes."""
    sizes = {
        path: tuple(max(s.stop for s in axis) for axis in zip(*(piece.where for piece in pieces), strict=True))
        for path, pieces in saved.items()
    }
    different = sorted(path for path in sizes.keys() | shapes.keys() if sizes.get(path) != shapes.get(path))
    if different:
        raise ValueError(
            f"{folder} is of another model or optimizer than this config: {different[0]} and "
            f"{len(different) - 1} more differ; resume with the config of that run, or start elsewhere "
            "with --out_dir"
        )
    for path, shape in shapes.items():
        if sum(math.prod(s.stop - s.start for s in piece.where) for piece in saved[path]) != math.prod(shape):
            raise ValueError(
                f"{folder} lacks a part of {path}, one of its state-... files: delete it to resume from the "
                "checkpoint before it"
            )


def assemble(pieces: list[Piece], shape: tuple[int, ...], index: Any) -> np.ndarray:
    """Read leaf[index] of a leaf with this shape from its pieces."""
    wanted = [slice(*s.indices(n)) for s, n in zip(index, shape, strict=True)]
    out: Any = None
    for piece in pieces:
        both = [slice(max(p.start, w.start), min(p.stop, w.stop)) for p, w in zip(piece.where, wanted, strict=True)]
        if any(s.start >= s.stop for s in both):
            continue
        x = np.asarray(piece.values[relative(both, piece.where)])
        if both == wanted:
            return x
        if out is None:
            out = np.empty([w.stop - w.start for w in wanted], x.dtype)
        out[relative(both, wanted)] = x
    return out


def relative(inner, outer):
    """Express slices in the coordinates of the slices around them."""
    return tuple(slice(s.start - o.start, s.stop - o.start) for s, o in zip(inner, outer, strict=True))
