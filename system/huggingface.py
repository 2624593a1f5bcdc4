"""
Read and write other people's folders: models as Hugging Face folders, adapters as PEFT folders.

There is no private format. A family of models that differs from another in names only is one entry of FAMILIES.
"""

import dataclasses
import functools
import itertools
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import model
from data import bpe
from data.bpe import Tokenizer
from system import disk, hosts, sharding
from variants import lora

# Our tensor -> theirs, without .weight or .bias; {} is the layer. They store (out, in), we compute (in, out). If
# several tensors have one name, their rows are one tensor in the file.
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
QWEN3_MOE_TENSORS = LLAMA_TENSORS | {  # {e} is the expert
    "router": "model.layers.{}.mlp.gate",
    "expert_gate": "model.layers.{}.mlp.experts.{e}.gate_proj",
    "expert_up": "model.layers.{}.mlp.experts.{e}.up_proj",
    "expert_down": "model.layers.{}.mlp.experts.{e}.down_proj",
}
LLADA2_TENSORS = QWEN3_MOE_TENSORS | {
    "embed": "model.word_embeddings",
    "q": "model.layers.{}.attention.query_key_value",
    "k": "model.layers.{}.attention.query_key_value",
    "v": "model.layers.{}.attention.query_key_value",
    "o": "model.layers.{}.attention.dense",
    "q_norm": "model.layers.{}.attention.query_layernorm",
    "k_norm": "model.layers.{}.attention.key_layernorm",
    "router_bias": "model.layers.{}.mlp.gate.expert_bias",
    "shared_gate": "model.layers.{}.mlp.shared_experts.gate_proj",
    "shared_up": "model.layers.{}.mlp.shared_experts.up_proj",
    "shared_down": "model.layers.{}.mlp.shared_experts.down_proj",
    "dense_gate": "model.layers.{}.mlp.gate_proj",
    "dense_up": "model.layers.{}.mlp.up_proj",
    "dense_down": "model.layers.{}.mlp.down_proj",
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
NEMOTRON_TENSORS = {leaf: name.replace("model.", "encoder.") for leaf, name in LLAMA_TENSORS.items()} | {
    "head": "diffusion_head"
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
    "max_positions": "max_position_embeddings",
    "rope_scaling": "rope_scaling",
}
BLOCK_KEYS = LLAMA_KEYS | {"block_causal": "block_size"}
QWEN3_MOE_KEYS = LLAMA_KEYS | {
    "n_experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "d_expert": "moe_intermediate_size",
    "norm_routing": "norm_topk_prob",
}
SDAR_MOE_KEYS = QWEN3_MOE_KEYS | {"block_causal": "block_size"}
LLADA2_KEYS = SDAR_MOE_KEYS | {
    "rotary_share": "partial_rotary_factor",
    "routing_scale": "routed_scaling_factor",
    "expert_groups": "n_group",
    "groups_per_token": "topk_group",
    "n_shared": "num_shared_experts",
    "first_dense": "first_k_dense_replace",
}
del LLADA2_KEYS["norm_routing"]  # it divides by the sum whatever config.json says
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
    "max_positions": "max_sequence_length",
    "qkv_bias": "include_qkv_bias",
}

