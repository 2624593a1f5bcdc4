"""
Masked diffusion: how texts are masked, and what follows from it.

A share t of the tokens is replaced by the mask token, and the model learns to put them back; t = 0 is clean text, t = 1
is all masks. Two things are made from masked copies of a text: the training loss, and the log-probabilities that
reinforcement learning needs. Masks are drawn before a loss is computed, so a loss is a plain function of parameters and
arrays. To add an estimator of log-probabilities, write one function that returns Views and add it to ESTIMATORS. Models
whose tokens do not all see each other may be masked in another way and have their noisy copies elsewhere: their files
in variants/ add that to NOISES.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

import model
from system import kernels, sections, sharding

# ---- the clock -------------------------------------------------------------------------------------------------------


def strata(key, n):
    """Draw n evenly spaced numbers (n,) in [0, 1) from one random start, wrapping around. Averages over them vary far
    less than over independent numbers."""
    return (jax.random.uniform(key) + jnp.arange(n) / n) % 1.0


def random_count(u, n):
    """Turn random numbers u in [0, 1) into counts, each of 1..n equally likely; n may be 0, the count then is 1."""
    return jnp.maximum(jnp.ceil((1 - u) * n), 1)


def sample_t(key, n):
    """Draw a share of masks for each row: n (B,) tokens that may be masked -> t (B,) in (0, 1], a multiple of 1 / n,
    stratified over the batch.

    `corrupt` masks exactly t * n tokens (LLaDA's likelihood rule, not one coin per token). So every row has a mask, and
    the loss of a model that finds all tokens equally likely is its bound, whatever is drawn."""
    u = strata(key, len(n))
    return random_count(u, n) / jnp.maximum(n, 1)


def random_subset(key, among, count):
    """Draw a uniformly random subset of the positions in `among` (B, T), of size count (B,) -> (B, T) bool."""
    return least_noisy(jax.random.uniform(key, among.shape), among, count)


def least_noisy(noise, among, count):
    """Pick the count (B,) positions in `among` (B, T) with the least noise (B or 1, T) -> (B, T) bool."""
    noise = jnp.where(among, noise, 2.0)
    rank = jnp.argsort(jnp.argsort(noise, 1), 1)
    return among & (rank < count[:, None])


def corrupt(key, x, t, maskable, mask_id):
    """Mask a share t (B,) of the maskable tokens (B, T) of x (B, T) -> z with masks, masked (B, T)."""
    masked = random_subset(key, maskable, jnp.round(t * maskable.sum(1)))
    return jnp.where(masked, mask_id, x), masked


def weight(t):
    """Weigh a masked token in the bound: -alpha'(t) / (1 - alpha(t)) for the schedule alpha(t) = 1 - t (MDLM)."""
    return 1.0 / t


# ---- what the logits say about given tokens --------------------------------------------------------------------------

gather_logp = kernels.token_logp  # logits (..., V), tokens x (...) -> log p of the tokens (...)
entropy = kernels.entropy  # logits (..., V) -> (...) in nats


def read_logits(params, h, cfg, fn, scored, arrays):
    """Apply fn(logits (N, V), *arrays (N,)) to the logits of states h (..., D), and to the arrays, a tuple of (...). fn
    returns (N,), or a tuple of (N,); the result is (...), or a tuple of (...).

    Where the logits of all positions would be too large, chunks are computed one after the other, and again in the
    backward pass. scored (...) bool: unscored positions are sorted last and their chunks skipped; their result may be
    0. (One view of `trace` scores a few tokens of each row.)"""
    params = model.gather_head(params, cfg)
    shape = h.shape[:-1]

    def some(h, *arrays):
        return fn(model.readout(params, h, cfg), *arrays)

    n = max(kernels.LOGITS_BYTES // (4 * cfg.vocab_size), 1)
    h = h.reshape(-1, h.shape[-1])
    flat = [a.reshape(-1) for a in arrays]
    out = kernels.wanted_in_chunks(some, n, scored.reshape(-1), h, *flat)
    return jax.tree.map(functools.partial(jnp.reshape, shape=shape), out)


# ---- the training loss -----------------------------------------------------------------------------------------------


class NoisyBatch(NamedTuple):
    """B texts, each with n noisy copies."""

    x: jax.Array  # (B, T) clean
    z: jax.Array  # (B, n, T) with masks
    weight: jax.Array  # (B, n, T) of each token's -log p in the loss, 0 where it is not masked
    valid: jax.Array | None  # (B, T) False on left padding


def mask_rows(key, x, maskable, valid, cfg):
    """Mask a share of each text, whichever of its tokens -> z with masks, masked (B, T), the share t (B, 1)."""
    t_key, mask_key = jax.random.split(key)
    t = sample_t(t_key, maskable.sum(1))
    z, masked = corrupt(mask_key, x, t, maskable, cfg.mask_id)
    return z, masked, t[:, None]


def states_of_rows(params, x, z, cfg, valid, start):
    """Compute the states of noisy copies, each a row of its own."""
    B, n, T = z.shape
    if valid is not None:
        valid = jnp.repeat(valid, n, 0)
    h = model.hidden(params, z.reshape(B * n, T), cfg, valid, start)
    return h.reshape(B, n, T - start, -1)


def one_part(valid, T, cfg):
    """Say that all tokens are in one part of the text."""
    return jnp.zeros((1, T), int), False


class Noise(NamedTuple):
    """How the texts of a kind of model get their masks. Blocks are masked one by one; a causal model's text stays as it
    is, and all its tokens count."""

    # key, x, maskable, valid (B, T), cfg -> z with masks, masked (B, T), t (B, T or 1): the probability of a mask there
    mask: Callable
    states: Callable = states_of_rows  # params, x, z, cfg, valid, start -> the states of `diffusion.hidden`
    # valid, T, cfg -> for each token (B or 1, T) the number of the part of the text that it is filled with, and True
    # if it is predicted from the parts before that one
    parts: Callable = one_part


NOISES = sections.Table(all=Noise(mask_rows))  # by ModelConfig.mask


def noise_of(cfg):
    """Return the Noise of a ModelConfig. Models with a mask that is not here are masked as rows, too."""
    return NOISES.get(cfg.mask, NOISES["all"])


def draw_masks(key, batch, cfg, norm):
    """Draw the masks of a batch, as `noise` does -> z with masks, masked, t, the weight of each token in the mean."""
    x, maskable, valid = batch[:3]
    n = maskable.sum(1)
    per_token = {
        "token": 1 / jnp.maximum(n.sum(), 1),
        "completion": 1 / jnp.maximum(n, 1)[:, None] / len(n),
    }[norm]
    z, masked, t = noise_of(cfg).mask(key, x, maskable, valid, cfg)
    return z, masked, t, per_token


def noise(key, batch, cfg, norm="token") -> NoisyBatch:
    """Draw the masks of a data.Batch, or of a tuple (tokens, maskable, valid): (B, T) each, valid may be None.

    norm "token": the loss averages over the tokens of the batch (LLaDA's pre-training); "completion": over texts, each
    over its own length (LLaDA's SFT)."""
    z, masked, t, per_token = draw_masks(key, batch, cfg, norm)
    w = masked * weight(t) * per_token
    x, _, valid = batch[:3]
    return NoisyBatch(x, z[:, None], w[:, None], valid)


def in_rows(cfg):
    """True if a noisy copy is a row of its own; those of blocks stand behind their text, in one row."""
    return noise_of(cfg).states is states_of_rows


def hidden(params, x, z, cfg, valid=None, start=0):
    """Compute the states of noisy copies: texts x (B, T), copies z (B, n, T) -> (B, n, T - start, D), [..., i, :]
    about token start + i."""
    return noise_of(cfg).states(params, x, z, cfg, valid, start)


def loss(params: dict, batch: NoisyBatch, cfg, start: int = 0) -> tuple[jax.Array, dict]:
    """Compute the negative ELBO in nats per token, and metrics. Both add up over micro-batches.

    For a uniform model it is log V (V without the mask, which cannot be predicted). start: the first column that can
    be masked; logits are computed from there on."""
    w = batch.weight[..., start:]
    h = hidden(params, batch.x, batch.z, cfg, batch.valid, start)
    targets = jnp.broadcast_to(batch.x[:, None, start:], w.shape)
    logp, hit = read_logits(params, h, cfg, logp_and_hit, w > 0, (targets,))
    nelbo = -jnp.sum(w * logp)
    return nelbo, {"nelbo": nelbo, "hole_acc": jnp.sum(w * hit)}


def logp_and_hit(logits, x):
    """Compute log p of tokens x (N,), and whether each is the likeliest."""
    return gather_logp(logits, x), kernels.likeliest(logits) == x


def likelihood(params, batch, key, cfg, n=8, start=0) -> jax.Array:
    """Bound the log-likelihood of each text (B,) in nats, from n masks each (LLaDA's rule); a causal model's is exact.

    batch: as for `noise`. With one key all rows share their masks, so a text scores the same in any row or padding.
    With keys (B,) each row has its own, and a mean over rows varies less."""
    x, maskable, valid = batch[:3]
    if cfg.causal:
        share = maskable[:, None]
        masked = jnp.zeros_like(share)
    else:
        masked, share = likelihood_masks(key.reshape(-1), maskable, n)

    def logp_alone(logits, x, place):
        return (gather_logp(logits, x),)

    def of_views(masked, scored):
        (logp,) = view_logp(params, x, masked, cfg, valid, start, scored, logp_alone)
        return logp

    def of_one(view):
        masked, scored = view
        return of_views(masked[:, None], scored[:, None])[:, 0]

    scored = share > 0
    if in_rows(cfg):  # one view after the other, so that no more copies than texts are in memory
        by_view = masked.swapaxes(0, 1), scored.swapaxes(0, 1)
        logp = jax.lax.map(of_one, by_view)
        logp = logp.swapaxes(0, 1)
    else:
        logp = of_views(masked, scored)
    return sharding.replicate((share * logp).sum((1, 2)))


def likelihood_masks(keys, maskable, n):
    """Draw n masks of evenly spread sizes for each row: keys (B or 1,), maskable (B, T) -> masked, weight (B, n, T)."""
    L = maskable.sum(1)
    T = maskable.shape[1]

    def uniform(i, *shape):
        return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, i), shape))(keys)

    first = jnp.floor(uniform(n) * L) + 1  # in 1..L; the others follow at distances of L / n

    def one(j):
        # Round halves up. (LLaDA rounds to even: of 3 tokens it masks 1, 1, 2 instead of 1, 2, 3.)
        count = jnp.floor(first + j * L / n + 0.5)
        count = (count - 1) % jnp.maximum(L, 1) + 1
        draws = uniform(j, T)[:, ::-1]  # a token's number depends on its distance from the end, not on padding
        return least_noisy(draws, maskable, count), L / count / n

    masked, w = jax.vmap(one, out_axes=1)(jnp.arange(n))
    return masked, masked * w[..., None]


