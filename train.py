"""
One loop, several objectives:  python train.py config/sudoku.py [--key=value ...]

Pretraining, judge training and reinforcement learning differ in where a batch comes from and in what the loss is. A
Task (rl.py) says that; the loop does the rest: optimizer, checkpoints, resuming, evaluation, logs. Step s derives its
random numbers from the run's seed and s, so any step can be run again alone, and a resumed run equals the unbroken one
bit for bit.
"""
from system import terminal

if __name__ == "__main__":
    terminal.begin()

import contextlib
import dataclasses
import functools
import math
import re
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import checkpoint
import config
import data
import diffusion
import grpo
import model
import runs
from rl import OBJECTIVES, Task, policy_loss
from system import hosts, sharding
from system.start import announce, has_reference, load_reference, prepare, reference_dtype
from variants import lora


class State(NamedTuple):
    """What changes from step to step."""

    step: int  # iterations so far: batches of rows, or rollouts with all their updates
    params: dict  # the trained parameters; with LoRA, the adapters
    opt_state: tuple
    average: dict | None  # moving average of the parameters, if ema_decay is set
    reference: dict | None  # the model that grpo and dpo compare the policy with, see start.has_reference

    @property
    def weights(self):
        """Return the parameters that are evaluated and saved."""
        return self.params if self.average is None else self.average


# ---- the optimizer ---------------------------------------------------------------------------------------------------


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


def make_gradient(loss, cfg):
    """Make gradient(params, base, batch) -> the gradient, summed over micro-batches; metrics; and log p of every token
    (B, T) if the loss returns it, else None. base: the frozen parameters of LoRA, or None."""
    A = cfg.gradient_accumulation_steps

    def loss_of_trained(params, base, batch):
        return loss(lora.whole(params, base, cfg), batch)

    grad = jax.value_and_grad(loss_of_trained, has_aux=True)

    def micro(params, base, total, batch):
        (value, metrics), grads = grad(params, base, batch)
        return sharding.shard(jax.tree.map(jnp.add, total, grads)), metrics | {"loss": value}

    def gradient(params, base, batch):
        if A == 1:
            (value, metrics), grads = grad(params, base, batch)
            logp = metrics.pop("token_logp", None)
            return grads, metrics | {"loss": value}, logp
        zeros = jax.tree.map(jnp.zeros_like, params)
        grads, metrics = jax.lax.scan(functools.partial(micro, params, base), zeros, sharding.cut(batch, A))
        logp = metrics.pop("token_logp", None)  # (A, B / A, T)
        return grads, combine_metrics(metrics, "sum"), None if logp is None else logp.reshape(-1, logp.shape[-1])

    return gradient


def make_update(loss, tx, cfg, gradient=None):
    """Make update(params, opt_state, average, step, batch, base) -> the first three, updated, and metrics. It is one
    compiled program, which reuses the memory of the first three; or two if a compiled `gradient` is given."""

    def apply(params, opt_state, average, step, grads, metrics):
        updates, opt_state = sharding.shard(tx.update(sharding.shard(grads), opt_state, params))
        params = optax.apply_updates(params, updates)
        if average is not None:
            decay = jnp.minimum(cfg.ema_decay, (1 + step) / (10 + step))  # warm-up: short memory first
            average = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)
        norm = optax.tree.norm
        metrics |= {"grad_norm": norm(grads), "update_norm": norm(updates)}
        metrics |= {"update_ratio": norm(updates) / norm(params)}
        return *sharding.shard((params, opt_state, average)), metrics

    own_gradient = gradient or make_gradient(loss, cfg)
    apply = jax.jit(apply, donate_argnums=(0, 1, 2)) if gradient else apply

    def update(params, opt_state, average, step, batch, base=None):
        grads, metrics, _ = own_gradient(params, base, batch)
        return apply(params, opt_state, average, step, grads, metrics)

    return update if gradient else jax.jit(update, donate_argnums=(0, 1, 2))


def combine_metrics(metrics, how):
    """Combine {name: (n,)} to {name: ()}: by "sum" over micro-batches or "mean" over updates; by the maximum or
    minimum if the name ends in _max or _min."""
    out = {}
    for name, values in metrics.items():
        own = name.rpartition("_")[2]
        out[name] = getattr(jnp, own if own in ("max", "min") else how)(values, 0)
    return out


# ---- around a step ---------------------------------------------------------------------------------------------------


