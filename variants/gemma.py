"""
Gemma 2: a Llama with norms also after attention and mlp, gains of 1 + w, GELU, embeddings times sqrt(D), and caps on
attention scores and on logits. Every second block sees only a window of the text.
"""
import dataclasses

import jax
import jax.numpy as jnp

import model
from system import kernels, sections
from system.sections import POSITIVE, POSITIVE_INT, Section, key


@dataclasses.dataclass(frozen=True)
class Shape(Section):
    """The fields of a ModelConfig that only Gemma has."""

    window: int | None = key(None, "blocks 0, 2, 4, ... see only tokens less than this far away", POSITIVE_INT)
    query_scale: int | None = key(None, "queries are divided by the square root of this; None: of d_head", POSITIVE_INT)
    attn_cap: float | None = key(None, "attention scores s become cap * tanh(s / cap)", POSITIVE)
    logit_cap: float | None = key(None, "logits l become cap * tanh(l / cap)", POSITIVE)

    brings = {"mlp": "gemma", "network": "gemma"}


def shapes(cfg, i):
    """List the leaves of an mlp with a gate, and the gains of both norms that follow attention and mlp."""
    gains = (cfg.d_model,)
    return model.dense_shapes(cfg, i) | {"attn_out_norm": gains, "mlp_out_norm": gains}


def mlp(h, w, cfg):
    """Apply an mlp with a gate, and its norm: h (B, S, D) -> (B, S, D). JAX's gelu is the tanh form, as Gemma's."""
    gate = jax.nn.gelu(model.linear(h, w, "gate"))
    inner = gate * model.linear(h, w, "up")
    out = model.linear(inner, w, "down")
    return model.rms_norm(out, w["mlp_out_norm"], cfg.norm_eps)


def scores(mask, distance, cfg):
    """Let every second layer see only the tokens within the window, and cap scores, see model.Network."""
    own = Shape.of(cfg)
    scale = (own.query_scale or cfg.head_dim) ** -0.5
    far = near = mask
    if own.window is not None:
        near = jnp.abs(distance) < own.window
        far = jnp.ones_like(near) if mask is None else mask
        near = near & far

    def of_layer(i):
        return model.Scores(far if i % 2 else near, scale, own.attn_cap)

    return of_layer


def embedded(x, cfg):
    """Multiply embeddings (B, S, D) by the root of their width."""
    return x * cfg.d_model**0.5


def logits(x, cfg):
    """Cap logits (..., V)."""
    return kernels.soft_cap(x, Shape.of(cfg).logit_cap)


sections.add(model.MLPS, gemma=model.Mlp(shapes, mlp))
sections.add(model.NETWORKS, gemma=model.Network(1, embedded, scores, logits))
