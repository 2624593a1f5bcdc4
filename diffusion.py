"""
Masked diffusion: a share t of the tokens is replaced by the mask, and the model learns to put them back. t = 0 is clean
text, t = 1 all holes. This is the only file that knows what t means and which tokens are masked when.

Two things are made from masked copies of a text: the training loss, and the likelihoods that reinforcement learning
needs. Noise is data: it is drawn before a loss is called, so a loss is a plain function of params and arrays.
"""
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

import model
from machine import kernels, mesh

# ---- the clock -------------------------------------------------------------------------------------------------------

def strata(key, n):
    """-> (n,) uniform numbers in [0, 1), one in each n-th of it, in cyclic order: averages over them vary far less."""
    return (jax.random.uniform(key) + jnp.arange(n) / n) % 1.0


def sample_t(key, n):
    """n (B,), how many tokens may be masked -> t (B,) in (0, 1], a multiple of 1/n, stratified over the batch.

    As `corrupt` masks exactly t * n tokens (LLaDA's likelihood rule, not a coin for each), the bound below is exact
    on a uniform model for every draw, and no row comes out without a hole.
    """
    return jnp.maximum(jnp.ceil((1 - strata(key, len(n))) * n), 1) / jnp.maximum(n, 1)


def subset(key, among, count):
    """among (B, T) bool, count (B,) -> (B, T) bool: that many of those positions, each as likely as any other."""
    return least(jax.random.uniform(key, among.shape), among, count)


def least(noise, among, count, block=None):
    """noise (B or 1, T), among (B, T) bool, count (B,) -> (B, T) bool: that many of those, the least noisy. With the
    number of each token's block (B, T): of each block, count (B, T)."""
    noise = jnp.where(among, noise, 2.0)
    if block is not None:
        return among & (within(block, noise[:, None] < noise[..., None]) < count)
    return among & (jnp.argsort(jnp.argsort(noise, 1), 1) < count[:, None])


def within(block, related):
    """block (B, T), related (B, T or 1, T) -> (B, T): how many tokens of its own block are related to each."""
    return ((block[:, None] == block[..., None]) & related).sum(-1)


def blocks(valid, T, cfg):
    """valid (B, T) or None -> the number (B or 1, T) of the block that each token is in; None where there are none."""
    return None if cfg.block_causal is None else model.positions_of(valid, T) // cfg.block_causal


def read_from_text(valid, T, cfg):
    """valid (B, T) or None -> (B or 1, T) True at the tokens that a shifted block model reads from the text before
    their block: the first of each block but the text's own first. None for other models."""
    if cfg.block_causal is None or not cfg.shift:
        return None
    at = model.positions_of(valid, T)
    return (at > 0) & (at % cfg.block_causal == 0)


def corrupt(key, x, t, maskable, mask_id):
    """x (B, T), t (B,), maskable (B, T) -> z (B, T) with holes, hole (B, T)."""
    hole = subset(key, maskable, jnp.round(t * maskable.sum(1)))
    return jnp.where(hole, mask_id, x), hole


