"""
The objectives: where a batch comes from, and what the loss is. All the rest is the loop's (train.py).

    pretrain   rows -> noise -> the negative ELBO
    judge      pairs of a better and a worse text -> Bradley-Terry (judges/learned.py)
    grpo       prompts -> completions -> rewards -> advantages, and views of the completions -> the loss of grpo.py
"""

import collections
import contextlib
import functools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import config
import data
import diffusion
import grpo
import model
import rewards
import runs
import sample
from data.texts import draws, few, holes_of_rows, punch, read_text, stages, up_to_its_end, written
from judges import learned, scores
from machine import mesh, slots


class Task(NamedTuple):
    init: Callable  # key -> params
    # state, key -> minibatches of one iteration: dicts of arrays (B, ...), and numbers to be logged. Where the task is
    # `scored_by_gradient`, also score: minibatch -> log-probs of the policy, by the program that is differentiated.
    batches: Callable
    loss: Callable  # params, minibatch -> scalar, metrics; the only thing that is differentiated
    evaluate: Callable  # state, key -> metrics, samples
    rows: int  # how many there are to learn from, which is an epoch
    passes: str | None  # the metric that decides which checkpoint is best and when stop_at is reached; None: val/nelbo


# ---- pretrain --------------------------------------------------------------------------------------------------------


def pretrain(cfg, tok, start):
    """Masked diffusion on the completions of the rows (a causal model: the next token): pre-training when prompts are
    empty, fine-tuning when not."""
    train, shown = read_text(cfg, tok, "train"), few(read_text(cfg, tok, "val"), cfg)
    asked = few(read_text(cfg, tok, "val", learnt=False), cfg) if cfg.max_prompt_len else shown  # what is to be filled
    fns, more = scores.reward_functions(cfg, tok, asked.rows)
    if not fns and cfg.max_prompt_len:  # what can be said of any answer: is it the one in the data?
        fns = {"exact": rewards.REWARDS["exact"]}
    if fns or more:
        tqdm.write(scores.describe_metric(cfg, fns, more))
    if lacking := sum("completion" not in row for row in train.rows):
        raise ValueError(f"{cfg.dataset}/train: {lacking} of {len(train.rows)} rows have no completion to learn from")
    noise = jax.jit(functools.partial(diffusion.noise, cfg=cfg.model, norm=cfg.loss_norm, paired=cfg.paired))
    logp = jax.jit(functools.partial(diffusion.likelihood, cfg=cfg.model, start=cfg.max_prompt_len))
    allowed = stages(cfg, train.rows)
    known = shown.part([i for i, row in enumerate(shown.rows) if "completion" in row])  # others have no likelihood
    learnt, held_out = ((up_to_its_end(t, tok) if cfg.model.causal else t) for t in (train, known))

    def batches(state, key):
        size, rows = cfg.batch_size // (2 if cfg.paired else 1), allowed(state.step)
        yield noise(key, learnt.take(rows[data.batch_indices(len(rows), size, state.step, cfg.seed)])), {}

    def evaluate(state, key):
        out = {"val/nelbo": math.nan}
        if n := len(held_out.rows):
            keys = sample.row_keys(jax.random.key(0), n)  # the same masks every time
            some = functools.partial(logp, state.weights)
            bound = np.asarray(mesh.in_chunks(some, config.eval_rows(cfg), held_out.take(slice(None)), keys), float)
            out = {"val/nelbo": -float(bound.sum() / held_out.arrays["hole"].sum())}
        if n and not cfg.max_prompt_len:
            size = np.mean([len(tok.spell(row)) for row in held_out.arrays["tokens"]])
            out["val/bits_per_byte"] = -float(bound.mean()) / size / np.log(2)
        scored = asked if fns or more else asked.part(np.arange(min(runs.SAMPLES, len(asked.rows))))  # to be looked at
        rates, samples = scores.pass_rates(cfg, tok, fns, more, state.weights, key, scored)
        return out | rates, samples

    loss = functools.partial(diffusion.loss, cfg=cfg.model, start=cfg.max_prompt_len)
    passes = "val/sampled" if cfg.rewards or cfg.eval_rewards else None
    n = len(train.rows) * (2 if cfg.paired else 1)  # paired, a batch has half as many rows
    return Task(lambda key: start or model.init(key, cfg.model), batches, loss, evaluate, n, passes)


