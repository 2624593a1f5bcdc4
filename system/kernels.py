"""Functions that are written for speed. Each is equal to a line or two of plain JAX."""
import math

import jax
import jax.numpy as jnp

from system import sharding

NEVER = -1e30  # the logit of a token that must not be chosen; finite, so that 0 * log p stays 0 in an entropy


# ---- products --------------------------------------------------------------------------------------------------------


def between(dtype):
    """Return the dtype of what a model in `dtype` computes between its products with weights: on a CPU float32.

    A CPU multiplies matrices of 16 bits, and has no other arithmetic for them: XLA would convert to 32 bits and back
    around every sum (silu(a) * b of 2 million numbers takes 4.2 ms in bfloat16, 1.3 in float32). So attention is in 32
    bits too, unless its keys come from a cache of 16 bits. Experts (variants/moe.py) stay in 16 bits."""
    return "float32" if sharding.on_cpu() else dtype


class Packed:
    """A matrix that is stored in another form than numbers, see variants/quantized.py."""

    def numbers(self):
        """Return the matrix (I, O)."""
        raise NotImplementedError

    def multiplied(self, x, dtype):
        """Return `matmul` of x and this matrix."""
        return matmul(x, self.numbers(), dtype)


def is_packed(x):
    """True if x is a `Packed`, a leaf of a tree of parameters."""
    return isinstance(x, Packed)


def matmul(x, w, dtype=None):
    """Return x (..., I), rounded to the dtype of w, @ w (I, O), summed in float32, in `dtype` (None: see `between`).

    As one two-dimensional product: the gradient of a (B, T, I) one takes 1/3 longer on a CPU. The numbers of a `Packed`
    are made for this product, and again for its gradient: they are never kept."""
    if is_packed(w):
        from system import remat

        return remat.recomputed(lambda w, x: remat.after(x, w).multiplied(x, dtype), w, x)
    *sides, n_in = x.shape
    rows = x.reshape(-1, n_in).astype(w.dtype)
    multiply = jnp.matmul
    if w.dtype == jnp.bfloat16:
        from system import sixteen_bits

        multiply = sixteen_bits.product
    y = multiply(rows, w).astype(dtype or between(w.dtype))
    return y.reshape(*sides, w.shape[-1])


# ---- attention -------------------------------------------------------------------------------------------------------


def soft_cap(x, cap):
    """Squeeze x between -cap and cap (None: not at all)."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def attention(q, k, v, mask, scale, cap=None):
    """Return softmax(soft_cap(scale * q k) where mask) v: q (B, S, H, K), k and v (B, T, KV, K), mask (B or 1, S or 1,
    T) or None -> (B, S, H*K)."""
    q = q.astype(k.dtype)  # keys from a cache may have 16 bits where queries have 32, see `between`
    B, S, _, K = q.shape
    # cuDNN's kernel would copy the keys for a single query, and cannot be split over rows that do not divide.
    if sharding.platform() == "gpu" and S > 1 and sharding.round_up(B) == B:
        from system import cudnn

        if cudnn.fits(q.dtype, K, cap):
            return cudnn.attention(q, k, v, mask, scale)
    return plain_attention(q, k, v, mask, scale, cap)


def plain_attention(q, k, v, mask, scale, cap=None):
    """Compute `attention` in a layout that XLA multiplies fast: heads before columns, the heads that share a key as
    rows, the softmax's division after the product with v (6 ms where einsum over "bthk" takes 43: B 32, T 160, D 256, 2
    cores)."""
    B, S, H, K = q.shape
    T, KV = k.shape[1:3]
    each = H // KV  # heads that share a key
    q = q.reshape(B, S, KV, each, K)
    q = q.transpose(0, 2, 3, 1, 4)
    q = q.reshape(B, KV, each * S, K)
    k = k.transpose(0, 2, 1, 3)
    v = v.transpose(0, 2, 1, 3)
    scores = jnp.einsum("bgtk,bgsk->bgts", q, k, preferred_element_type=jnp.float32)  # (B, KV, each * S, T)
    scores = soft_cap(scores * scale, cap)
    if mask is not None:
        scores = scores.reshape(B, KV, each, S, T)
        scores = jnp.where(mask[:, None, None], scores, NEVER)
        scores = scores.reshape(B, KV, each * S, T)
    top = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    p = jnp.exp(scores - top)
    out = jnp.einsum("bgts,bgsk->bgtk", p.astype(v.dtype), v, preferred_element_type=jnp.float32)
    out = out / p.sum(-1, keepdims=True)
    out = out.astype(v.dtype).reshape(B, KV, each, S, K)
    out = out.transpose(0, 3, 1, 2, 4)
    return out.reshape(B, S, H * K)


# ---- tokens ----------------------------------------------------------------------------------------------------------


# Vocabularies from this size on are read by stretches on a CPU: see `in_stretches`.
LARGE = 2**13


def by_stretches(V):
    """True if a vocabulary of V is read by stretches here: if it is large, and there is one device, a CPU."""
    return V >= LARGE and sharding.on_one_cpu()


# Keep XLA from fusing what makes its argument with what reads it. (It would make one sum of a sum of sums.)
alone = jax.lax.optimization_barrier


def in_stretches(x):
    """Cut x (..., V) into (..., n, V / n) where that is faster, else into one stretch (..., 1, V).

    Of 512 x 152,064 numbers, XLA's CPU adds up exp(x) in 43 ms if it is cut, and in 110 ms if not."""
    if not by_stretches(x.shape[-1]):
        return x[..., None, :]
    from system import stretches

    return stretches.cut(x)


