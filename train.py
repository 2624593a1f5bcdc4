"""
One loop, several objectives:  python train.py config/sudoku.py [--key=value ...]

Pretraining, judge training and reinforcement learning differ in where a batch comes from and in what the loss is. A
Task (objectives.py) says that; the loop does the rest: optimizer, checkpoints, resuming, evaluation, logs. Step s draws
everything from fold_in(run key, s), so any step can be run again alone, and a resumed run equals the unbroken one bit
for bit.
"""
from machine import terminal

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

import config
import data
import diffusion
import disk
import grpo
import model
import runs
from judges import learned, scores
from machine import lora, mesh
from machine.start import announce, has_reference, load_reference, plan_ahead, prepare, reference_dtype
from objectives import OBJECTIVES, policy_loss, scored_by_gradient


class State(NamedTuple):
    step: int  # iterations: batches of rows, or rollouts with all their updates
    params: dict  # what is trained: of LoRA, the adapters
    opt_state: tuple
    average: dict | None  # of the params, when ema_decay is set
    reference: dict | None  # what the KL of grpo keeps the policy near to, when kl_beta is set; None with LoRA

    @property
    def weights(self):
        """What is evaluated and saved."""
        return self.params if self.average is None else self.average


# ---- the optimizer ---------------------------------------------------------------------------------------------------


def optimizer(cfg):
    """AdamW with clipping, warm-up and a schedule; norms, biases and embeddings do not decay. -> it, rate(update)"""
    each = config.updates_per_iter(cfg)
    warm = lambda update: cfg.learning_rate * (update + 1) / (cfg.warmup_iters * each)  # no rollout for a rate of 0
    then = optax.constant_schedule(cfg.learning_rate)
    if cfg.lr_schedule == "cosine":
        rest = max(cfg.max_iters - cfg.warmup_iters, 1) * each
        then = optax.cosine_decay_schedule(cfg.learning_rate, rest, cfg.lr_end)
    rate = optax.join_schedules([warm, then], [cfg.warmup_iters * each]) if cfg.warmup_iters else then
    decays = lambda params: jax.tree_util.tree_map_with_path(
        lambda path, _: not re.search("norm|bias|embed", path[-1].key), params)  # fmt: skip
    clip = [optax.clip_by_global_norm(cfg.grad_clip)] if cfg.grad_clip else []
    adamw = optax.adamw(rate, cfg.beta1, cfg.beta2, cfg.adam_eps, weight_decay=cfg.weight_decay, mask=decays)
    return optax.chain(*clip, adamw), rate


