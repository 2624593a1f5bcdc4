"""
One network, both ways. A block model whose finished text is causal (`causal_text`) is also an autoregressive model with
the same weights: one pass over

    [ clean text | noisy copy 1 | noisy copy 2 | ... ]

gives the loss of both, next tokens on the text and masked tokens on its copies (Nemotron-Labs-Diffusion, TiDAR).
"""
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

import config
import diffusion
import model
from variants import blocks, paired  # noqa: F401  (pairs are drawn before next tokens are added)


@dataclasses.dataclass(frozen=True)
class Shape(config.Section):
    """The field of a ModelConfig whose finished text is causal."""

    causal_text: bool = True  # finished blocks are read from left to right (Nemotron-Labs-Diffusion)

    def between_keys(self, c):
        block = getattr(c, "block_causal", None)
        yield not block or c.shift, (
            "causal_text=True says how the blocks of a block_causal model without shift see each other, now "
            f"block_causal={block}, shift={c.shift}")


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    causal_weight: float = config.key(0.0, "models with causal_text: weight of the autoregressive loss, in the same "
                                      "pass", config.NON_NEGATIVE)  # fmt: skip

    def between_keys(self, c):
        weight = f"causal_weight={self.causal_weight}"
        if self.causal_weight:
            yield c.objective != "pretrain", f"{weight} changes nothing with objective={c.objective!r}: leave it out"
            yield (not c.max_prompt_len and not c.init_from,
                   f"{weight}: the first token of a text is predicted from its prompt, but max_prompt_len=0 leaves "
                   "none, so a model made from scratch would not learn it")  # fmt: skip

    def fits(self, c, shape, where):
        yield (self.causal_weight > 0 and not hasattr(shape, "causal_text"),
               f"causal_weight={self.causal_weight!r}, but the model {where} is not autoregressive and a denoiser at "
               "once: it has no causal_text")  # fmt: skip


def see_finished_text_from_left(i, j, z, valid, cfg, part):
    """A token sees its own block and all earlier ones; in a block without masks only what is left of it."""
    block = blocks.number(valid, z.shape[1], cfg)
    own = model.columns(block, part)[..., None]
    return blocks.see_blocks(i, j, z, valid, cfg, part) & ((j <= i) | is_open(z, block, own, cfg))


def is_open(z, number, own, cfg):
    """True (B, S, 1) for the query columns whose block still has masks.

    z, number (B, T): the tokens of a text, and the number of each one's block. own (B, S, 1): the number of each
    query's block."""
    same_block = number[:, None] == own
    masked = (z == cfg.mask_id)[:, None]
    return (same_block & masked).any(-1, keepdims=True)


def autoregressive(cfg: model.ModelConfig) -> model.ModelConfig:
    """Return the configuration that reads the same parameters from left to right."""
    no_blocks: dict[str, Any] = {"block_causal": None, "causal_text": False}
    return dataclasses.replace(cfg, causal=True, shift=True, **no_blocks)


def with_next_tokens(draw, cfg):
    """Make a noise that also adds the loss of next tokens, times causal_weight: NoisyBatch.weight then is
    (B, 1 + copies, T), and [:, 0] weighs the tokens of the clean text.

    That loss has the tokens up to the first end, where a causal model stops, but not the first token of a text: there
    is nothing before it to predict it from. draw: the noise of the copies. cfg: the Config of a run."""
    return functools.partial(noise, draw=draw, causal_weight=cfg.causal_weight) if cfg.causal_weight else draw


def and_next_tokens(loss, cfg):
    """Return the loss of a run: that of masked and of next tokens if next tokens have a weight, else `loss`. cfg: the
    Config of the run."""
    return loss_of_both if cfg.causal_weight else loss


def loss_of_both(params: dict, batch: diffusion.NoisyBatch, cfg, start: int = 0) -> tuple[jax.Array, dict]:
    """Compute diffusion.loss, and add the loss of the next tokens of each text, which batch.weight[:, 0] weighs.

    Metrics have the two apart. Both are read from one pass."""
    w = batch.weight[..., start:]
    h = blocks.hidden(params, batch.x, batch.z, cfg, batch.valid, start, with_text=True)
    targets = jnp.broadcast_to(batch.x[:, None, start:], w.shape)
    logp, hit = diffusion.read_logits(params, h, cfg, diffusion.logp_and_hit, w > 0, (targets,))
    weighted = w * logp
    nelbo, causal = -jnp.sum(weighted[:, 1:]), -jnp.sum(weighted[:, :1])
    hole_acc = jnp.sum((w * hit)[:, 1:])
    return nelbo + causal, {"nelbo": nelbo, "hole_acc": hole_acc, "causal_loss": causal}


def noise(key, batch: tuple, cfg, norm="token", draw=diffusion.noise, causal_weight=0.0) -> diffusion.NoisyBatch:
    """Draw the masks of a batch as `draw` does, with the weights of the next tokens in front."""
    noisy = draw(key, batch, cfg, norm)
    x, maskable, valid = batch
    eos_id = -1 if cfg.eos_id is None else cfg.eos_id
    ends = maskable & (x == eos_id)
    has_left = model.positions_of(valid, x.shape[1]) > 0
    written = maskable & has_left & (jnp.cumsum(ends, 1) - ends == 0)
    batch = x, written, valid
    text = diffusion.noise(key, batch, autoregressive(cfg), norm)
    weight = jnp.concatenate([causal_weight * text.weight, noisy.weight], 1)
    return noisy._replace(weight=weight)


model.MASKS["joint"] = see_finished_text_from_left
diffusion.DRAWS["joint"] = with_next_tokens
diffusion.TRAINING_LOSSES["joint"] = and_next_tokens
diffusion.READINGS["joint"] = {"val/causal_nll": autoregressive}
