"""
A learned order: a small policy decides which masks to fill, and GRPO trains it, while the denoiser stays as it is.

This is the idea of 2512.09106. (UPO, 2510.05725, learns an order, too, one mask at a time.) At each step the policy
looks at every mask and says how probable it is that this one is filled now. For each of them a coin is thrown; if none
says yes, the mask with the largest probability is filled. So the policy decides which tokens come first and how many
come at a time, and a reward for few passes (`passes`) teaches it speed.

    python train.py config/sudoku_order.py

`rule="learned"` samples by such a policy. `logp_est="decisions"` trains it: the log-probabilities that GRPO makes
likelier or less likely are then those of the coins, not of the tokens, and all of its losses and ratios serve as they
are. The policy starts as the rule `threshold` with 0.9, made soft: a token that the denoiser finds 90% probable is
filled with probability 1/2.

What the policy reads: the denoiser's state at the mask, the log-odds of its likeliest token, the entropy, the log of
the number of masks, and, by one layer of attention, the same of the other masks. 2512.09106 reads probabilities alone.

Shapes: B texts of T columns, the last L of which may be filled; D width of the denoiser, W = WIDTH that of the policy.
"""
from typing import Any

import jax
import jax.numpy as jnp

import diffusion
import model
from system import kernels

NAME = "unmasking"  # the key of the policy in the params of a model, and the name of its file in a folder
WIDTH = 32
START = 0.9  # a token this probable is filled with probability 1/2, before training
SHARPNESS = 4.0  # before training, log-odds of a coin = SHARPNESS * (log-odds of the token - log-odds of START)
FACTS = 3  # log-odds of the likeliest token, entropy, log of the number of masks


def init(key: jax.Array, D: int) -> dict:
    """Draw a policy for a denoiser of width D -> its params. It starts as the rule `threshold` with START, made soft:
    `decide` is 0, so what is random has no effect yet."""
    shapes = {"read_state": (D, WIDTH), "read_facts": (FACTS, WIDTH)}
    shapes |= dict.fromkeys(("query", "key", "value"), (WIDTH, WIDTH))
    keys = jax.random.split(key, len(shapes))
    w = {}
    for leaf_key, (name, shape) in zip(keys, shapes.items(), strict=True):
        w[name] = jax.random.normal(leaf_key, shape) * shape[0] ** -0.5
    w["decide"] = jnp.zeros(WIDTH)
    w["decide_by_facts"] = jnp.zeros(FACTS).at[0].set(SHARPNESS)  # only by the probability
    w["limit"] = SHARPNESS * log_odds(START)
    return w


def with_policy(params: dict, key: jax.Array, cfg: Any) -> dict:
    """Add a new policy to the params of a denoiser that has none, if the run of this Config samples by one."""
    if cfg.rule != "learned" or NAME in params:
        return params
    return params | {NAME: init(key, cfg.model.d_model)}


def policy_of(params: dict) -> dict:
    """Return the part of a model's params that decides which masks to fill; ValueError if it has none."""
    if NAME not in params:
        raise ValueError(
            "rule='learned': this model has no policy that says which masks to fill; a run with rule='learned' and "
            "logp_est='decisions' trains one, as in config/sudoku_order.py"
        )
    return params[NAME]


def log_odds(p):
    """Return log(p / (1 - p)), with p kept between 1e-6 and 1 - 1e-6, so that p = 1 has finite ones, too."""
    p = jnp.clip(p, 1e-6, 1 - 1e-6)
    return jnp.log(p) - jnp.log1p(-p)


def willingness(w: dict, h, confidence, entropy, masked):
    """Say how willing the policy w is to fill each mask now -> (B, L), the log-odds of the coins.

    h (B, L, D): the denoiser's states; confidence, entropy (B, L): the probability of its likeliest token, and the
    entropy; masked (B, L): True on masks. At other positions the result means nothing."""
    left = jnp.maximum(masked.sum(1, keepdims=True), 1)
    log_left = jnp.broadcast_to(jnp.log(left), entropy.shape)
    facts = jnp.stack([log_odds(confidence), entropy, log_left], -1)
    h = h.astype(jnp.float32)
    x = h @ w["read_state"] + facts @ w["read_facts"]  # (B, L, W)
    query, key = x @ w["query"], x @ w["key"]
    dots = jnp.einsum("blw,bmw->blm", query, key) * WIDTH**-0.5
    dots = jnp.where(masked[:, None], dots, kernels.NEVER)
    x += jax.nn.softmax(dots, -1) @ (x @ w["value"])
    odds = jax.nn.gelu(x) @ w["decide"] + facts @ w["decide_by_facts"]
    return odds - w["limit"]


