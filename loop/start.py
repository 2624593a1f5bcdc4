"""
Start a run: find the model it starts from (trained first if need be), refuse what cannot work, and say what it will do.
"""

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

import config
import data
import sample
from checkpoints import checkpoint, huggingface
from config import Config
from loop import memory, run_rewards, runs
from model import ModelConfig
from system import disk, kernels, sections

# ---- what a run starts from ------------------------------------------------------------------------------------------


class Prepared(NamedTuple):
    cfg: Config  # with the shape and the special ids of its model
    tok: data.Tokenizer
    params: dict | None  # to start from; None: made from scratch
    resumed: str | None  # the checkpoint to resume or to evaluate


def prepare(cfg: Config, train: Callable) -> Prepared:
    """Find and open the model that a run starts from, and refuse what cannot work. train(cfg): trains a base first, if
    there is none."""
    check(cfg)
    return open_sources(*find_sources(cfg, train))


def check(cfg):
    """Refuse what cannot work, as far as it is known before a base is trained."""
    sample.plan(cfg, cfg.temperature)  # else it would be refused at the first evaluation
    if cfg.objective == "grpo":
        run_rewards.check_early(cfg)
    first = config.base_runs(cfg)[-1]
    if first is not cfg and not first.init_from:  # a base that is made from scratch: its shape is known
        check_shape(cfg, first.model)


def check_shape(cfg, shape):
    """Refuse a run that a model of this shape cannot do or is too large for."""
    if config.has_frozen_base(cfg):
        from checkpoints import adapters  # for a run with LoRA

        adapters.check_targets(shape, sections.find(cfg, "lora").targets)
    if not cfg.eval_only and (why := memory.refusal(config.with_model(cfg, shape))):
        raise ValueError(why)


def find_sources(cfg, train):
    """Return the checkpoint to resume or None, and cfg with the folders of the models that it names."""
    cfg, resumed = find_checkpoint(cfg)
    for key in ("judge_from", "ref_from"):
        if path := getattr(cfg, key):
            cfg = dataclasses.replace(cfg, **{key: find_or_train(path, train)})
    if cfg.init_from and not resumed:
        folder = checkpoint.find(find_or_train(cfg.init_from, train, config.base_run(cfg)))
        cfg = dataclasses.replace(cfg, init_from=os.path.abspath(folder), base=())
    if cfg.eval_only:
        cfg = dataclasses.replace(cfg, use=tuple(s for s in cfg.use if not s.freezes), ema_decay=None)  # only weights
        if not (resumed or cfg.init_from):
            raise ValueError(f"eval_only=True: there is no checkpoint in {cfg.out_dir!r}, and no init_from")
    return resumed, cfg


def find_or_train(path: str, train: Callable, base: Config | None = None) -> str:
    """Return the folder of the model that init_from, judge_from or ref_from names.

    A config file, or `base`, the Config made of it, stands for its out_dir; it is trained if it was never finished, and
    refused if it was trained with other keys.
    """
    if not path.endswith(".py"):
        return data.local_copy(data.prepare(path))  # a model that a folder in data/ makes, or one of huggingface.co
    base = base or config.read_file(path)
    steps = checkpoint.steps(base.out_dir)
    run = checkpoint.read_run(checkpoint.find(base.out_dir)) if steps else {}
    if not run.get("finished"):
        print(f"this run starts from {path}, which has not been run to its end: that first, into {base.out_dir}")
        train(dataclasses.replace(base, resume=bool(steps)))
    else:
        from loop import same_run

        same_run.check_base(path, base, run["config"])
    return base.out_dir


def find_checkpoint(cfg):
    """Return cfg, with the init_from that its run began with, and the checkpoint that it resumes or evaluates, or None;
    refuse to resume another run."""
    if cfg.resume and not checkpoint.steps(cfg.out_dir):
        log = os.path.join(cfg.out_dir, checkpoint.LOGS[0])
        if not os.path.exists(log):
            raise ValueError(f"--resume=True: there is no run in {cfg.out_dir!r}; without it, one begins there")
        last = max((row["step"] for row in runs.read_lines(log)), default=0)
        if last > 2 * cfg.save_interval:  # the second checkpoint waits until the first is whole
            raise ValueError(f"--resume=True: {log} goes to step {last}, but the checkpoints are gone: bring back a "
                             f"{cfg.out_dir}/step-..., or leave --resume out to begin anew")  # fmt: skip
        print(f"the run in {cfg.out_dir}, logged to step {last}, has no checkpoint: it begins anew")
        cfg = dataclasses.replace(cfg, resume=False)
    if not (cfg.resume or cfg.eval_only) or not checkpoint.steps(cfg.out_dir):
        return cfg, None
    folder = checkpoint.find(cfg.out_dir)
    run = checkpoint.read_run(folder)
    was = run.get("config")
    if was is None:  # somebody else's model: it can be evaluated, and `restore` refuses to resume it
        return cfg, folder
    if cfg.resume:
        from loop import same_run

        same_run.check(cfg, was, folder)
    base = config.base_run(cfg)
    start = base.out_dir if base else cfg.init_from
    if start and not config.is_inside(was["init_from"] or "", start):
        print(f"{cfg.out_dir} began from {was['init_from']}: init_from={cfg.init_from} is not looked at")
    start = was["init_from"]
    if cfg.resume and config.has_frozen_base(cfg):
        from checkpoints import adapters

        start = adapters.read_adapters(folder)[0]
        adapters.check_base(folder, start, run.get("base_checksum"))
    family = {name: was[name] for name in ["checkpoint.open_as"] if was.get(name)}
    return config.changed(cfg, {"init_from": start, "base": ()} | family), folder