def peak_and_sum(logits):
    """Return the largest of logits (..., V), without a gradient, and the sum of exp(logits - largest), both (...)."""
    parts = in_stretches(logits)
    peak = jax.lax.stop_gradient(over_stretches(jnp.max, parts))
    p = jnp.exp(parts - peak[..., None, None])
    return peak, add_up(p)


def over_stretches(reduce, parts):
    """Reduce numbers that are cut into n stretches, within each stretch first: (..., n, V / n) -> (...). reduce:
    jnp.sum or jnp.max."""
    if parts.shape[-2] == 1:
        return reduce(parts[..., 0, :], -1)
    of_stretch = alone(reduce(parts, -1))
    return reduce(of_stretch, -1)


def add_up(parts):
    """Add up numbers that are cut into stretches: (..., n, V / n) -> (...)."""
    return over_stretches(jnp.sum, parts)


def log_sum(logits):
    """Return the log of the sum of exp(logits): (..., V) -> (...)."""
    if not by_stretches(logits.shape[-1]):
        return jax.nn.logsumexp(logits, -1)
    peak, total = peak_and_sum(logits)
    return peak + jnp.log(total)


def probabilities(logits):
    """Return the softmax of logits (..., V), cut into stretches (..., n, V / n)."""
    peak, total = (a[..., None, None] for a in peak_and_sum(logits))
    return jnp.exp(in_stretches(logits) - peak) / total


def entropy(logits):
    """Return the entropy (...) of logits (..., V) in nats."""
    log_total, parts = log_sum(logits), in_stretches(logits)
    p = jnp.exp(parts - log_total[..., None, None])  # one array less than softmax makes
    return log_total - add_up(p * parts)


def without(logits, i):
    """Set the logit of token i to NEVER: logits (..., V) -> (..., V). On a CPU in place: a large `where` would copy."""
    if by_stretches(logits.shape[-1]):
        return alone(logits.at[..., i].set(NEVER))
    is_i = jnp.arange(logits.shape[-1]) == i
    return jnp.where(is_i, NEVER, logits)


def token_logp(logits, x):
    """Return log p of the tokens x (...) under logits (..., V)."""
    return jnp.take_along_axis(logits, x[..., None], -1)[..., 0] - log_sum(logits)


def likeliest(logits):
    """Return logits.argmax(-1), on a CPU as the first token that has the largest: XLA's own takes 7 times as long (V =
    267)."""
    V = logits.shape[-1]
    if not sharding.on_one_cpu():
        return logits.argmax(-1)
    if V >= 2**10:
        from system import stretches

        return stretches.likeliest(logits)
    is_largest = (logits == logits.max(-1, keepdims=True)) | jnp.isnan(logits)
    return jnp.where(is_largest, jnp.arange(V), V - 1).min(-1)