# ---- grpo ------------------------------------------------------------------------------------------------------------


class Rollout(NamedTuple):
    """N prompts with G completions each, those of one prompt in a row; B = N * G."""

    x: jax.Array  # (B, T) tokens
    valid: jax.Array | None  # (B, T) False at left padding
    hole: jax.Array  # (B, T) what the policy was asked to fill
    mask: jax.Array  # (B, T) of these, what counts: up to and with the first end of text
    step: jax.Array  # (B, T) the step at which it was filled; -1 elsewhere
    logp: jax.Array  # (B, T) its log-prob under the distribution it was drawn from
    n_steps: jax.Array  # () forward passes of a chunk, on average


class Scored(NamedTuple):
    """N prompts, their completions, and what the rewards think of these."""

    rows: list  # N
    rollout: Rollout
    completions: list  # B texts
    rewards: np.ndarray  # (R, N, G), behind the rewards the diversity bonus
    kl: np.ndarray | None  # (N, G) the KL that kl_in_reward subtracts
    parts: dict  # name: (B,) of every reward, what it notes, and the bonus


def refill(old, new, cfg):
    """Scored, Scored -> Scored: groups of `old` that agree with themselves give way to groups of `new` that do not."""
    _, N, G = old.rewards.shape
    out, into = np.flatnonzero(~scores.has_signal(old, cfg)), np.flatnonzero(scores.has_signal(new, cfg))
    pick = np.arange(N)
    pick[out[: len(into)]] = N + into[: len(out)]
    flat = (pick[:, None] * G + np.arange(G)).reshape(-1)
    take = lambda a, b: jnp.concatenate([a, b])[flat] if a.ndim else a + b  # or the forward passes of both
    return Scored(
        rows=[(old.rows + new.rows)[i] for i in pick],
        rollout=jax.tree.map(take, old.rollout, new.rollout),
        completions=[(old.completions + new.completions)[i] for i in flat],
        rewards=np.concatenate([old.rewards, new.rewards], 1)[:, pick],
        kl=None if old.kl is None else np.concatenate([old.kl, new.kl])[pick],
        parts={k: np.concatenate([old.parts[k], new.parts[k]])[flat] for k in old.parts},
    )


def objective(cfg):
    """The loss's share of a config."""
    return grpo.LossConfig(loss=cfg.loss_type, ratio=cfg.ratio_level, clip_low=cfg.clip_low, clip_high=cfg.clip_high,
                           clip_cap=cfg.clip_cap, cispo_cap=cfg.cispo_cap, kl_est=cfg.kl_est,
                           kl_beta=0.0 if cfg.kl_in_reward else cfg.kl_beta, entropy_coef=cfg.entropy_coef)  # fmt: skip


@functools.partial(jax.jit, static_argnames=("eos_id", "cfg"))
def what_counts(x, hole, eos_id, cfg):
    """x, hole (B, T) -> (B, T): which tokens of a rollout are in the loss: those up to and with the first end of text,
    or all that were drawn."""
    ends = hole & (x == eos_id)
    mask = hole if cfg.score_after_end else hole & (jnp.cumsum(ends, 1) - ends == 0)
    return mask & ends.any(1, keepdims=True) if cfg.mask_truncated else mask


def roll_out(params, key, prompts, cfg, tok):
    """Text of N prompts -> Rollout of G completions each, in chunks of whole groups where rollout_chunk holds one."""
    arrays = jax.tree.map(lambda a: jnp.repeat(a, cfg.group_size, 0), prompts.take(slice(None)))
    hole, size = arrays["hole"], mesh.up(config.rollout_rows(cfg))
    how = sample.plan(cfg, cfg.temperature, cfg.rollout_steps, cfg.early_end)
    x, trace = slots.fill(params, sample.row_keys(key, len(hole)), arrays, cfg, how, size, cfg.group_size)
    return Rollout(x, arrays["valid"], hole, what_counts(x, hole, tok.eos_id, cfg), **trace)


