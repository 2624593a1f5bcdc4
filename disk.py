"""
What is on disk: other people's folders, our checkpoints. There is no private format: a model is a Hugging Face folder,
adapters are a PEFT folder, and a checkpoint of a run is one of these, with state.safetensors (everything the next step
depends on) and run.json (the step, the best step so far, the config) beside it. It appears whole or not at all.
"""
import contextlib
import dataclasses
import functools
import glob
import json
import math
import os
import re
import shutil
import threading
from concurrent.futures import Future
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

import config
import model
from data import bpe
from machine import lora, mesh

# ---- Hugging Face folders: config.json and safetensors ---------------------------------------------------------------

# Where a family keeps each of our tensors, * is ".weight" and {} the layer. They store (out, in), we compute (in, out).
LLAMA = {
    "embed": "model.embed_tokens*", "norm": "model.norm*", "head": "lm_head*",
    "attn_norm": "model.layers.{}.input_layernorm*", "mlp_norm": "model.layers.{}.post_attention_layernorm*",
    "q_norm": "model.layers.{}.self_attn.q_norm*", "k_norm": "model.layers.{}.self_attn.k_norm*",
} | {n: f"model.layers.{{}}.self_attn.{n}_proj*" for n in "qkvo"} | {
    n: f"model.layers.{{}}.mlp.{n}_proj*" for n in ("gate", "up", "down")}  # fmt: skip
GEMMA = LLAMA | {
    "attn_out_norm": "model.layers.{}.post_attention_layernorm*",
    "mlp_norm": "model.layers.{}.pre_feedforward_layernorm*",
    "mlp_out_norm": "model.layers.{}.post_feedforward_layernorm*"}  # fmt: skip
LLADA = {
    "embed": "model.transformer.wte*", "norm": "model.transformer.ln_f*", "head": "model.transformer.ff_out*",
    "attn_norm": "model.transformer.blocks.{}.attn_norm*", "mlp_norm": "model.transformer.blocks.{}.ff_norm*",
    "o": "model.transformer.blocks.{}.attn_out*", "gate": "model.transformer.blocks.{}.ff_proj*",
    "up": "model.transformer.blocks.{}.up_proj*", "down": "model.transformer.blocks.{}.ff_out*",
} | {n: f"model.transformer.blocks.{{}}.{n}_proj*" for n in "qkv"}  # fmt: skip

# Our field -> their key. A key with a default may be missing.
IDS = {"mask_id": "mask_token_id", "eos_id": "eos_token_id", "pad_id": "pad_token_id", "bos_id": "bos_token_id"}
ROPE = "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"  # of cfg.rope_scaling
LLAMA_KEYS = IDS | {
    "vocab_size": "vocab_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "d_head": "head_dim",
    "n_kv_head": "num_key_value_heads", "d_model": "hidden_size", "d_ff": "intermediate_size",
    "tie_embeddings": "tie_word_embeddings", "rope_theta": "rope_theta", "norm_eps": "rms_norm_eps",
    "rope_scaling": "rope_scaling"}  # fmt: skip
SDAR_KEYS, FAST_KEYS = LLAMA_KEYS | {"block_causal": "block_size"}, LLAMA_KEYS | {"block_causal": "bd_size"}
GEMMA_KEYS = LLAMA_KEYS | {
    "window": "sliding_window", "query_scale": "query_pre_attn_scalar", "attn_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping"}  # fmt: skip
LLADA_KEYS = IDS | {
    "vocab_size": "embedding_size", "n_layer": "n_layers", "n_head": "n_heads", "n_kv_head": "n_kv_heads",
    "d_model": "d_model", "d_ff": "mlp_hidden_size", "tie_embeddings": "weight_tying", "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps", "qkv_bias": "include_qkv_bias"}  # fmt: skip
# What a config must say (or leave out) for this code to be that network.
LLAMA_NEEDS = {"hidden_act": "silu", "rope_type": "default", "attention_bias": False,
               "mlp_bias": False, "use_sliding_window": False}  # fmt: skip
GEMMA_NEEDS = LLAMA_NEEDS | {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
                             "use_bidirectional_attention": False}  # fmt: skip
LLADA_NEEDS = {
    "rope_scaling": None,
    "block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "rope": True, "block_group_size": 1,
    "alibi": False, "include_bias": False, "attention_layer_norm": False, "input_emb_norm": False,
    "scale_logits": False}  # fmt: skip