# ---- log-probability estimators --------------------------------------------------------------------------------------
#
# A view is a copy of the text with some tokens masked. Every estimator of the field is a choice of views:
#
#     logp[i] = sum_k weight[k, i] log p(x_i | x with view k masked)        weight[k, i] = 0 outside view k
#     loss    = sum_i share[i] f(logp[i])
#
# weight is a factor of log p, so it changes ratios and the KL. share is a factor of the whole term that a token adds to
# the loss, and makes up for the views that were not drawn: 0 where no view scores the token, 1 on average. If one step
# of four stands for all, its tokens have weight 1 and share 4: with the 4 in the weight, a ratio of 1.2 would be one of
# 1.2 ** 4. Without a ratio only the product matters. The ratio of a sequence is made from the mean of share * logp,
# which is ESPO's definition.
#
# The current, the old and the reference policy are compared on the same views.


class Views(NamedTuple):
    masked: jax.Array  # (B, K, T) bool
    weight: jax.Array  # (B, K, T) of log p in each view, 0 where the view does not score the token
    share: jax.Array  # (B, T) of each token in the loss, 0 where no view scores it


class EstimatorInputs(NamedTuple):
    """What an estimator may use, besides a key and the tokens of the completion."""

    step: jax.Array | None = None  # (B, T) int, the denoising step that committed a token; -1: given
    n: int = 1  # how many views, where the estimator leaves that open; coupled_elbo: how many pairs of views
    t_range: tuple[float, float] = (0.2, 0.8)  # coupled: the range of t
    counts: jax.Array | None = None  # (B, T) bool, the tokens in the loss; None: the whole completion
    cfg: model.ModelConfig = model.ModelConfig()  # trace: the model that wrote the tokens
    valid: jax.Array | None = None  # (B, T) False on left padding
    use: tuple = ()  # the keys of variants, which Keys.of(inputs) reads


