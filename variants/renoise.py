"""
A rule that also takes tokens back, for models with noise="uniform" (uniform.py), which read every token as if it might
be wrong. A rule of your own that does so needs the same sampler, `fill_and_take_back`, and its name in SAMPLERS, too.
"""
import functools

import jax
import jax.numpy as jnp

import diffusion
import sample


def renoise(b, standing, plan):
    """DiffusionGemma's idea: after each step as many tokens stand as with `quota`, the most probable ones. A token that
    stands and has become less probable than a new one elsewhere is taken back.

    standing (B, L): the probability of the token that stands in each place now -> (B, L) True where one is to stand.
    """
    stand = ~b.masked | sample.quota(b, plan)
    p = jnp.where(b.masked, b.confidence, standing)
    rank = sample.rank_of(sample.without_noise(p))
    return rank < stand.sum(1, keepdims=True)


def standing_probability(params, h, z, w, valid, cfg, plan):
    """Compute the probability (B, L) of the tokens that stand in a window with states h (B / group, L, D)."""
    at, logits_of, n = sample.logits_at_positions(params, h, z, w, valid, cfg, plan)
    tokens = jnp.take_along_axis(z, w.column, 1).reshape(-1)

    def of_token(at, token):
        logits = logits_of(at)
        if plan.tempered:
            logits = sample.filtered(logits, plan)
        return sample.probability(logits, token)

    stands = ~w.masked.reshape(-1)
    p = diffusion.wanted_in_chunks(of_token, n, stands, at, tokens)
    return p.reshape(w.column.shape)


def take_back(s, w, retract, cfg):
    """Put masks back into a window where `retract` (B, L) says so, but never over given tokens."""
    here = jnp.arange(len(s.z))[:, None], w.column
    asked = sample.masked_at_start(s, cfg)
    retract = retract & asked[here]

    def put(old, nothing):
        new = jnp.where(retract, nothing, old[here])
        return old.at[here].set(new)

    z = put(s.z, cfg.mask_id)
    return s._replace(z=z, step=put(s.step, -1), logp=put(s.logp, 0))


@functools.partial(jax.jit, static_argnames=("cfg", "plan", "group"))
def fill_step(params, keys, s, cfg, plan, valid, group=1):
    """Take a step as sample.fill_step does; tokens of which the rule says False become masks again."""
    w = sample.block_window(s, sample.next_block(s, cfg, plan), cfg, plan)
    h = sample.states(params, s.z, w, cfg, valid, group)
    read = h, s.z, w, valid, cfg, plan
    standing = standing_probability(params, *read)

    def rule(b, plan):
        return sample.RULES[plan.rule](b, standing, plan)

    chosen, token, logp = sample.choose(params, keys, *read, rule)
    s = take_back(s, w, ~w.masked & ~chosen, cfg)
    s = sample.write(s, w, chosen, token, logp)
    if plan.early_end:
        s = sample.fill_rest(s, sample.behind_the_end, cfg)
    return s


def fill_and_take_back(params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T) as sample.fill_in_steps does, with a rule that takes tokens back."""
    step = functools.partial(fill_step, params, keys, cfg=cfg, plan=plan, valid=valid)

    def unfinished(s):
        return jnp.any(s.z == cfg.mask_id)

    s = sample.begin(z)
    if group > 1:
        s = step(s, group=group)
    s = jax.lax.while_loop(unfinished, step, s)
    return sample.result(s, s.step.max(1) + 1)


fill_and_take_back.takes_back = True  # type: ignore[attr-defined]  # so logp_est=trace is refused
sample.RULES["renoise"] = renoise
sample.SAMPLERS["renoise"] = fill_and_take_back
