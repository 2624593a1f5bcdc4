"""
Attention on an NVIDIA GPU, by cuDNN's kernel.
"""
import jax
import jax.numpy as jnp

from system import placement


def fits(dtype, head_size, cap):
    """True if `attention` takes this dtype, head width and cap here: 16 bits, no cap, an NVIDIA GPU since Ampere."""
    if dtype != "bfloat16" or cap is not None or head_size % 8 or head_size > 128:
        return False
    version = getattr(jax.devices()[0], "compute_capability", "8.0")  # 7.5 of a T4, gfx942 of AMD's; a plan has a CPU
    return version[0].isdigit() and float(version) >= 8


def attention(q, k, v, mask, scale, implementation="cudnn"):
    """Compute `kernels.attention` without ever holding all scores (2 GB for 4,096 tokens and 32 heads)."""
    S = q.shape[1]

    def even(a, *axes):
        """Pad these axes of a (four in all) to even lengths."""
        sides = [(0, a.shape[i] % 2 * (i in axes)) for i in range(4)]
        return jnp.pad(a, sides)

    if mask is not None:  # with a mask, its gradient needs even lengths
        mask = jnp.broadcast_to(mask[:, None], (len(mask), 1, S, k.shape[1]))
        mask = even(mask, 2, 3)
        q = even(q, 1)
        k = even(k, 1)
        v = even(v, 1)
    q, k, v = placement.shard_heads(q, k, v)
    out = jax.nn.dot_product_attention(q, k, v, mask=mask, scale=scale, implementation=implementation)
    out = out[:, :S]
    return out.reshape(len(q), S, -1)
