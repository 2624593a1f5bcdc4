"""What is written as it is for speed; each function equals a line or two that say the same."""
import jax
import jax.numpy as jnp

from machine import mesh


def flash(q, k, v, mask, scale=None, implementation="cudnn"):
    """`model.attention` by cuDNN's kernel, which never has all scores in memory, 2 GB of 4,096 tokens and 32 heads."""
    S, scale = q.shape[1], (scale or q.shape[-1]) ** -0.5
    if mask is not None:  # with one, it has a gradient for even lengths only
        even = lambda a, *axes: jnp.pad(a, [(0, a.shape[i] % 2 * (i in axes)) for i in range(4)])
        mask = even(jnp.broadcast_to(mask[:, 0], (len(mask), 1, S, k.shape[1])), 2, 3)
        q, k, v = (even(a, 1) for a in (q, k, v))
    out = jax.nn.dot_product_attention(
        *mesh.shard_heads(q, k, v), mask=mask, scale=scale, implementation=implementation
    )
    return out[:, :S].reshape(len(q), S, -1)


def fused(cfg):
    """Can `flash` do on this device what `model.attention` does? It knows 16 bits only, no caps, and of GPUs NVIDIA's
    since Ampere."""
    fits = cfg.dtype == "bfloat16" and cfg.attn_cap is None and cfg.head_dim % 8 == 0 and cfg.head_dim <= 128
    if not fits or mesh.platform() != "gpu":
        return False
    version = getattr(jax.devices()[0], "compute_capability", "8.0")  # 7.5 of a T4, gfx942 of AMD's; a plan has a CPU
    return version[0].isdigit() and float(version) >= 8


def likeliest(l):
    """l (..., V) -> the largest of them, and of equals the first, (...): of about sqrt(V) stretches of the vocabulary
    the one that has it, then where in it. XLA's own argmax takes 11 times as long on a CPU (V = 32,768)."""
    if mesh.platform() != "cpu" or mesh.shape():
        return l.argmax(-1)
    n = 2 ** (l.shape[-1].bit_length() // 2)
    ends = [(0, 0)] * (l.ndim - 1) + [(0, -l.shape[-1] % n)]
    cut = jnp.pad(jax.lax.stop_gradient(l), ends, constant_values=-jnp.inf).reshape(*l.shape[:-1], -1, n)
    stretch = cut.max(-1).argmax(-1)
    return stretch * n + jnp.take_along_axis(cut, stretch[..., None, None], -2)[..., 0, :].argmax(-1)


def nucleus(l, top_p):
    """l (..., V) -> which of them top_p keeps, (..., V): those that have, of all likelier ones, no more than top_p
    before them. The token that crosses top_p is in, so there always is one.

    The least probability that is in is found bit by bit (those of numbers above 0 are ordered as the numbers are): a
    sort of the vocabulary takes 10 times as long."""
    p = jax.nn.softmax(jax.lax.stop_gradient(l))
    order = jax.lax.bitcast_convert_type(p, jnp.int32)

    def halve(_, ends):
        low, high = ends  # (..., 1): what high says is in, what low - 1 says is not
        middle = low + (high - low) // 2
        enough = jnp.where(order > middle, p, 0).sum(-1, keepdims=True) <= top_p
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    one = jnp.full((*l.shape[:-1], 1), 0x3F800000)  # the bits of 1.0
    return order >= jax.lax.fori_loop(0, 30, halve, (0 * one, one))[1]
