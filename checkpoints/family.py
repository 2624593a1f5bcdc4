"""
What the folders of a family of models are like: LLaDA's, as which a denoiser of ours is written. families.py adds
others when a configuration or a folder is not of this one.
"""

import functools
import operator
from typing import Any, NamedTuple

import model
from system import sections
from system.sections import variant_of

# Our tensor -> theirs, without .weight or .bias; {} is the layer. They store (out, in), we compute (in, out). If
# several tensors have one name, their rows are one tensor in the file.
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
    "quantization_config": None,
}


class Family(NamedTuple):
    """How the folders of a family of models name things, and which fields of ModelConfig are its own."""

    architecture: str  # the class in config.json
    fields: dict[str, Any]  # the values of ModelConfig that config.json does not or need not give
    tensors: dict[str, str]
    keys: dict[str, str]
    requires: dict[str, Any]
    code: str = ""  # where the Python code of the class is; empty: in transformers


FAMILIES = {  # by the model_type in config.json
    "llada": Family(
        "LLaDAModelLM", {}, LLADA_TENSORS, LLADA_KEYS, LLADA_REQUIRES, code="huggingface.co/GSAI-ML/LLaDA-8B-Instruct"
    ),
}
BLOCK_LENGTHS = "block_size", "bd_size", "block_length"  # keys of config.json that say that a model has blocks
OURS = "unmask"  # the key of config.json with what only we read: a dict of the fields in model.PARTS
ANY_FAMILY = ("dtype", "remat", "d_head", "end_ids", *model.PARTS)  # fields that do not tell families apart
NEEDED = (  # fields that a config.json must give, if the family has them
    "vocab_size", "n_layer", "n_head", "d_model", "d_ff", "moe.n_experts", "moe.experts_per_token", "moe.d_expert",
    "moe.routing_scale", "moe.expert_groups", "moe.groups_per_token", "moe.n_shared", "moe.first_dense",
)  # fmt: skip


def is_of_kind(family: Family, cfg: model.ModelConfig) -> bool:
    """True if a family and a configuration agree in whether there are blocks, and which variants the model uses."""
    there = sections.flat(cfg)
    needed = [field for field in NEEDED if field in family.keys]
    has_all = all(field in there for field in (*needed, *({"blocks.block"} & family.fields.keys())))
    known = {field.partition(".")[0] for field in family.keys.keys() | family.fields.keys()}
    return has_all and all(variant_of(section) in known for section in cfg.use)


def can_hold(family: Family, cfg: model.ModelConfig) -> bool:
    """True if the folders of a family can hold this configuration."""
    fits_heads = "d_head" in family.keys or cfg.head_dim * cfg.n_head == cfg.d_model
    if not (fits_heads and is_of_kind(family, cfg)):
        return False
    expected = sections.flat(model.ModelConfig()) | family.fields
    there = {field: value for field, value in sections.flat(cfg).items() if field not in (*family.keys, *ANY_FAMILY)}
    if there.keys() - expected:
        from system import index

        expected |= {field: index.default_of(field) for field in there.keys() - expected}
    return all(value == expected[field] for field, value in there.items())


# ---- tensors in files ------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A tensor in a file, and where its values are in our params."""

    path: tuple[str | int, ...]  # ("embed",) or ("blocks", 3, "q")
    at: tuple[int, ...]  # (the expert,) if its leaf has several; ()
    name: str  # of the tensor in the file


def leaf_at(tree, path):
    """Return the leaf of a tree of dicts and lists."""
    return functools.reduce(operator.getitem, path, tree)


def is_transposed(path, ndim):
    """True if a file stores the tensors of this leaf, with ndim sides each, transposed: matrices but the embedding."""
    return ndim == 2 and path != ("embed",)


def stored_shape(path, shape):
    """Return the shape of the tensor in a file that is this leaf of our params; shape: of the leaf."""
    return shape[::-1] if is_transposed(path, len(shape)) else shape