def corrupt_blocks(k_t, k_mask, x, maskable, valid, cfg):
    """As `sample_t` and `corrupt`, each block by itself -> z, hole, t (B, T). Of blocks of 1 all is masked, so that the
    bound is the likelihood itself; with a t for a row it would only be so on average."""
    B, T = x.shape
    block, of_row = jnp.broadcast_to(blocks(valid, T, cfg), x.shape), -(-T // cfg.block_causal)
    n = within(block, maskable[:, None])
    u = strata(k_t, B * of_row)[jnp.arange(B)[:, None] * of_row + block]
    t = jnp.maximum(jnp.ceil((1 - u) * n), 1) / jnp.maximum(n, 1)
    hole = least(jax.random.uniform(k_mask, x.shape), maskable, jnp.round(t * n), block)
    return jnp.where(hole, cfg.mask_id, x), hole, t


def weight(t):
    """-alpha'(t) / (1 - alpha(t)) of the linear schedule alpha(t) = 1 - t: the weight of a hole in the bound (MDLM)."""
    return 1.0 / t


# ---- what the logits say of given tokens -----------------------------------------------------------------------------


# Bytes of logits at a time: at 152,000 ids 220 positions. Far fewer, and the head is read and its gradient written for
# too little; more, and of a gradient with entropy seven such arrays are there at once.
LOGITS = 2**27


def gather_logp(logits, x):
    """logits (..., V), x (...) -> log p(x) (...)."""
    chosen = jnp.take_along_axis(logits, x[..., None], -1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, -1)


def entropy(logits):
    """logits (..., V) -> (...), in nats."""
    total = jax.nn.logsumexp(logits, -1)
    return total - jnp.sum(jnp.exp(logits - total[..., None]) * logits, -1)  # an array less than of softmax


def read(params, h, x, cfg, say, scored, *more):
    """h (B, T, D) of model.features, x, scored and more (B, T) -> say(logits (..., V), x (...), *more), (B, T) or a
    tuple of them.

    Logits of all positions are made only where they fit into LOGITS. Else chunks of positions are read one after the
    other, and again in the backward pass, so that (B, T, V) never exists. What is not scored comes last, in chunks
    that are skipped: one view of `trace` scores a few tokens of a row. Of what is not scored the result may be 0.
    """
    params = model.at_hand(params, cfg)
    some = lambda h, x, *more: say(model.readout(params, h, cfg), x, *more)
    n = max(LOGITS // (4 * cfg.vocab_size), 1)
    if x.size <= n:
        return some(h, x, *more)
    out = in_chunks(some, n, scored.reshape(-1), h.reshape(-1, h.shape[-1]), *(a.reshape(-1) for a in (x, *more)))
    return jax.tree.map(lambda a: a.reshape(x.shape), out)


def in_chunks(fn, n, wanted, *arrays):
    """fn of arrays (N, ...) -> (N,) or a tuple of them, n of the N at a time; 0 in chunks without any `wanted` (N,)."""
    if len(wanted) <= n:
        return fn(*arrays)
    order = jnp.argsort(~wanted)
    cut = lambda a: jnp.pad(a[order], [(0, -len(order) % n)] + [(0, 0)] * (a.ndim - 1)).reshape(-1, n, *a.shape[1:])
    parts = [cut(a) for a in arrays]
    empty = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(fn, *(a[0] for a in parts)))

    @jax.checkpoint
    def chunk(part):
        i, *part = part
        return jax.lax.cond(i * n < wanted.sum(), fn, lambda *_: empty, *part)

    out = jax.lax.map(chunk, (jnp.arange(len(parts[0])), *parts))
    back = jnp.argsort(order)
    return jax.tree.map(lambda a: a.reshape(-1)[back], out)


# ---- the loss --------------------------------------------------------------------------------------------------------

def noise(key, batch, cfg, norm="token", paired=False):
    """batch of tokens (B, T), hole (B, T) True where a token may be masked, valid -> what `loss` takes.

    norm "token": the loss is a mean over the tokens of the batch (LLaDA's pre-training); "completion": over its rows,
    each by its own length (LLaDA's SFT). paired: every row twice, with complementary masks that together cover every
    token: at the same number of forward passes loss and gradient vary less. Of a causal model nothing is masked: it
    has not seen the token that it predicts. Of a block model, x has every text once, and z its pair in a row.
    """
    x, maskable = batch["tokens"], batch["hole"]
    n = maskable.sum(1)
    mean = lambda w: w / jnp.maximum(n.sum(), 1) if norm == "token" else w / jnp.maximum(n, 1)[:, None] / len(x)
    if cfg.causal:
        return {"x": x, "z": x, "weight": mean(maskable), "valid": batch["valid"]}
    k_t, k_mask = jax.random.split(key)
    if cfg.block_causal:
        z, hole, t = corrupt_blocks(k_t, k_mask, x, maskable, batch["valid"], cfg)
    else:
        t = sample_t(k_t, n)
        z, hole = corrupt(k_mask, x, t, maskable, cfg.mask_id)
        t = t[:, None]
    w = mean(hole * weight(t))
    if not paired:
        return {"x": x, "z": z, "weight": w, "valid": batch["valid"]}
    # A pair has ratios t and 1 - t and half a vote for each; but t = 1 has no other half, and keeps its full vote.
    # Every ratio then counts as before: the bound has no bias and stays exact on a uniform model.
    alone = t == 1
    other = maskable & ~hole
    w_other = mean(weight(t)) * (t / jnp.where(alone, 1, 1 - t)) * other
    both = lambda a, b: jnp.stack([a, b], 1 if cfg.block_causal else 0).reshape(-1, x.shape[1])
    twice = lambda a: None if a is None else both(a, a)
    return {"x": x if cfg.block_causal else twice(x), "z": both(z, jnp.where(other, cfg.mask_id, x)),
            "valid": twice(batch["valid"]), "weight": both(jnp.where(alone, w, w / 2), w_other / 2)}


def loss(params, batch, cfg, start=0):
    """x, z, weight (B, T), valid of `noise` -> the negative ELBO in nats per token, metrics. Only holes weigh anything.

    Of a uniform model it is log V (of the V tokens that can be predicted: the mask cannot). `start`: the first column
    that can be a hole; logits are computed from there on. Loss and metrics add up over parts of a batch.
    """
    x, z = batch["x"], batch["z"]
    h = model.features(params, z, cfg, batch["valid"], start, clean=x if cfg.block_causal else None)
    x, w = jnp.repeat(x, len(z) // len(x), 0)[:, start:], batch["weight"][:, start:]
    say = lambda logits, x: (gather_logp(logits, x), kernels.likeliest(logits) == x)
    logp, hit = read(params, h, x, cfg, say, w > 0)
    nelbo = -jnp.sum(w * logp)
    return nelbo, {"nelbo": nelbo, "hole_acc": jnp.sum(w * hit)}


def likelihood(params, batch, key, cfg, n=8, start=0):
    """batch as for `noise` -> log-likelihood bound of every row (B,) in nats, from n masks each (LLaDA's rule); of a
    causal model no bound, the log-likelihood. A key is for all rows: the same text has the same masks in each of them,
    and behind any padding. With keys (B,) rows have their own, and a mean over them varies less."""
    x, maskable = batch["tokens"], batch["hole"]
    if cfg.causal:
        h = model.features(params, x, cfg, batch["valid"], start)
        logp = read(params, h, x[:, start:], cfg, gather_logp, maskable[:, start:])
        return mesh.replicate(jnp.sum(maskable[:, start:] * logp, 1))
    L = maskable.sum(1)
    keys = key[None] if key.ndim == 0 else key  # (1 or B,)
    uniform = lambda i, *shape: jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, i), shape))(keys)
    first = jnp.floor(uniform(n) * L) + 1  # in 1..L; the others follow at distances of L / n

    def masked(j):
        # Halves go up: LLaDA's round takes them to even counts, of 3 tokens 1, 1 and 2 are masked instead of 1, 2, 3.
        count = (jnp.floor(first + j * L / n + 0.5) - 1) % jnp.maximum(L, 1) + 1
        draws = uniform(j, x.shape[1])[:, ::-1]  # a number depends on its place from the end
        return least(draws, maskable, count), L / count

    M, w = jax.vmap(masked)(jnp.arange(n))  # (n, B, T), (n, B)
    chunk = None if cfg.block_causal else len(x)  # one clean copy of a text serves all, or a mask after the other
    logp = view_logp(params, x, M, cfg, batch["valid"], start, chunk, scored=M)[0]
    return mesh.replicate(((M * logp).sum(2) * w).mean(0))