# The values that config.json has to give these keys, if it has them, for our model to be that network.
LLAMA_REQUIRES = {
    "hidden_act": "silu",
    "rope_type": "default",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "llama_4_scaling_beta": None,
    "partial_rotary_factor": 1.0,
}
QWEN3_MOE_REQUIRES = LLAMA_REQUIRES | {"decoder_sparse_step": 1, "mlp_only_layers": []}
LLADA2_REQUIRES = {
    "hidden_act": "silu",
    "rope_type": "default",
    "use_sliding_window": False,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_qk_norm": True,
    "norm_head": False,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True,
}
GEMMA_REQUIRES = LLAMA_REQUIRES | {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "use_bidirectional_attention": False,
}
NEMOTRON_REQUIRES = LLAMA_REQUIRES | {"dlm_paradigm": "bidirectional", "sliding_window": None}
del NEMOTRON_REQUIRES["llama_4_scaling_beta"]
LLADA_REQUIRES = {
    "rope_scaling": None,
    "partial_rotary_factor": 1.0,
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
    """How the folders of a family of models name things, and which fields of ModelConfig are its own."""

    architecture: str  # the class in config.json
    fields: dict[str, Any]  # the values of ModelConfig that config.json does not or need not give
    tensors: dict[str, str] = LLAMA_TENSORS
    keys: dict[str, str] = LLAMA_KEYS
    requires: dict[str, Any] = LLAMA_REQUIRES
    code: str = ""  # where the Python code of the class is; empty: in transformers
    variants: tuple[str, ...] = ()  # files of variants/ whose Shape has some of the fields


CAUSAL = {"causal": True, "shift": True}
DLLM = "github.com/ZHZisZZ/dllm"
FAMILIES = {  # by the model_type in config.json
    "llada": Family(
        "LLaDAModelLM", {}, LLADA_TENSORS, LLADA_KEYS, LLADA_REQUIRES, code="huggingface.co/GSAI-ML/LLaDA-8B-Instruct"
    ),
    "Dream": Family(
        "DreamModel", {"shift": True, "qkv_bias": True}, code="huggingface.co/Dream-org/Dream-v0-Instruct-7B"
    ),
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
        "SDARForCausalLM",
        {"block_causal": 4, "qk_norm": True},
        keys=BLOCK_KEYS,
        code="huggingface.co/JetLM/SDAR-1.7B-Chat",
    ),
    "Fast_dLLM_Qwen": Family(
        "Fast_dLLM_QwenForCausalLM",
        {"block_causal": 32, "shift": True, "qkv_bias": True},
        keys=LLAMA_KEYS | {"block_causal": "bd_size"},
        code="huggingface.co/Efficient-Large-Model/Fast_dLLM_v2_7B",
    ),
    # dllm's: with blocks or without
    "a2d-qwen3": Family("A2DQwen3LMHeadModel", {"qk_norm": True}, keys=BLOCK_KEYS, code=DLLM),
    "a2d-qwen2": Family("A2DQwen2LMHeadModel", {"qkv_bias": True}, keys=BLOCK_KEYS, code=DLLM),
    "a2d-llama": Family("A2DLlamaLMHeadModel", {}, keys=BLOCK_KEYS, code=DLLM),
    "illada": Family(
        "ILLaDAForCausalLM",
        {"mask_id": 5},
        requires=LLAMA_REQUIRES | {"layer_norm_eps": None},
        code="huggingface.co/GSAI-ML/iLLaDA-8B-Instruct",
    ),
    # Ours alone: a name that no other program knows, because all others would let the network read masks.
    "unmask_uniform": Family("UniformNoiseModel", {"noise": "uniform"}, code="unmask, and nowhere else"),
    "nemotron_labs_diffusion": Family(
        "NemotronLabsDiffusionModel",
        {"block_causal": 32, "causal_text": True},
        NEMOTRON_TENSORS,
        BLOCK_KEYS,
        NEMOTRON_REQUIRES,
        "huggingface.co/nvidia/Nemotron-Labs-Diffusion-8B",
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM", CAUSAL | {"qk_norm": True}, QWEN3_MOE_TENSORS, QWEN3_MOE_KEYS, QWEN3_MOE_REQUIRES,
        variants=("moe",),
    ),
    "sdar_moe": Family(
        "SDARMoeForCausalLM",
        {"block_causal": 4, "qk_norm": True},
        QWEN3_MOE_TENSORS,
        SDAR_MOE_KEYS,
        QWEN3_MOE_REQUIRES,
        "huggingface.co/JetLM/SDAR-30B-A3B-Chat",
        ("moe",),
    ),
    "llada2_moe": Family(
        "LLaDA2MoeModelLM",
        {"block_causal": 32, "qk_norm": True, "routing": "sigmoid", "norm_routing": True, "rotary_share": 0.5}
        | {"mask_id": 156895},
        LLADA2_TENSORS,
        LLADA2_KEYS,
        LLADA2_REQUIRES,
        "huggingface.co/inclusionAI/LLaDA2.0-mini",
        ("moe",),
    ),
}
MISSING = {  # the class in a config.json: what this code lacks for it, though its model_type is one of FAMILIES
    "LLaDAMoEModelLM": "this is LLaDA-MoE, whose mixture of experts has keys and tensors that no family here has: its "
    "entry in FAMILIES of system/huggingface.py is missing",
    "DreamForCausalLM": "this is DreamReasoner, a block model made of Qwen3, which Dream is not: --open_as=sdar reads "
    "it if it is not shifted, and --explain tests that",
}
ANY_FAMILY = ("dtype", "remat", "d_head", "end_ids", "use")  # fields that do not tell families apart
BLOCK_LENGTHS = ("block_size", "bd_size", "block_length")  # keys of config.json that say that a model has blocks
FLOATS = ("F32", "BF16", "F16", "F64")  # dtypes of tensors in a file that can be read
NEEDED = (  # fields that a config.json must give, if the family has them
    "vocab_size", "n_layer", "n_head", "d_model", "d_ff", "n_experts", "experts_per_token", "d_expert", "routing_scale",
    "expert_groups", "groups_per_token", "n_shared", "first_dense",
)  # fmt: skip
JUDGE_HEAD = "score.weight"  # (1, D), as in transformers' ...ForSequenceClassification
ROPES = {  # rope_type -> the keys of the numbers in cfg.rope_scaling; YaRN's last one is Ministral 3's
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "beta_slow", "beta_fast", "original_max_position_embeddings", "attention_factor",
        "llama_4_scaling_beta",
    ),
}  # fmt: skip


