"""
Estimate the FLOPs of an iteration from the config of a run alone, in the terms of memory.py. (XLA's cost_analysis()
counts the body of a loop once, however often the loop runs.)
"""
import functools
import math

import config
import model
from config import Config
from loop import memory
from system import sections


def pass_flops(cfg, rows, scored, width, keys, last=None):
    """Estimate the FLOPs of a forward pass over `width` columns of each row, whose queries see `keys` columns.

    2 per weight of a matrix and column, 4 per key, query and head column. The head reads `scored` columns. A model of a
    few blocks computes its last block for `last` columns only (None: for all), except for their keys and values.
    """
    m = cfg.model
    D = m.d_model
    Q = m.n_head * m.head_dim
    KV = m.kv_heads * m.head_dim
    if last is None or m.n_layer > model.UNROLLED:
        last = width
    queries = (m.n_layer - 1) * width + last
    head = 0 if cfg.objective == "judge" else 2 * scored * D * m.vocab_size
    experts = sections.find(m, "moe")
    mlp = 6 * D * memory.mlp_widths(m).used + (2 * D * experts.n_experts if experts else 0)
    return rows * (queries * (4 * D * Q + mlp + 4 * keys * Q) + m.n_layer * width * 4 * D * KV + head)


def estimate_flops(cfg: Config) -> dict[str, float]:
    """Estimate the FLOPs of an iteration by stage, on all devices."""
    rows, forward = memory.count_rows(cfg), scoring_flops(cfg)
    update = (4 if rows.recomputed else 3) * forward  # a backward pass takes two forward passes
    if cfg.objective != "grpo":
        return {"rollout": 0, "scoring": 0, "update": update}
    first = 1 / config.updates_per_iter(cfg)  # the first minibatch needs no old log-probs
    old = 3 if config.old_logp_by_gradient(cfg) else 1  # a whole gradient, for its log-probs
    scorings = bool(cfg.kl_beta) + (cfg.ratio_level != "none") * (1 - first) * old
    return {"rollout": rollout_flops(cfg), "scoring": scorings * forward, "update": update}


def scoring_flops(cfg):
    """Estimate the FLOPs of the forward pass of all updates of an iteration."""
    T, new, rows = cfg.max_prompt_len + cfg.max_new_tokens, cfg.max_new_tokens, memory.count_rows(cfg).scored
    columns = memory.copy_columns(cfg)
    if not columns:
        return pass_flops(cfg, rows, new, T, T, T if cfg.objective == "judge" else new)
    copies = rows / memory.rows_per_copy(cfg)
    # A shifted model reads the first token of each block from the clean text.
    text = new if cfg.model.shift else 0
    texts = copies / memory.copies_per_text(cfg)
    of_copies = pass_flops(cfg, copies, new, columns, T + columns, new)
    return of_copies + pass_flops(cfg, texts, 0, T, T, text)


def rollout_flops(cfg):
    """Estimate the FLOPs of a rollout."""
    m, new = cfg.model, cfg.max_new_tokens
    T = cfg.max_prompt_len + new
    rows = cfg.batch_size * cfg.group_size
    steps = cfg.rollout_steps or cfg.diffusion_steps
    one_pass = functools.partial(pass_flops, cfg)
    if m.causal:  # the cache holds the rest: every token is read once
        return one_pass(rows, new, T, T)
    prompts = one_pass(cfg.batch_size, 0, T, T)
    if m.block and cfg.cache != "none":  # each prompt once, and one more pass per block, to cache it
        b = m.block
        passes = (min(steps, b) + 1) * -(-new // b)
        return prompts + passes * one_pass(rows, b, b, T, b)
    block = cfg.block_len or new
    shared = 1 / math.gcd(config.rollout_rows(cfg), cfg.group_size)  # rows of a group share their first step
    whole = steps if cfg.cache == "none" else min(-(-new // block), steps)  # passes over all columns: one per block
    width = block if cfg.cache == "dual" else (new + block) // 2  # of the other passes, on average
    of_all = one_pass(rows, block, T, T, block)
    of_others = one_pass(rows, block, width, T, block)
    return (whole - 1 + shared) * of_all + (steps - whole) * of_others


def stage_flops(cfg):
    """Format the FLOPs of every stage."""
    return ", ".join(f"{stage} {memory.amount(x, 'FLOP')}" for stage, x in estimate_flops(cfg).items() if x)


def summary(cfg: Config) -> str:
    """Return the FLOPs of an iteration in words, in all and for every stage."""
    flops = estimate_flops(cfg)
    stages = f" ({stage_flops(cfg)})" if flops["rollout"] else ""
    return f"{memory.amount(sum(flops.values()), 'FLOP')} per step{stages}"