def check_finite(step, updates, notes, last, cfg):
    """Average the metrics of a step's updates -> {name: float}, with the notes and the step. Raises ValueError if a
    loss or gradient norm is not finite; the message has those of the step before, `last`."""
    updates = [{k: float(v) for k, v in metrics.items()} for metrics in updates]
    bad = [m for m in updates if not np.isfinite([m["loss"], m["grad_norm"]]).all()]
    if not bad:
        mean = combine_metrics({k: np.array([m[k] for m in updates]) for k in updates[0]}, "mean") if updates else {}
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


def new_state(params, cfg, tx, reference=True):
    """Make the State of step 0. reference: whether to copy the parameters as the reference that a KL needs."""

    def copy(dtype):
        return model.cast(jax.tree.map(jnp.copy, params), dtype)

    moments = () if cfg.eval_only else tx.init(params)
    average = copy("float32") if cfg.ema_decay is not None else None
    return State(0, params, moments, average, copy(reference_dtype(cfg)) if reference and has_reference(cfg) else None)


def abstract_run(cfg):
    """Describe a run by shapes alone -> its update, its State, the base of LoRA, and the State as a Task sees it."""
    tx, width = optimizer(cfg)[0], 1 if cfg.objective == "judge" else None
    from variants import dpo, judge  # for --plan only

    loss = {"pretrain": functools.partial(diffusion.loss, cfg=cfg.model, start=cfg.max_prompt_len),
            "judge": functools.partial(judge.loss, cfg=cfg.model),
            "dpo": functools.partial(dpo.loss, cfg=cfg),
            "grpo": functools.partial(policy_loss, cfg=cfg)}[cfg.objective]  # fmt: skip

    def make(key):
        params = model.init(key, cfg.model, width)
        if cfg.lora_rank:
            params = model.cast(params, cfg.model.dtype)
        params, base = lora.split(params, key, cfg)
        state = new_state(params, cfg, tx)._replace(step=jnp.int32(0))
        return state, base, lora.merged(state, base, cfg)

    state, base, merged = jax.eval_shape(make, jax.random.key(0))
    return make_update(loss, tx, cfg), state._replace(step=0), base, merged


class Run(NamedTuple):
    """What stays the same from the first step to the last."""

    cfg: config.Config
    tok: data.Tokenizer
    task: Task
    base: dict | None  # the frozen parameters of LoRA
    update: Callable  # see make_update
    gradient: Callable | None  # see make_gradient; None unless old log-probs have to come from it
    rate: Callable  # number of an update -> learning rate
    key: jax.Array
    log: runs.Log | None  # None: the run only evaluates, or another process writes


def setup(cfg, claims):
    """Prepare a run -> Run, State, the best evaluation so far or None, and True if the run is already finished.

    claims: the ExitStack of the locks that the run holds. If an old run is moved aside, the new folder is locked."""
    cfg, tok, start, resumed = prepare(cfg, train)
    task, key = OBJECTIVES[cfg.objective](cfg, tok, start), jax.random.key(cfg.seed)
    if cfg.num_epochs:
        cfg = dataclasses.replace(cfg, max_iters=math.ceil(cfg.num_epochs * task.rows / cfg.batch_size))
    tx, rate = optimizer(cfg)
    params, base = sharding.shard(lora.split(task.init(jax.random.fold_in(key, 0)), jax.random.fold_in(key, 3), cfg))
    run, resuming = checkpoint.read_run(resumed) if resumed else {}, resumed and not cfg.eval_only
    other = load_reference(cfg) if has_reference(cfg) and cfg.ref_from and not resuming else None

    def create(params):
        rest = jax.jit(lambda params: sharding.shard(new_state(params, cfg, tx, not other)[2:]))(params)
        return State(0, params, *rest)

    state = jax.eval_shape(create, params) if resuming else create(params)
    state = state._replace(reference=other) if other else state
    task = task._replace(init=None)
    del params, start  # parameters outside the state and the base must not stay on the device; a task holds its start
    if resuming:
        state, run = checkpoint.restore(resumed, state)
    elif resumed:
        state = state._replace(step=checkpoint.step_in_name(resumed))
    if cfg.ref_offload and has_reference(cfg):
        state = state._replace(reference=sharding.to_host(state.reference))
    best = run["best"] if resuming else None
    passed = run.get("finished") and best and cfg.stop_at is not None and best["score"] > cfg.stop_at
    passed = passed and (best["step"] or state.step < run["config"]["max_iters"])  # by training, not from the start
    done = state.step >= cfg.max_iters or bool(passed)
    gradient = jax.jit(make_gradient(task.loss, cfg)) if config.old_logp_by_gradient(cfg) else None
    update = make_update(task.loss, tx, cfg, gradient)
    first = not hosts.processes()[1]
    hosts.barrier(f"{cfg.out_dir} is read")
    if first and not (cfg.resume or cfg.eval_only) and runs.move_aside(cfg.out_dir):
        claims.enter_context(runs.locked(cfg.out_dir))
    log = runs.Log(cfg, state.step if resumed else -1) if first and not cfg.eval_only else None
    hosts.barrier(f"{cfg.out_dir} is free")
    return Run(cfg, tok, task, base, update, gradient, rate, key, log), state, best, done


