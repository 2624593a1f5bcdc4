"""
Write and read models as Hugging Face folders: there is no private format.

A denoiser of ours is written as LLaDA's are (family.py). Other families are in families.py, and what only other
people's folders have loads with one of them (foreign.py). Adapters are in adapters.py.
"""

import dataclasses
import functools
import itertools
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import model
from checkpoints.family import FAMILIES, NEEDED, OURS, Place, can_hold, is_transposed, leaf_at, stored_shape
from system import disk, sections, sharding
from system.tokens.bpe import Tokenizer

# Keys of config.json that no folder of this family has: another program wrote it, or it is another network.
UNUSUAL = {"rope_scaling", "rope_parameters", "layer_types"}
FLOATS = ("F32", "BF16", "F16", "F64")  # dtypes of tensors in a file that can be read
ADAPTER_CONFIG = "adapter_config.json"  # a folder that has it holds adapters (adapters.py)
JUDGE_HEAD = "score.weight"  # (1, D), as in transformers' ...ForSequenceClassification


def plug_families() -> types.ModuleType:
    """Let the other families add themselves to FAMILIES -> the module that has them."""
    from checkpoints import families  # folders of ours need no others

    return families


def family_of(cfg: model.ModelConfig) -> str:
    """Find the name of the first family whose folders can hold this configuration."""
    first = next(iter(FAMILIES))
    if can_hold(FAMILIES[first], cfg):
        return first
    return plug_families().family_of(cfg)


def tensor_names(cfg: model.ModelConfig, kind: str | None = None) -> dict[str, str]:
    """Return {our tensor: theirs} of a family; kind: its name, None: that of `family_of`."""
    return FAMILIES[kind or family_of(cfg)].tensors


def has_adapters(folder: str) -> bool:
    """True if a folder holds adapters, not a whole model."""
    return os.path.exists(os.path.join(folder, ADAPTER_CONFIG))


def tensor_places(cfg: model.ModelConfig, n_out: int | None, kind: str | None = None) -> Iterator[Place]:
    """Yield the Place of every tensor in a folder of this configuration.

    n_out: outputs of the head, None for the vocabulary
    kind: the name of its family; None: that of `family_of`
    """
    names, shapes = tensor_names(cfg, kind), model.shapes(cfg, n_out)
    for leaf in shapes:
        if leaf == "head" and n_out is not None:
            yield Place(("head",), (), JUDGE_HEAD)
        elif leaf != "blocks":
            yield Place((leaf,), (), names[leaf] + ".weight")
    for i, layer in enumerate(shapes["blocks"]):
        for leaf, shape in layer.items():
            matrix = leaf.removesuffix("_bias")
            name = names.get(leaf) or names[matrix] + ".bias"
            name += "" if name.endswith("bias") else ".weight"
            for at in [(e,) for e in range(shape[0])] if leaf.startswith("expert") else [()]:
                yield Place(("blocks", i, leaf), at, name.format(i, e=at and at[0]))


def are_leaves(places):
    """True if each tensor in a file is one whole leaf of our params. The matrix of an expert is a part of a leaf, and a
    tensor with the rows of q, k and v holds three: then parts.py reads and writes them."""
    if any(place.at for place in places):
        return False
    return len({place.name for place in places}) == len(places)


# ---- writing ---------------------------------------------------------------------------------------------------------


def save(folder: str, params: Any, cfg: model.ModelConfig) -> None:
    """Write a Hugging Face folder: config.json and the params in their dtype (a tokenizer writes its own files)."""
    disk.write_files(folder, model_files(params, cfg))


def model_files(params: Any, cfg: model.ModelConfig) -> dict[str, Any]:
    """Make the files of a Hugging Face folder, {name: content} as `disk.write_files` takes them."""
    n_out, kind = model.width(params), family_of(cfg)
    family = FAMILIES[kind]
    there = sections.flat(cfg) | {"d_head": cfg.head_dim, "n_kv_head": cfg.kv_heads, "d_ff": cfg.ff}
    there["gemma.query_scale"] = there.get("gemma.query_scale") or cfg.head_dim
    dtype = str(params["embed"].dtype)
    theirs: dict[str, Any] = {"model_type": kind, "architectures": [family.architecture], "torch_dtype": dtype}
    theirs |= {key: value for key, value in family.requires.items() if value is not None}
    if n_out:
        theirs["num_labels"] = 1
    theirs |= {key: there.get(field) for field, key in family.keys.items()}
    theirs[OURS] = {"model_type": kind} | {part: there[part] for part in model.PARTS}
    theirs["vocab_size"] = cfg.vocab_size
    theirs["mask_token_id"] = None if cfg.mask_id == cfg.vocab_size else cfg.mask_id
    if cfg.end_ids:
        theirs["eos_token_id"] = list(cfg.ends)
    if cfg.max_positions is None:  # others do not read null
        del theirs[family.keys["max_positions"]]
    if "rope.scaling" in there:
        from checkpoints import foreign  # which knows how others say it

        theirs["rope_scaling"] = foreign.written_rope(there["rope.scaling"])
    params = jax.tree.map(functools.partial(as_stored, dtype), params)
    places = list(tensor_places(cfg, n_out))
    if are_leaves(places):
        tensors = [to_store(params, place) for place in places]
    else:
        from checkpoints import parts

        tensors = parts.to_store(params, places)
    return {"config.json": theirs, "model.safetensors": tensors}


