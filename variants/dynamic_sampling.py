"""
Dynamic sampling (DAPO, 2503.14476): groups whose rewards are all equal, from which nothing is learnt, are replaced by
groups of further batches of prompts:  --dynamic_sampling=3

Hints (IGPO, 2509.10396): a prompt whose completions are all wrong is asked again with parts of its answer in place. A
denoiser can fill in around tokens that stand anywhere. So a redraw, instead of taking other prompts, gives some tokens
of the row's own `completion`, at most the share `hint_ratio`, and lets the policy fill in the rest. (If fewer prompts
are all wrong than a batch has, they are asked several times.) How many and where
is random, but the same for all completions of a group, which are compared with each other. Hints are given like a
prompt: they have no log-prob and no place in the loss.

IGPO's code gives chunks, 20% to 60% of an answer, anew for each completion. Right ones take the place of up to half of
the wrong ones in the group without hints. It also learns from the 20% of the hints with the highest entropy.
"""
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import config
import grpo
import rewards
import rl
from data.texts import EncodedRows
from system import hosts


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    dynamic_sampling: int = config.key(1, "most further batches to write while some group has equal rewards",
                                       config.NON_NEGATIVE)  # fmt: skip
    hint_ratio: float = config.key(0.0, "ask prompts whose completions are all wrong again, with up to this share of "
                                   "the tokens of their row's completion given; 0: draw other prompts",
                                   config.BELOW_1)  # fmt: skip

    def between_keys(self, c):
        if c.objective != "grpo" and self.dynamic_sampling:
            yield True, f"use=dynamic_sampling is for objective='grpo', now {c.objective!r}"
        if self.hint_ratio:
            yield not self.dynamic_sampling, f"hint_ratio={self.hint_ratio}: set dynamic_sampling=1 or more"
            yield (c.pass_at is None or c.fill_in,
                   f"hint_ratio={self.hint_ratio}: set a pass_at, which says what is right, and fill_in=False")
            yield (c.logp_est == "exact", "hint_ratio: a causal model reads from left to right and cannot fill in "
                   "around hints: hint_ratio=0")  # fmt: skip


def collect(step: int, draw: Callable, attempt: Callable, cfg: Any, tok: Any) -> Any:
    """Write and judge completions, as `rl.once`, then further batches, whose groups take the places of those without a
    signal -> Scored."""
    found = attempt(0, draw(step))
    for n in range(1, 1 + cfg.dynamic_sampling):
        if has_signal(found, cfg).all():
            break
        found = replace_flat_groups(found, attempt(n, redraw(draw, found, step, n, cfg, tok)), cfg)
    return found


def has_signal(scored: Any, cfg: Any) -> np.ndarray:
    """True for each group (N,) with advantages other than 0: one whose rewards differ."""
    adv = grpo.advantages(scored.rewards, **rewards.advantage_settings(scored.rewards, cfg))
    return np.asarray((adv != 0).any(1))


def replace_flat_groups(old, new, cfg):
    """Replace groups of `old` whose rewards are all equal by groups of `new` whose rewards differ, as far as there are
    such -> N groups again."""
    _, N, G = old.rewards.shape
    flat, good = np.flatnonzero(~has_signal(old, cfg)), np.flatnonzero(has_signal(new, cfg))
    pick = np.arange(N)
    pick[flat[: len(good)]] = N + good[: len(flat)]
    flat = (pick[:, None] * G + np.arange(G)).reshape(-1)
    rollout = jax.tree.map(lambda a, b: jnp.concatenate([a, b])[flat], old.rollout, new.rollout)
    return old._replace(
        rows=[(old.rows + new.rows)[i] for i in pick],
        rollout=rollout,
        completions=[(old.completions + new.completions)[i] for i in flat],
        rewards=np.concatenate([old.rewards, new.rewards], 1)[:, pick],
        parts={name: np.concatenate([old.parts[name], new.parts[name]])[flat] for name in old.parts},
    )


def all_wrong(found: Any, cfg: Any) -> np.ndarray:
    """True for each group (N,) of a Scored that has no right completion (see pass_at), and whose rewards are equal."""
    right = rewards.right(found, None, cfg).reshape(-1, cfg.group_size)
    return ~right.any(1) & ~has_signal(found, cfg)


def give(tokens: np.ndarray, answers: list[list[int]], ratio: float, start: int, rng: Any) -> EncodedRows:
    """Put some tokens of each answer, from one to the share `ratio`, into its text, and make all others maskable ->
    EncodedRows without rows.

    tokens (N, T): prompts, which end before the column `start`; answers: their ids without an end, which is never
    given. An answer that is longer than its text is cut."""
    tokens = tokens.copy()
    maskable = np.zeros(tokens.shape, bool)
    maskable[:, start:] = True
    for i, answer in enumerate(answers):
        ids = np.array(answer[: tokens.shape[1] - start], int)
        most = max(1, round(ratio * len(ids)))
        order = rng.permutation(len(ids))
        place = order[: rng.integers(1, most + 1)]
        tokens[i, start + place] = ids[place]
        maskable[i, start + place] = False
    return EncodedRows([], tokens, maskable, None)


def redraw(draw: Callable, found: Any, step: int, n: int, cfg: Any, tok: Any) -> EncodedRows:
    """Draw N prompts for the n-th time after the first draw of a step.

    Without hints they are new ones. With hints they are the prompts of the Scored `found` whose completions are all
    wrong, repeated to make N; if there is none, new ones."""
    wrong = np.flatnonzero(all_wrong(found, cfg)) if cfg.hint_ratio else np.zeros(0, int)
    if not len(wrong):
        return draw(step, n, cfg.dynamic_sampling)
    groups = np.resize(wrong, len(found.rows))
    first = groups * cfg.group_size
    rows = [found.rows[i] for i in groups]
    answers = [tok.encode(row["completion"]) for row in rows]
    rng = np.random.default_rng([cfg.seed, step, n])
    tokens = hosts.gather(found.rollout.tokens)[first]
    valid = found.rollout.valid
    if valid is not None:
        valid = hosts.gather(valid)[first]
    given = give(tokens, answers, cfg.hint_ratio, cfg.max_prompt_len, rng)
    return given._replace(rows=rows, valid=valid)


rl.COLLECT["dynamic_sampling"] = collect