def most_willing(odds, masked):
    """Find the mask of each row with the largest log-odds, rounded so that sampling and scoring find the same one ->
    (B, L) bool. It is filled if no coin says yes."""
    rounded = jax.lax.reduce_precision(odds, exponent_bits=8, mantissa_bits=12)
    rounded = jnp.where(masked, rounded, -jnp.inf)
    best = jnp.argmax(rounded, 1)
    return masked & (jnp.arange(odds.shape[1]) == best[:, None])


def choose(params: dict, h, keys, block: Any, plan: Any):
    """Decide one step -> (B, L), True where a token stands after it.

    params: of the whole model. h (B / group, L, D): the denoiser's states, one row for each group of identical rows.
    keys (B * L,): for the coins. block: a sample.Block. At temperature 0 there are no coins: a mask is filled if its
    probability of being filled is at least plan.threshold. If that leaves none, the most willing one is filled."""
    B, L = block.masked.shape
    h = jnp.repeat(h, B // len(h), 0)
    odds = willingness(policy_of(params), h, block.confidence, block.entropy, block.masked)
    p = jax.nn.sigmoid(odds)
    coins = jax.vmap(jax.random.uniform)(keys).reshape(B, L)
    heads = coins < p if plan.temperature else p >= plan.threshold
    yes = block.masked & heads
    none = ~yes.any(1, keepdims=True)
    return ~block.masked | yes | none & most_willing(odds, block.masked)


def log_probs_of_step(odds, masked, filled):
    """Compute the log-prob of each mask's decision in one step -> (B, L), 0 where there was no mask.

    odds (B, L): the log-odds of the coins; masked, filled (B, L) bool: the masks there were, and those it filled.
    If only the most willing one was filled, either its coin alone said yes, or none did. Together these two have the
    probability that all others said no, so its own decision has log-prob 0."""
    yes, no = jax.nn.log_sigmoid(odds), jax.nn.log_sigmoid(-odds)
    logp = jnp.where(filled, yes, no)
    alone = filled.sum(1, keepdims=True) == 1
    sure = alone & filled & most_willing(odds, masked)
    return jnp.where(masked & ~sure, logp, 0)


def entropy_of_coins(odds):
    """Return the entropy of coins in nats, from their log-odds (...) -> (...)."""
    return jax.nn.softplus(odds) - odds * jax.nn.sigmoid(odds)


def log_probs(params: dict, r: Any, cfg: Any):
    """Compute the log-prob of all decisions about each token of a Rollout (all its "no", then its "yes"), and the mean
    entropy of its coins -> two (B, T), 0 on the prompt. The sum over a completion is the log-prob of its order.

    The denoiser reads the text before each step once more, without a gradient; only the policy's few layers have
    one."""
    start = cfg.max_prompt_len
    frozen = jax.lax.stop_gradient(params)
    policy = policy_of(params)

    def confidence_and_entropy(logits):
        _, total = kernels.peak_and_sum(logits)
        return 1 / total, diffusion.entropy(logits)

    def look(masked, filled):
        z = jnp.where(masked, cfg.model.mask_id, r.tokens)
        h = model.hidden(frozen, z, cfg.model, r.valid, start)
        masked, filled = masked[:, start:], filled[:, start:]
        read = diffusion.read_logits(frozen, h, cfg.model, confidence_and_entropy, masked, ())
        confidence, entropy = jax.lax.stop_gradient(read)
        odds = willingness(policy, h, confidence, entropy, masked)
        logp = log_probs_of_step(odds, masked, filled)
        return logp, jnp.where(masked, entropy_of_coins(odds), 0)

    def nothing(masked, filled):
        zero = jnp.zeros(masked[:, start:].shape)
        return zero, zero

    def at_step(step):
        masked = r.completion & (r.step >= step)
        filled = r.completion & (r.step == step)
        return jax.lax.cond(masked.any(), look, nothing, masked, filled)

    steps = jnp.arange(cfg.max_new_tokens)
    logp, entropy = jax.lax.map(at_step, steps)
    decisions = jnp.where(r.completion, r.step + 1, 1)[:, start:]  # all "no" about a token, and its "yes"

    def whole(a):
        return jnp.pad(a, ((0, 0), (start, 0)))

    return whole(logp.sum(0)), whole(entropy.sum(0) / decisions)