# ---- its model -------------------------------------------------------------------------------------------------------


def open_sources(resumed, cfg):
    """Open the model that `find_sources` found, or the tokenizer of a model made from scratch -> Prepared."""
    if folder := cfg.init_from if config.has_frozen_base(cfg) else resumed or cfg.init_from:
        params, tok, shape = open_model(cfg, folder, config.reshapes(cfg) and not resumed)
    else:
        params, tok = None, data.tokenizer(cfg.dataset)
        shape = with_ids(cfg.model, tok)
        config.check_model(dataclasses.replace(cfg, model=shape), shape, "of this run")
        check_shape(cfg, shape)
    huggingface.family_of(shape)  # refuse a model that no folder can hold before it is trained
    cfg = dataclasses.replace(cfg, model=shape)
    if cfg.objective != "judge":  # and one that could not be sampled from at the first evaluation
        sample.check(shape, sample.plan(cfg, cfg.temperature))
    return Prepared(cfg, tok, params, resumed)


def open_model(cfg, folder, adapting):
    """Return the parameters, the tokenizer and the ModelConfig of a model's folder, as this run computes with it."""
    family = checkpoint.Keys.of(cfg).open_as
    if os.path.exists(os.path.join(folder, "config.json")):  # a folder of adapters has none
        check_shape(cfg, huggingface.read_config(folder, checkpoint.family_to_open(folder, family)))
    pack = config.pack_of(cfg)
    dtype = cfg.model.dtype if config.has_frozen_base(cfg) or pack else "float32"  # a frozen base is cast once
    params, shape = checkpoint.load(folder, dtype, family, pack)
    if cfg.objective != "judge":
        checkpoint.refuse_judge(folder, params)
    check_shape(cfg, shape)  # again: a folder of adapters says only now what its base is
    with disk.naming(folder):
        tok = data.open_tokenizer(folder, shape.vocab_size)
    if adapting:
        if not shape.causal:
            raise ValueError(f"adapt=True makes a denoiser of a causal model, but {folder} is a denoiser already")
        from checkpoints.adapt import adapt  # a denoiser needs none of it

        params, shape = adapt(params, shape, tok.mask_id, cfg.model)
    elif shape.block and cfg.model.block:
        # A run may set a shorter block: SDAR trains with short blocks first.
        shape = sections.changed(shape, {"blocks.block": cfg.model.block})
    shape = huggingface.fit_tokenizer(folder, shape, tok)
    config.check_model(cfg, shape, f"in {folder}")
    return params, tok, config.with_model(cfg, shape).model


def with_ids(shape: ModelConfig, tok: data.Tokenizer) -> ModelConfig:
    """Return the shape of a model made from scratch, with the vocabulary and special ids of its tokenizer."""
    return dataclasses.replace(shape, vocab_size=tok.vocab_size, mask_id=tok.mask_id, eos_id=tok.eos_id,
                               pad_id=tok.pad_id)  # fmt: skip


# ---- its reference ---------------------------------------------------------------------------------------------------


def reference_dtype(cfg: Config) -> str:
    """Return the dtype of the reference: the model's; float32 if it moves, as 16 bits would lose its small steps."""
    return cfg.model.dtype if config.reference_stays(cfg) else "float32"


def load_reference(cfg: Config) -> dict:
    """Return the parameters of the model in ref_from, which must have the policy's shape."""
    params, shape = checkpoint.load(str(cfg.ref_from), reference_dtype(cfg), checkpoint.Keys.of(cfg).open_as)
    checkpoint.refuse_judge(cfg.ref_from, params)
    theirs, ours = vars(shape), vars(cfg.model)
    for key in ours:
        if ours[key] != theirs[key] and key not in ("dtype", "remat", "eos_id", "end_ids", "max_positions"):
            raise ValueError(f"ref_from={cfg.ref_from!r}: the model there has {key}={theirs[key]}, the policy "
                             f"{ours[key]}: the two must be of one shape and vocabulary")  # fmt: skip
    return params


# ---- what it says ----------------------------------------------------------------------------------------------------


def count_params(params: Any) -> int:
    """Count the parameters of a tree."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(params, is_leaf=kernels.is_packed))


def announce(cfg: Config, state: Any, base: dict | None, done: bool) -> None:
    """Print what a run will do, before its first step; base: the frozen parameters of LoRA. done: it is at its end."""
    if state.step:
        print(f"resuming {cfg.out_dir} at step {state.step}" + (", its end" if done else ""))
    rows = {"grpo": f"{cfg.group_size} completions of each of {cfg.batch_size} prompts", "judge":
            f"{cfg.batch_size} pairs of texts"}.get(cfg.objective, f"{cfg.batch_size} texts")  # fmt: skip
    frozen = f" beside {count_params(base):,} frozen ones" if base else ""
    print(f"{cfg.objective} on {cfg.dataset}: a model of {count_params(state.params):,} parameters{frozen} learns in "
          f"{cfg.max_iters} steps from {rows}, of {cfg.max_prompt_len + cfg.max_new_tokens} tokens. Curves, samples: "
          f"{cfg.out_dir}/report.html")  # fmt: skip
    if not cfg.eval_only:
        default, nothing = config.flatten(Config()), object()
        keys = {key: value for key, value in config.flatten(cfg).items() if value != default.get(key, nothing)}
        print("keys:  " + "  ".join(f"{key}={config.as_typed(value)}" for key, value in keys.items()))
        print(f"memory, at least: {memory.listed(memory.estimate_bytes(cfg))}")
        if kernels.sixteen_bits_pay(cfg.model):
            print("this CPU has AMX: --dtype=bfloat16 would take about 2/3 of the time, see docs/hardware.md")
