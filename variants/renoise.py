"""
A rule that also takes tokens back, for models with noise="uniform" (uniform.py), which read every token as if it might
be wrong. A rule of your own that does so needs the same sampler, `fill_and_take_back`, and its name in SAMPLERS, too.
"""
import functools

import jax
import jax.numpy as jnp

import diffusion
import model
import sample
from system import sharding


def renoise(b, standing, plan):
    """DiffusionGemma's idea: after each step as many tokens stand as with `quota`, the most probable ones. A token that
    stands and has become less probable than a new one elsewhere is taken back.

    standing (B, L): the probability of the token that stands in each place now -> (B, L) True where one is to stand.
    """
    n = (~b.masked | sample.quota(b, plan)).sum(1, keepdims=True)
    p = jnp.where(b.masked, b.confidence, standing)
    return sample.rank_of(sample.without_noise(p)) < n


def standing_probability(params, h, z, w, valid, cfg, plan):
    """Compute the probability (B, L) of the tokens that stand in a window with states h (B / group, L, D)."""
    at, logits_of, n = sample.logits_at_positions(params, h, z, w, valid, cfg, plan)
    tokens = jnp.take_along_axis(z, w.column, 1).reshape(-1)

    def of_token(at, token):
        logits = logits_of(at)
        return sample.probability(sample.filtered(logits, plan) if plan.tempered else logits, token)

    p = diffusion.wanted_in_chunks(of_token, n, ~w.masked.reshape(-1), at, tokens)
    return p.reshape(w.column.shape)


def take_back(s, w, retract, cfg):
    """Put masks back into a window where `retract` (B, L) says so, but never over given tokens."""
    here = jnp.arange(len(s.z))[:, None], w.column
    retract = retract & sample.masked_at_start(s, cfg)[here]

    def put(old, nothing):
        return old.at[here].set(jnp.where(retract, nothing, old[here]))

    return s._replace(z=put(s.z, cfg.mask_id), step=put(s.step, -1), logp=put(s.logp, 0))


@functools.partial(jax.jit, static_argnames=("cfg", "plan", "group"))
def fill_step(params, keys, s, cfg, plan, valid, group=1):
    """Take a step as sample.fill_step does; tokens of which the rule says False become masks again."""
    L = min(plan.block_len or s.z.shape[1], s.z.shape[1])
    w = sample.block_window(s, sample.next_block(s, cfg, L), cfg, plan, L)
    z, start, of_text = sharding.take((s.z, w.column[:, 0], valid), slice(None, None, group))
    h = model.hidden(params, z, cfg, of_text, start, L)
    standing = standing_probability(params, h, s.z, w, valid, cfg, plan)

    def rule(b, plan):
        return sample.RULES[plan.rule](b, standing, plan)

    chosen, token, logp = sample.choose(params, keys, h, s.z, w, valid, cfg, plan, rule)
    s = take_back(s, w, ~w.masked & ~chosen, cfg)
    s = sample.write(s, w, chosen, token, logp)
    return sample.fill_rest(s, sample.behind_the_end, cfg) if plan.early_end else s


def fill_and_take_back(params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T) as sample.fill_in_steps does, with a rule that takes tokens back."""
    step = functools.partial(fill_step, params, keys, cfg=cfg, plan=plan, valid=valid)

    def unfinished(s):
        return jnp.any(s.z == cfg.mask_id)

    s = sample.begin(z)
    s = step(s, group=group) if group > 1 else s
    s = jax.lax.while_loop(unfinished, step, s)
    return sample.result(s, s.step.max(1) + 1)


sample.RULES["renoise"] = renoise
sample.SAMPLERS["renoise"] = fill_and_take_back