# ---- the loop --------------------------------------------------------------------------------------------------------


def new_reference(state, cfg):
    """Return the reference for the iteration after state.step, moved as ref_mode says."""
    if cfg.ref_mode == "static" or cfg.ref_mode == "periodic" and state.step % cfg.ref_sync_interval:
        return state.reference  # wherever it is stored
    new = grpo.update_reference(
        sharding.to_device(state.reference),
        state.params,
        state.step,
        cfg.ref_mode,
        cfg.ref_decay,
        cfg.ref_sync_interval,
        cfg.ref_sync_mix,
    )
    return sharding.to_host(new) if cfg.ref_offload else new


def iterate(run, state):
    """Run one iteration -> State, the metrics of its updates (on the device), other numbers to log."""
    step, updates, notes = state.step, [], {}
    k_batch = jax.random.fold_in(jax.random.fold_in(run.key, 2), step)
    start = state.params

    def old_logp_of(batch):
        """Compute log p of a minibatch under the policy that wrote it, by the program that is differentiated."""
        return sharding.replicate(run.gradient(start, run.base, batch)[2])

    more = {"old_logp_of": old_logp_of} if run.gradient else {}
    for batch, said in run.task.batches(lora.merged(state, run.base, run.cfg), k_batch, **more):
        notes |= said
        if batch is not None:  # None: no reward judged the completions
            *arrays, metrics = run.update(*state[1:4], step, batch, run.base)
            state = State(step, *arrays, state.reference)
            updates.append(metrics)
    state = state._replace(step=step + 1)
    if state.reference is not None:
        state = state._replace(reference=new_reference(state, run.cfg))
    return state, updates, notes


def save_and_explain(run, state, best, where, error):
    """Save the run when a reward fails, if it has taken a step and trains -> the error to raise, which says where it
    failed and how to go on."""
    if not state.step or run.cfg.eval_only:
        return ValueError(f"{where}: {error}")
    checkpoint.save_run(run.cfg, state, run.tok, best, finished=False)
    return ValueError(f"{where}: {error}. Saved {run.cfg.out_dir}/step-{state.step:06d}; mend it and continue with "
                      "--resume=True")  # fmt: skip


def evaluate(run, state, best):
    """Evaluate, log and show a State -> metrics, and the better of `best` and this evaluation, {step, score, ...}."""
    k_eval = jax.random.fold_in(jax.random.fold_in(run.key, 1), state.step)
    try:
        values, samples = run.task.evaluate(lora.merged(state, run.base, run.cfg), k_eval)
    except ValueError as e:
        raise save_and_explain(run, state, best, f"evaluation at step {state.step}", e) from e
    runs.show(run, state.step, values, samples)
    metric = run.task.best_metric
    new = {"step": state.step, "score": values[metric] if metric else -values["val/nelbo"]}
    new |= {"measure": metric or "val/nelbo"} | ({"se": values[f"{metric}_se"]} if f"{metric}_se" in values else {})
    better = new["score"] >= (best["score"] if best else -np.inf)  # nan never is; equal ones: the later
    return values, new if better else best


