"""
A long task for a small model: 25 groups of running totals, 124 tokens, where a digit needs the one before it and
groups need nothing of each other. What rules, caches and few forward passes cost shows here (`python tests/bench.py
frontier`).

    python train.py config/long_base.py
"""
from dataclasses import replace

from config.arith_base import config as arith

config = replace(
    arith,
    out_dir="out/long_base",
    dataset="data/arith/totals",
    difficulty=(),
    max_prompt_len=125,
    max_new_tokens=128,
    max_iters=500,
    batch_size=16,
    learning_rate=2e-3,
    lr_schedule="cosine",
    ema_decay=None,
    eval_interval=250,
    eval_size=64,
    rule="threshold",
    block_len=32,
    cache="dual",
    stop_at=None,
    model=replace(arith.model, rope_theta=1000.0),
)
