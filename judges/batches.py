"""
Rewards that look beyond a text: at the other completions of its group, or at the passes that wrote it. Importing this
file adds them to rewards.REWARDS.
"""

import math

import rewards
from judges import rules


def jaccard(a, b):
    """Measure the overlap of two sets: intersection / union."""
    return len(a & b) / max(1, len(a | b))


def diversity(prompts, completions, groups=None):
    """1 - the largest overlap with another completion of the group (Jaccard, sets of 3-grams); 0.0 for a copy or blank.

    A group shares its value in the column `groups`, or its prompt; None if the completion is alone in its group."""
    grams = [frozenset(rules.ngrams(text, 3)) for text in completions]
    members = {}
    for i, group in enumerate(prompts if groups is None else groups):
        members.setdefault(group, []).append(i)
    scores = [None] * len(completions)
    for group in members.values():
        for i in group if len(group) > 1 else []:
            overlap = max(jaccard(grams[i], grams[j]) for j in group if j != i)
            scores[i] = 1.0 - overlap if grams[i] else 0.0
    return scores


def passes(prompts, completions, tokens_per_pass, right=-math.inf, first_reward=None):
    """Tokens per denoising pass: 16 tokens earn 1.0 in 16 passes and 8.0 in two; 0.0 for blank text.

    It is for rules that decide how many tokens to fill. With quota, dream, static, and in a causal model, the schedule
    fixes the passes, so this would pay for length.

    right: only completions whose first reward is at least this are judged, None for the others (default: all are)."""
    earned = [fast if text.strip() else 0.0 for fast, text in zip(tokens_per_pass, completions, strict=True)]
    if right == -math.inf:
        return earned
    if first_reward is None:
        raise ValueError(f"passes(right={right}) asks what the reward before it says, and there is none: name it first")
    return [fast if first >= right else None for fast, first in zip(earned, first_reward, strict=True)]


rewards.REWARDS.add({"diversity": diversity, "passes": passes})