# ---- likelihood estimators: views and weights ------------------------------------------------------------------------
#
# A view k is the text with the positions M_k masked, and every estimator of the field is a choice of M, w and s in
#
#     token_logp[i] = sum_k w_k[i] log p(x_i | x with M_k masked),        w_k[i] = 0 outside M_k
#     sum_i s[i] f(token_logp[i])                                         instead of sum_i f(token_logp[i])
#
# w is what multiplies log p: ratios, KL and the gap to the rollout see it. s is the token's share of the loss: how
# often it counts because of what was drawn, 0 where no view scores it, 1 on average. A step of four that stands for all
# of them has w = 1 and s = 4: with the 4 in w, a ratio of 1.2 would be one of 1.2 ** 4. Without a ratio only their
# product matters; and the ratio of a sequence is made of the mean of s * token_logp, which is ESPO's definition.
# (`exact` masks nothing: a causal model has not seen token i when it predicts it. And a shifted block model reads the
# first token of a block from the text before it, so `trace` scores that token in a view that does not mask it.)
# Same key, same masks: the current, the old and the reference model are compared on equal views.


def apart(M, w):
    """M, w (K, B, T), a sum over views that is right on average -> M, w of a mean over the views that score a token,
    and s (B, T), what it was multiplied with."""
    s = w.sum(0)
    return M, w / jnp.where(s > 0, s, 1), s