def as_stored(dtype, x):
    """Round a parameter to the dtype of the others if that loses nothing: gains and routers that a folder has in 16
    bits are 32 in memory."""
    return x if x.dtype == dtype or (x.astype(dtype) != x).any() else x.astype(dtype)


def to_store(params, place):
    """Prepare the leaf at a Place for writing, as a file stores it."""
    x = leaf_at(params, place.path)

    def fetch():
        values = np.asarray(x)
        return values.T if is_transposed(place.path, x.ndim) else values

    shape = stored_shape(place.path, x.shape)
    return disk.Stored(place.name, jax.ShapeDtypeStruct(shape, x.dtype), fetch)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_kind(folder: str, open_as: str | None = None) -> str:
    """Return the name of a folder's family: open_as if given, else its model_type; an error if FAMILIES lacks it."""
    path = os.path.join(folder, "config.json")
    kind: Any = open_as or disk.read_json(path).get("model_type")
    if kind != next(iter(FAMILIES)):
        given = f"checkpoint.open_as={kind!r}" if open_as else f"{path}: model_type is {kind!r}"
        plug_families().check_kind(kind, given)
    return kind


def read_config(folder: str, open_as: str | None = None) -> model.ModelConfig:
    """Read config.json of a Hugging Face folder. A ValueError names what our model cannot compute.

    open_as: the family that it belongs to, whatever its model_type says
    """
    kind, path = read_kind(folder, open_as), os.path.join(folder, "config.json")
    family, theirs = FAMILIES[kind], disk.read_json(path)
    is_ours = kind == next(iter(FAMILIES)) and theirs.get("architectures") == [family.architecture]
    others = open_as or not is_ours or theirs.keys() & UNUSUAL
    if others:
        from checkpoints import foreign

        theirs = foreign.understand(folder, theirs, kind, open_as)
    check_requirements(path, theirs, family.requires)
    fields = {field: theirs[key] for field, key in family.keys.items() if theirs.get(key) is not None}
    fields = family.fields | fields
    if not open_as and isinstance(ours := theirs.get(OURS), dict) and ours.get("model_type") == kind:
        fields |= {part: ours[part] for part in model.PARTS if part in ours}
    fields |= read_ends(folder, fields.get("eos_id"))
    missing = [family.keys[f] for f in NEEDED if f in family.keys and f not in fields]
    if missing:
        raise ValueError(f"{path}: missing {', '.join(missing)}")
    try:
        cfg = sections.changed(model.ModelConfig(), fields)
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from None
    if others:
        foreign.check_layers(path, theirs, cfg)
    return cfg


def read_ends(folder, named):
    """Find the ids that end a text -> fields of ModelConfig.

    named: the eos_token_id of config.json, one or a list; those of generation_config.json follow"""
    more = disk.read_json(Path(folder, "generation_config.json")).get("eos_token_id")
    lists = (ids if isinstance(ids, list) else [ids] for ids in (named, more))
    ends = []
    for i in itertools.chain(*lists):
        if i is not None and i not in ends:
            ends.append(i)
    return {"eos_id": ends[0] if ends else None, "end_ids": tuple(ends[1:])}


def check_requirements(path, theirs, requires):
    """Raise ValueError unless `theirs`, the JSON at path, has the required values or lacks their keys."""
    for key, value in requires.items():
        if (theirs.get(key, value) or None) != (value or None):  # null is no
            raise ValueError(f"{path}: {key}={theirs[key]!r} is not supported; this code computes {key}={value!r}")