def is_of_kind(family: Family, cfg: model.ModelConfig) -> bool:
    """True if a family and a configuration agree in two things: whether there are blocks, and experts."""
    fits_blocks = "block_causal" in family.keys if cfg.block_causal else "block_causal" not in family.fields
    return fits_blocks and hasattr(cfg, "n_experts") == ("n_experts" in family.keys)


def can_hold(family: Family, cfg: model.ModelConfig) -> bool:
    """True if the folders of a family can hold this configuration."""
    fields = [f for owner in (cfg, *cfg.use) for f in dataclasses.fields(owner)]
    default = {f.name: f.default for f in fields if f.name not in ANY_FAMILY}
    fits_heads = "d_head" in family.keys or cfg.head_dim * cfg.n_head == cfg.d_model
    fixed = {field: v for field, v in (default | family.fields).items() if field not in family.keys}
    fits = fits_heads and is_of_kind(family, cfg)
    return fits and all(getattr(cfg, field) == v for field, v in fixed.items())


def family_of(cfg: model.ModelConfig) -> str:
    """Find the name of the first family whose folders can hold this configuration."""
    of_kind = {name: family for name, family in FAMILIES.items() if is_of_kind(family, cfg)}
    for name, family in of_kind.items():
        if can_hold(family, cfg):
            return name
    switches = (
        "causal", "block_causal", "causal_text", "shift", "qkv_bias", "qk_norm", "gemma", "window", "query_scale",
        "attn_cap", "logit_cap", "rope_scaling", "d_head", "rotary_share", "n_experts", "routing", "norm_routing",
        "n_shared", "noise",
    )  # fmt: skip
    raise ValueError(
        "no Hugging Face family has these switches together: "
        + ", ".join(f"{field}={getattr(cfg, field, None)}" for field in switches)
        + "; there are "
        + "; ".join(f"{name}: {' '.join(family.fields) or 'none'}" for name, family in of_kind.items())
    )


class Place(NamedTuple):
    """A tensor in a file, and where its values are in our params."""

    path: tuple[str, ...]  # ("embed",) or ("blocks", "q")
    at: tuple[int, ...]  # the first indices into a leaf of "blocks": the layer, and the expert
    name: str  # of the tensor in the file


def tensor_places(cfg: model.ModelConfig, n_out: int | None, kind: str | None = None) -> Iterator[Place]:
    """Yield the Place of every tensor in a folder of this configuration.

    n_out: outputs of the head, None for the vocabulary
    kind: the name of its family; None: that of `family_of`
    """
    names, shapes = FAMILIES[kind or family_of(cfg)].tensors, model.shapes(cfg, n_out)
    for leaf in shapes:
        if leaf == "head" and n_out is not None:
            yield Place(("head",), (), JUDGE_HEAD)
        elif leaf != "blocks":
            yield Place((leaf,), (), names[leaf] + ".weight")
    for i in range(cfg.n_layer):
        for leaf, shape in shapes["blocks"].items():
            matrix = leaf.removesuffix("_bias")
            name = names.get(leaf) or names[matrix] + ".bias"
            name += "" if name.endswith("bias") else ".weight"
            # Of a leaf that not all layers have: `dense_` is that of the first layers, others are of the last ones.
            at = i if leaf.startswith("dense_") else i - (cfg.n_layer - shape[0])
            experts = itertools.product(*map(range, shape[1:2] if leaf.startswith("expert") else ()))
            for expert in experts if 0 <= at < shape[0] else ():
                yield Place(("blocks", leaf), (at, *expert), name.format(i, e=expert and expert[0]))