def divergence(state, key, r, cfg):
    """Rollout -> (B,), log p of each completion under the policy less that under the reference: k1, which a reward may
    hold (as a loss its gradient is 0 on average): there it is the gradient of KL(policy || reference)."""
    M, w, seen = look(key, r, cfg)
    b = {"x": r.x, "valid": r.valid, "hole": r.hole, "mask": r.mask, "M": M, "w": w, "adv": jnp.zeros(len(r.x))}
    of = lambda params: mesh.in_chunks(lambda b: logps(params, b, cfg), config.minibatch(cfg), b)
    return np.asarray((seen * (of(state.params) - of(mesh.aboard(state.reference)))).sum(1), float)


def judged(rollout, rows, fns, cfg, tok, kl=None):
    """Rollout of N rows -> Scored."""
    N, G = cfg.batch_size, cfg.group_size
    completions, total, parts = scores.score(fns, {}, cfg, tok, rows, written(rollout.x, tok, cfg), G)
    each = scores.reward_table(parts, cfg, fns)
    if cfg.diversity_bonus:
        groups = np.repeat(np.arange(N), G).tolist()
        bonus = np.array(rewards.diversity(groups, completions, groups), float)
        parts["diversity_bonus"] = np.where(np.isnan(total), np.nan, bonus)  # what nobody judged stays left out
        each = np.stack([*each, parts["diversity_bonus"]])
    if kl is not None:
        parts["kl"] = np.where(np.isnan(total), np.nan, kl)
        kl = parts["kl"].reshape(N, G)
    return Scored(rows, rollout, completions, each.reshape(-1, N, G), kl, parts)


def keep(found, adv, cfg):
    """Scored, its advantages (N, G) -> Rollout of K completions, what the loss weighs them with (K,): the largest."""
    if cfg.loss_type == "wd1":
        adv = grpo.wd1_weights(adv, ~np.isnan(found.rewards).all(0))
    adv, K = jnp.where(adv < 0, cfg.adv_negative * adv, adv).reshape(-1), config.kept(cfg)
    if K == adv.size:
        return found.rollout, adv
    best = jnp.argsort(-jnp.abs(adv))[:K]
    return jax.tree.map(lambda a: a[best] if a.ndim else a, found.rollout), adv[best]


@functools.partial(jax.jit, static_argnames="cfg")
def look(key, r, cfg):
    """Rollout of K -> M, w (K, V, T), seen (K, T): the masks of one pass over it, V views with the rows in front."""
    prompt = ~r.hole & (True if r.valid is None else r.valid)
    ratio = cfg.mask_ratio_min, cfg.mask_ratio_max
    block, from_text = (of(r.valid, r.x.shape[1], cfg.model) for of in (diffusion.blocks, diffusion.read_from_text))
    M, w, seen = diffusion.views(key, cfg.logp_est, r.hole, r.step, cfg.logp_views, ratio, cfg.p_mask_prompt, prompt,
                                 block, r.mask, from_text)  # fmt: skip
    if cfg.loss_type == "spg":  # whose upper bound is the log of a weighted mean
        w, seen = w * seen, seen > 0
    return M.swapaxes(0, 1), (w * r.mask * cfg.logp_scale).swapaxes(0, 1), seen * r.mask


def policy(params, b, cfg):
    """Batch with x, hole, mask (B, T), M, w (B, V, T), valid, adv (B,) -> log-probs, entropy (B, T) under params."""
    M, w = b["M"].swapaxes(0, 1), b["w"].swapaxes(0, 1)
    chunk = cfg.logp_chunk and min(cfg.logp_chunk, M.shape[0] * M.shape[1])
    filtered = cfg.top_k or cfg.top_p or cfg.repetition_penalty != 1
    temper = functools.partial(sample.as_drawn, plan=sample.plan(cfg, cfg.temperature)) if filtered else None
    logp, entropy = diffusion.view_logp(
        params, b["x"], M, cfg.model, b["valid"], cfg.max_prompt_len, chunk, cfg.temperature, w != 0,
        cfg.entropy_coef > 0, b["hole"], temper
    )  # fmt: skip
    entropy = (w * entropy).sum(0) / jnp.maximum(w.sum(0), 1e-6)
    if cfg.loss_type == "spg":
        return diffusion.sandwich(logp, w, b["adv"] > 0, cfg.spg_mix, cfg.spg_power) * b["mask"], entropy
    return (w * logp).sum(0), entropy