def make_gradient(loss, cfg):
    """-> gradient(params, base, batch) -> the gradient, summed over micro-batches by a scan; metrics; log p of every
    token (B, T), where the loss gives it."""
    A = cfg.gradient_accumulation_steps
    grad = jax.value_and_grad(lambda params, base, batch: loss(lora.whole(params, base, cfg), batch), has_aux=True)

    def micro(params, base, total, batch):
        (value, metrics), grads = grad(params, base, batch)
        return mesh.shard(jax.tree.map(jnp.add, total, grads)), metrics | {"loss": value}

    def gradient(params, base, batch):
        if A == 1:
            (value, metrics), grads = grad(params, base, batch)
            logp = metrics.pop("token_logp", None)
            return grads, metrics | {"loss": value}, logp
        cut = jax.tree.map(lambda x: x.reshape(A, len(x) // A, *x.shape[1:]), batch)
        zeros = jax.tree.map(jnp.zeros_like, params)
        grads, metrics = jax.lax.scan(functools.partial(micro, params, base), zeros, cut)
        logp = metrics.pop("token_logp", None)  # (A, B / A, T)
        return grads, together(metrics, "sum"), None if logp is None else logp.reshape(-1, logp.shape[-1])

    return gradient


def make_update(loss, tx, cfg, gradient=None):
    """-> update(params, opt_state, average, step, batch, base) -> the first three and metrics. One compiled program, or
    two where a compiled `gradient` is given."""

    def apply(params, opt_state, average, step, grads, metrics):
        updates, opt_state = mesh.shard(tx.update(mesh.shard(grads), opt_state, params))
        params = optax.apply_updates(params, updates)
        if average is not None:
            decay = jnp.minimum(cfg.ema_decay, (1 + step) / (10 + step))  # a young average forgets its start
            average = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)
        norm = optax.tree.norm
        metrics |= {"grad_norm": norm(grads), "update_norm": norm(updates)}
        metrics |= {"update_ratio": norm(updates) / norm(params)}
        return *mesh.shard((params, opt_state, average)), metrics

    own_gradient = gradient or make_gradient(loss, cfg)
    apply = jax.jit(apply, donate_argnums=(0, 1, 2)) if gradient else apply

    def update(params, opt_state, average, step, batch, base=None):
        grads, metrics, _ = own_gradient(params, base, batch)
        return apply(params, opt_state, average, step, grads, metrics)

    return update if gradient else jax.jit(update, donate_argnums=(0, 1, 2))


def together(metrics, how):
    """{name: (n,)} -> {name: ()}, summed over micro-batches or averaged over updates; extremes stay extremes."""
    pick = lambda name: name.rpartition("_")[2] if name.endswith(("_max", "_min")) else how
    return {name: getattr(jnp, pick(name))(x, 0) for name, x in metrics.items()}


# ---- before the first step -------------------------------------------------------------------------------------------


def finite(step, updates, notes, last, cfg):
    """[metrics of an update, on the device] -> their mean as floats, or the end of the run with the numbers before."""
    updates = [{k: float(v) for k, v in metrics.items()} for metrics in updates]
    bad = [m for m in updates if not np.isfinite([m["loss"], m["grad_norm"]]).all()]
    if not bad:
        mean = together({k: np.array([m[k] for m in updates]) for k in updates[0]}, "mean") if updates else {}
        return {k: float(v) for k, v in mean.items()} | notes | {"step": step}
    values = bad[0]
    kept = disk.steps(cfg.out_dir)
    raise ValueError(
        f"step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}. The last finite step was "
        + (f"{last['step']}: loss {last['loss']:.4f}, gradient norm {last['grad_norm']:.3g}. "
           if last and "loss" in last else "none. ")
        + (f"The checkpoint before it is kept: {cfg.out_dir}/step-{kept[-1]:06d}. " if kept else "None was saved yet. ")
        + f"Try a lower learning_rate (now {cfg.learning_rate}), more warmup_iters (now {cfg.warmup_iters}), "
        + f"grad_clip=1.0 (now {cfg.grad_clip})" + (", dtype=float32" if cfg.model.dtype != "float32" else "")
    )  # fmt: skip


def beside(params, cfg, tx, reference=True):
    """What is trained -> what a new State has beside it: moments, average, and the reference that KL asks for."""
    copy = lambda asked, dtype: model.cast(jax.tree.map(jnp.copy, params), dtype) if asked else None
    moments = () if cfg.eval_only else tx.init(params)
    reference = copy(reference and has_reference(cfg), reference_dtype(cfg))
    return moments, copy(cfg.ema_decay is not None, "float32"), reference


def outline(cfg):
    """Config with its model -> the update of its run and, as shapes, State, LoRA's base, State as a Task sees it."""
    tx, width = optimizer(cfg)[0], 1 if cfg.objective == "judge" else None
    start = jax.eval_shape(lambda: model.init(jax.random.key(0), cfg.model, width))
    if cfg.lora_rank:
        start = jax.eval_shape(functools.partial(model.cast, dtype=cfg.model.dtype), start)
    loss = {"pretrain": functools.partial(diffusion.loss, cfg=cfg.model, start=cfg.max_prompt_len),
            "judge": functools.partial(learned.loss, cfg=cfg.model),
            "grpo": functools.partial(policy_loss, cfg=cfg)}[cfg.objective]  # fmt: skip
    params, base = jax.eval_shape(lambda start: lora.split(start, jax.random.key(0), cfg), start)
    state = State(0, params, *jax.eval_shape(lambda params: beside(params, cfg, tx), params))
    return make_update(loss, tx, cfg), state, base, jax.eval_shape(lambda s, b: lora.seen(s, b, cfg), state, base)


class Run(NamedTuple):
    """What stays as it is from the first step to the last."""

    cfg: config.Config
    tok: data.Tokenizer
    task: NamedTuple  # of objectives.py
    base: dict | None  # of LoRA, what is frozen
    update: Callable  # of `make_update`
    gradient: Callable | None  # of `make_gradient`, where old log-probs have to come from it
    rate: Callable  # the number of an update -> its learning rate
    key: jax.Array
    log: runs.Log | None  # None: this run only measures, or another process writes


def begin(cfg, claims):
    """-> Run, State, the best evaluation until then or None, and whether there is nothing left to do. Another folder of
    this name than the one that is claimed is claimed, too."""
    cfg, tok, start, resumed = prepare(cfg, train)
    task, key = OBJECTIVES[cfg.objective](cfg, tok, start), jax.random.key(cfg.seed)
    if cfg.num_epochs:
        cfg = dataclasses.replace(cfg, max_iters=math.ceil(cfg.num_epochs * task.rows / cfg.batch_size))
    tx, rate = optimizer(cfg)
    params, base = mesh.shard(lora.split(task.init(jax.random.fold_in(key, 0)), jax.random.fold_in(key, 3), cfg))
    run, resuming = disk.read_run(resumed) if resumed else {}, resumed and not cfg.eval_only
    other = load_reference(cfg) if has_reference(cfg) and cfg.ref_from and not resuming else None
    new = lambda params: State(0, params, *jax.jit(lambda p: mesh.shard(beside(p, cfg, tx, not other)))(params))
    state = jax.eval_shape(new, params) if resuming else new(params)
    state = state._replace(reference=other) if other else state
    task = task._replace(init=None)
    del params, start  # what is not in the state or the base must not stay on the device, and a task holds its start
    if resuming:
        state, run = disk.restore(resumed, state)
    elif resumed:
        state = state._replace(step=disk.step_of(resumed))
    if cfg.ref_offload and has_reference(cfg):
        state = state._replace(reference=mesh.to_host(state.reference))
    best = run["best"] if resuming else None
    passed = run.get("finished") and best and cfg.stop_at is not None and best["score"] > cfg.stop_at
    passed = passed and (best["step"] or state.step < run["config"]["max_iters"])  # not only by the start
    done = state.step >= cfg.max_iters or bool(passed)
    if resumed:
        print(f"resuming {cfg.out_dir} at step {state.step}" + (", its end" if done else ""))
    gradient = jax.jit(make_gradient(task.loss, cfg)) if scored_by_gradient(cfg) else None
    update = make_update(task.loss, tx, cfg, gradient)
    announce(cfg, state, base)
    first = not mesh.processes()[1]
    mesh.barrier(f"{cfg.out_dir} is read")
    if first and not (cfg.resume or cfg.eval_only) and runs.move_aside(cfg.out_dir):
        claims.enter_context(runs.locked(cfg.out_dir))
    log = runs.Log(cfg, state.step if resumed else -1) if first and not cfg.eval_only else None
    mesh.barrier(f"{cfg.out_dir} is free")
    return Run(cfg, tok, task, base, update, gradient, rate, key, log), state, best, done


# ---- the loop --------------------------------------------------------------------------------------------------------


def new_reference(state, cfg):
    """The reference for the iteration after state.step."""
    if cfg.ref_mode == "static" or cfg.ref_mode == "periodic" and state.step % cfg.ref_sync_interval:
        return state.reference  # one off the device stays there
    new = grpo.update_reference(mesh.to_device(state.reference), state.params, state.step, cfg.ref_mode, cfg.ref_decay,
                                cfg.ref_sync_interval, cfg.ref_sync_mix)  # fmt: skip
    return mesh.to_host(new) if cfg.ref_offload else new


def iterate(run, state):
    """One iteration -> State, [metrics of an update, on the device], other numbers to be logged."""
    step, updates, notes = state.step, [], {}
    k_batch = jax.random.fold_in(jax.random.fold_in(run.key, 2), step)
    start = state.params

    def score(batch):
        """Score a minibatch with the policy that wrote it, by the program of the update."""
        return run.gradient(start, run.base, batch)[2]

    more = {"score": score} if run.gradient else {}
    for batch, said in run.task.batches(lora.seen(state, run.base, run.cfg), k_batch, **more):
        notes |= said
        if batch is not None:  # nobody judged the completions: nothing to learn
            *arrays, metrics = run.update(*state[1:4], step, batch, run.base)
            state = State(step, *arrays, state.reference)
            updates.append(metrics)
    state = state._replace(step=step + 1)
    if state.reference is not None:
        state = state._replace(reference=new_reference(state, run.cfg))
    return state, updates, notes


def saved(run, state, best, where, error):
    """A reward's error -> the same with its place, and all that was learnt until then on the disk."""
    if not state.step or run.cfg.eval_only:
        return ValueError(f"{where}: {error}")
    disk.save_run(run.cfg, state, run.tok, best, finished=False)
    return ValueError(f"{where}: {error}. Saved {run.cfg.out_dir}/step-{state.step:06d}; mend it and continue with "
                      "--resume=True")  # fmt: skip


def evaluate(run, state, best):
    """Measures, logs and shows a State -> metrics, the best evaluation now."""
    k_eval = jax.random.fold_in(jax.random.fold_in(run.key, 1), state.step)
    try:
        values, samples = run.task.evaluate(lora.seen(state, run.base, run.cfg), k_eval)
    except ValueError as e:
        raise saved(run, state, best, f"evaluation at step {state.step}", e) from e
    runs.show(run, state.step, values, samples)
    passes = run.task.passes
    new = {"step": state.step, "score": values[passes] if passes else -values["val/nelbo"]}
    new |= {"measure": passes or "val/nelbo"} | ({"se": values[f"{passes}_se"]} if f"{passes}_se" in values else {})
    better = new["score"] >= (best["score"] if best else -np.inf)  # nan never is; of equals the later
    return values, new if better else best


def loop(run, state, best, done):
    """Iterations, evaluations and checkpoints up to the end -> the last State, the best evaluation."""
    cfg, last, pending = run.cfg, None, None
    bar = tqdm(total=cfg.max_iters, initial=state.step, unit="step", dynamic_ncols=True, smoothing=0.1,
               disable=bool(mesh.processes()[1]) or None)  # None: without a terminal
    bar.set_description_str("compiling, once: 10 to 60 s")
    if cfg.objective == "grpo" and state.step == 0:
        _, best = evaluate(run, state, best)
    with runs.StopRequested() as asked, bar:
        while not done:
            if cfg.objective == "grpo":  # a rollout is timed, and waits for the last update, which is not its time
                jax.block_until_ready(state.params)
            clock = time.perf_counter()
            try:
                state, updates, notes = iterate(run, state)
            except ValueError as e:  # a reward fails before anything is updated
                if pending:
                    finite(*pending, last, cfg)  # nothing broken is saved
                raise saved(run, state, best, f"step {state.step + 1}", e) from e
            # The device works on this step while the last one's numbers are read: one late, so it never waits for us.
            if pending:
                last = finite(*pending, last, cfg)
            pending = state.step, updates, notes
            due = lambda interval, now=state.step: now % interval == 0
            done, logged = state.step >= cfg.max_iters, due(cfg.log_interval) or not updates
            leaving = mesh.all_max(asked.signal or 0)  # whoever of them was asked
            if cfg.objective == "grpo" or done or leaving or logged or due(cfg.eval_interval) or due(cfg.save_interval):
                last, pending = finite(*pending, last, cfg), None
                if run.log:
                    runs.write(run, state, last, time.perf_counter() - clock, logged)
                bar.set_postfix({k: f"{last[k]:.3f}" for k in ("reward", "loss") if k in last}, refresh=False)
            bar.set_description_str(refresh=False)
            bar.update(1)
            before = best
            if due(cfg.eval_interval) or done:
                values, best = evaluate(run, state, best)
                done = done or cfg.stop_at is not None and values[run.task.passes] > cfg.stop_at
            if done or best is not before or due(cfg.save_interval) or leaving:
                disk.save_run(cfg, state, run.tok, best, finished=done, behind=not (done or leaving))
            if leaving and not done:
                tqdm.write(f"saved {cfg.out_dir}/step-{state.step:06d}; continue with --resume=True")
                raise KeyboardInterrupt(int(leaving))
    return state, best


def train(cfg, rows=None, rewards=None):
    """Runs cfg to its end -> the last State, the folder of the run. From Python rows, a list or {"train": list, "val":
    list}, and rewards, a function, a list or {name: fn}, may stand for the keys dataset and, if empty, rewards."""
    with contextlib.ExitStack() as claims:
        claims.enter_context(mesh.use(cfg.mesh))
        cfg = claims.enter_context(scores.in_memory(config.resolve_paths(cfg), rows, rewards))
        if not cfg.eval_only:
            claims.enter_context(runs.locked(cfg.out_dir))
        run, state, best, done = begin(cfg, claims)
        if cfg.eval_only:
            evaluate(run, state, best)
            return state, cfg.out_dir
        state, best = loop(run, state, best, done)
        said = runs.ending(run.cfg, best) if run.log else ""
    print(f"done: {cfg.out_dir}/step-{state.step:06d}{said}")
    return state, cfg.out_dir


def main():
    if asked := {"-h", "--help", "--help=all"} & {*sys.argv}:
        print(config.help_text("--help=all" in asked))
        return
    try:
        if planned := [word.partition("=")[2] for word in sys.argv[1:] if word.startswith("--plan=")]:
            return plan_ahead([word for word in sys.argv[1:] if not word.startswith("--plan=")], planned[-1], outline)
        cfg = config.load(sys.argv[1:])
        runs.prepare_process(cfg)
        train(cfg)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as e:
        raise SystemExit(f"error: {e}") from None
    except RuntimeError as e:
        if "RESOURCE_EXHAUSTED" not in str(e):
            mesh.wait_for_watch()
            raise
        raise SystemExit("error: the device has no memory left: a smaller batch_size, rollout_chunk or logp_chunk, or "
                         f"more gradient_accumulation_steps ({str(e).splitlines()[0][:200]})") from None  # fmt: skip


if __name__ == "__main__":
    terminal.run(main, mesh.leave)