def loop(run, state, best, done):
    """Iterate, evaluate and save up to the end -> the last State, the best evaluation."""
    cfg, last, pending, signs = run.cfg, None, None, []
    bar = tqdm(total=cfg.max_iters, initial=state.step, unit="step", dynamic_ncols=True, smoothing=0.1,
               disable=bool(hosts.processes()[1]) or None)  # None: without a terminal
    bar.set_description_str("compiling, once: 10 to 60 s")
    if cfg.objective in ("grpo", "dpo") and state.step == 0:
        _, best = evaluate(run, state, best)
    with runs.StopRequested() as asked, bar:
        while not done:
            if cfg.objective == "grpo":  # wait for the last update, so that it is not counted as rollout time
                jax.block_until_ready(state.params)
            clock = time.perf_counter()
            try:
                state, updates, notes = iterate(run, state)
            except ValueError as e:  # a reward fails before anything is updated
                if pending:
                    check_finite(*pending, last, cfg)  # so that nothing broken is saved
                raise save_and_explain(run, state, best, f"step {state.step + 1}", e) from e
            # Read the metrics of the step before, while the device works on this one. (grpo reads its own below.)
            if pending:
                last = check_finite(*pending, last, cfg)
            pending = state.step, updates, notes
            intervals = cfg.log_interval, cfg.eval_interval, cfg.save_interval
            log, evaluates, saves = (state.step % n == 0 for n in intervals)
            done = state.step >= cfg.max_iters
            logged = log or not updates
            leaving = hosts.all_max(asked.signal or 0)  # if any process was
            if cfg.objective == "grpo" or done or leaving or logged or evaluates or saves:
                last, pending = check_finite(*pending, last, cfg), None
                if run.log:
                    signs = runs.write(run, state, last, time.perf_counter() - clock, logged)
                bar.set_postfix({k: f"{last[k]:.3f}" for k in ("reward", "loss") if k in last}, refresh=False)
            bar.set_description_str(refresh=False)
            bar.update(1)
            before = best
            if evaluates or done:
                values, best = evaluate(run, state, best)
                done = done or cfg.stop_at is not None and values[run.task.best_metric] > cfg.stop_at
            if done or best is not before or saves or leaving:
                checkpoint.save_run(cfg, state, run.tok, best, finished=done, in_background=not (done or leaving))
            if leaving and not done:
                tqdm.write(f"saved {cfg.out_dir}/step-{state.step:06d}; continue with --resume=True")
                raise KeyboardInterrupt(int(leaving))
            if cfg.on_collapse != "warn" and hosts.all_max(bool(signs)) and not done:
                raise runs.leave_collapsed(run, state, best, signs)
    return state, best


def train(cfg, rows=None, rewards=None):
    """Run cfg to its end (with eval_only: evaluate it) -> the last State, the folder of the run.

    From Python, rows (a list, or {"train": list, "val": list}) may replace the key dataset, and rewards (a function, a
    list, or {name: function}) the key rewards."""
    again = None
    cfg = config.resolve_paths(cfg)
    with contextlib.ExitStack() as claims:
        claims.enter_context(sharding.use(cfg.mesh))
        if rows is not None or rewards is not None:
            from system import in_memory  # a run from the command line has a data set and rewards with names

            cfg = claims.enter_context(in_memory.in_memory(cfg, rows, rewards))
        if not cfg.eval_only:
            claims.enter_context(runs.locked(cfg.out_dir))
        run, state, best, done = setup(cfg, claims)
        announce(run.cfg, state, run.base, done)
        if cfg.eval_only:
            evaluate(run, state, best)
            return state, cfg.out_dir
        try:
            state, best = loop(run, state, best, done)
        except runs.Collapsed as e:
            if not e.again:
                raise
            print(e)
            again = e.again
        said = runs.ending(run.cfg, best) if run.log else ""
    if again:
        return train(again, rows, rewards)
    print(f"done: {cfg.out_dir}/step-{state.step:06d}{said}")
    return state, cfg.out_dir


def main():
    if asked := {"-h", "--help", "--help=all"} & {*sys.argv}:
        print(config.help_text("--help=all" in asked))
        return
    try:
        if flags := [word for word in sys.argv[1:] if word.startswith(("--plan=", "--anatomy="))]:
            flag, _, value = flags[-1].partition("=")
            others = [word for word in sys.argv[1:] if not word.startswith(f"{flag}=")]
            from tools import anatomy, plan  # which import this program's stages

            if flag == "--plan":
                return plan.plan_ahead(others, value, abstract_run)
            return anatomy.write(others, value, setup, iterate)
        cfg = config.load(sys.argv[1:])
        runs.prepare_process(cfg)
        train(cfg)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as e:
        raise SystemExit(f"error: {terminal.explain(e)}") from None
    except RuntimeError as e:
        if "RESOURCE_EXHAUSTED" not in str(e):
            hosts.wait_for_watch()
            raise
        raise SystemExit("error: the device has no memory left: a smaller batch_size, rollout_chunk or logp_chunk, or "
                         f"more gradient_accumulation_steps ({str(e).splitlines()[0][:200]})") from None  # fmt: skip


if __name__ == "__main__":
    terminal.run(main, hosts.leave)
