"""
Read and write adapters (LoRA) as PEFT folders.
"""

import functools
import itertools
import math
import os
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import model
from checkpoints import huggingface
from checkpoints.family import Place
from checkpoints.huggingface import ADAPTER_CONFIG, JUDGE_HEAD
from system import disk, kernels, sections

PEFT_PREFIX = "base_model.model."  # of the names of the base's tensors
ENDS = 2**20  # bytes at each end of a file of weights that its checksum covers
PEFT_REQUIRES = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "use_dora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
}


def adapter_shapes(cfg: model.ModelConfig, targets: Collection[str], rank: int) -> dict:
    """List the adapters of the matrices in targets of a layer as {name: shape}."""
    shapes, of_layer = {}, model.shapes(cfg)["blocks"][0]
    for name in targets:
        n_in, n_out = of_layer[name]
        shapes[name + "_a"] = n_in, rank
        shapes[name + "_b"] = rank, n_out
    return shapes


def count(cfg: Any) -> int:
    """Count the parameters that a run with this Config trains beside its frozen base."""
    own = sections.find(cfg, "lora")
    check_targets(cfg.model, own.targets)
    shapes = adapter_shapes(cfg.model, own.targets, own.rank)
    of_layers = cfg.model.n_layer * sum(map(math.prod, shapes.values()))
    return of_layers + (cfg.model.d_model if cfg.objective == "judge" else 0)


def base_bytes(m: model.ModelConfig, pack: Any, n: int, wide: int) -> int:
    """Estimate the bytes of a frozen base: n parameters of `wide` bytes, but what `pack` makes codes of few bits of."""
    total = wide * n
    for name, shape in model.shapes(m)["blocks"][0].items() if pack else ():
        codes = jax.tree.leaves(jax.eval_shape(functools.partial(pack, name, shape, None, m.dtype)))
        if codes:
            total += m.n_layer * (sum(x.size * x.dtype.itemsize for x in codes) - wide * math.prod(shape))
    return total


def adaptable(cfg: model.ModelConfig) -> list[str]:
    """List the leaves that can have adapters: matrices of attention and mlp that are one tensor in a folder each."""
    names = huggingface.tensor_names(cfg)
    once = [leaf for leaf in ("q", "k", "v", "o", "gate", "up", "down") if list(names.values()).count(names[leaf]) == 1]
    return [leaf for leaf in once if all(leaf in layer for layer in model.shapes(cfg)["blocks"])]


def check_targets(cfg: model.ModelConfig, targets: tuple[str, ...]) -> None:
    """Raise ValueError unless these matrices of a model can have adapters."""
    known = adaptable(cfg)
    if not set(targets) <= set(known):
        kind = huggingface.family_of(cfg)
        raise ValueError(
            f"lora.targets={targets}: in a model of the family {kind} only {', '.join(known)} can have "
            f"adapters (not experts, nor a part of a tensor): --lora.targets={','.join(known)}"
        )


def adapter_places(cfg, targets, n_out):
    """List every tensor in a folder of adapters: A (r, I) and B (O, r) of each target, and the head of a judge."""
    for path, at, name in huggingface.tensor_places(cfg, n_out):
        if path[-1] in targets:
            stem = PEFT_PREFIX + name.removesuffix("weight")
            yield Place((*path[:-1], path[-1] + "_a"), at, stem + "lora_A.weight")
            yield Place((*path[:-1], path[-1] + "_b"), at, stem + "lora_B.weight")
        elif name == JUDGE_HEAD:
            yield Place(("head",), (), PEFT_PREFIX + name)


def adapter_files(params: Any, cfg: model.ModelConfig, base: str, alpha: float) -> dict[str, Any]:
    """Make the files of a PEFT folder, as `disk.write_files` takes them. base: the folder of the base model."""
    names, n_out = huggingface.tensor_names(cfg), model.width(params)
    ranks = {leaf[:-2]: x.shape[-1] for leaf, x in params["blocks"][0].items() if leaf.endswith("_a")}
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
    tensors = [huggingface.to_store(params, place) for place in adapter_places(cfg, ranks, n_out)]
    return {ADAPTER_CONFIG: theirs, "adapter_model.safetensors": tensors}


def read_adapters(folder: str) -> tuple[str, int, Any]:
    """Read adapter_config.json -> the folder of the base, the rank r, alpha."""
    path = os.path.join(folder, ADAPTER_CONFIG)
    theirs = disk.read_json(path)
    huggingface.check_requirements(path, theirs, PEFT_REQUIRES)
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


def checksum(folder: str) -> int:
    """Compute a checksum of the ends of the weight files in a folder, which another model does not have."""
    found = 0
    for path in sorted(Path(folder).glob("*.safetensors")):
        with open(path, "rb") as f:
            for place in (0, max(path.stat().st_size - ENDS, 0)):
                f.seek(place)
                found = zlib.crc32(f.read(ENDS), found)
    return found