class Choice(NamedTuple):
    order: jax.Array | None  # (B, T) int, the step at which a token was committed; -1 = given
    n: int  # how many views, where the estimator leaves that open
    ratio: tuple[float, float]  # coupled: the range of t
    p_mask_prompt: float  # one_step: the probability that a prompt token is masked, too
    prompt: jax.Array | None  # (B, T) True at the tokens of the prompt
    block: jax.Array | None  # (B or 1, T) the number of each token's block, in a block model
    counts: jax.Array  # (B, T) True at the tokens of the loss: some of the holes
    from_text: jax.Array | None  # (B or 1, T) True where a shifted block model reads a token from the text before


def one_step(key, hole, c):
    """d1: every hole at once, so tokens are independent given the prompt, of which some tokens are hidden as well."""
    M = hole
    if c.p_mask_prompt:
        M = hole | c.prompt & (jax.random.uniform(key, hole.shape) < c.p_mask_prompt)
    return M[None], hole[None], hole


def coupled(key, hole, c):
    """DiffuCoder: everything; a random half M of ratio t; its complement. The weights are part of its log p by
    definition (Eq. 7 with lambda = 1) and sum to 1.5 on average, which stretches ratios and KL by as much."""
    k_t, k_mask = jax.random.split(key)
    low, high = c.ratio
    t = (low + (high - low) * strata(k_t, len(hole)))[:, None]
    half = hole & (jax.random.uniform(k_mask, hole.shape) < t)
    other = hole & ~half
    return jnp.stack([hole, half, other]), jnp.stack([hole / 2, half / (2 * t), other / (2 * (1 - t))]), hole


def counted(key, hole, n):
    """-> L (B,), u (n, B) stratified over all views, keys: what both ELBO estimators count with."""
    k_t, k_mask = jax.random.split(key)
    return hole.sum(1), strata(k_t, n * len(hole)).reshape(n, -1), jax.random.split(k_mask, n)


def elbo(key, hole, c):
    """LLaDA, MDLM: n views in which l of the L tokens are masked, l uniform in 1..L, each hole weighing L / l. That
    bounds the sum; a token that one of four views masked has a log p, not L / 4l of one."""
    L, u, keys = counted(key, hole, c.n)
    l = jnp.maximum(jnp.ceil((1 - u) * L), 1)
    M = jnp.stack([subset(keys[k], hole, l[k]) for k in range(c.n)])
    return apart(M, M * (L / (c.n * l))[..., None])