@functools.partial(jax.jit, static_argnames="cfg")
def logps(params, b, cfg):
    """Batch as above -> (B, T), micro-batch by micro-batch as in the gradient: in 16 bits a product of another shape is
    another number."""
    cut = lambda x: x.reshape(cfg.gradient_accumulation_steps, -1, *x.shape[1:])
    parts = jax.tree.map(cut, {k: b[k] for k in ("x", "valid", "hole", "mask", "M", "w", "adv")})
    return mesh.everywhere(jax.lax.map(lambda part: policy(params, part, cfg)[0], parts).reshape(b["x"].shape))


def has_ratios(cfg):
    """True if an iteration has updates after its first, whose policy is not the one that wrote the completions."""
    return cfg.ratio_level != "none" and config.updates_per_iter(cfg) > 1


def scored_by_gradient(cfg):
    """True if old log-probs have to come from the very program that is differentiated. In 16 bits another program of
    the same function rounds otherwise: before anything moved, up to 49% of ESPO's ratios were beyond its clip of 4e-4.
    """
    return cfg.objective == "grpo" and cfg.model.dtype != "float32" and has_ratios(cfg)


def passes(state, key, k_order, r, cfg, score=None):
    """Rollout of K completions -> all minibatches but their advantages: each pass has its own order and masks, and on
    them the log-probs of the policy that wrote the completions (by `score`, see Task) and of the reference. In the
    first minibatch that policy is the one whose gradient is taken: nan, for its own forward pass will do."""
    out, K, size = [], len(r.x), config.minibatch(cfg)
    compared = has_ratios(cfg)
    for n in range(cfg.updates_per_rollout):
        M, w, seen = look(jax.random.fold_in(key, n if cfg.random_masking else 0), r, cfg)
        whole = {"x": r.x, "valid": r.valid, "hole": r.hole, "mask": r.mask, "drawn": r.logp, "M": M, "w": w}
        whole |= {"seen": seen, "adv": jnp.zeros(K)}  # not known yet
        order = jax.random.permutation(jax.random.fold_in(k_order, n), K)
        for i in range(0, K, size):
            row = jnp.arange(K) if size == K else order[i : i + size]
            b = whole if size == K else jax.tree.map(lambda v, row=row: v[row], whole)
            b |= {"old": jnp.full(b["x"].shape, jnp.nan) if compared else None,
                  "ref": logps(mesh.aboard(state.reference), b, cfg) if cfg.kl_beta and not cfg.kl_in_reward else None,
                  "weight": grpo.token_weights(cfg.loss_type, b["mask"], cfg.max_new_tokens,
                                               cfg.gradient_accumulation_steps, cfg.aggregation),
                  "share": b["seen"] / jnp.maximum(b["seen"].sum(), 1e-6)}  # fmt: skip
            if compared and out:
                b |= {"old": mesh.everywhere(score(b)) if score else logps(state.params, b, cfg)}
            out.append(b | {"row": row})
    return out


def policy_loss(params, b, cfg):
    """A minibatch of `passes`, or a part of it -> scalar, metrics."""
    logp, entropy = policy(params, b, cfg)
    of_tokens = logp, b["old"], b["ref"], b["mask"], b["weight"], b["share"], entropy, b["seen"], b["drawn"]
    of_tokens = (x if x is None else x[:, cfg.max_prompt_len :] for x in of_tokens)
    logp, old, ref, mask, weight, share, entropy, seen, drawn = of_tokens
    if old is not None:
        old = jnp.where(jnp.isnan(old), logp, old)
    batch = grpo.LossBatch(b["adv"], mask, weight, share, old, ref, seen)
    total, metrics = grpo.loss(logp, batch, objective(cfg), entropy)
    # How far what is trained is from what was sampled: of `trace`, 0 before the first update, of any of its steps.
    metrics |= {"behaviour_gap": jnp.sum(share * jnp.abs(logp - drawn))}
    whole = jnp.pad(logp, ((0, 0), (cfg.max_prompt_len, 0)))
    return total, metrics | ({"token_logp": whole} if scored_by_gradient(cfg) else {})