def fit_tokenizer(folder: str, cfg: model.ModelConfig, tok: Tokenizer) -> model.ModelConfig:
    """Add the end of text of a folder's tokenizer to its ModelConfig. A causal model and one whose config.json names no
    end fill up with it. Raise ValueError if the tokenizer of a denoiser has another mask than config.json."""
    if not cfg.causal and tok.mask_id != cfg.mask_id:
        raise ValueError(
            f"{folder}: config.json says that the mask is id {cfg.mask_id}, and the tokenizer that "
            f"it is id {tok.mask_id}: one of the files belongs to another model"
        )
    first = tok.eos_id if cfg.causal or cfg.eos_id is None else cfg.eos_id
    ends = dict.fromkeys((*cfg.ends, tok.eos_id))
    return dataclasses.replace(cfg, eos_id=first, end_ids=tuple(i for i in ends if i != first))


def load_folder(
    folder: str, dtype: str | None, open_as: str | None = None, pack: Callable | None = None
) -> tuple[Any, Any]:
    """Load a model's folder -> params, ModelConfig.

    Every device reads only its part of each leaf, one leaf after the other.

    dtype: of the params, and of the products of the ModelConfig; None: 32 or 16 bits (bfloat16), as in the folder
    open_as: the family of the model, see `read_config`
    pack: stores matrices in another form, see sections.Section.pack
    """
    kind, cfg = read_kind(folder, open_as), read_config(folder, open_as)
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        from checkpoints import foreign  # which has models of several files

        files = foreign.open_all(index)
    else:
        files = disk.open_tensors(os.path.join(folder, "model.safetensors"))
    n_out = 1 if JUDGE_HEAD in files else None
    if cfg.mask_id is None and not cfg.causal and n_out is None:
        raise ValueError(f"{folder}/config.json has no mask_token_id: a model of the family {kind} fills masks; add "
                         "the id with which it was trained")  # fmt: skip
    places, shapes = list(tensor_places(cfg, n_out, kind)), model.shapes(cfg, n_out)
    if dtype is None:
        from checkpoints import foreign  # a run names its dtype

        dtype = foreign.dtype_in(files, places)
    if files.keys() != {place.name for place in places}:
        from checkpoints import foreign

        files = foreign.without_copies(folder, files, places, FAMILIES[kind].tensors)
    params = load_tensors(folder, files, places, shapes, dtype, (f"{kind} model", "config.json"), pack)
    return params, dataclasses.replace(cfg, dtype=dtype)


def load_tensors(folder, files, places, shapes, dtype, described, pack=None):
    """Load tensors from open files -> a tree of arrays; ValueError if one is missing, unknown or of another shape.

    files {name of a tensor: open file}, places: of all tensors that should be there
    shapes: the tree, with a shape for each leaf
    described (kind, file): what the folder should hold, and the file that says so
    pack: see `load_folder`
    """
    kind, file = described
    if files.keys() != (expected_names := {place.name for place in places}):
        from checkpoints import foreign

        foreign.refuse_names(f"{folder} is not the {kind} that its {file} describes", set(files), expected_names)

    def checked(name, shape):
        """Return the tensor of this name, which must have this shape in the file."""
        x = files[name].get_slice(name)
        if x.get_dtype() not in FLOATS or tuple(x.get_shape()) != shape:
            from checkpoints import foreign

            foreign.refuse_tensor(f"{folder}: {name}", x, file, shape, FLOATS)
        return x

    if are_leaves(places):
        found = {path: checked(name, stored_shape(path, leaf_at(shapes, path))) for path, _, name in places}
    else:
        from checkpoints import parts

        found = parts.join(places, shapes, checked)

    def leaf(path, shape):
        path = tuple(key.idx if isinstance(key, jax.tree_util.SequenceKey) else key.key for key in path)
        x, stored_as = found[path], model.stored_dtype(path[-1], dtype)
        transposed = is_transposed(path, len(shape))

        def fetch(index):
            part = x[index[::-1] if transposed else index].astype(stored_as, copy=False)
            return part.T if transposed else part

        def matrix():
            return fetch((slice(None), slice(None)))

        stored = pack and path[0] == "blocks" and pack(path[-1], shape, matrix, dtype)
        return stored or sharding.make_array(path[-1], shape, fetch)

    places_of, tree = jax.tree_util.tree_flatten_with_path(shapes, is_leaf=lambda shape: isinstance(shape, tuple))
    # The blocks last: beside them there is no room for two embeddings.
    read = {path: leaf(path, shape) for path, shape in reversed(places_of)}
    return jax.tree.unflatten(tree, [read[path] for path, _ in places_of])