def coupled_elbo(key, hole, c):
    """ESPO: l uniform in 0..L, and the complement beside it: every token is scored once in each pair."""
    L, u, keys = counted(key, hole, c.n)
    l = jnp.floor(u * (L + 1))
    M = jnp.stack([subset(keys[k], hole, l[k]) for k in range(c.n)])
    w = lambda M, count: M * ((L + 1) / (2 * c.n * jnp.maximum(count, 1)))[..., None]
    return apart(jnp.concatenate([M, hole & ~M]), jnp.concatenate([w(M, l), w(hole & ~M, L - l)]))


def trace(key, hole, c):
    """TraceRL, CJ-GRPO: each token at the step that committed it, given what was committed before. With fewer views
    than a row has steps S, every (S/n)-th step from a random start, each standing for S/n of them (AGRPO). Only steps
    that commit a token of the loss are numbered, in each block anew: a view of another step would score nothing."""
    number = step_numbers(hole, c)
    scored_at = number if c.from_text is None else jnp.where(c.from_text, jnp.maximum(number, 0), number)
    S = jnp.max(jnp.where(c.counts, scored_at, -1), 1) + 1  # (B,)
    m = jnp.clip(S, 1, c.n)
    u, k = jax.random.uniform(key, S.shape), jnp.arange(c.n)[:, None]
    step = jnp.where(S <= c.n, k, jnp.floor((u + k) * (S / m)))[..., None]  # (n, B, 1)
    chosen = hole & (k < m)[..., None]
    return apart(chosen & (number >= step), chosen * (scored_at == step) * (jnp.maximum(S, 1) / m)[:, None])


def step_numbers(hole, c):
    """Number each token's step (B, T), from 0, counting only steps that commit a token of the loss: a token committed
    before the first of them has -1. A block model numbers the steps of each block anew, so that one view serves the
    first step of every block.

    A shifted block model commits the first token of a block alone, and reads it from the text before whatever is masked
    in the block. That step is not counted, because the token needs no view of its own."""
    counts = c.counts if c.from_text is None else c.counts & ~c.from_text
    block = jnp.zeros((1, hole.shape[1]), int) if c.block is None else c.block
    block = jnp.broadcast_to(block, hole.shape)
    mine, theirs = c.order[..., None], c.order[:, None]
    repeats = within(block, (mine == theirs) & counts[:, None] & jnp.tri(hole.shape[1], k=-1, dtype=bool))
    first = counts & (repeats == 0)  # the leftmost of the tokens that one step committed
    return within(block, first[:, None] & (theirs <= mine)) - 1


def left_to_right(key, hole, c):
    """JustGRPO: the holes one by one from the left, as an autoregressive model fills them; n up to their number."""
    return trace(key, hole, c._replace(order=jnp.cumsum(hole, 1) - 1))


def exact(key, hole, c):
    """Every autoregressive GRPO: nothing is masked, one pass."""
    return jnp.zeros_like(hole)[None], hole[None], hole


ESTIMATORS = dict(one_step=one_step, coupled=coupled, elbo=elbo, coupled_elbo=coupled_elbo, trace=trace,
                  left_to_right=left_to_right, exact=exact)  # fmt: skip


def views(key, method, hole, order=None, n=1, ratio=(0.2, 0.8), p_mask_prompt=0.0, prompt=None, block=None,
          counts=None, from_text=None):
    """hole (B, T), the completion -> M (K, B, T) bool, what each view masks; w (K, B, T), what multiplies log p there;
    s (B, T), each token's share of the loss. counts: the tokens of the loss; None: all of the completion."""
    counts = hole if counts is None else counts
    M, w, s = ESTIMATORS[method](key, hole, Choice(order, n, ratio, p_mask_prompt, prompt, block, counts, from_text))
    return M, w.astype(jnp.float32), s.astype(jnp.float32)


