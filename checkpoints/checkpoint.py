"""
Find, write and read the checkpoints of a run.

A checkpoint is a Hugging Face folder with two more files: state.safetensors (everything that the next step depends on)
and run.json (the step, the best step so far, the config). A checkpoint appears whole or not at all.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import config
import model
from checkpoints import huggingface
from system import disk, sections
from system.tokens.bpe import Tokenizer


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    open_as: str | None = sections.key(None, "family of the folders in init_from and ref_from, if config.json says "
                                       "another")  # fmt: skip
    keep: int = sections.key(2, "number of newest checkpoints to keep, in addition to the best one",
                             sections.POSITIVE_INT)  # fmt: skip


LOGS = "metrics.jsonl", "samples.jsonl", "rollouts.jsonl"
WRITING = ".writing"  # the folder in out_dir of a checkpoint that is being written or deleted


def steps(out_dir: str) -> list[int]:
    """List the steps of the checkpoints in out_dir, ascending."""
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
        raise ValueError(
            f"{path!r} is not a folder: give the out_dir of a run or a folder with config.json in it; "
            "python train.py config/NAME.py makes out/NAME"
        )
    if os.path.exists(os.path.join(path, "config.json")) or huggingface.has_adapters(path):
        return path
    if not steps(path):
        raise ValueError(f"{path!r} holds no model: neither a config.json nor a checkpoint step-... of a run")
    return checkpoint_folder(path, steps(path)[-1])


def load(
    path: str, dtype: str | None = "float32", open_as: str | None = None, pack: Callable | None = None
) -> tuple[Any, model.ModelConfig]:
    """Load a model's folder, or the newest checkpoint in a run's out_dir -> params, ModelConfig (`load_folder`)."""
    folder = find(path)
    kind = family_to_open(folder, open_as)
    if not huggingface.has_adapters(folder):
        return huggingface.load_folder(folder, dtype, kind, pack)
    from checkpoints import adapters  # a folder without them needs none of it

    return adapters.load_merged(folder, dtype, find, read_run, kind, pack)


def refuse_judge(folder: str | None, params: Any) -> None:
    """Raise a ValueError if a model is a judge where one that writes is needed."""
    if model.width(params):
        raise ValueError(f"{folder} is a judge: its head gives a text one number, so it writes none; name a language "
                         "model here (a judge goes into judge_from)")  # fmt: skip


def family_to_open(folder: str, open_as: str | None) -> str | None:
    """Return the family to open a folder as: the one that is asked for, or None (as its files say) if a run wrote it.

    A run writes its model under the right family. With LoRA it records the family of its base, which is returned.
    """
    run = read_run(folder)
    if not run:
        return open_as
    return run.get("config", {}).get("checkpoint.open_as") or open_as if huggingface.has_adapters(folder) else None


def read_run(folder: str) -> dict[str, Any]:
    """Read run.json of a checkpoint; {} for another model's folder."""
    try:
        found = disk.read_json(os.path.join(folder, "run.json"))
        keys = found.get("config", {})
        if not isinstance(keys, dict):
            raise ValueError(f"{folder}/run.json is damaged: its config is {keys!r}")
    except ValueError as e:
        raise ValueError(f"{e}; delete {folder} to resume from the checkpoint before it") from None
    if not keys or "model.mlp" in keys:
        return found
    from checkpoints import older  # it was written when keys had other names

    return found | {"config": older.as_named_now(keys)}


# ==== checkpoints: writing ============================================================================================


def save_run(cfg: Any, state: Any, tok: Tokenizer, best: dict[str, Any] | None, finished: bool) -> None:
    """Write a checkpoint, out_dir/step-NNNNNN: the weights or adapters, and all that the next step depends on.

    If it is there already, nothing is written. The files go into a temporary folder, which is renamed when all are
    there. Then old checkpoints are deleted: see `publish`.

    best: for run.json, the step and score of the best checkpoint so far; None: none was evaluated
    finished: True if the run is at its end
    """
    temporary, final = os.path.join(cfg.out_dir, WRITING), checkpoint_folder(cfg.out_dir, state.step)
    if os.path.isdir(final):
        return
    files = checkpoint_files(cfg, state, best, finished)
    disk.delete_folder(temporary)  # of a run that was killed: none of its files may be in this checkpoint
    disk.write_files(temporary, files)
    with disk.naming(temporary):
        tok.save(temporary)
    publish(cfg, temporary, final, best, files)


def checkpoint_files(cfg, state, best, finished):
    """Make the files of a checkpoint, as `write_files` takes them."""
    run = {"step": int(state.step), "finished": finished, "best": best, "config": config.flatten(cfg)}
    if config.has_frozen_base(cfg):
        from checkpoints import adapters

        run["base_checksum"] = adapters.checksum(cfg.init_from)
        files = adapters.adapter_files(state.weights, cfg.model, cfg.init_from, sections.find(cfg, "lora").alpha)
    else:
        files = huggingface.model_files(state.weights, cfg.model)
    files["state.safetensors"] = [
        disk.Stored(path, x, functools.partial(np.asarray, x)) for path, x in leaves(state._replace(step=())).items()
    ]
    return files | {"run.json": run}


def leaves(tree: Any) -> dict[str, Any]:
    """List the leaves of a tree by path, without copying them."""
    return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def publish(cfg, temporary, final, best, files):
    """Rename a folder that is complete to a checkpoint; delete all but the newest of `keep` and the best.

    files: the names that it must have; best: the best evaluation so far, whose checkpoint is never deleted"""
    for name in [*{*os.listdir(temporary), *files}, "."]:  # fails if a file was deleted meanwhile
        disk.sync(os.path.join(temporary, name))
    for name in set(LOGS) & set(os.listdir(cfg.out_dir)):  # their lines up to this step belong to it
        disk.sync(os.path.join(cfg.out_dir, name))
    os.rename(temporary, final)
    disk.sync(cfg.out_dir)
    to_keep = steps(cfg.out_dir)[-Keys.of(cfg).keep :] + [best and best["step"]]
    for step in steps(cfg.out_dir):
        if step not in to_keep:  # renamed first: a half deleted folder must not look like a checkpoint
            os.rename(checkpoint_folder(cfg.out_dir, step), temporary)
            disk.delete_folder(temporary)
