"""
Set up a run: find the model it starts from (trained first if need be), refuse what cannot work, make the optimizer and
the state, and say what it will do.
"""

import contextlib
import dataclasses
import io
import math
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import config
import data
import model
import rl
import sample
from checkpoints import checkpoint, huggingface
from config import Config
from data import texts
from loop import run_rewards, runs
from model import ModelConfig
from system import disk, kernels, sections, sharding

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
    """Refuse what cannot work, as far as it is known before a base is trained. A judge or reference may be a run that
    is still to come."""
    sample.plan(cfg, cfg.temperature)  # else it would be refused at the first evaluation
    if cfg.objective == "grpo":
        run_rewards.check_early(cfg)
    chain = config.base_runs(cfg)
    for path in filter(None, (cfg.judge_from, not cfg.eval_only and cfg.ref_from)):
        if not (path.endswith(".py") or any(config.is_inside(path, run.out_dir) for run in chain)):
            checkpoint.find(local_folder(path))
    first = chain[-1]
    if first is not cfg and not first.init_from:  # a base that is made from scratch: its shape and tokenizer are known
        check_shape(cfg, first.model)
        if cfg.objective == "grpo" and not checkpoint.steps(first.out_dir):  # or it would be trained for nothing
            tok = data.tokenizer(first.dataset)
            with contextlib.redirect_stdout(io.StringIO()):  # the run reads them again, and says it then
                texts.prompt_sampler(cfg, tok, texts.encode_split(cfg, tok, "train", cfg.fill_in))
                texts.eval_texts(cfg, tok, cfg.fill_in)


def most_bytes(cfg):
    """Bound what `memory.estimate_bytes` counts: of each parameter itself, its gradient, two moments, an average and a
    reference; of each token 6 D numbers in a layer, and 2 for each column of a matrix, which has D parameters."""
    table = jax.tree.leaves(model.shapes(cfg.model), is_leaf=lambda shape: isinstance(shape, tuple))
    n_params, D = sum(map(math.prod, table)), cfg.model.d_model
    copies = cfg.group_size * config.n_views(cfg) if cfg.objective == "grpo" else 2
    n_tokens = cfg.batch_size * copies * (cfg.max_prompt_len + cfg.max_new_tokens)
    return 4 * (6 * n_params + n_tokens * (2 * n_params / D + 6 * D * cfg.model.n_layer))


