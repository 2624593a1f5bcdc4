"""
Hints (IGPO, 2509.10396): a prompt whose completions are all wrong is asked again with parts of its answer in place.

Where no completion of a group is right, all advantages are 0 and nothing is learnt. A denoiser can fill in around
tokens that stand anywhere. So dynamic sampling, instead of drawing other prompts, gives some tokens of the row's own
`completion`, at most the share `hint_ratio`, and lets the policy fill in the rest. How many and where is random, but
the same for all completions of a group, which are compared with each other. Hints are given like a prompt: they have no
log-prob and no place in the loss.

IGPO's code gives chunks, 20% to 60% of an answer, anew for each completion. Right ones take the place of up to half of
the wrong ones in the group without hints. It also learns from the 20% of the hints with the highest entropy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from data.texts import EncodedRows
from judges import scores
from system import hosts


def all_wrong(found: Any, cfg: Any) -> np.ndarray:
    """True for each group (N,) of a Scored that has no right completion (see pass_at), and whose rewards are equal."""
    right = np.asarray(scores.right(found, None, cfg)).reshape(-1, cfg.group_size)
    return ~right.any(1) & ~scores.has_signal(found, cfg)


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


def draw(draw_new: Callable, found: Any, step: int, n: int, cfg: Any, tok: Any) -> EncodedRows:
    """Draw the N prompts of a step; n counts the redraws of dynamic sampling, 0 being the first draw.

    A redraw takes the prompts of the Scored `found` whose completions are all wrong, with hints, repeated to make N.
    The first draw, and one without a hint_ratio or such prompts, takes new ones: draw_new(step, n)."""
    if n == 0 or not cfg.hint_ratio:
        return draw_new(step, n)
    wrong = np.flatnonzero(all_wrong(found, cfg))
    if not len(wrong):
        return draw_new(step, n)
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