def leaf_at(tree, path):
    """Return the leaf of a tree of dicts."""
    return functools.reduce(operator.getitem, path, tree)


def is_transposed(path, ndim):
    """True if a file stores the tensors of this leaf, with ndim sides each, transposed: matrices but the embedding."""
    return ndim == 2 and path != ("embed",)


def stored_shape(place, shape):
    """Return the shape that the tensor of a Place has in a file; shape: that of the whole leaf in our params."""
    inner = shape[len(place.at) :]
    return inner[::-1] if is_transposed(place.path, len(inner)) else inner


def by_name(places):
    """Group consecutive places that are parts of one tensor in a file -> (its name, [Place, ...]) for each tensor."""
    return ((name, list(parts)) for name, parts in itertools.groupby(places, operator.attrgetter("name")))


# ==== other people's folders: writing =================================================================================


def save(folder: str, params: Any, cfg: model.ModelConfig) -> None:
    """Write a Hugging Face folder: config.json and the params in their dtype (a tokenizer writes its own files)."""
    disk.write_files(folder, model_files(params, cfg))


def model_files(params: Any, cfg: model.ModelConfig) -> dict[str, Any]:
    """Make the files of a Hugging Face folder, {name: content} as `disk.write_files` takes them."""
    n_out, kind = model.width(params), family_of(cfg)
    family = FAMILIES[kind]
    filled = dataclasses.replace(
        cfg, d_head=cfg.head_dim, n_kv_head=cfg.kv_heads, d_ff=cfg.ff, query_scale=cfg.query_scale or cfg.head_dim
    )
    dtype = str(params["embed"].dtype)
    theirs: dict[str, Any] = {"model_type": kind, "architectures": [family.architecture], "torch_dtype": dtype}
    theirs |= {key: value for key, value in family.requires.items() if value is not None}
    if n_out:
        theirs["num_labels"] = 1
    theirs |= {key: getattr(filled, field) for field, key in family.keys.items()}
    theirs["vocab_size"] = cfg.vocab_size
    theirs["mask_token_id"] = None if cfg.mask_id == cfg.vocab_size else cfg.mask_id
    if cfg.end_ids:
        theirs["eos_token_id"] = list(cfg.ends)
    if cfg.max_positions is None:  # others do not read null
        del theirs[family.keys["max_positions"]]
    if cfg.rope_scaling is not None:
        stretch = "llama3" if len(cfg.rope_scaling) == 4 else "yarn"
        theirs["rope_scaling"] = {"rope_type": stretch, **dict(zip(ROPES[stretch], cfg.rope_scaling, strict=False))}
        del theirs["rope_type"]
    params = jax.tree.map(functools.partial(as_stored, dtype), params)
    tensors = [to_store(params, name, parts) for name, parts in by_name(tensor_places(cfg, n_out))]
    return {"config.json": theirs} | disk.split_into_files("model", tensors)


def as_stored(dtype, x):
    """Round a parameter to the dtype of the others if that loses nothing: gains and routers that a folder has in 16
    bits are 32 in memory."""
    return x if x.dtype == dtype or (x.astype(dtype) != x).any() else x.astype(dtype)


def code_elsewhere(cfg: model.ModelConfig) -> str | None:
    """Say which code other programs need to open a folder of this model; None: transformers has it."""
    kind = family_of(cfg)
    family = FAMILIES[kind]
    if not family.code:
        return None
    return (f"transformers has no {family.architecture}: elsewhere this folder (model_type {kind!r}) needs the code of "
            f"{family.code}, its *.py files and the auto_map of its config.json")  # fmt: skip