def split_weight(masked, w):
    """Split weights w (B, K, T) of an unbiased sum over views into those of a mean over the views that score a token,
    and that token's share of the loss."""
    share = w.sum(1)
    mean = w / jnp.where(share > 0, share, 1)[:, None]
    return Views(masked, mean, share)


def elbo(key, completion, inputs):
    """LLaDA, MDLM: n views that mask l of the L tokens, l uniform in 1..L; each masked token counts L / (n l)."""
    L, u, mask_key = mask_counts(key, completion, inputs.n)
    count = random_count(u, L)
    masked = random_subsets(mask_key, completion, count)
    each = L / (inputs.n * count)
    return split_weight(masked, masked * each[..., None])


def coupled_elbo(key, completion, inputs):
    """ESPO: n views that mask l of the L tokens, l uniform in 0..L, and their n complements, so that each pair of views
    scores every token once."""
    L, u, mask_key = mask_counts(key, completion, inputs.n)
    count = jnp.floor(u * (L + 1))
    masked = random_subsets(mask_key, completion, count)
    masked = jnp.concatenate([masked, completion[:, None] & ~masked], 1)
    count = jnp.concatenate([count, L - count], 1)
    each = (L + 1) / (2 * inputs.n * jnp.maximum(count, 1))
    return split_weight(masked, masked * each[..., None])