# model_type: (class, tensors, keys, needs, what its config need not say). Every other field has its default.
FAMILIES = {
    "llada": ("LLaDAModelLM", LLADA, LLADA_KEYS, LLADA_NEEDS, {}),
    "Dream": ("DreamModel", LLAMA, LLAMA_KEYS, LLAMA_NEEDS, dict(shift=True, qkv_bias=True)),
    "llama": ("LlamaForCausalLM", LLAMA, LLAMA_KEYS, LLAMA_NEEDS, dict(causal=True, shift=True)),
    "qwen2": ("Qwen2ForCausalLM", LLAMA, LLAMA_KEYS, LLAMA_NEEDS, dict(causal=True, shift=True, qkv_bias=True)),
    "qwen3": ("Qwen3ForCausalLM", LLAMA, LLAMA_KEYS, LLAMA_NEEDS, dict(causal=True, shift=True, qk_norm=True)),
    "gemma2": ("Gemma2ForCausalLM", GEMMA, GEMMA_KEYS, GEMMA_NEEDS,
               dict(causal=True, shift=True, gemma=True, tie_embeddings=True)),
    # Of a block model's length the config need not say anything: it is in the name of the folder, or the usual one.
    "sdar": ("SDARForCausalLM", LLAMA, SDAR_KEYS, LLAMA_NEEDS, dict(block_causal=4, qk_norm=True)),  # TraDo, too
    "Fast_dLLM_Qwen": ("Fast_dLLM_QwenForCausalLM", LLAMA, FAST_KEYS, LLAMA_NEEDS,
                       dict(block_causal=32, shift=True, qkv_bias=True)),
}  # fmt: skip
FREE = ("dtype", "remat", "d_head")  # fields that say nothing about the family
JUDGE = "score.weight"  # (1, D): the head of a judge, as in transformers' ...ForSequenceClassification


def family(cfg):
    """The name of the family whose folders hold this configuration."""
    fixed = {f.name: f.default for f in dataclasses.fields(cfg) if f.name not in FREE}
    for name, (_, _, keys, _, implied) in FAMILIES.items():
        headed = "d_head" in keys or cfg.head_dim * cfg.n_head == cfg.d_model
        blocks = (cfg.block_causal is not None) == ("block_causal" in keys)
        if headed and blocks and all(getattr(cfg, k) == v for k, v in (fixed | implied).items() if k not in keys):
            return name
    switches = ("causal block_causal shift qkv_bias qk_norm gemma window query_scale attn_cap logit_cap rope_scaling "
                "d_head").split()  # fmt: skip
    raise ValueError("no Hugging Face family has these switches together: "
                     + ", ".join(f"{k}={getattr(cfg, k)}" for k in switches)
                     + "; there are " + "; ".join(f"{n}: {f[4] or 'none'}" for n, f in FAMILIES.items()))  # fmt: skip


def tensors(cfg, n_out):
    """(our path, layer or None, their name) of every tensor of a folder of this configuration."""
    names, table = FAMILIES[family(cfg)][1], model.shapes(cfg, n_out)
    for name in table:
        if name == "head" and n_out is not None:
            yield ("head",), None, JUDGE
        elif name != "blocks":
            yield (name,), None, names[name].replace("*", ".weight")
    for i in range(cfg.n_layer):
        for name in table["blocks"]:
            role = name.removesuffix("_bias")
            yield ("blocks", name), i, names[role].format(i).replace("*", ".weight" if role == name else ".bias")


def save(folder, params, cfg):
    """Writes a Hugging Face folder: config.json and model.safetensors (a tokenizer saves itself beside them)."""
    write(folder, folder_of(params, cfg))


def write(folder, files):
    """{name: an object of JSON, or what `write_tensors` takes} -> these files in a folder."""
    os.makedirs(folder, exist_ok=True)
    for name, content in files.items():
        (write_json if isinstance(content, dict) else write_tensors)(os.path.join(folder, name), content)


def folder_of(params, cfg):
    """-> the files of a Hugging Face folder, as `write` takes them."""
    n_out = model.width(params)
    name = family(cfg)
    architecture, _, keys, needs, _ = FAMILIES[name]
    filled = dataclasses.replace(cfg, d_head=cfg.head_dim, n_kv_head=cfg.kv_heads, d_ff=cfg.ff,
                                 query_scale=cfg.query_scale or cfg.head_dim)  # fmt: skip
    theirs = {"model_type": name, "architectures": [architecture], "torch_dtype": "float32"}
    theirs |= {k: v for k, v in needs.items() if v is not None} | ({"num_labels": 1} if n_out else {})
    theirs |= {key: getattr(filled, ours) for ours, key in keys.items()} | {"vocab_size": cfg.vocab_size}
    theirs["mask_token_id"] = None if cfg.mask_id == cfg.vocab_size else cfg.mask_id
    if cfg.rope_scaling is not None:
        theirs["rope_scaling"] = {"rope_type": "llama3", **dict(zip(ROPE, cfg.rope_scaling, strict=True))}
        del theirs["rope_type"]
    return {"config.json": theirs} | shared_out("model", list(stored(params, tensors(cfg, n_out))))