def without_noise(score):
    """Round scores to 12 bits, so that equal ones stay equal. Without a prompt all masks are alike. The last bits of
    float32 differ from one batch size or mesh to another, and would decide the order: 14 of 16 tokens changed."""
    return jax.lax.reduce_precision(score, exponent_bits=8, mantissa_bits=12)


def inverse_cdf(key, p):
    """Draw index i of p (n,) with probability p[i] / sum(p): where the cumulative sum first reaches a random share."""
    u = jax.random.bits(key) >> 8
    u = (u.astype(jnp.float32) + 0.5) * 2.0**-24  # above 0; the largest of them rounds to 1
    sums = jnp.cumsum(p)
    return (sums < u * sums[-1]).sum()


def draw(key, p):
    """Draw a token with probabilities p (V,): which of sqrt(V) stretches of the vocabulary, then which token of it.

    So the sums stay short, and exact for the rare tokens of a large vocabulary, and two random numbers are enough.
    (Gumbel noise, as in LLaDA's code, needs V of them and as many logarithms of logarithms.)"""
    n = math.isqrt(len(p) - 1) + 1
    cut = jnp.pad(p, (0, n * n - len(p)))
    cut = cut.reshape(n, n)
    stretch_key, token_key = jax.random.split(key)
    stretch = inverse_cdf(stretch_key, cut.sum(-1))
    token = stretch * n + inverse_cdf(token_key, cut[stretch])
    # The last bit of a sum must not make a forbidden token possible.
    return jnp.where(p[token] > 0, token, likeliest(p))


def draw_rows(keys, logits):
    """Draw a token from the softmax of each of logits (N, V), with keys (N,) -> (N,)."""
    if not by_stretches(logits.shape[-1]):
        return jax.vmap(draw)(keys, jax.nn.softmax(logits))
    from system import stretches

    return stretches.draw_rows(keys, logits, inverse_cdf)


def draws_everywhere(plan, V):
    """True if it costs less to draw a token at every scored position than to compute the logits of the committed ones
    again, to draw there alone."""
    filters = plan.top_k or plan.top_p
    return not plan.temperature or by_stretches(V) and not filters


# At most this many bytes of logits are read at a time; to draw tokens on a GPU, four times as many. Smaller chunks read
# the head too often; larger ones waste memory, as the entropy's gradient holds seven such arrays.
LOGITS_BYTES = 2**27


def positions_at_once(V):
    """Say how many positions may have logits at a time: up to four such arrays exist.

    A GPU takes four times as many: 265 with V = 126,464, whose products take about as long as reading the head. So 48
    texts of LLaDA's shape, in blocks of 32, read 40 GB a pass and not 59: calculated, not measured on a card."""
    most = LOGITS_BYTES if sharding.on_cpu() else 4 * LOGITS_BYTES
    return max(most // (16 * V), 1)


def wanted_in_chunks(fn, n, wanted, *trees):
    """Compute fn(*trees) -> (N,) or a tuple of them, at most n of the N rows at a time; trees: arrays (N, ...). Results
    that are not `wanted` (N,) may be 0, because chunks that have only such are skipped."""
    N = len(wanted)
    if N <= n:
        return fn(*trees)
    n_chunks = math.ceil(N / n)
    n = math.ceil(N / n_chunks)  # as many chunks, but of equal size
    order = jnp.argsort(~wanted)

    def cut(a):
        filling = [(0, -N % n)] + [(0, 0)] * (a.ndim - 1)
        padded = jnp.pad(a[order], filling)
        return padded.reshape(n_chunks, n, *a.shape[1:])

    parts = jax.tree.map(cut, trees)
    one = sharding.take(parts, 0)
    shapes = jax.eval_shape(fn, *one)

    def skip(*part):
        return jax.tree.map(jnp.zeros_like, shapes)

    @jax.checkpoint
    def chunk(inputs):
        i, part = inputs
        return jax.lax.cond(i * n < wanted.sum(), fn, skip, *part)

    out = jax.lax.map(chunk, (jnp.arange(n_chunks), parts))
    back = jnp.argsort(order)
    return sharding.take(sharding.joined(out), back)