def view_logp(params, x, M, cfg, valid=None, start=0, chunk=None, temperature=1.0, scored=None, bonus=True,
              hole=None, temper=None):
    """x (B, T), M (K, B, T) -> log p of every token in every view, and the entropy there, (K, B, T); 0 before start.

    The views are rows of one batch, of which `chunk` at a time are computed and, for the gradient, kept: None: all.
    With remat what enters each block is kept of all. A block model has the views of a text in one chunk, which then
    needs one clean copy of it. scored (K, B, T): where a view's result is looked at, None: everywhere. bonus: has the
    entropy a gradient? hole (B, T), temper(logits (..., V), x (...), ids, there (..., T)): in place of a temperature,
    the logits that x was drawn from when its row had the ids that are there. In a causal model a hole is there for what
    is right of it.
    """
    K, B, T = M.shape
    chunk = chunk or K * B
    if K * B % chunk:
        raise ValueError(f"chunk={chunk} does not divide {K} views of {B} rows")

    def some(rows):
        b, of_view = rows % B, lambda a: a.reshape(-1, T)[rows]
        z = jnp.where(of_view(M), cfg.mask_id, x[b]) if cfg.mask_id is not None else x[b]
        clean = x[b[:: math.gcd(chunk, K)]] if cfg.block_causal else None
        h = model.features(params, z, cfg, None if valid is None else valid[b], start, clean=clean)
        looked_at = jnp.ones_like(z, bool) if scored is None else of_view(scored)

        def say(logits, x, row=None, column=None):
            if temper:
                there = (z != cfg.mask_id) & (True if valid is None else valid[b])
                earlier = ~hole[b[row]] | (jnp.arange(T) < column[..., None]) if cfg.causal else True
                logits = temper(logits, x, z[row], there[row] & earlier)
            else:
                logits = logits / temperature
            return gather_logp(logits, x), entropy(logits if bonus else jax.lax.stop_gradient(logits))

        at = [a[:, start:] for a in (looked_at, *(jnp.indices(z.shape) if temper else ()))]
        look = lambda params, h: read(params, h, x[b, start:], cfg, say, *at)
        return (jax.checkpoint(look) if cfg.remat and chunk < K * B else look)(params, h)

    rows = jnp.arange(K * B).reshape(K, B)
    rows = (rows.T if cfg.block_causal else rows).reshape(-1, chunk)
    if len(rows) == 1:
        both = some(rows[0])
    else:  # with remat the blocks are computed again one by one: a whole chunk again would be a fifth pass beside four
        both = jax.lax.map(some if cfg.remat else jax.checkpoint(some), rows)
    back = lambda a: a.reshape(B, K, -1).swapaxes(0, 1) if cfg.block_causal else a.reshape(K, B, -1)
    return tuple(jnp.pad(back(a), ((0, 0), (0, 0), (start, 0))) for a in both)


def token_logp(params, x, M, w, cfg, valid=None, start=0, chunk=None, temperature=1.0):
    """x (B, T), M and w (K, B, T) -> sum over the views of w log p (B, T), zero outside the completion."""
    return (w * view_logp(params, x, M, cfg, valid, start, chunk, temperature, w != 0)[0]).sum(0)


def sandwich(logp, w, up, mix, power):
    """logp, w * s (K, B, T) of `elbo`, up (B,): is the row to become likelier? -> (B, T): SPG's bounds (2510.09541).

    What should rise is its lower bound, the ELBO; what should fall, mix * its upper bound, 1 / power times the log of
    the mean over the views of p ** power, + (1 - mix) * the ELBO: pushing down a lower bound need not push down p."""
    lower = (w * logp).sum(0)
    seen = w > 0
    upper = jax.nn.logsumexp(jnp.where(seen, power * logp, -jnp.inf), 0, b=jnp.where(seen, w, 1)) / power
    upper = jnp.where(seen.any(0), upper, 0)  # a token that no view masked has no bound
    return jnp.where(up[:, None], lower, mix * upper + (1 - mix) * lower)