def to_store(params, name, parts):
    """Prepare the tensor `name` for writing, as a file stores it; parts: the places of its rows in params."""
    leaves = [leaf_at(params, place.path) for place in parts]
    shapes = [stored_shape(place, x.shape) for place, x in zip(parts, leaves, strict=True)]
    whole = (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def fetch():
        values = [hosts.gather(x[place.at] if place.at else x) for place, x in zip(parts, leaves, strict=True)]
        values = [x.T if is_transposed(parts[0].path, x.ndim) else x for x in values]
        return np.concatenate(values) if len(values) > 1 else values[0]

    return disk.Stored(name, jax.ShapeDtypeStruct(whole, leaves[0].dtype), fetch)


# ==== other people's folders: reading =================================================================================


def read_kind(folder: str, open_as: str | None = None) -> str:
    """Return the name of a folder's family: open_as if given, else its model_type; an error if FAMILIES lacks it."""
    path = os.path.join(folder, "config.json")
    kind = open_as or disk.read_json(path).get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        asked = f"open_as={open_as!r}" if open_as else f"{path}: model_type is {kind!r}"
        raise ValueError(f"{asked}; known families: {', '.join(FAMILIES)}")
    return kind


def check_kind(path, theirs, kind, open_as):
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
    family = FAMILIES[kind]
    for key in BLOCK_LENGTHS:
        if theirs.get(key) and key not in family.keys.values():
            blocks = ", ".join(name for name, other in FAMILIES.items() if "block_causal" in other.keys)
            raise ValueError(f"{path}: {key}={theirs[key]!r} says that this is a model of blocks, and the family "
                             f"{kind} has none; families that may have blocks are {blocks}: --open_as=NAME opens it "
                             "as one of them")  # fmt: skip
    if family.fields.get("causal"):
        check_causal(path, theirs, family.architecture)


def read_config(folder: str, open_as: str | None = None) -> model.ModelConfig:
    """Read config.json of a Hugging Face folder. A ValueError names what our model cannot compute.

    open_as: the family that it belongs to, whatever its model_type says
    """
    kind, path = read_kind(folder, open_as), os.path.join(folder, "config.json")
    family, theirs = FAMILIES[kind], disk.read_json(path)
    check_kind(path, theirs, kind, open_as)
    stretch = read_rope(path, theirs)
    for key in ("rope_scaling", "rope_parameters"):  # where transformers 5 keeps rope_theta
        theirs |= {name: value for name, value in (theirs.get(key) or {}).items() if name != "rope_type"}
    theirs |= {"rope_scaling": stretch}
    theirs.setdefault("num_experts", theirs.get("num_local_experts"))  # as transformers 5 writes it
    check_requirements(path, theirs, family.requires)
    fields = {field: theirs[key] for field, key in family.keys.items() if theirs.get(key) is not None}
    fields = family.fields | missing_fields(folder, family, theirs, open_as) | fields
    fields |= read_ends(folder, fields.get("eos_id"))
    if isinstance(fields.get("n_layer"), int) and fields["n_layer"] > 10_000:  # we make a name for each
        raise ValueError(f"{path}: {family.keys['n_layer']}={fields['n_layer']}: no model has more than 10,000 layers")
    missing = [family.keys[f] for f in NEEDED if f in family.keys and f not in fields]
    if missing:
        raise ValueError(f"{path}: missing {', '.join(missing)}")
    try:
        cfg = made(fields, family.variants)
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from None
    types = ["sliding_attention" if cfg.window and i % 2 == 0 else "full_attention" for i in range(cfg.n_layer)]
    if theirs.get("layer_types") not in (None, types):
        raise ValueError(f"{path}: layer_types={theirs['layer_types']} is not supported; this code computes {types}")
    return cfg


def made(fields, variants):
    """Make the ModelConfig with these fields {name: value}, of its own or of the Shape of these variants."""
    use = []
    for name in variants:
        if not model.plugged(model.MLPS, name):
            raise ValueError(f"such a model needs variants/{name}.py, which is not there")
        kind = sys.modules[f"variants.{name}"].Shape
        use.append(kind(**{field: fields[field] for field in kind.__dataclass_fields__ if field in fields}))
    theirs = {field for section in use for field in section.__dataclass_fields__}
    own = {field: value for field, value in fields.items() if field not in theirs}
    return model.ModelConfig(**own, use=tuple(use))


def read_ends(folder, named):
    """Find the ids that end a text -> fields of ModelConfig.

    named: the eos_token_id of config.json, one or a list; those of generation_config.json follow"""
    more = bpe.read_json(Path(folder, "generation_config.json")).get("eos_token_id")
    lists = [ids if isinstance(ids, list) else [ids] for ids in (named, more)]
    ends = []
    for i in [i for ids in lists for i in ids]:
        if i is not None and i not in ends:
            ends.append(i)
    return {"eos_id": ends[0] if ends else None, "end_ids": tuple(ends[1:])}


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
    added = bpe.added_tokens(Path(folder), {"added_tokens": spec.get("added_tokens", [])})
    named = bpe.text_of(bpe.read_json(Path(folder, "tokenizer_config.json")).get("mask_token"))
    return next((added[name]["id"] for name in (named, *bpe.USUAL_NAMES["mask"]) if name in added), None)


def check_requirements(path, theirs, requires):
    """Raise ValueError unless `theirs`, the JSON at path, has the required values or lacks their keys."""
    for key, value in requires.items():
        if (theirs.get(key, value) or None) != (value or None):  # null is no
            raise ValueError(f"{path}: {key}={theirs[key]!r} is not supported; this code computes {key}={value!r}")


def read_rope(path, theirs):
    """Read how a config.json stretches rotary positions -> cfg.rope_scaling, None if it does not."""
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(theirs.get(key) or {}, dict):
            raise ValueError(f"{path}: {key}={theirs[key]!r}: expected an object or null")
    found = theirs.get("rope_scaling") or theirs.get("rope_parameters") or {}
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "default" and not found.get("llama_4_scaling_beta"):
        return None
    given = {key: value for key, value in found.items() if value not in (None, 0)}
    if kind == "yarn" and "factor" in given:
        given = {"beta_slow": 1, "beta_fast": 32, "attention_factor": attention_factor(path, given)} | given
    keys = ROPES.get(kind, ())
    if not keys or not set(keys) - {"llama_4_scaling_beta"} <= given.keys() or not found.get("truncate", True):
        raise ValueError(
            f"{path}: rope_scaling={found} is not supported; this code computes rope_type='default', "
            f"'llama3' with {', '.join(ROPES['llama3'])}, and 'yarn' with factor and original_max_position_embeddings"
        )
    return tuple(given[key] for key in keys if key in given)


def attention_factor(path, yarn):
    """Return the number that YaRN multiplies cosines and sines by."""
    numbers = [yarn["factor"], yarn.get("mscale") or 1, yarn.get("mscale_all_dim") or 0]
    if not all(type(x) in (int, float) for x in numbers):
        raise ValueError(f"{path}: rope_scaling={yarn}: expected numbers as factor, mscale and mscale_all_dim")
    factor, above, below = numbers
    growth = 0.1 * math.log(max(factor, 1))
    return (1 + above * growth) / (1 + below * growth) if yarn.get("mscale") and below else 1 + growth


def check_causal(path, theirs, architecture):
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
        denoisers = ", ".join(kind for kind, family in FAMILIES.items() if not family.fields.get("causal"))
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


def fit_tokenizer(folder: str, cfg: model.ModelConfig, tok: Tokenizer) -> model.ModelConfig:
    """Add the end of text of a folder's tokenizer to its ModelConfig. A causal model and one whose config.json names no
    end fill up with it. Raise ValueError if the tokenizer of a denoiser has another mask than config.json.

    A causal model may have a tokenizer with a mask, as Gemma does: this is only said."""
    if cfg.causal and is_foreign(bpe.read_json(Path(folder, "config.json"))):
        named = bpe.text_of(bpe.read_json(Path(folder, "tokenizer_config.json")).get("mask_token"))
        if named is not None:
            note = (f"{folder} is read as a causal model, though its tokenizer has a mask, {named}: if it is a "
                    "denoiser, --open_as=NAME opens it as one, and sample.py FOLDER --explain tests which")  # fmt: skip
            print(note, file=sys.stderr)
    if not cfg.causal and tok.mask_id != cfg.mask_id:
        raise ValueError(
            f"{folder}: config.json says that the mask is id {cfg.mask_id}, and the tokenizer that "
            f"it is id {tok.mask_id}: one of the files belongs to another model"
        )
    first = tok.eos_id if cfg.causal or cfg.eos_id is None else cfg.eos_id
    ends = dict.fromkeys((*cfg.ends, tok.eos_id))
    return dataclasses.replace(cfg, eos_id=first, end_ids=tuple(i for i in ends if i != first))


def load_folder(
    folder: str, dtype: str | None, find_base: Callable[[str], str], open_as: str | None = None, above: tuple = ()
) -> tuple[Any, Any]:
    """Load a model's folder -> params, ModelConfig; for adapters, those of their base with the adapters merged in.

    Every device reads only its part of each leaf, one leaf (a matrix of all layers) after the other.

    dtype: of the params, and of the products of the ModelConfig; None: 32 or 16 bits (bfloat16), as in the folder
    find_base: finds the folder of the base from the path that adapters give
    open_as: the family of the model (of the base, for adapters), see `read_config`
    above: the folders of adapters whose base this is
    """
    if os.path.exists(os.path.join(folder, ADAPTER_CONFIG)):
        return load_merged(folder, dtype, find_base, open_as, above)
    kind, cfg = read_kind(folder, open_as), read_config(folder, open_as)
    index = os.path.join(folder, "model.safetensors.index.json")
    listed = disk.read_json(index).get("weight_map") if os.path.exists(index) else {"": "model.safetensors"}
    if not (isinstance(listed, dict) and all(isinstance(file, str) for file in listed.values())):
        raise ValueError(f"{index} has no weight_map, the file of each tensor")
    files: dict[str, Any] = {}
    for file in sorted(set(listed.values())):
        files |= disk.open_tensors(os.path.join(folder, file))
    n_out = 1 if JUDGE_HEAD in files else None
    if cfg.mask_id is None and not cfg.causal and n_out is None:
        raise ValueError(
            f"{folder}/config.json has no mask_token_id: a model of the family {kind} fills masks, "
            f"so one of its {cfg.vocab_size} ids is the mask; add the one that it was trained with"
        )
    places, shapes = list(tensor_places(cfg, n_out, kind)), model.shapes(cfg, n_out)
    dtype = dtype or dtype_in(files, places)
    files = without_copies(folder, files, places, FAMILIES[kind].tensors)
    params = load_tensors(folder, files, places, shapes, dtype, (f"{kind} model", "config.json"))
    return params, dataclasses.replace(cfg, dtype=dtype)


def dtype_in(files, places):
    """Return the dtype for the tensors in files {name: open file}: bfloat16 if the first of the places that is there
    has 16 bits."""
    first = next((place.name for place in places if place.name in files), None)
    return "bfloat16" if first and files[first].get_slice(first).get_dtype() in ("BF16", "F16") else "float32"


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


def load_tensors(folder, files, places, shapes, dtype, described):
    """Load tensors from open files -> a tree of arrays; ValueError if one is missing, unknown or of another shape.

    files {name of a tensor: open file}, places: of all tensors that should be there
    shapes: the tree, with a shape for each leaf
    described (kind, file): what the folder should hold, and the file that says so
    """
    kind, file = described
    check_names(f"{folder} is not the {kind} that its {file} describes", set(files), {place.name for place in places})
    found = {}
    for name, parts in by_name(places):
        x, ours = files[name].get_slice(name), [stored_shape(place, leaf_at(shapes, place.path)) for place in parts]
        expected = (sum(shape[0] for shape in ours), *ours[0][1:])
        if x.get_dtype() not in FLOATS:
            raise ValueError(f"{folder}: {name} is of the type {x.get_dtype()}, a packed or quantized tensor; this "
                             f"code reads {', '.join(FLOATS)}: take the model in 16 or 32 bits")  # fmt: skip
        if tuple(x.get_shape()) != expected:
            raise ValueError(f"{folder}: {name} has the shape {tuple(x.get_shape())}, but {file} makes it {expected}")
        first = 0
        for place, shape in zip(parts, ours, strict=True):
            found.setdefault(place.path, {})[place.at] = x, first
            first += shape[0]

    def leaf(path, shape):
        path = tuple(key.key for key in path)
        n = len(next(iter(found[path])))  # sides over which tensors are stacked
        transposed = is_transposed(path, len(shape) - n)
        stored_as = model.stored_dtype(path[-1], dtype)

        def fetch(index):
            places = [range(*i.indices(side)) for i, side in zip(index, shape, strict=True)]
            inner = places[n:][:: -1 if transposed else 1]
            parts = [read_part(*found[path][at], inner).astype(stored_as, copy=False)
                     for at in itertools.product(*places[:n])]  # fmt: skip
            x = np.stack(parts).reshape(*map(len, places[:n]), *parts[0].shape) if n else parts[0]
            return x.swapaxes(-1, -2) if transposed else x

        return sharding.make_array(path[-1], shape, fetch)

    return jax.tree_util.tree_map_with_path(leaf, shapes, is_leaf=is_shape)


def read_part(x, first, places):
    """Read a part of the tensor x in a file; places: a range for each side, that of the rows counted from `first`."""
    rows, *others = places
    return np.asarray(x[(slice(first + rows.start, first + rows.stop), *(slice(r.start, r.stop) for r in others))])


def is_shape(x):
    """True if x is a shape, a leaf of a tree of shapes."""
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


def adaptable(cfg: model.ModelConfig) -> list[str]:
    """List the leaves that can have adapters: matrices of attention and mlp that are one tensor in a folder each."""
    names = FAMILIES[family_of(cfg)].tensors
    once = [leaf for leaf in ("q", "k", "v", "o", "gate", "up", "down") if list(names.values()).count(names[leaf]) == 1]
    return [leaf for leaf in once if leaf in model.shapes(cfg)["blocks"]]


def check_targets(cfg: model.ModelConfig, targets: tuple[str, ...]) -> None:
    """Raise ValueError unless these matrices of a model can have adapters."""
    known = adaptable(cfg)
    if not set(targets) <= set(known):
        raise ValueError(
            f"lora_targets={targets}: in a model of the family {family_of(cfg)} only {', '.join(known)} can have "
            f"adapters (not experts, nor a part of a tensor): --lora_targets={','.join(known)}"
        )


def adapter_places(cfg, targets, n_out):
    """List every tensor in a folder of adapters: A (r, I) and B (O, r) of each target, and the head of a judge."""
    for path, at, name in tensor_places(cfg, n_out):
        if path[-1] in targets:
            stem = PEFT_PREFIX + name.removesuffix("weight")
            yield Place(("blocks", path[-1] + "_a"), at, stem + "lora_A.weight")
            yield Place(("blocks", path[-1] + "_b"), at, stem + "lora_B.weight")
        elif name == JUDGE_HEAD:
            yield Place(("head",), (), PEFT_PREFIX + name)


def adapter_files(params: Any, cfg: model.ModelConfig, base: str, alpha: float) -> dict[str, Any]:
    """Make the files of a PEFT folder, as `disk.write_files` takes them. base: the folder of the base model."""
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
    tensors = [to_store(params, name, parts) for name, parts in by_name(adapter_places(cfg, ranks, n_out))]
    tensors = [tensor._replace(fetch=functools.partial(np.asarray, tensor.fetch())) for tensor in tensors]
    return {ADAPTER_CONFIG: theirs, "adapter_model.safetensors": tensors}


def read_adapters(folder: str) -> tuple[str, int, Any]:
    """Read adapter_config.json -> the folder of the base, the rank r, alpha."""
    path = os.path.join(folder, ADAPTER_CONFIG)
    theirs = disk.read_json(path)
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


def load_merged(folder, dtype, find_base, open_as, above):
    """Load a folder of adapters -> params of the base with the adapters merged in, ModelConfig."""
    base, rank, alpha = read_adapters(folder)
    above = *above, os.path.realpath(folder)
    base = find_base(base)
    if (found := os.path.realpath(base)) in above:
        raise ValueError(
            f"adapters that are their own base: {' -> '.join([*above, found])}; write the folder of the "
            f"model that they were trained on into {os.path.join(folder, ADAPTER_CONFIG)}"
        )
    params, cfg = load_folder(base, dtype, find_base, open_as, above)
    files = disk.open_tensors(os.path.join(folder, "adapter_model.safetensors"))
    n_out = 1 if PEFT_PREFIX + JUDGE_HEAD in files else None
    named = adapter_places(cfg, adaptable(cfg), None)
    targets = {place.path[-1][:-2] for place in named if place.name in files}
    shapes = {"blocks": lora.adapter_shapes(cfg, targets, rank)} | ({"head": (cfg.d_model, 1)} if n_out else {})
    places, described = list(adapter_places(cfg, targets, n_out)), (f"LoRA of a {family_of(cfg)} model", ADAPTER_CONFIG)
    new = load_tensors(folder, files, places, shapes, "float32", described)
    for leaf in targets:  # one after the other, so that memory never holds two copies of all
        a, b = (new["blocks"][leaf + end] for end in ("_a", "_b"))
        merged = params["blocks"][leaf] + jnp.matmul(a, b * (alpha / rank), precision="highest")
        params["blocks"][leaf] = merged.astype(cfg.dtype)
    return params | {leaf: x for leaf, x in new.items() if leaf != "blocks"}, cfg