def check_base(folder: str, base: str, recorded: int | None) -> None:
    """Raise ValueError if the base of the adapters in a folder is no longer the one with the recorded checksum."""
    if recorded not in (None, checksum(base)):
        raise ValueError(f"{base} is another model than when {folder} was written, and these adapters belong to that "
                         "one: bring it back to continue the run")  # fmt: skip


def as_numbers(params: dict, dtype: str) -> dict:
    """Make numbers of all matrices of a model, with the adapters beside them merged in."""

    @jax.jit
    def numbers(w, adapters):
        whole = w.numbers().astype(jnp.float32)
        return (jnp.matmul(*adapters, precision="highest") + whole if adapters else whole).astype(dtype)

    def of_layer(layer):
        found = {name: x for name, x in layer.items() if not name.endswith(("_a", "_b"))}
        for name, w in found.items():
            if kernels.is_packed(w):
                found[name] = numbers(w, [layer[name + end] for end in ("_a", "_b") if name + end in layer])
        return found

    return params | {"blocks": [of_layer(layer) for layer in params["blocks"]]}


def pack_as_trained(trained: dict[str, Any], bits: int | None = None) -> Callable | None:
    """Return what stores a frozen base in few bits, by default in those beside which a run trained its model, see
    Section.pack; None: it was numbers. trained: the config of that run"""
    bits = bits or trained.get("quantized.bits")
    variant = sections.section_class("quantized", "Keys") if bits else None
    return variant(bits=bits).pack if variant else None  # type: ignore[call-arg]


def load_merged(
    folder: str,
    dtype: str | None,
    find_base: Callable[[str], str],
    read_run: Callable[[str], dict],
    open_as: str | None = None,
    pack: Callable | None = None,
    above: tuple = (),
) -> tuple[Any, Any]:
    """Load a folder of adapters -> params of the base with the adapters merged in, ModelConfig. Beside matrices that
    `pack` has stored as codes, adapters stay adapters.

    dtype, open_as, pack: of the base, as `huggingface.load_folder` takes them
    find_base: finds the folder of the base from the path that adapters give
    read_run: reads run.json, which says how the base was stored beside which a run trained a folder of adapters: they
        belong to no other base
    above: the folders of adapters whose base this is
    """
    base, rank, alpha = read_adapters(folder)
    above = *above, os.path.realpath(folder)
    base = find_base(base)
    if (found := os.path.realpath(base)) in above:
        raise ValueError(
            f"adapters that are their own base: {' -> '.join([*above, found])}; write the folder of the "
            f"model that they were trained on into {os.path.join(folder, ADAPTER_CONFIG)}"
        )
    if huggingface.has_adapters(base):
        params, cfg = load_merged(base, dtype, find_base, read_run, open_as, None, above)
        if pack:
            raise ValueError(f"{folder}: the base of these adapters, {base}, is adapters itself, which cannot be "
                             "merged into codes: write the merged base with sample.py --export=FOLDER first")
    elif pack is None and (as_trained := pack_as_trained(read_run(folder).get("config", {}))):
        params, cfg = load_merged(folder, dtype, find_base, read_run, open_as, as_trained)
        return as_numbers(params, cfg.dtype), cfg
    else:
        params, cfg = huggingface.load_folder(base, dtype, open_as, pack)
    files = disk.open_tensors(os.path.join(folder, "adapter_model.safetensors"))
    n_out = 1 if PEFT_PREFIX + JUDGE_HEAD in files else None
    named = adapter_places(cfg, adaptable(cfg), None)
    targets = {place.path[-1][:-2] for place in named if place.name in files}
    shapes: dict[str, Any] = {"blocks": [adapter_shapes(cfg, targets, rank)] * cfg.n_layer}
    shapes |= {"head": (cfg.d_model, 1)} if n_out else {}
    places = list(adapter_places(cfg, targets, n_out))
    described = f"LoRA of a {huggingface.family_of(cfg)} model", ADAPTER_CONFIG
    new = huggingface.load_tensors(folder, files, places, shapes, "float32", described)
    for leaf, (w, adapters) in itertools.product(targets, zip(params["blocks"], new["blocks"], strict=True)):
        a, b = adapters[leaf + "_a"], adapters[leaf + "_b"] * (alpha / rank)
        if kernels.is_packed(w[leaf]):
            w |= {leaf + "_a": a, leaf + "_b": b}
        else:  # one after the other, so that memory never holds two copies of all
            w[leaf] = (w[leaf] + jnp.matmul(a, b, precision="highest")).astype(cfg.dtype)
    return params | {leaf: x for leaf, x in new.items() if leaf != "blocks"}, cfg
