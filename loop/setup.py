"""
What wraps the loop of train.py: a run is prepared or resumed, checked after each step, evaluated, and saved when a
reward fails.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import config
import data
import model
import rl
from checkpoints import checkpoint
from loop import memory, runs, start
from system import sections, settings, sharding


def read_metrics(unread, last, cfg):
    """Average the metrics of a step's updates -> {name: float}, with the notes and the step. Raises ValueError if a
    loss or gradient norm is not finite; the message has those of the step before, `last`.

    unread: step, metrics of its updates, notes; None: there is nothing to read, and `last` is returned."""
    if not unread:
        return last
    step, updates, notes = unread
    updates = [{k: float(v) for k, v in metrics.items()} for metrics in updates]
    bad = [m for m in updates if not np.isfinite([m["loss"], m["grad_norm"]]).all()]
    if not bad:
        mean = rl.combine_metrics({k: np.array([m[k] for m in updates]) for k in updates[0]}, "mean") if updates else {}
        return {k: float(v) for k, v in mean.items()} | notes | {"step": step}
    values = bad[0]
    kept = checkpoint.steps(cfg.out_dir)
    raise ValueError(
        f"step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}. The last finite step was "
        + (f"{last['step']}: loss {last['loss']:.4f}, gradient norm {last['grad_norm']:.3g}. "
           if last and "loss" in last else "none. ")
        + (f"The checkpoint before it is kept: {cfg.out_dir}/step-{kept[-1]:06d}. " if kept else "None was saved yet. ")
        + f"Try a lower learning_rate (now {cfg.learning_rate}), more warmup_iters (now {cfg.warmup_iters}), "
        + f"grad_clip=1.0 (now {cfg.grad_clip})" + (", dtype=float32" if cfg.model.dtype != "float32" else "")
    )  # fmt: skip


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
    own = reference and config.has_reference(cfg)
    return rl.State(0, params, moments, average, copy(start.reference_dtype(cfg)) if own else None)


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


def objective(name):
    """Return what makes the Task of an objective, see rl.OBJECTIVES."""
    if not settings.plugged(rl.OBJECTIVES, name):
        sections.refuse("objective", name, rl.OBJECTIVES)
    return rl.OBJECTIVES[name]


def setup(cfg, claims, train):
    """Prepare a run -> Run, State, the best evaluation so far or None, and True if the run is already finished.

    claims: the ExitStack of the locks that the run holds. If an old run is moved aside, the new folder is locked.
    train: trains the run of a config file that this one starts from."""
    make_task, key = objective(cfg.objective), jax.random.key(cfg.seed)
    cfg, tok, first_params, resumed = start.prepare(cfg, train)
    task = make_task(cfg, tok, first_params)
    if cfg.num_epochs:
        cfg = dataclasses.replace(cfg, max_iters=math.ceil(cfg.num_epochs * task.rows / cfg.batch_size))
    tx, rate = optimizer(cfg)
    rate = jax.jit(rate)
    params_key, adapters_key = jax.random.fold_in(key, rl.PARAMS), jax.random.fold_in(key, rl.ADAPTERS)
    params, base = sharding.shard(rl.split(task.init(params_key), adapters_key, cfg))
    run, resuming = checkpoint.read_run(resumed) if resumed else {}, resumed and not cfg.eval_only
    other = start.load_reference(cfg) if config.has_reference(cfg) and cfg.ref_from and not resuming else None

    def create(params):
        rest = jax.jit(lambda params: sharding.shard(new_state(params, cfg, tx, not other)[2:]))(params)
        return rl.State(0, params, *rest)

    state = jax.eval_shape(create, params) if resuming else create(params)
    state = state._replace(reference=other) if other else state
    task = task._replace(init=None)
    del params, first_params  # nothing outside the state and the base may stay on the device; a task holds its start
    if resuming:
        from checkpoints import resume  # a run that begins reads no state

        state, run = resume.restore(resumed, state)
    elif resumed:
        state = state._replace(step=checkpoint.step_in_name(resumed))
    if config.has_reference(cfg) and memory.Keys.of(cfg).ref_offload:
        state = state._replace(reference=sharding.to_host(state.reference))
    best = run["best"] if resuming else None
    passed = run.get("finished") and best and cfg.stop_at is not None and best["score"] > cfg.stop_at
    passed = passed and (best["step"] or state.step < run["config"]["max_iters"])  # by training, not from the start
    done = state.step >= cfg.max_iters or bool(passed)
    gradient = jax.jit(rl.make_gradient(task.loss, cfg)) if config.old_logp_by_gradient(cfg) else None
    update = rl.make_update(task.loss, tx, cfg, gradient)
    if not (cfg.resume or cfg.eval_only) and runs.move_aside(cfg.out_dir):
        claims.enter_context(runs.locked(cfg.out_dir))
    log = None if cfg.eval_only else runs.Log(cfg, state.step if resumed else -1)
    return Run(cfg, tok, task, base, update, gradient, rate, key, log), state, best, done


def save_and_explain(run, state, best, where, error):
    """Save the run when a reward fails, if it has taken a step and trains -> the error to raise, which says where it
    failed and how to go on."""
    if not state.step or run.cfg.eval_only:
        return ValueError(f"{where}: {error}")
    checkpoint.save_run(run.cfg, state, run.tok, best, finished=False)
    return ValueError(f"{where}: {error}. Saved {run.cfg.out_dir}/step-{state.step:06d}; mend it and continue with "
                      "--resume=True")  # fmt: skip


def evaluate_and_log(run, state, best):
    """Evaluate, log and show a State -> metrics, and the better of `best` and this evaluation, {step, score, ...}."""
    key = rl.step_key(run.key, rl.EVALUATIONS, state.step)
    try:
        values, samples = run.task.evaluate(rl.merged(state, run.base, run.cfg), key)
    except ValueError as e:
        raise save_and_explain(run, state, best, f"evaluation at step {state.step}", e) from e
    runs.show(run, state.step, values, samples)
    metric = run.task.best_metric
    new = {"step": state.step, "score": values[metric] if metric else -values["val/nelbo"]}
    new |= {"measure": metric or "val/nelbo"} | ({"se": values[f"{metric}_se"]} if f"{metric}_se" in values else {})
    better = new["score"] >= (best["score"] if best else -np.inf)  # nan never is; equal ones: the later
    return values, new if better else best


def reaches_stop(run, values):
    """True if the metrics of an evaluation are better than stop_at, so that the run ends."""
    return run.cfg.stop_at is not None and values[run.task.best_metric] > run.cfg.stop_at


def evaluate_if_lacking(run, state, best, done):
    """Evaluate before the first step, and after resuming at a step whose evaluation failed or was not due before -> the
    best evaluation, and whether the run is at its end."""
    if runs.lacks_evaluation(run, state, done):
        values, best = evaluate_and_log(run, state, best)
        if state.step:
            done = done or reaches_stop(run, values)
            checkpoint.update_run(run.cfg, state.step, best=best, finished=done)
    return best, done
