"""
Reinforcement learning with GRPO, one iteration from top to bottom, and the tasks that the loop (train.py) can run.

    prompts -> rollout -> rewards -> advantages -> views -> log-probs -> loss
    (N, T)     (B, T)     (R, N, G)  (N, G)        (B,K,T)  (B, T)       ()          B = N * G

From the advantages on, B is the number of completions that learn (`select_completions`).

`iteration` is the whole algorithm; the functions above it are its steps. A Task says where a batch comes
from and what the loss is:

    pretrain   rows -> noise -> the negative ELBO (diffusion.py)
    judge      pairs of a better and a worse text -> Bradley-Terry (variants/judge.py)
    dpo        pairs of a better and a worse answer -> DPO (variants/dpo.py)
    grpo       `iteration` -> the loss of grpo.py on log-probs from diffusion.py
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
from data.texts import (
    check_completions,
    completion_ids,
    encode_split,
    end_at_eos,
    eval_subset,
    given_masks,
    masked_rows,
    prompt_sampler,
)
from judges import scores
from system import evaluation, sharding
from variants import blocks, hints, joint, slots


class Task(NamedTuple):
    init: Callable  # key -> params
    # state, key -> yields (minibatch, numbers to log) for each update of one iteration; minibatch None: no update. If
    # config.old_logp_by_gradient, it also gets old_logp_of: minibatch -> log p (B, T) of each token under the policy
    # that wrote it, by the program that is differentiated.
    batches: Callable
    loss: Callable  # params, minibatch -> scalar, metrics; the only function that is differentiated
    evaluate: Callable  # state, key -> metrics, samples
    rows: int  # how many rows an epoch has; a step takes batch_size of them
    best_metric: str | None  # decides which checkpoint is best and when stop_at is reached; None: val/nelbo


# ---- the records of an iteration -------------------------------------------------------------------------------------


class Rollout(NamedTuple):
    """B = N * G completions; the G of one prompt are consecutive."""

    tokens: jax.Array  # (B, T)
    valid: jax.Array | None  # (B, T) False on left padding
    completion: jax.Array  # (B, T) True where the policy was asked to write
    counts: jax.Array  # (B, T) True on tokens in the loss, see `loss_mask`
    step: jax.Array  # (B, T) the denoising step that committed each token; -1: given
    logp: jax.Array  # (B, T) log-prob of each token under the distribution it was drawn from; 0: given
    passes: jax.Array  # (B,) denoising passes of each row, see variants/speed.py


class Scored(NamedTuple):
    """A rollout and its rewards."""

    rows: list  # N
    rollout: Rollout
    completions: list  # B texts
    rewards: np.ndarray  # (R, N, G) nan: no opinion
    parts: dict  # {name: (B,)} of every reward, and its notes (NAME/NOTE)


class Minibatch(NamedTuple):
    """All that the loss needs, with old and reference log-probs on the same views."""

    rollout: Rollout
    views: diffusion.Views  # with rows first: (B, K, T), (B, K, T), (B, T)
    advantage: jax.Array  # (B,)
    token_weight: jax.Array  # (B, T) of each token in the loss, see grpo.token_weights
    metric_weight: jax.Array  # (B, T) of each token in metrics that are means
    # (B, T) under the policy that wrote the rollout; nan: the current policy; None: the loss has no ratios
    old_logp: jax.Array | None = None
    ref_logp: jax.Array | None = None  # (B, T) under the reference; None: the loss has no KL
    nll_weight: jax.Array | None = None  # (B, T) of each token of the right completions, sums to 1; None: nll_coef=0


# ---- 1. write G completions of each prompt ---------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("ends", "cfg"))
def loss_mask(tokens, completion, ends, cfg):
    """Find the tokens of a rollout that are in the loss (B, T): those of each completion up to and including its first
    end of text, or all (score_after_end)."""
    ends = completion & jnp.isin(tokens, jnp.array(ends))
    return completion if cfg.score_after_end else completion & (jnp.cumsum(ends, 1) - ends == 0)


def roll_out(params, key, prompts, cfg) -> Rollout:
    """Write G completions of each of the N prompts, an EncodedRows, at most rollout_chunk at a time. A chunk holds
    whole groups, unless rollout_chunk is less than one."""
    repeat = functools.partial(jnp.repeat, repeats=cfg.group_size, axis=0)
    arrays = jax.tree.map(repeat, prompts.take(slice(None)))
    completion, size = arrays.maskable, sharding.round_up(config.rollout_rows(cfg))
    plan = sample.plan(cfg, cfg.temperature, cfg.rollout_steps, cfg.early_end)
    keys = sample.row_keys(key, len(completion))
    tokens, trace = slots.fill(params, keys, arrays, cfg, plan, size, cfg.group_size)
    counts = loss_mask(tokens, completion, cfg.model.ends, cfg)
    return Rollout(tokens, arrays.valid, completion, counts, trace["step"], trace["logp"], trace["passes"])


# ---- 2. judge them ---------------------------------------------------------------------------------------------------


def score_rollout(rollout, rows, reward_fns, cfg, tok) -> Scored:
    """Judge the B completions of N rows, whose columns the rewards read."""
    N, G = cfg.batch_size, cfg.group_size
    ids = completion_ids(rollout.tokens, tok, cfg)
    fast = scores.tokens_per_pass(rollout, cfg)
    completions, _, parts = scores.score(reward_fns, {}, cfg, tok, rows, ids, G, fast)
    values = scores.reward_table(parts, cfg, reward_fns)
    return Scored(rows, rollout, completions, values.reshape(-1, N, G), parts)


def replace_flat_groups(old: Scored, new: Scored, cfg) -> Scored:
    """Replace groups of `old` whose rewards are all equal by groups of `new` whose rewards differ, as far as there are
    such -> N groups again."""
    _, N, G = old.rewards.shape
    out, into = np.flatnonzero(~scores.has_signal(old, cfg)), np.flatnonzero(scores.has_signal(new, cfg))
    pick = np.arange(N)
    pick[out[: len(into)]] = N + into[: len(out)]
    flat = (pick[:, None] * G + np.arange(G)).reshape(-1)
    rollout = jax.tree.map(lambda a, b: jnp.concatenate([a, b])[flat], old.rollout, new.rollout)
    return Scored(
        rows=[(old.rows + new.rows)[i] for i in pick],
        rollout=rollout,
        completions=[(old.completions + new.completions)[i] for i in flat],
        rewards=np.concatenate([old.rewards, new.rewards], 1)[:, pick],
        parts={name: np.concatenate([old.parts[name], new.parts[name]])[flat] for name in old.parts},
    )


# ---- 3. compare within groups ----------------------------------------------------------------------------------------


def select_completions(found: Scored, adv, cfg):
    """Weigh the advantages (N, G) (wd1, adv_negative), and keep the M completions with the largest absolute ones ->
    Rollout of M rows, advantages (M,), the indices (M,) of these completions among all N * G."""
    if cfg.loss_type == "wd1":
        adv = grpo.wd1_weights(adv, ~np.isnan(found.rewards).all(0))
    adv, M = jnp.where(adv < 0, cfg.adv_negative * adv, adv).reshape(-1), config.n_update(cfg)
    if M == adv.size:
        return found.rollout, adv, jnp.arange(M)
    best = jnp.argsort(-jnp.abs(adv))[:M]
    return sharding.take(found.rollout, best), adv[best], best


# ---- 4. draw views, and compute log-probs of the completions on them -------------------------------------------------


@functools.partial(jax.jit, static_argnames="cfg")
def draw_views(key, r: Rollout, cfg) -> diffusion.Views:
    """Draw the masks of one pass over a rollout -> Views with rows first: (B, K, T), (B, K, T), (B, T). Weights and
    shares are 0 outside the loss."""
    T = r.tokens.shape[1]
    masked, weight, share = diffusion.views(
        key,
        cfg.logp_est,
        r.completion,
        step=r.step,
        n=cfg.logp_views,
        t_range=(cfg.mask_ratio_min, cfg.mask_ratio_max),
        p_mask_prompt=cfg.p_mask_prompt,
        prompt=~r.completion & (True if r.valid is None else r.valid),
        block=blocks.number(r.valid, T, cfg.model),
        counts=r.counts,
        first_of_block=blocks.first_of_block(r.valid, T, cfg.model),
    )
    weight = weight * r.counts
    return diffusion.Views(masked.swapaxes(0, 1), weight.swapaxes(0, 1), share * r.counts)


def scoring_model(cfg):
    """Return the ModelConfig that log-probs are computed with: what drafts write is scored by the causal model."""
    return joint.autoregressive(cfg.model) if cfg.rule == "drafts" else cfg.model


def as_drawn(r: Rollout, cfg):
    """Make the function say(logits (N, V), tokens (N,), diffusion.Place) -> log p, entropy (N,), under the distribution
    that tokens are drawn from."""
    plan = sample.plan(cfg, cfg.temperature)
    filters = cfg.top_k or cfg.top_p or cfg.repetition_penalty != 1

    def say(logits, x, place):
        if filters:
            there = (place.z != cfg.model.mask_id) & (True if r.valid is None else r.valid[place.row])
            if scoring_model(cfg).causal:  # tokens of the completion were there if they are to the left
                earlier = jnp.arange(place.z.shape[-1]) < place.column[..., None]
                there &= ~r.completion[place.row] | earlier
            logits = sample.as_drawn(logits, x, place.z, there, plan)
        else:
            logits = logits / cfg.temperature
        # The gradient of the entropy needs memory: seven arrays of logits.
        bonus = logits if cfg.entropy_coef > 0 else jax.lax.stop_gradient(logits)
        return diffusion.gather_logp(logits, x), diffusion.entropy(bonus)

    return say


def policy_logp(params, b: Minibatch, cfg):
    """Estimate log p of every token under params, and the entropy where it was predicted -> two (B, T), 0 where no view
    scores it."""
    r, masked, weight = b.rollout, b.views.masked.swapaxes(0, 1), b.views.weight.swapaxes(0, 1)
    chunk = cfg.logp_chunk and min(cfg.logp_chunk, len(masked) * len(r.tokens))
    start, scored = cfg.max_prompt_len, weight != 0
    logp, entropy = diffusion.view_logp(
        params, r.tokens, masked, scoring_model(cfg), r.valid, start, chunk, scored, as_drawn(r, cfg)
    )
    entropy = (weight * entropy).sum(0) / jnp.maximum(weight.sum(0), 1e-6)
    return (weight * logp).sum(0), entropy


@functools.partial(jax.jit, static_argnames="cfg")
def logp_of(params, b: Minibatch, cfg):
    """Estimate log p of every token (B, T) as `policy_logp` does, by micro-batches of the size that the gradient has:
    in 16 bits, a product of another shape gives other numbers."""

    def of_part(part):
        return policy_logp(params, part, cfg)[0]

    logp = jax.lax.map(of_part, sharding.cut(b, cfg.gradient_accumulation_steps))
    return sharding.replicate(logp.reshape(b.rollout.tokens.shape))


# ---- 5. cut the rollout into minibatches -----------------------------------------------------------------------------


def new_minibatch(r: Rollout, views, cfg) -> Minibatch:
    """Make a minibatch whose advantages are not known yet (0), without old and reference log-probs."""
    weights = grpo.token_weights(
        cfg.loss_type, r.counts, cfg.max_new_tokens, cfg.gradient_accumulation_steps, cfg.aggregation
    )
    metric_weight = views.share / jnp.maximum(views.share.sum(), 1e-6)
    b = Minibatch(r, views, jnp.zeros(len(r.tokens)), weights, metric_weight)
    return b._replace(nll_weight=jnp.zeros(r.tokens.shape)) if cfg.nll_coef else b


def minibatches(state, key, order_key, r: Rollout, cfg, old_logp_of=None):
    """Cut a rollout of M completions into the minibatches of all passes over it -> [(rows, Minibatch)], rows (n,) being
    the minibatch's indices among the M.

    Each pass has its own order, if it has several minibatches, and (unless random_masking=False) its own masks. A loss
    with ratios gets old log-probs: those of the policy that wrote the completions, by `old_logp_of` (see Task) or,
    without it, by `logp_of`. In the first minibatch old = current: nan, which the loss replaces by its own log-probs.
    A loss with a KL gets those of the reference. Advantages are 0: `iteration` fills them in."""
    out: list = []
    M, size = len(r.tokens), config.minibatch(cfg)
    for n in range(cfg.updates_per_rollout):
        views = draw_views(jax.random.fold_in(key, n if cfg.random_masking else 0), r, cfg)
        order = jax.random.permutation(jax.random.fold_in(order_key, n), M)
        for i in range(0, M, size):
            rows = jnp.arange(M) if size == M else order[i : i + size]
            some, of_some = (r, views) if size == M else sharding.take((r, views), rows)
            b = new_minibatch(some, of_some, cfg)
            if cfg.kl_beta:
                b = b._replace(ref_logp=logp_of(sharding.to_device(state.reference), without_logp(b), cfg))
            if config.has_ratios(cfg):
                # A place for it first, so that old_logp_of(b) runs the very program of the update.
                b = b._replace(old_logp=jnp.full(some.tokens.shape, jnp.nan, jnp.float32))
                if out:
                    old = old_logp_of(b) if old_logp_of else logp_of(state.params, without_logp(b), cfg)
                    b = b._replace(old_logp=old)
            out.append((rows, b))
    return out


def without_logp(b):
    """Drop the fields of a Minibatch that `logp_of` does not read, so that it is compiled once."""
    return b._replace(old_logp=None, ref_logp=None, nll_weight=None)


# ---- 6. the loss -----------------------------------------------------------------------------------------------------


def loss_config(cfg) -> grpo.LossConfig:
    """Take the settings of the loss from a Config."""
    return grpo.LossConfig(
        loss=cfg.loss_type,
        ratio=cfg.ratio_level,
        clip_low=cfg.clip_low,
        clip_high=cfg.clip_high,
        cispo_cap=cfg.cispo_cap,
        kl_est=cfg.kl_est,
        kl_beta=cfg.kl_beta,
        entropy_coef=cfg.entropy_coef,
    )


def policy_loss(params, b: Minibatch, cfg):
    """Compute the loss of a minibatch, or of a micro-batch -> scalar, metrics."""
    all_logp, all_entropy = policy_logp(params, b, cfg)

    def cut(a):
        return None if a is None else a[:, cfg.max_prompt_len :]

    logp, old = cut(all_logp), cut(b.old_logp)
    if old is not None:
        old = jnp.where(jnp.isnan(old), logp, old)
    batch = grpo.LossBatch(
        adv=b.advantage,
        mask=cut(b.rollout.counts),
        weight=cut(b.token_weight),
        metric_weight=cut(b.metric_weight),
        old_logp=old,
        ref_logp=cut(b.ref_logp),
        share=cut(b.views.share),
    )
    total, metrics = grpo.loss(logp, batch, loss_config(cfg), cut(all_entropy))
    # How far the policy that is trained is from the one that sampled: 0 for `trace` with all steps, before any update.
    metrics["behaviour_gap"] = batch.mean(jnp.abs(logp - cut(b.rollout.logp)))
    if b.nll_weight is not None:
        metrics["nll_loss"] = -jnp.sum(cut(b.nll_weight * b.views.share) * logp)
        total += cfg.nll_coef * metrics["nll_loss"]
    return total, metrics | ({"token_logp": all_logp} if config.old_logp_by_gradient(cfg) else {})


# ---- the iteration ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def timed(notes, name):
    """Add the seconds that the body takes to notes[name]."""
    begun = time.perf_counter()
    yield
    notes[name] += time.perf_counter() - begun


def write_and_judge(state, key, draw, reward_fns, cfg, tok, notes, prepare):
    """Write and judge completions of new prompts -> Scored, and what `prepare` makes of the rollout.

    Dynamic sampling draws again for groups whose rewards are all equal, or asks again with hints. If this rollout is
    the one that learns, and all of it does, then the device computes prepare(rollout) while the host scores; otherwise
    the second result is None. notes: gets the seconds of each stage, and `rollouts`."""
    tries, found, prepared = 1 + cfg.dynamic_sampling, None, None
    for n in range(tries):
        prompts = hints.draw(draw, found, state.step, n, cfg, tok)
        with timed(notes, "time/rollout"):
            r = jax.block_until_ready(roll_out(state.params, jax.random.fold_in(key, n), prompts, cfg))
        if tries == 1 and config.n_update(cfg) == len(r.tokens):
            prepared = prepare(r)
        with timed(notes, "time/reward"):
            new = score_rollout(r, prompts.rows, reward_fns, cfg, tok)
        found = replace_flat_groups(found, new, cfg) if found else new
        notes["rollouts"] = n + 1
        if scores.has_signal(found, cfg).all():
            break
    return found, prepared


def iteration(state, key, old_logp_of, draw, reward_fns, cfg, tok):
    """Run one iteration of GRPO, yielding (minibatch, numbers to log) for each of its updates; (None, numbers) if no
    reward has an opinion on any completion. The numbers all come with the first.

    draw(step, n): the prompts of a step (n = 0), or of its n-th redraw. old_logp_of: see Task.batches."""
    notes = collections.defaultdict(float)
    rollout_key, order_key = jax.random.split(key)
    view_key = jax.random.fold_in(rollout_key, 1 + cfg.dynamic_sampling)

    def prepare(r):
        return minibatches(state, view_key, order_key, r, cfg, old_logp_of)

    # 1, 2  Write G completions of each prompt, and judge them.
    found, ready = write_and_judge(state, rollout_key, draw, reward_fns, cfg, tok, notes, prepare)
    # 3  Compare within each group.
    adv = grpo.advantages(found.rewards, **scores.advantage_settings(found.rewards, cfg))
    notes |= scores.rollout_metrics(found, adv, cfg, tok)
    notes["group"] = scores.first_group(found, adv, cfg, tok)
    if notes["skipped"]:
        tqdm.write(f"step {state.step + 1}: no reward ({', '.join(reward_fns)}) has an opinion on any of the "
                   f"{adv.size} completions, so there is no update")  # fmt: skip
        yield None, notes
        return
    right = scores.right(found, adv, cfg) if cfg.nll_coef else None
    rollout, adv, which = select_completions(found, adv, cfg)
    # 4, 5  Draw views, compute old and reference log-probs on them, cut into minibatches.
    with timed(notes, "time/old_ref"):
        ready = jax.block_until_ready(ready or prepare(rollout))
    # 6  Each minibatch is one update of the policy, with the gradient of `policy_loss` (train.py).
    for rows, b in ready:
        b = b._replace(advantage=adv[rows])
        if cfg.nll_coef:
            in_right = b.rollout.counts & right[which[rows]][:, None]
            b = b._replace(nll_weight=grpo.per_token(in_right, cfg.max_new_tokens, 1))
        yield b, notes
        notes = {}


# ---- tasks -----------------------------------------------------------------------------------------------------------


def tune(cfg, tok, start) -> Task:
    """Make the task of GRPO on the prompts of the rows, or on masks in their completions."""
    train = encode_split(cfg, tok, "train", with_completions=cfg.fill_in)
    shown = eval_subset(encode_split(cfg, tok, "val", with_completions=cfg.fill_in), cfg)
    reward_fns, more = scores.reward_functions(cfg, tok, train.rows + shown.rows)
    tqdm.write(evaluation.describe_metric(cfg, reward_fns, more))
    draw = prompt_sampler(cfg, tok, train)
    if cfg.fill_in:
        shown = masked_rows(shown, cfg, tok)

    def batches(state, key, old_logp_of=None):
        return iteration(state, key, old_logp_of, draw, reward_fns, cfg, tok)

    def evaluate(state, key):
        return evaluation.pass_rates(cfg, tok, reward_fns, more, state.weights, key, shown)

    def init(key):
        return start

    return Task(init, batches, functools.partial(policy_loss, cfg=cfg), evaluate, len(train.rows), "val/sampled")


def pretrain(cfg, tok, start) -> Task:
    """Make the task of masked diffusion on completions (in a causal model: of predicting the next token). It is
    pre-training if prompts are empty, and fine-tuning if not."""
    train, shown = encode_split(cfg, tok, "train"), eval_subset(encode_split(cfg, tok, "val"), cfg)
    check_completions(cfg, train.rows)
    if cfg.fill_in:  # learn what the masks of the rows hide; or any token, and fill in some
        train = given_masks(train, cfg, tok) or train
        shown = masked_rows(shown, cfg, tok)
    asked = shown  # the texts that samples are drawn for
    if cfg.max_prompt_len and not cfg.fill_in:
        asked = eval_subset(encode_split(cfg, tok, "val", with_completions=False), cfg)
    fns, more = scores.reward_functions(cfg, tok, asked.rows)
    if not fns and cfg.max_prompt_len:  # without rewards: is the answer the one in the data?
        fns = {"exact": rewards.REWARDS["exact"]}
    if fns or more:
        tqdm.write(evaluation.describe_metric(cfg, fns, more))
    noise = jax.jit(functools.partial(
        joint.noise, cfg=cfg.model, norm=cfg.loss_norm, paired=cfg.paired, causal_weight=cfg.causal_weight
    ))  # fmt: skip
    readings = {"val/nelbo": cfg.model}
    if cfg.model.causal_text:
        readings["val/causal_nll"] = joint.autoregressive(cfg.model)
    allowed = data.curriculum(train.rows, cfg.curriculum)
    known = shown.part([i for i, row in enumerate(shown.rows) if "completion" in row])  # others have no likelihood
    learnt = end_at_eos(train, tok) if cfg.model.causal else train

    def init(key):
        return start or model.init(key, cfg.model)

    def batches(state, key):
        size, rows = cfg.batch_size // (2 if cfg.paired else 1), allowed(state.step)
        yield noise(key, learnt.take(rows[data.batch_indices(len(rows), size, state.step, cfg.seed)])), {}

    def evaluate(state, key):
        out = dict.fromkeys(readings, math.nan)
        n = len(known.rows)
        for name, shape in readings.items() if n else ():
            held_out = end_at_eos(known, tok) if shape.causal else known
            bound = evaluation.likelihoods(state.weights, held_out, shape, cfg)
            out[name] = -float(bound.sum() / held_out.maskable.sum())
            if name == "val/nelbo" and not (cfg.max_prompt_len or cfg.fill_in):
                size = np.mean([len(tok.decode_bytes(row)) for row in held_out.tokens])
                out["val/bits_per_byte"] = -float(bound.mean()) / size / np.log(2)
        scored = asked if fns or more else asked.part(np.arange(min(runs.SAMPLES, len(asked.rows))))  # a few to show
        rates, samples = evaluation.pass_rates(cfg, tok, fns, more, state.weights, key, scored)
        return out | rates, samples

    loss = functools.partial(diffusion.loss, cfg=cfg.model, start=cfg.max_prompt_len)
    best_metric = "val/sampled" if cfg.rewards or cfg.eval_rewards else None
    n = len(train.rows) * (2 if cfg.paired else 1)  # paired, a batch has half as many rows
    return Task(init, batches, loss, evaluate, n, best_metric)


def learn_judge(*given):
    """Make the task of training a judge; other objectives do not load it."""
    from variants import judge

    return Task(*judge.judge_task(*given))


def learn_pairs(*given):
    """Make the task of DPO; other objectives do not load it."""
    from variants import dpo

    return Task(*dpo.dpo_task(*given))


OBJECTIVES = {  # each is called with cfg, tok and start, the parameters to start from or None
    "pretrain": pretrain,
    "judge": learn_judge,
    "dpo": learn_pairs,
    "grpo": tune,
}
