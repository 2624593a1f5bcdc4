"""
A long task for a small model: 25 groups of 4 bits and their running totals, 124 tokens, where a bit needs those before
it in its group, and groups need nothing of each other. What rules, caches and few forward passes cost shows here
(`python tests/bench.py frontier`).

    python train.py config/long_base.py

600 steps, 7:40 minutes on one of 2 cores of an AMD EPYC (Zen 4) beside other work: of 64 held-out texts none is without
a mistake after 200 steps, 48% are after 300 (--eval_interval=100), all after 400.
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
    max_iters=600,
    batch_size=16,
    learning_rate=2e-3,
    lr_schedule="cosine",
    ema_decay=None,
    eval_interval=200,
    eval_size=64,
    rule="threshold",
    block_len=32,
    cache="dual",
    stop_at=None,
    model=replace(arith.model, rope_theta=1000.0),
)
