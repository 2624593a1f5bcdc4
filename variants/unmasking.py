"""
A learned order: a small policy decides which masks to fill, and GRPO trains it, while the denoiser stays as it is.

This is the idea of 2512.09106 and UPO (2510.05725). At each step the policy looks at every position that is still
masked and says how probable it is that this one is filled now. For each of them a coin is thrown; if none says yes, the
most probable one is filled. So the policy decides which tokens come first and how many come at a time, and a reward for
few passes (`passes`) teaches it speed.

    python train.py config/sudoku_order.py

`rule="learned"` samples by such a policy. `logp_est="decisions"` trains it: the log-probabilities that GRPO makes
likelier or less likely are then those of the coins, not of the tokens, and all of its losses and ratios serve as they
are. The policy starts as the rule `threshold` with 0.9, made soft: a token that the denoiser finds 90% probable is
filled with probability 1/2.

What is read: the denoiser's state at the position, the probability of its likeliest token, the entropy, how many masks
are left, and, by one layer of attention, the same of the other masks. 2512.09106 reads probabilities alone.

Shapes: B texts, L positions, D width of the denoiser, W width of the policy.
"""
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import diffusion
import model
from system import disk, hosts, kernels

NAME = "unmasking"  # of the policy among the params of a model, and of its file in a folder
FILE = f"{NAME}.safetensors"
WIDTH = 32
START = 0.9  # a token this probable is filled with probability 1/2, before training
SHARPNESS = 4.0  # of that start: the log-odds of a coin are so many times those of the token, less those of START
FACTS = 3


