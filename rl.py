"""
The steps of reinforcement learning with GRPO. train.py puts them together: `train.iteration` is the whole algorithm.

    prompts -> rollout -> rewards -> advantages -> views -> log-probs -> loss -> update
    (N, T)     (B, T)     (R, N, G)  (N, G)        (B,K,T)  (B, L)       ()               B = N * G

After `select_completions`, M completions learn. In a Minibatch and in the loss, B is the size of one. L columns of the
T are those of the completion, after the prompt.

A variant changes these steps in the runs that use it, by methods of its keys (Section in system/sections.py).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import config
import diffusion
import grpo
import model
import rewards
import sample
from data.texts import completion_ids
from system import sections, sharding

# ---- the records -----------------------------------------------------------------------------------------------------


# What random numbers are for: each purpose has a random key of its own, folded from that of the run.
PARAMS, EVALUATIONS, ITERATIONS, ADAPTERS = range(4)


def step_key(run_key, purpose, step):
    """Make the random key of an evaluation or of an iteration from that of its run."""
    return jax.random.fold_in(jax.random.fold_in(run_key, purpose), step)


class State(NamedTuple):
    """What changes from step to step."""

    step: int  # iterations so far: batches of rows, or rollouts with all their updates
    params: dict  # the trained parameters; with LoRA, the adapters
    opt_state: tuple
    average: dict | None  # moving average of the parameters, if ema_decay is set
    reference: dict | None  # the model that the KL compares the policy with, see config.has_reference

    @property
    def weights(self):
        """Return the parameters that are evaluated and saved."""
        return self.params if self.average is None else self.average


class Task(NamedTuple):
    init: Callable  # key -> params
    # policy, key, update -> numbers to log. It runs an iteration, and calls update(minibatch) for each update. policy:
    # the State before the first of them (with LoRA, of the whole model). If config.old_logp_by_gradient, it also gets
    # old_logp_of: minibatch -> log p (B, L) of each token under this policy, by the program that is differentiated.
    iterate: Callable
    loss: Callable  # params, minibatch -> scalar, metrics; the only function that is differentiated
    evaluate: Callable  # state, key -> metrics, samples
    rows: int  # how many rows an epoch has; a step takes batch_size of them
    best_metric: str | None  # decides which checkpoint is best and when stop_at is reached; None: val/nelbo


# What a run can do, each called with cfg, tok and start (the parameters to start from, or None) -> Task. train.py adds
# pretrain and grpo, and a file of variants/ its own.
OBJECTIVES: dict[str, Callable] = {}


class Rollout(NamedTuple):
    """B = N * G completions; the G of one prompt are consecutive."""

    tokens: jax.Array  # (B, T)
    valid: jax.Array | None  # (B, T) False on left padding
    completion: jax.Array  # (B, T) True where the policy was asked to write
    counts: jax.Array  # (B, T) True on tokens in the loss, see `loss_mask`
    step: jax.Array  # (B, T) the denoising step that committed each token; -1: given
    logp: jax.Array  # (B, T) log-prob of each token under the distribution it was drawn from; 0: given
    passes: jax.Array  # (B,) forward passes of each row, see sample.generate
    number: jax.Array | np.ndarray  # (B,) of each completion among all that were written


class Chosen(NamedTuple):
    """The M completions that learn."""

    rollout: Rollout
    advantage: jax.Array  # (M,)
    extra: dict  # {name: (M,)} what `terms` need of them


class Minibatch(NamedTuple):
    """The B completions of an update. In the loss they have L columns, those after the prompt."""

    rollout: Rollout
    views: diffusion.Views
    loss: grpo.LossBatch
    extra: dict  # {name: (B, L)} of the `terms` that need something of each token


# ---- what variants add, and what they train --------------------------------------------------------------------------


class Term(NamedTuple):
    """Something that a variant adds to the loss."""

    loss: Callable  # logp, entropy (B, L), its entry of Minibatch.extra, grpo.LossBatch, cfg -> scalar, metrics
    of_completions: Callable | None = None  # rewards.Scored, advantages (N, G), cfg -> (N * G,); needs of_tokens
    of_tokens: Callable | None = None  # that of the completions of a minibatch (B,), their Rollout, cfg -> (B, T)
    of_entropy: bool = False  # True if the loss needs the gradient of the entropy


def terms(cfg):
    """Return what the variants of a run add to the loss {name: Term}."""
    return {config.variant_of(section): section.term for section in cfg.use if section.term}


def split(params, key, cfg):
    """Split starting params into those that are trained and the frozen others (None: all are trained)."""
    section = config.freezing(cfg)
    return section.split(params, key, cfg) if section else (params, None)


def whole(params, base, cfg):
    """Make the params of a model from the trained ones and the frozen base (None: all are trained)."""
    if base is None or params is None:
        return params
    return config.freezing(cfg).whole(params, base, cfg)


def merged(state, base, cfg):
    """Make the State that a Task sees: its parameters are those of the whole model. If there is a base (LoRA), it is
    the reference: the model without adapters."""
    if base is None:
        return state
    params, average = whole(state.params, base, cfg), whole(state.average, base, cfg)
    return state._replace(params=params, average=average, reference=base)


# ---- 1. write G completions of each prompt ---------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("ends", "cfg"))
def loss_mask(tokens, completion, ends, cfg):
    """Find the tokens of a rollout that are in the loss (B, T): those of each completion up to and including its first
    end of text, or all (score_after_end)."""
    ends = completion & jnp.isin(tokens, jnp.array(ends))
    return completion if cfg.score_after_end else completion & (jnp.cumsum(ends, 1) - ends == 0)


def roll_out(params, key, prompts, cfg) -> Rollout:
    """Write G completions of each of the N prompts, a data.Batch, at most rollout_chunk at a time. A chunk holds
    whole groups, unless rollout_chunk is less than one."""
    repeat = functools.partial(np.repeat, repeats=cfg.group_size, axis=0)
    arrays = jax.tree.map(repeat, prompts.arrays())
    completion, size = arrays.maskable, sharding.round_up(config.rollout_rows(cfg))
    plan = sample.plan(cfg, cfg.temperature, cfg.early_end)
    keys = sample.row_keys(key, len(completion))
    tokens, trace = sample.fill_rows(params, keys, arrays, cfg, plan, size, cfg.group_size)
    counts = loss_mask(tokens, completion, cfg.model.ends, cfg)
    written = trace["step"], trace["logp"], trace["passes"]
    return Rollout(tokens, arrays.valid, completion, counts, *written, np.arange(len(tokens)))


# ---- 2. judge them ---------------------------------------------------------------------------------------------------


def score_rollout(rollout, rows, reward_fns, cfg, tok) -> rewards.Scored:
    """Judge the B completions of N rows, whose fields the rewards read."""
    ids = completion_ids(rollout.tokens, tok, cfg)
    fast = rewards.tokens_per_pass(rollout, cfg)
    found = rewards.score(reward_fns, {}, cfg, tok, rows, ids, cfg.group_size, fast)
    return found._replace(rollout=rollout)


# ---- 3. compare within groups ----------------------------------------------------------------------------------------


def select_completions(found: rewards.Scored, adv, cfg) -> Chosen:
    """Apply the credit of variants and adv_negative to the advantages (N, G), and keep the M completions with the
    largest |advantage|. What `terms` need is computed first, from the advantages as they were."""
    extra = {name: term.of_completions(found, adv, cfg) for name, term in terms(cfg).items() if term.of_completions}
    for section in cfg.use:
        adv = sections.of_shape(section.credit(found, adv, cfg), section.__module__, adv.shape)
    adv, M = np.where(adv < 0, cfg.adv_negative * adv, adv).reshape(-1), config.n_update(cfg)
    everything = Chosen(found.rollout, adv, extra)
    largest = np.argsort(-np.abs(adv), stable=True)[:M]
    return everything if M == adv.size else sharding.take_together(everything, largest)


# ---- 4. draw views, and compute log-probs of the completions on them -------------------------------------------------


@functools.partial(jax.jit, static_argnames="cfg")
def draw_views(key, r: Rollout, cfg) -> diffusion.Views:
    """Draw the masks of one pass over a rollout. Weights and shares are 0 outside the loss."""
    views = diffusion.views(
        key,
        cfg.logp_est,
        r.completion,
        step=r.step,
        n=cfg.logp_views,
        t_range=(cfg.mask_ratio_min, cfg.mask_ratio_max),
        counts=r.counts,
        cfg=cfg.model,
        valid=r.valid,
        use=cfg.use,
    )
    for section in cfg.use:
        views = section.views(key, views, r, cfg)
    return views._replace(weight=views.weight * r.counts[:, None], share=views.share * r.counts)


def as_drawn(r: Rollout, cfg):
    """Make the function say(logits (N, V), tokens (N,), diffusion.Place) -> log p, entropy (N,), under the distribution
    that tokens are drawn from."""
    plan = sample.plan(cfg, cfg.temperature)
    of_entropy = any(term.of_entropy for term in terms(cfg).values())

    def say(logits, x, place):
        for section in cfg.use:
            logits = section.logits(logits, place, r, cfg)
        filters = cfg.top_k or cfg.top_p
        logits = sample.as_drawn(logits, x, plan) if filters else logits / cfg.temperature
        # The gradient of the entropy needs memory: seven arrays of logits.
        bonus = logits if of_entropy else jax.lax.stop_gradient(logits)
        return diffusion.gather_logp(logits, x), diffusion.entropy(bonus)

    return say


def policy_logp(params, r: Rollout, views, cfg):
    """Estimate log p of every token of the completions under params, and the entropy where it was predicted -> two
    (B, L), 0 where no view scores it."""
    masked, weight, _ = views
    start, scored = cfg.max_prompt_len, weight != 0
    logp, entropy = diffusion.view_logp(params, r.tokens, masked, cfg.model, r.valid, start, scored, as_drawn(r, cfg))
    entropy = (weight * entropy).sum(1) / jnp.maximum(weight.sum(1), 1e-6)
    return (weight * logp).sum(1)[:, start:], entropy[:, start:]


@functools.partial(jax.jit, static_argnames="cfg")
def logp_of(params, r: Rollout, views, cfg):
    """Estimate log p of every token (B, L) as `policy_logp` does, by micro-batches of the size that the gradient has:
    in 16 bits, a matrix product of another shape rounds otherwise."""

    def of_part(part):
        return policy_logp(params, *part, cfg)[0]

    params = model.cast(params, cfg.model.dtype)  # once: XLA would convert all matrices for each micro-batch
    logp = jax.lax.map(of_part, sharding.cut((r, views), cfg.gradient_accumulation_steps))
    return sharding.replicate(sharding.joined(logp))


# ---- 5. cut the rollout into minibatches -----------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="cfg")
def new_minibatch(c: Chosen, views, cfg) -> Minibatch:
    """Make a minibatch of all completions of c, without old and reference log-probs."""
    r = c.rollout
    weight = grpo.token_weights(
        cfg.loss_type, r.counts, cfg.max_new_tokens, cfg.gradient_accumulation_steps, cfg.aggregation
    )
    metric_weight = views.share / jnp.maximum(views.share.sum(), 1e-6)
    extra = {name: terms(cfg)[name].of_tokens(values, r, cfg) for name, values in c.extra.items()}

    def after_prompt(a):
        return a[:, cfg.max_prompt_len :]

    loss = grpo.LossBatch(
        adv=c.advantage,
        mask=after_prompt(r.counts),
        weight=after_prompt(weight),
        metric_weight=after_prompt(metric_weight),
        share=after_prompt(views.share),
    )
    return Minibatch(r, views, loss, jax.tree.map(after_prompt, extra))


def minibatches(policy, keys, c: Chosen, cfg, old_logp_of=None):
    """Cut M completions into the minibatches of all passes over them, before any of these is trained on -> [Minibatch].

    keys: for the views, and for the order. Each pass draws new masks and, if it has several minibatches, a new order.
    If the loss has a KL, each minibatch stores the reference's log-probs on its masks; if it has ratios, those of the
    policy before any update (old_logp_of: see Task; None: `logp_of`). The first minibatch is trained on by that very
    policy: it stores nan, for which `grpo.ratios` takes the log-probs of the policy itself, so its ratios are 1."""
    view_key, order_key = keys
    out: list = []
    M, size = len(c.advantage), config.minibatch(cfg)
    old_logp_of = old_logp_of or (lambda b: logp_of(policy.params, b.rollout, b.views, cfg))
    reference = sharding.to_device(policy.reference) if cfg.kl_beta else None
    for n_pass in range(cfg.updates_per_rollout):
        views = draw_views(jax.random.fold_in(view_key, n_pass), c.rollout, cfg)
        order = jax.random.permutation(jax.random.fold_in(order_key, n_pass), M) if size < M else None
        for i in range(0, M, size):
            some, of_some = (c, views) if order is None else sharding.take_together((c, views), order[i : i + size])
            b = new_minibatch(some, of_some, cfg)
            if cfg.kl_beta:
                b = with_logp(b, ref_logp=logp_of(reference, b.rollout, b.views, cfg))
            if config.has_ratios(cfg):
                # An array also in the first: without it JAX would compile a second program for the gradient. In 16 bits
                # the two might round differently.
                b = with_logp(b, old_logp=jnp.full(b.loss.weight.shape, jnp.nan, jnp.float32))
                b = with_logp(b, old_logp=old_logp_of(b)) if out else b
            out.append(b)
    return out


def with_logp(b, **logp):
    """Add log-probs under another policy, old_logp or ref_logp (B, L), to a minibatch."""
    return b._replace(loss=b.loss._replace(**logp))


# ---- 6. the loss -----------------------------------------------------------------------------------------------------


def loss_config(cfg) -> grpo.LossConfig:
    """Take the settings of the loss from a Config."""
    return grpo.LossConfig(
        loss=cfg.loss_type,
        ratio=cfg.ratio_level,
        clip_low=cfg.clip_low,
        clip_high=cfg.clip_high,
        kl_est=cfg.kl_est,
        kl_beta=cfg.kl_beta,
        use=cfg.use,
    )


def policy_loss(params, b: Minibatch, cfg):
    """Compute the loss of a minibatch, or of a micro-batch -> scalar, metrics."""
    logp, entropy = policy_logp(params, b.rollout, b.views, cfg)
    total, metrics = grpo.loss(logp, b.loss, loss_config(cfg))
    metrics["entropy"] = b.loss.mean(entropy)
    # How far the policy that is trained is from the one that sampled: 0 for `trace` with all steps, before any update.
    sampled_logp = b.rollout.logp[:, cfg.max_prompt_len :]
    metrics["behaviour_gap"] = b.loss.mean(jnp.abs(logp - sampled_logp))
    for name, term in terms(cfg).items():
        added, said = term.loss(logp, entropy, b.extra.get(name), b.loss, cfg)
        total += added
        metrics |= said
    return total, metrics | ({"token_logp": logp} if config.old_logp_by_gradient(cfg) else {})


# ---- pretraining -----------------------------------------------------------------------------------------------------


def noise(cfg):
    """Make noise(key, batch) -> diffusion.NoisyBatch for a run, with what its variants change."""
    draw = diffusion.noise
    for section in cfg.use:
        draw = section.noise(draw, cfg)
    return jax.jit(functools.partial(draw, cfg=cfg.model, norm=cfg.loss_norm))


def denoising_loss(cfg):
    """Make the loss of pretraining, params, batch -> scalar, metrics."""
    return functools.partial(diffusion.loss, cfg=cfg.model, start=cfg.max_prompt_len)


# ---- 7. the update ---------------------------------------------------------------------------------------------------


def make_gradient(loss, cfg):
    """Make gradient(params, base, batch) -> the gradient, summed over micro-batches; metrics; and log p of every token
    (B, L) if the loss returns it, else None. base: the frozen parameters of LoRA, or None."""
    A = cfg.gradient_accumulation_steps

    def loss_of_trained(params, base, batch):
        return loss(whole(params, base, cfg), batch)

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
        logp = metrics.pop("token_logp", None)  # (A, B / A, L)
        return grads, combine_metrics(metrics, "sum"), None if logp is None else logp.reshape(-1, logp.shape[-1])

    return gradient


def make_update(loss, tx, cfg, gradient=None):
    """Make update(params, opt_state, average, step, batch, base) -> the first three, updated, and metrics. It
    overwrites the memory of the first three.

    It is one compiled program. If a compiled `gradient` is given (see config.old_logp_by_gradient), it calls that, and
    compiles only what follows."""

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
        out[name] = getattr(values, own if own in ("max", "min") else how)(0)
    return out
