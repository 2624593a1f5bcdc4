"""
Estimate the FLOPs of an iteration from the config of a run alone. (XLA's cost_analysis() counts the body of a loop
once, however often the loop runs.)

Terms: a *row* is one text in a forward pass; a *noisy copy* is a text with masks; a *stage* is rollout, scoring (old
and reference log-probs) or update.
"""

import functools
import math

import config
from config import Config
from loop import memory
from system import sections


def count_rows(cfg: Config) -> float:
    """Count the rows in the forward passes of all updates of an iteration, on all devices together."""
    copies = copies_per_text(cfg)
    width = rows_per_copy(cfg)
    if cfg.objective in ("pretrain", "judge"):
        return width * cfg.batch_size * (2 if cfg.objective == "judge" else 1)
    per_iter = cfg.updates_per_rollout * config.n_update(cfg)
    return width * per_iter * copies


def copies_per_text(cfg):
    """Count the noisy copies of each text."""
    return config.n_views(cfg) if cfg.objective == "grpo" else config.copies(cfg)


def copy_columns(cfg):
    """Count the columns computed per noisy copy of a block model, next to the clean text. 0: not a block model."""
    block = cfg.model.block
    if not block or cfg.objective == "judge":
        return 0
    return cfg.max_new_tokens + min(block - 1 + cfg.model.shift, cfg.max_prompt_len)


def rows_per_copy(cfg):
    """Count the rows computed per noisy copy: for a block model its last columns and its share of the clean text."""
    columns = copy_columns(cfg)
    if not columns:
        return 1
    return columns / (cfg.max_prompt_len + cfg.max_new_tokens) + 1 / copies_per_text(cfg)


def pass_flops(cfg, rows, scored, width, keys, last=None):
    """Estimate the FLOPs of a forward pass over `width` columns of each row, whose queries see `keys` columns.

    2 per weight of a matrix and column, 4 per key, query and head column. The head reads `scored` columns. The last
    layer is computed for `last` columns only (None: for all), except for its keys and values.
    """
    m = cfg.model
    D = m.d_model
    Q = m.n_head * m.head_dim
    KV = m.kv_heads * m.head_dim
    queries = (m.n_layer - 1) * width + (width if last is None else last)
    head = 0 if cfg.objective == "judge" else 2 * scored * D * m.vocab_size
    experts = sections.find(m, "moe")
    mlp = 6 * D * memory.mlp_width(m) + (2 * D * experts.n_experts if experts else 0)
    return rows * (queries * (4 * D * Q + mlp + 4 * keys * Q) + m.n_layer * width * 4 * D * KV + head)


def estimate_flops(cfg: Config) -> dict[str, float]:
    """Estimate the FLOPs of an iteration by stage, on all devices."""
    forward = scoring_flops(cfg)
    update = (4 if cfg.model.remat else 3) * forward  # a backward pass takes two forward passes
    if cfg.objective != "grpo":
        return {"rollout": 0, "scoring": 0, "update": update}
    first = 1 / config.updates_per_iter(cfg)  # the first minibatch needs no old log-probs
    old = 3 if config.old_logp_by_gradient(cfg) else 1  # a whole gradient, for its log-probs
    scorings = bool(cfg.kl_beta) + (cfg.ratio_level != "none") * (1 - first) * old
    return {"rollout": rollout_flops(cfg), "scoring": scorings * forward, "update": update}


def scoring_flops(cfg):
    """Estimate the FLOPs of the forward pass of all updates of an iteration."""
    T, new, rows = cfg.max_prompt_len + cfg.max_new_tokens, cfg.max_new_tokens, count_rows(cfg)
    columns = copy_columns(cfg)
    if not columns:
        return pass_flops(cfg, rows, new, T, T, T if cfg.objective == "judge" else new)
    copies = rows / rows_per_copy(cfg)
    # A shifted model reads the first token of each block from the clean text.
    text = new if cfg.model.shift else 0
    texts = copies / copies_per_text(cfg)
    of_copies = pass_flops(cfg, copies, new, columns, T + columns, new)
    return of_copies + pass_flops(cfg, texts, 0, T, T, text)


def rollout_flops(cfg):
    """Estimate the FLOPs of a rollout."""
    m, new = cfg.model, cfg.max_new_tokens
    T = cfg.max_prompt_len + new
    rows = cfg.batch_size * cfg.group_size
    steps = cfg.diffusion_steps
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