def device_memory():
    """Return the bytes that JAX may use: the first GPU's, or the machine's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def may_run_short(cfg):
    """True if a run comes near the memory of its device, so that an estimate is worth its while. Adapters may have any
    size."""
    return config.has_frozen_base(cfg) or most_bytes(cfg) > device_memory() / 4


def check_shape(cfg, shape):
    """Refuse a run that a model of this shape cannot do or is too large for."""
    if config.has_frozen_base(cfg):
        from checkpoints import adapters  # for a run with LoRA

        adapters.check_targets(shape, sections.find(cfg, "lora").targets)
    cfg = config.with_model(cfg, shape)
    if not cfg.eval_only and may_run_short(cfg):
        from loop import memory  # most runs of small models are far from it

        if why := memory.refusal(cfg, device_memory()):
            raise ValueError(why)


def find_sources(cfg, train):
    """Return the checkpoint to resume or None, and cfg with the folders of the models that it names."""
    resumed = None
    if cfg.resume or cfg.eval_only:
        from loop import same_run  # a run that begins has none

        cfg, resumed = same_run.find_checkpoint(cfg)
    for key in ("judge_from", "ref_from"):
        if path := getattr(cfg, key):
            cfg = dataclasses.replace(cfg, **{key: find_or_train(path, train)})
    if cfg.init_from and not resumed:
        folder = checkpoint.find(find_or_train(cfg.init_from, train, config.base_run(cfg)))
        cfg = dataclasses.replace(cfg, init_from=os.path.abspath(folder), base=())
    if cfg.eval_only:
        cfg = same_run.to_evaluate(cfg, resumed or cfg.init_from)
    return resumed, cfg


def local_folder(path: str) -> str:
    """Return the folder of a model that no config file stands for: as given, made below data/, or fetched."""
    from data import hub

    return hub.local_copy(data.prepare(path))


def find_or_train(path: str, train: Callable, base: Config | None = None) -> str:
    """Return the folder of the model that init_from, judge_from or ref_from names.

    A config file, or `base`, the Config made of it, stands for its out_dir; it is trained if it was never finished, and
    refused if it was trained with other keys.
    """
    if not path.endswith(".py"):
        return local_folder(path)
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


# ---- its model -------------------------------------------------------------------------------------------------------


def open_sources(resumed, cfg):
    """Open the model that `find_sources` found, or the tokenizer of a model made from scratch -> Prepared."""
    if folder := cfg.init_from if config.has_frozen_base(cfg) else resumed or cfg.init_from:
        params, tok, shape = open_model(cfg, folder, config.reshapes(cfg) and not resumed)
    else:
        params, tok = None, data.tokenizer(cfg.dataset)
        shape = with_ids(cfg.model, tok)
        config.check_model(cfg, shape, "of this run")
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


# ---- its state -------------------------------------------------------------------------------------------------------


def is_matrix(path, _):
    """True if weight decay applies to the parameter at this path: not to norms, biases and embeddings."""
    return not re.search("norm|bias|embed", path[-1].key)


def optimizer(cfg):
    """Make AdamW with clipping, warm-up and a schedule -> the optimizer, and rate(number of an update) -> its learning
    rate."""
    per_iter = config.updates_per_iter(cfg)
    warmup = cfg.warmup_iters * per_iter

    def warm(update):
        return cfg.learning_rate * (update + 1) / warmup  # the first rate is not 0, which would waste a rollout

    rate = optax.constant_schedule(cfg.learning_rate)
    if cfg.lr_schedule == "cosine":
        rest = max(cfg.max_iters - cfg.warmup_iters, 1) * per_iter
        rate = optax.cosine_decay_schedule(cfg.learning_rate, rest, cfg.lr_end)
    rate = optax.join_schedules([warm, rate], [warmup]) if warmup else rate

    def decays(params):
        return jax.tree_util.tree_map_with_path(is_matrix, params)

    clip = [optax.clip_by_global_norm(cfg.grad_clip)] if cfg.grad_clip else []
    adamw = optax.adamw(rate, cfg.beta1, cfg.beta2, cfg.adam_eps, weight_decay=cfg.weight_decay, mask=decays)
    return optax.chain(*clip, adamw), rate


def new_state(params, cfg, tx, reference=True):
    """Make the State of step 0. reference: whether to copy the parameters as the reference that a KL needs."""

    def copy(dtype):
        return model.cast(jax.tree.map(jnp.copy, params), dtype)

    moments = () if cfg.eval_only else tx.init(params)
    average = copy("float32") if cfg.ema_decay is not None else None
    state = rl.State(0, params, moments, average, None)
    if not (reference and config.has_reference(cfg)):
        return state
    from loop import reference as ours  # a run without a KL has none

    return state._replace(reference=copy(ours.dtype(cfg)))


class Run(NamedTuple):
    """What stays the same from the first step to the last."""

    cfg: config.Config
    tok: data.Tokenizer
    task: rl.Task
    base: dict | None  # the frozen parameters of LoRA
    update: Callable  # see make_update
    gradient: Callable | None  # see make_gradient; None unless old log-probs have to come from it
    rate: Callable  # number of an update -> learning rate
    key: jax.Array
    log: runs.Log | None  # None: the run only evaluates


def first_state(task, key, cfg, tx, only_shapes):
    """Make the State of step 0, and the frozen base or None. only_shapes: of a run whose state will be restored."""
    params_key, adapters_key = jax.random.fold_in(key, rl.PARAMS), jax.random.fold_in(key, rl.ADAPTERS)
    params, base = sharding.shard(rl.split(task.init(params_key), adapters_key, cfg))
    other = None
    if config.has_reference(cfg) and cfg.ref_from and not only_shapes:
        from loop import reference

        other = reference.load(cfg)

    def create(params):
        rest = jax.jit(lambda params: sharding.shard(new_state(params, cfg, tx, not other)[2:]))(params)
        return rl.State(0, params, *rest)

    state = jax.eval_shape(create, params) if only_shapes else create(params)
    return (state._replace(reference=other) if other else state), base


def setup(cfg, claims, train):
    """Prepare a run -> Run, State, the best evaluation so far or None, and True if the run is already finished.

    claims: the ExitStack of what the run holds, such as locks. If an old run is moved aside, the new folder is locked.
    train: trains the run of a config file that this one starts from."""
    sections.require("objective", cfg.objective, rl.OBJECTIVES)
    make_task, key = rl.OBJECTIVES[cfg.objective], jax.random.key(cfg.seed)
    cfg, tok, start, resumed = prepare(cfg, train)
    task = make_task(cfg, tok, start)
    if cfg.num_epochs:
        cfg = dataclasses.replace(cfg, max_iters=math.ceil(cfg.num_epochs * task.rows / cfg.batch_size))
    tx, rate = optimizer(cfg)
    resuming, best, passed = resumed and not cfg.eval_only, None, False
    state, base = first_state(task, key, cfg, tx, only_shapes=resuming)
    del start  # nothing outside the state and the base may stay on the device
    task = task._replace(init=None)  # which holds the start, too
    if resuming:
        from checkpoints import resume  # a run that begins reads no state

        state, run = resume.restore(resumed, state)
        best, passed = run["best"], resume.has_passed(run, cfg)
    elif resumed:
        state = state._replace(step=checkpoint.step_in_name(resumed))
    if config.has_reference(cfg):
        from loop import reference

        state = reference.put_away(state, cfg)
    gradient = jax.jit(rl.make_gradient(task.loss, cfg)) if config.old_logp_by_gradient(cfg) else None
    update = rl.make_update(task.loss, tx, cfg, gradient)
    log = None if cfg.eval_only else open_log(cfg, claims, state.step if resumed else -1)
    run = Run(cfg, tok, task, base, update, gradient, jax.jit(rate), key, log)
    return run, state, best, passed or state.step >= cfg.max_iters


def open_log(cfg, claims, step):
    """Open the logs of a run that goes on after `step`; -1: it begins, and an earlier run is moved aside."""
    if not cfg.resume and os.listdir(cfg.out_dir):
        from loop import same_run

        if same_run.move_aside(cfg.out_dir):
            claims.enter_context(runs.locked(cfg.out_dir))
    log = runs.Log(cfg, step)
    log.others = [claims.enter_context(other) for section in cfg.use if (other := section.logger(cfg))]
    return log


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
        if may_run_short(cfg):
            from loop import memory

            print(f"memory, at least: {memory.listed(memory.estimate_bytes(cfg))}")