@contextlib.contextmanager
def timed(notes, name):
    """The seconds that this takes are added to notes[name]."""
    begun = time.perf_counter()
    yield
    notes[name] += time.perf_counter() - begun


def iteration(state, key, score, draw, fns, cfg, tok):
    """GRPO: the policy completes prompts, rewards judge, and what beats its group becomes likelier. -> minibatches for
    `policy_loss` and numbers to be logged."""
    k_roll, k_order = jax.random.split(key)
    tries, found, notes = 1 + cfg.dynamic_sampling, None, collections.defaultdict(float)
    minibatches = lambda r: passes(state, jax.random.fold_in(k_roll, tries), k_order, r, cfg, score)
    for n in range(tries):
        with timed(notes, "time/rollout"):
            prompts = draw(state.step, n)
            r = jax.block_until_ready(roll_out(state.params, jax.random.fold_in(k_roll, n), prompts, cfg, tok))
        # The device goes on with what needs no rewards while the host scores; but it is not known then which
        # completions stay, when groups may be drawn again or only the best are kept.
        ready = minibatches(r) if tries == 1 and config.kept(cfg) == len(r.x) else None
        with timed(notes, "time/old_ref"):
            kl = divergence(state, jax.random.fold_in(k_roll, tries + 1 + n), r, cfg) if cfg.kl_in_reward else None
        with timed(notes, "time/reward"):
            new = judged(r, prompts.rows, fns, cfg, tok, kl)
        found = refill(found, new, cfg) if found else new  # groups that agree with themselves are drawn again
        if n + 1 < tries and scores.has_signal(found, cfg).all():
            break
    adv = scores.advantages(found.rewards, cfg, found.kl)
    notes |= scores.rollout_metrics(found, adv, cfg, tok)
    notes |= {"rollouts": n + 1, "group": scores.first_group(found, adv, cfg, tok)}
    if notes["skipped"]:
        tqdm.write(f"step {state.step + 1}: no reward ({', '.join(fns)}) has an opinion on any of the {adv.size} "
                   "completions, so there is no update")  # fmt: skip
        yield None, notes
        return
    with timed(notes, "time/old_ref"):
        r, adv = keep(found, adv, cfg)
        ready = jax.block_until_ready(ready or minibatches(r))
    for b in ready:
        yield b | {"adv": adv[b.pop("row")]}, notes
        notes = {}


def tune(cfg, tok, start):
    """GRPO on the prompts of the rows, or on holes in their completions."""
    if start is None:
        raise ValueError("objective='grpo' tunes a model that can already do a little: set init_from to a folder or to "
                         "the config file that trains one")  # fmt: skip
    train, shown = read_text(cfg, tok, "train", cfg.fill_in), few(read_text(cfg, tok, "val", cfg.fill_in), cfg)
    fns, more = scores.reward_functions(cfg, tok, train.rows + shown.rows)
    tqdm.write(scores.describe_metric(cfg, fns, more))
    draw = draws(cfg, tok, train)
    if cfg.fill_in:
        shown = holes_of_rows(shown, cfg, tok) or punch(shown, cfg, tok, 0)
    return Task(
        init=lambda key: start,
        batches=lambda state, key, score=None: iteration(state, key, score, draw, fns, cfg, tok),
        loss=lambda params, batch: policy_loss(params, batch, cfg),
        evaluate=lambda state, key: scores.pass_rates(cfg, tok, fns, more, state.weights, key, shown),
        rows=len(train.rows),
        passes="val/sampled",
    )


OBJECTIVES = {"pretrain": pretrain, "judge": lambda *asked: Task(*learned.judge_task(*asked)), "grpo": tune}
