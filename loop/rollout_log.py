"""
What is logged of an iteration: its rewards, advantages, lengths, the first group, and the metrics of its updates.
"""

import contextlib
import itertools
import operator
import time
from typing import Any

import numpy as np

import grpo
import rewards
import rl
from data import texts


def length_metrics(rollout, cfg):
    """Measure the lengths of completions, and how many end in an end of text."""
    tokens, completion = np.asarray(rollout.tokens), np.asarray(rollout.completion)
    length = rewards.written(tokens, completion, cfg.model.ends)
    ends = completion & np.isin(tokens, cfg.model.ends)
    return {
        **rewards.stats(length, "completions/{}_length", "mean", "min", "max"),
        "completions/terminated_frac": float((cfg.fill_in | ends.any(1)).mean()),  # with fill_in the end is given
        "tokens_per_pass": float(rewards.tokens_per_pass(rollout, cfg).mean()),
    }


def describe(scored: Any, adv: Any, cfg: Any) -> dict[str, Any]:
    """Summarize the rewards, advantages (N, G) and completions of an iteration for the log."""
    size = cfg.group_size
    total = rewards.total_rewards(scored.rewards, cfg)
    known = total[~np.isnan(total)]
    _, std, n = grpo.moments(total, 1)
    spread = np.where(n > 1, std, np.nan)  # one completion has no spread
    starts = range(0, len(scored.completions), size)
    different = [len(set(scored.completions[i : i + size])) for i in starts]
    metrics = {
        "reward": rewards.mean(total),
        "reward_std": rewards.mean(spread),
        "frac_reward_zero_std": float((adv == 0).all(1).mean()),
        "unique_completions": float(np.mean(different) / size),
        "skipped": float(not len(known)),
    }
    first = next(iter(scored.parts.values()))
    is_rate = not ((first < 0) | (first > 1)).any()  # otherwise the mean is no rate
    if cfg.pass_at is not None or is_rate:
        metrics["pass_rate"] = rewards.mean(rewards.apply_pass_at(first, cfg))
    return metrics | length_metrics(scored.rollout, cfg) | rewards.summary(scored.parts)


def first_group(scored: Any, chosen: Any, cfg: Any, tok: Any) -> dict[str, Any]:
    """Show the first prompt, its completions, rewards and advantages, for rollouts.jsonl.

    chosen: the rl.Chosen; a completion that does not learn has the advantage None."""
    size = cfg.group_size
    group = {"prompt": scored.rows[0]["prompt"]}
    if cfg.fill_in:
        group["masked"] = masked_text(scored.rollout, cfg, tok)
    group["completions"] = scored.completions[:size]
    group["rewards"] = {name: part[:size].tolist() for name, part in scored.parts.items() if "/" not in name}
    learns = dict(zip(np.asarray(chosen.rollout.number).tolist(), np.asarray(chosen.advantage).tolist(), strict=True))
    group["advantages"] = [learns.get(i) or None for i in range(size)]
    return group


def masked_text(rollout, cfg, tok):
    """Write the first text of a rollout with <|mask|> for each token that was to be filled."""
    ids = texts.completion_ids(np.asarray(rollout.tokens)[:1], tok, cfg)[0]
    masked = np.asarray(rollout.completion)[0, cfg.max_prompt_len :]
    pairs = zip(ids, masked.tolist(), strict=False)
    text = ""
    for is_masked, run in itertools.groupby(pairs, operator.itemgetter(1)):
        run_ids = [token for token, _ in run]
        text += "<|mask|>" * len(run_ids) if is_masked else tok.decode(run_ids)
    return text


@contextlib.contextmanager
def timed(notes, name):
    """Add the seconds that the body takes to notes[name]."""
    begun = time.perf_counter()
    yield
    notes[name] += time.perf_counter() - begun


def read_metrics(unread, last, cfg):
    """Average the metrics of a step's updates -> {name: float}, with the notes and the step. Raises ValueError if a
    loss or gradient norm is not finite; the message has those of the step before, `last`.

    unread: step, metrics of its updates, notes; None: there is nothing to read, and `last` is returned."""
    if not unread:
        return last
    step, updates, notes = unread
    updates = [{k: float(v) for k, v in metrics.items()} for metrics in updates]
    bad = [m for m in updates if not np.isfinite([m["loss"], m["grad_norm"]]).all()]
    if not bad:
        mean = rl.combine_metrics({k: np.array([m[k] for m in updates]) for k in updates[0]}, "mean") if updates else {}
        return {k: float(v) for k, v in mean.items()} | notes | {"step": step}
    from loop import failures

    is_first = step == 1 and bad[0] is updates[0]
    raise failures.not_finite(step, bad[0], last, cfg, is_first)
