"""
A long task for its size: 14 sums and differences of two-digit numbers, said again with their results, 125 tokens. What a
sampler costs shows here (`python tests/bench.py frontier`).

    python train.py config/long_base.py
"""
from dataclasses import replace

from config.arith_base import config as arith

config = replace(
    arith,
    out_dir="out/long_base",
    dataset="data/arith/totals",
    difficulty=(),
    max_prompt_len=129,
    max_new_tokens=128,
    max_iters=600,
    batch_size=16,
    learning_rate=2e-3,
    lr_schedule="cosine",
    ema_decay=None,
    eval_interval=200,
    eval_size=64,
    diffusion_steps=42,
    stop_at=None,
    model=replace(arith.model, rope_theta=1000.0),
)