def mask_counts(key, completion, n):
    """Draw what both ELBO estimators use -> L (B, 1), u (B, n) stratified over all views, a key for the masks."""
    t_key, mask_key = jax.random.split(key)
    u = strata(t_key, n * len(completion)).reshape(n, -1).T
    return completion.sum(1, keepdims=True), u, mask_key


def random_subsets(key, among, counts):
    """Draw a `random_subset` for each of n views: counts (B, n) -> (B, n, T) bool."""
    keys = jax.random.split(key, counts.shape[1])
    subsets = [random_subset(key, among, count) for key, count in zip(keys, counts.T, strict=True)]
    return jnp.stack(subsets, 1)


ESTIMATORS = sections.Table(elbo=elbo, coupled_elbo=coupled_elbo)


def views(key: jax.Array, name: str, completion: jax.Array, **inputs) -> Views:
    """Draw the views of the estimator of this name. completion (B, T): True on the tokens that the model wrote; inputs:
    fields of EstimatorInputs."""
    sections.require("logp_est", name, ESTIMATORS)
    estimator = ESTIMATORS[name]
    masked, w, share = estimator(key, completion, EstimatorInputs(**inputs))
    return Views(masked, w.astype(jnp.float32), share.astype(jnp.float32))


# ---- log-probabilities of views --------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where each of N tokens was predicted."""

    row: jax.Array  # (N,) which text
    column: jax.Array  # (N,) which token of it
    z: jax.Array  # (N, T) the noisy copy that the model saw


def logp_and_entropy(logits, x, place):
    return gather_logp(logits, x), entropy(logits)


def view_logp(params, x, masked, cfg, valid=None, start=0, scored=None, say=logp_and_entropy):
    """Compute log p of every token in every noisy copy, and the entropy there: x (B, T), masked (B, K, T) -> two
    (B, K, T), 0 before column `start`.

    scored (B, K, T): where you use the result; elsewhere it may be 0 (None: you use all).
    say(logits (N, V), x (N,), Place) -> a tuple of (N,): what to compute from logits, if not log p and entropy."""
    scored = jnp.ones_like(masked) if scored is None else scored
    text = jnp.broadcast_to(x[:, None], masked.shape)
    z = text if cfg.mask_id is None else jnp.where(masked, cfg.mask_id, text)
    h = hidden(params, x, z, cfg, valid, start)

    def at_place(logits, token, i, k, column):
        return say(logits, token, Place(i, column + start, z[i, k]))

    place = jnp.indices(h.shape[:-1])
    arrays = text[..., start:], *place
    found = read_logits(params, h, cfg, at_place, scored[..., start:], arrays)
    prompt = (0, 0), (0, 0), (start, 0)
    return tuple(jnp.pad(of_completion, prompt) for of_completion in found)
