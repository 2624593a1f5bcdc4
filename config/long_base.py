"""
Pretrain a small model on a long task: 25 groups of 4 bits and their running totals, 124 tokens. A bit depends on those
before it in its group, and groups are independent. The task shows what rules, caches and few forward passes cost
(`python tests/bench.py frontier`).

    python train.py config/long_base.py

600 steps, 7:40 minutes on one of 2 cores of an AMD EPYC (Zen 4), shared with other work: 0% of 64 held-out texts are
without a mistake after 200 steps, 48% after 300 (--eval_interval=100), and all after 400.
"""
from dataclasses import replace

from config.arith_base import config as arith

config = replace(
    arith,
    out_dir="out/long_base",
    dataset="data/arith/totals",
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
    use=(),
    model=replace(arith.model, rope_theta=1000.0),
)