def shared_out(stem, items):
    """All tensors of a file -> what this process writes of it: of several processes, each has a file with some of them,
    of which it fetches the parts that others hold, one tensor at a time; the first also has the index of all."""
    n, mine = mesh.processes()
    if n == 1:
        return {f"{stem}.safetensors": items}
    names = [f"{stem}-{i + 1:05d}-of-{n:05d}.safetensors" for i in range(n)]
    owner = [i * n // len(items) for i in range(len(items))]
    found = [fetch() if owner[i] == mine else fetch() is None for i, (*_, fetch) in enumerate(items)]  # all ask for all
    own = [(*items[i][:2], functools.partial(np.asarray, x)) for i, x in enumerate(found) if owner[i] == mine]
    listed = {"metadata": {"total_size": sum(x.size * x.dtype.itemsize for _, x, _ in items)},
              "weight_map": {name: names[p] for (name, *_), p in zip(items, owner, strict=True)}}  # fmt: skip
    return {names[mine]: own} | ({} if mine else {f"{stem}.safetensors.index.json": listed})


@contextlib.contextmanager
def named(path):
    """An error of the disk in here names a file: one of a write, a sync or a close names none by itself."""
    try:
        yield
    except OSError as e:
        e.filename = e.filename or path
        raise


@contextlib.contextmanager
def writing(path, mode="w"):
    """A file to write into; its errors, those at its end included, name it."""
    with named(path), open(path, mode, encoding=None if "b" in mode else "utf-8") as f:
        yield f


def write_json(path, value):
    with writing(path) as f:
        json.dump(value, f, indent=2)


def stored(params, listed):
    """params, (our path, layer or None, their name) of tensors -> what `write_tensors` takes of each, as stored."""
    for path, layer, name in listed:
        x = params[path[0]] if len(path) == 1 else params[path[0]][path[1]]
        turned = x.ndim - (layer is not None) == 2 and path != ("embed",)
        shape = x.shape[layer is not None :]

        def fetch(x=x, layer=layer, turned=turned):
            x = mesh.gather(x if layer is None else x[layer])
            return x.T if turned else x

        yield name, jax.ShapeDtypeStruct(shape[::-1] if turned else shape, x.dtype), fetch


def write_tensors(path, items):
    """Writes (name, shape and dtype, function that fetches the array) of tensors as a safetensors file: each is fetched
    once, and none before the one before it is written; on disk at return."""
    kinds = {"float32": "F32", "bfloat16": "BF16", "int32": "I32", "uint32": "U32", "bool": "BOOL"}
    header, end, items = {"__metadata__": {"format": "pt"}}, 0, list(items)
    for name, x, _ in items:
        size = x.size * x.dtype.itemsize
        header[name] = {"dtype": kinds[str(x.dtype)], "shape": list(x.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with writing(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, _, fetch in items:
            f.write(np.ascontiguousarray(fetch()).tobytes())
        f.flush()
        os.fsync(f.fileno())


def find(path):
    """The folder of a model or of adapters: `path` itself, or the newest checkpoint in the out_dir of a run of ours."""
    if not os.path.isdir(path):
        name = os.path.basename(os.path.normpath(path))
        made = os.path.isfile(config.resolve_path(f"config/{name}.py"))
        raise ValueError(f"{path!r} is not a folder: give the out_dir of a run or a folder with config.json in it"
                         + (f"; python train.py config/{name}.py makes out/{name}" if made else ""))
    if any(os.path.exists(os.path.join(path, name)) for name in ("config.json", ADAPTERS)):
        return path
    if not steps(path):
        raise ValueError(f"{path!r} holds no model: neither a config.json nor a checkpoint step-... of a run")
    return of_step(path, steps(path)[-1])


def best(path):
    """-> the folder that `path` stands for where a model is only to be used: itself, or the best checkpoint in the
    out_dir of a run (which goes on from its newest, `find`); and why this one."""
    if (newest := find(path)) == path:
        return path, "asked for"
    if not (known := read_run(newest).get("best")):
        return newest, "the newest; none was evaluated"
    if not os.path.isdir(folder := of_step(path, known["step"])):
        return newest, f"the newest; the best by {known['measure']}, step {known['step']}, is not here"
    return folder, f"the best by {known['measure']}" + (", and the newest" if folder == newest else "")


def steadily(choose, read):
    """read(folder, ...) of what choose() -> folder, ... names: again where a run that goes on has deleted this
    checkpoint meanwhile."""
    while True:
        folder, *rest = choose()
        gone = lambda folder=folder: folder and not os.path.isdir(folder)
        try:
            found = read(folder, *rest)
            if not gone():
                return found
        except (OSError, ValueError):
            if not gone():
                raise


def same_mask(folder, cfg, tok):
    """A ValueError if the config.json and the tokenizer of a folder name two masks."""
    if not cfg.causal and tok.mask_id != cfg.mask_id:
        raise ValueError(f"{folder}: config.json says that the mask is id {cfg.mask_id}, and the tokenizer that "
                         f"it is id {tok.mask_id}: one of the files belongs to another model")  # fmt: skip


def read_json(path):
    """A JSON file that holds an object -> dict."""
    try:
        with open(bpe.regular(path), encoding="utf-8") as f:
            found = json.load(f)
    except (OSError, ValueError, RecursionError) as e:
        raise ValueError(f"{path} cannot be read as JSON: {e}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}, expected an object such as {{...}}")
    return found


def llama3_rope(path, theirs):
    """config.json of a folder -> cfg.rope_scaling; takes the rope_type of what is understood out of it."""
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(theirs.get(key) or {}, dict):
            raise ValueError(f"{path}: {key}={theirs[key]!r}: expected an object or null")
    found = theirs.get("rope_scaling") or (theirs if theirs.get("rope_type") == "llama3" else {})
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3" or not set(ROPE) <= found.keys():
        raise ValueError(f"{path}: rope_scaling={found} is not supported; this code computes rope_type='default', and "
                         f"'llama3' with {', '.join(ROPE)}")
    theirs.pop("rope_type", None)
    return tuple(found[k] for k in ROPE)


def check_causal(path, theirs, architecture):
    """Refuse a denoiser that has the model_type of a causal family: it would be read from left to right."""
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
        denoisers = ", ".join(kind for kind, family in FAMILIES.items() if not family[-1].get("causal"))
        raise ValueError(f"{path}: model_type is {theirs['model_type']!r}, a causal family, but {', '.join(signs)}: "
                         f"this is another network, perhaps one that sees both sides, and {architecture} would read it "
                         f"from left to right. The denoisers that this code computes are {denoisers}")


def read_config(folder):
    """config.json of a Hugging Face folder -> ModelConfig, or a ValueError that names what this code cannot do."""
    path = os.path.join(folder, "config.json")
    theirs = read_json(path)
    kind = theirs.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"{path}: model_type is {kind!r}; known families: {', '.join(FAMILIES)}")
    architecture, _, keys, needs, implied = FAMILIES[kind]
    if implied.get("causal"):
        check_causal(path, theirs, architecture)
    inside = theirs.get("rope_parameters")
    theirs |= inside if isinstance(inside, dict) else {}  # where transformers 5 keeps rope_theta
    theirs |= {"rope_scaling": llama3_rope(path, theirs)}
    demand(path, theirs, needs)
    fields = {ours: theirs[key] for ours, key in keys.items() if theirs.get(key) is not None}
    if implied.get("causal"):  # it reads no holes, and may write every id that it has
        fields.setdefault("mask_id", fields.get("vocab_size"))
    if "block_causal" in keys and (named := re.search(r"-b(\d+)$", os.path.basename(os.path.abspath(folder)))):
        fields.setdefault("block_causal", int(named[1]))
    if "block_causal" in keys:  # nor, often, which id is the mask
        fields.setdefault("mask_id", named_mask(folder))
    if isinstance(fields.get("eos_id"), list):
        fields["eos_id"] = fields["eos_id"][0] if fields["eos_id"] else None
    if isinstance(fields.get("n_layer"), int) and fields["n_layer"] > 10_000:  # each of them gets names
        raise ValueError(f"{path}: {keys['n_layer']}={fields['n_layer']}: no model has more than 10,000 layers")
    missing = [keys[f] for f in ("vocab_size", "n_layer", "n_head", "d_model", "d_ff") if f not in fields]
    if missing:
        raise ValueError(f"{path}: missing {', '.join(missing)}")
    try:
        cfg = model.ModelConfig(**implied | fields)
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from None
    types = ["sliding_attention" if cfg.window and i % 2 == 0 else "full_attention" for i in range(cfg.n_layer)]
    if theirs.get("layer_types") not in (None, types):
        raise ValueError(f"{path}: layer_types={theirs['layer_types']} is not supported; this code computes {types}")
    return cfg


def named_mask(folder):
    """-> the id of the mask by the small files of a tokenizer, where config.json does not say it; None: nor do they."""
    file = lambda name: bpe.read_json(Path(folder, name))
    said = file("tokenizer_config.json")
    ids = file("added_tokens.json") | {t["content"]: int(i) for i, t in said.get("added_tokens_decoder", {}).items()}
    ids |= {t["content"]: t["id"] for t in file("tokenizer.json").get("added_tokens", [])}
    name = said.get("mask_token")
    names = name["content"] if isinstance(name, dict) else name, *bpe.USUAL["mask"]
    return next((ids[name] for name in names if name in ids), None)


def demand(path, theirs, needs):
    """A ValueError unless the file at path says (or leaves out) what this code computes."""
    for key, want in needs.items():
        if (theirs.get(key, want) or None) != (want or None):  # null is no
            raise ValueError(f"{path}: {key}={theirs[key]!r} is not supported; this code computes {key}={want!r}")


def load(path, dtype="float32", above=()):
    """A Hugging Face folder, or the out_dir of a run (its newest checkpoint) -> params, ModelConfig. Of a folder of
    adapters: the params of their base, with the adapters merged into them. `above`: the adapters whose base this is.

    Every device is given its part of a leaf, one matrix of all layers, as `dtype`, and only that is read.
    """
    folder = find(path)
    if os.path.exists(os.path.join(folder, ADAPTERS)):
        return load_merged(folder, dtype, above)
    cfg = read_config(folder)
    index = os.path.join(folder, "model.safetensors.index.json")
    sharded = os.path.exists(index)
    listed = read_json(index).get("weight_map") if sharded else {"": "model.safetensors"}
    if not (isinstance(listed, dict) and all(isinstance(file, str) for file in listed.values())):
        raise ValueError(f"{index} has no weight_map, the file of each tensor")
    where = {}
    for file in sorted(set(listed.values())):
        where |= opened(os.path.join(folder, file))
    n_out = 1 if JUDGE in where else None
    if cfg.mask_id is None and not cfg.causal and n_out is None:
        raise ValueError(f"{folder}/config.json has no mask_token_id: a model of the family {family(cfg)} fills holes, "
                         f"so one of its {cfg.vocab_size} ids is the mask; add the one that it was trained with")
    kind = f"{family(cfg)} model"
    return read(folder, where, list(tensors(cfg, n_out)), model.shapes(cfg, n_out), dtype, kind, "config.json"), cfg


def opened(file):
    """A safetensors file -> {name of a tensor: the open file}."""
    try:
        handle = safetensors.safe_open(bpe.regular(file), "numpy")
    except (OSError, safetensors.SafetensorError) as e:
        with contextlib.suppress(OSError), open(file, "rb") as head:
            if head.read(len(bpe.POINTER)) == bpe.POINTER:
                raise ValueError(f"{file} is only a pointer of Git LFS to the tensors: git lfs pull fetches "
                                 "them") from None
        raise ValueError(f"{file} is missing, truncated or not a safetensors file: {e}") from None
    return dict.fromkeys(handle.keys(), handle)


def read(folder, where, wanted, table, dtype, kind, by):
    """{name: open file}, (our path, layer, name) of all that is wanted, a table of shapes -> params of these shapes."""
    missing, unknown = {n for *_, n in wanted} - set(where), set(where) - {n for *_, n in wanted}
    if missing or unknown:
        some = lambda names: ", ".join(sorted(names)[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise ValueError(f"{folder} is not the {kind} that its {by} describes: "
                         f"missing tensors: {some(missing) or 'none'}; unknown tensors: {some(unknown) or 'none'}")
    layers = {}
    for tree, layer, name in wanted:
        shape, x = table[tree[0]] if len(tree) == 1 else table[tree[0]][tree[1]], where[name].get_slice(name)
        mine = shape if tree == ("embed",) else shape[layer is not None :][::-1]
        if (there := tuple(x.get_shape())) != mine:
            raise ValueError(f"{folder}: {name} has the shape {there}, but {by} makes it {mine}")
        layers.setdefault(tree, {})[layer] = x

    def leaf(path, shape):
        tree = tuple(key.key for key in path)
        stacked, found = tree[0] == "blocks", layers[tree]
        turn = -1 if len(shape) - stacked == 2 and tree != ("embed",) else 1

        def fetch(index):
            inner = tuple(index[stacked:][::turn])
            kept_as = model.stored_dtype(tree[-1], dtype)
            part = lambda layer: np.asarray(found[layer][inner]).astype(kept_as, copy=False)
            cut = part(None) if not stacked else np.stack([part(i) for i in range(*index[0].indices(shape[0]))])
            return cut if turn == 1 else cut.swapaxes(-1, -2)

        return mesh.make_array(tree[-1], shape, fetch)

    return jax.tree_util.tree_map_with_path(leaf, table, is_leaf=lambda s: isinstance(s, tuple))


# ---- folders of adapters, in PEFT's format ---------------------------------------------------------------------------

ADAPTERS = "adapter_config.json"
PEFT = "base_model.model."  # before the names of the base's tensors
PEFT_NEEDS = {"peft_type": "LORA", "bias": "none", "fan_in_fan_out": False, "use_rslora": False, "use_dora": False,
              "rank_pattern": {}, "alpha_pattern": {}}  # fmt: skip


def adapter_tensors(cfg, targets, n_out):
    """(our path, layer or None, PEFT's name) of every tensor of adapters: A (r, I), B (O, r), the head of a judge."""
    for path, layer, name in tensors(cfg, n_out):
        if path[-1] in targets:
            stem = PEFT + name.removesuffix("weight")
            yield ("blocks", path[-1] + "_a"), layer, stem + "lora_A.weight"
            yield ("blocks", path[-1] + "_b"), layer, stem + "lora_B.weight"
        elif name == JUDGE:
            yield ("head",), None, PEFT + name


def folder_of_adapters(params, cfg, base, alpha):
    """`params` of LoRA -> adapter_config.json, which names the folder of their base, and their tensors."""
    names, n_out = FAMILIES[family(cfg)][1], model.width(params)
    ranks = {name[:-2]: x.shape[-1] for name, x in params["blocks"].items() if name.endswith("_a")}
    module = lambda name: names[name].removesuffix("*").rpartition(".")[2]
    theirs = PEFT_NEEDS | {
        "base_model_name_or_path": base, "r": max(ranks.values()), "lora_alpha": alpha, "lora_dropout": 0.0,
        "target_modules": sorted(map(module, ranks)), "inference_mode": True,
        "task_type": "SEQ_CLS" if n_out else "CAUSAL_LM" if cfg.causal else None,
        "modules_to_save": [JUDGE.removesuffix(".weight")] if n_out else None}  # fmt: skip
    if module("head") in theirs["target_modules"]:  # LLaDA: both its head and the last matrix of a block are a ff_out
        theirs["exclude_modules"] = [names["head"].removesuffix("*")]
    items = [(name, x, functools.partial(np.asarray, fetch()))
             for name, x, fetch in stored(params, adapter_tensors(cfg, ranks, n_out))]  # fmt: skip
    return {ADAPTERS: theirs, "adapter_model.safetensors": items}


def read_adapters(folder):
    """adapter_config.json of a folder -> the folder of the base, r, alpha; or a ValueError."""
    path = os.path.join(folder, ADAPTERS)
    theirs = read_json(path)
    demand(path, theirs, PEFT_NEEDS)
    base, rank, alpha = (theirs.get(key) for key in ("base_model_name_or_path", "r", "lora_alpha"))
    if not (type(rank) is int and rank > 0 and type(alpha) in (int, float) and isinstance(base, str)):
        raise ValueError(f"{path}: expected the numbers r and lora_alpha and the text base_model_name_or_path, got "
                         f"{rank!r}, {alpha!r} and {base!r}")
    if not os.path.isdir(base):
        raise ValueError(f"{path}: the base of these adapters, base_model_name_or_path={base!r}, is not a folder here: "
                         "bring it back, or write there where it is now")
    return base, rank, alpha


def load_merged(folder, dtype, above):
    """A folder of adapters -> the params of their base with them merged into its matrices, ModelConfig."""
    base, rank, alpha = read_adapters(folder)
    above = *above, os.path.realpath(folder)
    if (found := os.path.realpath(find(base))) in above:
        raise ValueError(f"adapters that are their own base: {' -> '.join([*above, found])}; write the folder of the "
                         f"model that they were trained on into {os.path.join(folder, ADAPTERS)}")
    params, cfg = load(base, dtype, above)
    where = opened(os.path.join(folder, "adapter_model.safetensors"))
    n_out = 1 if PEFT + JUDGE in where else None
    matrices = [name for name, shape in model.shapes(cfg)["blocks"].items() if len(shape) == 3]
    targets = {path[-1][:-2] for path, _, name in adapter_tensors(cfg, matrices, None) if name in where}
    table = {"blocks": lora.adapter_shapes(cfg, targets, rank)} | ({"head": (cfg.d_model, 1)} if n_out else {})
    wanted = list(adapter_tensors(cfg, targets, n_out))
    new = read(folder, where, wanted, table, "float32", f"LoRA of a {family(cfg)} model", ADAPTERS)
    for name in targets:  # one after the other, so that there are never two copies of all of them
        a, b = (new["blocks"][name + end] for end in ("_a", "_b"))
        merged = params["blocks"][name] + jnp.matmul(a, b * (alpha / rank), precision="highest")
        params["blocks"][name] = merged.astype(dtype)
    return params | {name: x for name, x in new.items() if name != "blocks"}, cfg


# ---- checkpoints of a run --------------------------------------------------------------------------------------------

LOGS = "metrics.jsonl", "samples.jsonl", "rollouts.jsonl"
WRITING = ".writing"  # where in out_dir a checkpoint is before it is one, and again when it is deleted


IN_FLIGHT = []  # the checkpoint that is being written, at most one: its Future


def save_run(cfg, state, tok, best, finished, behind=False):
    """Writes out_dir/step-NNNNNN: a folder of the weights or adapters, and all that the next step depends on. `behind`
    the steps that follow: it is copied to the host now, and written while they are taken."""
    settled()
    if os.path.isdir(of_step(cfg.out_dir, state.step)):
        return
    n, mine = mesh.processes()
    if behind and n == 1:  # updates overwrite what the state is in
        state = jax.tree.map(np.array, state)
    if cfg.lora_rank:
        files = folder_of_adapters(state.weights, cfg.model, cfg.init_from, cfg.lora_alpha)
    else:
        files = folder_of(state.weights, cfg.model)
    name = "state.safetensors" if n == 1 else f"state-{mine + 1:05d}-of-{n:05d}.safetensors"
    files[name] = [(path + (at and f"@{at}"), part, functools.partial(np.asarray, part))
                   for path, x in leaves(state._replace(step=())).items() for at, part in mesh.local_shards(x).items()]
    files["run.json"] = {"step": int(state.step), "finished": finished, "best": best, "config": config.flatten(cfg)}
    if mine:  # what is the same for all, the first writes
        files = {name: content for name, content in files.items() if f"-{mine + 1:05d}-of-" in name}
    work = functools.partial(finish if n > 1 else persist, cfg, int(state.step), tok, best, files)
    if not behind:
        return work()
    IN_FLIGHT.append(Future())
    threading.Thread(target=fulfil, args=(IN_FLIGHT[0], work), daemon=True).start()


def fulfil(future, work):
    """What a thread does: work(), its error for whoever asks for the result."""
    try:
        future.set_result(work())
    except BaseException as e:
        future.set_exception(e)


def settled():
    """Waits for the checkpoint that is being written; if that failed, this says so."""
    while IN_FLIGHT and threading.current_thread() is threading.main_thread():
        IN_FLIGHT.pop().result()


def persist(cfg, step, *rest):
    """`finish`, and again if out_dir was deleted meanwhile: it is made anew."""
    try:
        finish(cfg, step, *rest)
    except FileNotFoundError:
        if not os.path.isdir(of_step(cfg.out_dir, step)):
            finish(cfg, step, *rest)


def finish(cfg, step, tok, best, files):
    """Writes the files of a checkpoint, all processes theirs, and when all are there makes a checkpoint of them."""
    temporary, final = os.path.join(cfg.out_dir, WRITING), of_step(cfg.out_dir, step)
    mine = mesh.processes()[1]
    if not mine:
        clear(temporary)
    mesh.barrier(f"{final} can be written")
    write(temporary, files)
    mesh.barrier(f"{final} is written")
    if not mine:
        with named(temporary):
            tok.save(temporary)
        publish(cfg, temporary, final, best, files)
    mesh.barrier(f"{final} is there")


def publish(cfg, temporary, final, best, files):
    """A folder in which all is written becomes a checkpoint; those that are not to be kept are deleted."""
    for name in [*{*os.listdir(temporary), *files}, "."]:  # if one of ours was deleted meanwhile, this is no checkpoint
        sync(os.path.join(temporary, name))
    for name in set(LOGS) & set(os.listdir(cfg.out_dir)):  # what they say up to this step belongs to it
        sync(os.path.join(cfg.out_dir, name))
    os.rename(temporary, final)
    sync(cfg.out_dir)
    kept = steps(cfg.out_dir)[-cfg.keep_checkpoints :] + [best and best["step"]]
    for step in steps(cfg.out_dir):
        if step not in kept:  # renamed first: a folder that is half deleted must not look like a checkpoint
            os.rename(of_step(cfg.out_dir, step), temporary)
            clear(temporary)


def clear(folder):
    """Deletes a folder, if there is one: nothing that was in it may become part of the next checkpoint."""
    if os.path.isdir(folder):
        shutil.rmtree(folder)


def sync(path):
    with named(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def steps(out_dir):
    """The steps there are checkpoints of, ascending."""
    settled()
    names = os.listdir(out_dir) if os.path.isdir(out_dir) else []
    return sorted(int(n[5:]) for n in names if re.fullmatch(r"step-\d+", n))


def step_of(folder):
    """The step that a checkpoint has in its name; 0 of other folders."""
    return int(found[1]) if (found := re.search(r"step-(\d+)$", folder)) else 0


def of_step(out_dir, step):
    """Where the checkpoint of a step is."""
    return os.path.join(out_dir, f"step-{step:06d}")


def leaves(tree):
    """A tree -> {path: leaf}, where it is."""
    return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def flat(tree):
    """A tree of arrays -> {path: array}, on the host."""
    return {path: np.asarray(x) for path, x in leaves(tree).items()}


def restore(folder, state):
    """The state that `save` wrote into folder, in the shape of `state` (jax.eval_shape's will do), and its run.json."""
    run = read_run(folder)
    if not {"step", "best"} <= run.keys():
        raise ValueError(f"{folder} has no run.json of this program: it is a model, not a run that can be resumed; "
                         "start from it with --init_from and another out_dir")
    try:
        saved = read_pieces(folder)
    except ValueError as e:
        raise ValueError(f"{e}: delete {folder} to resume from the checkpoint before it") from None
    mine = leaves(state._replace(step=()))
    size = lambda k: tuple(max(ends) for ends in zip(*([s.stop for s in at] for at, _ in saved[k]), strict=True))
    different = sorted(k for k in saved.keys() | mine.keys()
                       if k not in saved or k not in mine or size(k) != mine[k].shape)  # fmt: skip
    if different:
        raise ValueError(f"{folder} is of another model or optimizer than this config: {different[0]} and "
                         f"{len(different) - 1} more differ; resume with the config of that run, or start elsewhere "
                         "with --out_dir")
    for k, x in mine.items():
        if sum(math.prod(s.stop - s.start for s in at) for at, _ in saved[k]) != math.prod(x.shape):
            raise ValueError(f"{folder} lacks a part of {k}, one of its state-... files: delete it to resume from the "
                             "checkpoint before it")  # fmt: skip
    leaf = lambda path, x: mesh.make_array(mesh.leaf_name(path), x.shape, functools.partial(
        assembled, saved[jax.tree_util.keystr(path)], x.shape))  # fmt: skip
    return jax.tree_util.tree_map_with_path(leaf, state._replace(step=()))._replace(step=run["step"]), run


def read_pieces(folder):
    """A checkpoint -> {path of a leaf: [(the slices of it, their tensor in a file)]}, of all files of its state."""
    found = {}
    files = sorted(glob.glob(os.path.join(glob.escape(folder), "state*.safetensors")))
    for file in files or [os.path.join(folder, "state.safetensors")]:
        for name, handle in opened(file).items():
            (path, _, ends), part = name.partition("@"), handle.get_slice(name)
            ends = [pair.split(":") for pair in ends.split(",")] if ends else [(0, n) for n in part.get_shape()]
            found.setdefault(path, []).append((tuple(slice(int(a), int(b)) for a, b in ends), part))
    return found


def assembled(parts, shape, index):
    """Pieces of a leaf of that shape as above, the slices of what is wanted -> that as numpy array."""
    wanted, out = [slice(*s.indices(n)) for s, n in zip(index, shape, strict=True)], None
    for at, part in parts:
        both = [slice(max(a.start, w.start), min(a.stop, w.stop)) for a, w in zip(at, wanted, strict=True)]
        if any(s.start >= s.stop for s in both):
            continue
        x = np.asarray(part[tuple(slice(s.start - a.start, s.stop - a.start) for s, a in zip(both, at, strict=True))])
        if both == wanted:
            return x
        out = np.empty([w.stop - w.start for w in wanted], x.dtype) if out is None else out
        out[tuple(slice(s.start - w.start, s.stop - w.start) for s, w in zip(both, wanted, strict=True))] = x
    return out


def read_run(folder):
    """run.json of a checkpoint; {} in a model folder of somebody else's."""
    path = os.path.join(folder, "run.json")
    try:
        with named(path), open(bpe.regular(path)) as f:
            return dict(json.load(f))
    except FileNotFoundError:
        return {}
    except (TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"{path} is damaged ({e}): delete {folder} to resume from the checkpoint before it") from None
