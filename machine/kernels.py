"""Kernels of one kind of device, each equal to a few lines of model.py."""
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
    out = jax.nn.dot_product_attention(*mesh.heads(q, k, v), mask=mask, scale=scale, implementation=implementation)
    return out[:, :S].reshape(len(q), S, -1)


def fused(cfg):
    """Can `flash` do on this device what `model.attention` does? It knows 16 bits only, no caps, and of GPUs NVIDIA's
    since Ampere."""
    fits = cfg.dtype == "bfloat16" and cfg.attn_cap is None and cfg.head_dim % 8 == 0 and cfg.head_dim <= 128
    if not fits or mesh.platform() != "gpu":
        return False
    version = getattr(jax.devices()[0], "compute_capability", "8.0")  # 7.5 of a T4, gfx942 of AMD's; a plan has a CPU
    return version[0].isdigit() and float(version) >= 8