def init(key: jax.Array, D: int) -> dict:
    """Draw a new policy for a denoiser of width D."""
    shapes = {"read_state": (D, WIDTH), "read_facts": (FACTS, WIDTH), "query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH)}
    shapes |= {"value": (WIDTH, WIDTH)}
    keys = jax.random.split(key, len(shapes))
    drawn = {
        name: jax.random.normal(leaf_key, shape) * shape[0] ** -0.5
        for leaf_key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    only_probability = jnp.zeros(FACTS).at[0].set(SHARPNESS)
    limit = SHARPNESS * log_odds(START)
    return drawn | {"decide": jnp.zeros(WIDTH), "decide_by_facts": only_probability, "limit": limit}


def with_policy(params: dict, key: jax.Array, cfg: Any) -> dict:
    """Add a new policy to the params of a denoiser that has none, if a run samples by one."""
    if cfg.rule != "learned" or NAME in params:
        return params
    return params | {NAME: init(key, cfg.model.d_model)}


def policy_of(params: dict) -> dict:
    """Return the policy in the params of a model, or say that there is none."""
    if NAME not in params:
        raise ValueError(
            "rule='learned': this model has no policy that says which masks to fill; a run with rule='learned' and "
            "logp_est='decisions' trains one, as in config/sudoku_order.py"
        )
    return params[NAME]


def log_odds(p):
    """Return log p / (1 - p), for p up to 1."""
    p = jnp.clip(p, 1e-6, 1 - 1e-6)
    return jnp.log(p) - jnp.log1p(-p)


def willingness(w: dict, h, confidence, entropy, masked):
    """Say how willing the policy w is to fill each mask now -> (B, L), the log-odds of its coins.

    h (B, L, D): states; confidence, entropy (B, L): of what the denoiser would write; masked (B, L): where it may."""
    left = jnp.maximum(masked.sum(1, keepdims=True), 1)
    facts = jnp.stack([log_odds(confidence), entropy, jnp.broadcast_to(jnp.log(left), entropy.shape)], -1)
    x = h.astype(jnp.float32) @ w["read_state"] + facts @ w["read_facts"]  # (B, L, W)
    dots = jnp.einsum("blw,bmw->blm", x @ w["query"], x @ w["key"]) * WIDTH**-0.5
    mix = jax.nn.softmax(jnp.where(masked[:, None], dots, kernels.NEVER), -1)
    x += mix @ (x @ w["value"])
    return jax.nn.gelu(x) @ w["decide"] + facts @ w["decide_by_facts"] - w["limit"]


def most_willing(odds, masked):
    """Find the one mask of each row that is filled if no coin says yes -> (B, L) bool."""
    best = jnp.argmax(jnp.where(masked, odds, -jnp.inf), 1)
    return masked & (jnp.arange(odds.shape[1]) == best[:, None])


def choose(params: dict, h, keys, block: Any, plan: Any):
    """Say where a token is to stand after this step (B, L). block: a sample.Block; keys (B * L,) for the coins; h (B /
    group, L, D): the denoiser's states, where so many consecutive rows are identical.

    At temperature 0 no coins are thrown: what the policy fills with at least plan.threshold probability is filled."""
    B, L = block.masked.shape
    h = jnp.repeat(h, B // len(h), 0)
    odds = willingness(policy_of(params), h, block.confidence, block.entropy, block.masked)
    p = jax.nn.sigmoid(odds)
    coins = jax.vmap(jax.random.uniform)(keys).reshape(B, L)
    yes = block.masked & (coins < p if plan.temperature else p >= plan.threshold)
    none = ~yes.any(1, keepdims=True)
    return ~block.masked | yes | none & most_willing(odds, block.masked)


def log_probs_of_step(odds, masked, filled):
    """Return the log-probs (B, L) of the decisions of one step: log-odds, which masks there were and which were filled.

    If only the most willing one was filled, either its coin alone said yes, or none did. Together these two have the
    probability that all others said no, so its own decision has log-prob 0."""
    logp = jnp.where(filled, jax.nn.log_sigmoid(odds), jax.nn.log_sigmoid(-odds))
    alone = filled.sum(1, keepdims=True) == 1
    sure = alone & filled & most_willing(odds, masked)
    return jnp.where(masked & ~sure, logp, 0)


def entropy_of_coins(odds):
    """Return the entropy of coins in nats."""
    return jax.nn.softplus(odds) - odds * jax.nn.sigmoid(odds)


def log_probs(params: dict, r: Any, cfg: Any):
    """Compute the log-prob of all decisions about each token of a Rollout, and the mean entropy of its coins -> two
    (B, T). The sum over the tokens of a completion is the log-prob of its order.

    One forward pass per step of the rollout, without a gradient: only the policy has one."""
    start, frozen = cfg.max_prompt_len, jax.lax.stop_gradient(params)
    policy = policy_of(params)

    def sure_and_entropy(logits):
        _, total = kernels.peak_and_sum(logits)
        return 1 / total, diffusion.entropy(logits)

    def look(masked, filled):
        z = jnp.where(masked, cfg.model.mask_id, r.tokens)
        h = model.hidden(frozen, z, cfg.model, r.valid, start)
        masked, filled = masked[:, start:], filled[:, start:]
        read = jax.lax.stop_gradient(diffusion.read_logits(frozen, h, cfg.model, sure_and_entropy, masked, ()))
        odds = willingness(policy, h, *read, masked)
        return log_probs_of_step(odds, masked, filled), jnp.where(masked, entropy_of_coins(odds), 0)

    def nothing(masked, filled):
        zero = jnp.zeros(masked[:, start:].shape)
        return zero, zero

    def at_step(step):
        masked, filled = r.completion & (r.step >= step), r.completion & (r.step == step)
        return jax.lax.cond(masked.any(), look, nothing, masked, filled)

    logp, entropy = jax.lax.map(at_step, jnp.arange(cfg.max_new_tokens))
    decisions = jnp.where(r.completion, r.step + 1, 1)[:, start:]  # how many steps a token waited for, its own included

    def whole(a):
        return jnp.pad(a, ((0, 0), (start, 0)))

    return whole(logp.sum(0)), whole(entropy.sum(0) / decisions)


# ---- in a folder, beside the denoiser --------------------------------------------------------------------------------


def files(params: dict) -> dict:
    """Make the file of the policy, as `disk.write_files` takes it; {} if there is none."""
    stored = [disk.Stored(name, x, functools.partial(hosts.gather, x)) for name, x in params.get(NAME, {}).items()]
    return {FILE: stored} if stored else {}


def read(folder: str) -> dict:
    """Read the policy of a folder -> {} or {"unmasking": its params}."""
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        return {}
    return {NAME: {name: jnp.asarray(np.asarray(f.get_tensor(name))) for name, f in disk.open_tensors(path).items()}}
