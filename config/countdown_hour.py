"""
Countdown as the field's papers test small models on it: three numbers up to 100, + - * /, a target from 10 to 100. A
model of 1.9M parameters, causal over blocks of 4 tokens, from 400,000 rows, which are made first in 80 seconds.

    python train.py config/countdown_hour.py
    python sample.py out/countdown_hour --data=FILE --rewards=countdown          # rows {"prompt": "44,15,79=50:"}

10,400 steps, some 70 minutes on 2 cores of an AMD EPYC (Zen 4) that multiply large matrices at 150 to 180 GFLOP/s (the
last 7,442 steps took 48 there): 80.9% of 1,000 held-out puzzles greedily, 76.5% of 400 sampled. By thousands of steps
11, 30, 46, 53, 64, 69, 74, 81, 80 and 83%. What limits it is arithmetic: 170 of the 191 wrong answers have a false
equation, and 87% are right where only + and - are written, 61% where a * or / is. A model of 0.9M with 5,000 steps had
70.0% and 42%. GRPO on that one has not helped, the lab notebook says what was tried.
"""
from dataclasses import replace

from config.countdown_block_base import config as base

config = replace(
    base,
    out_dir="out/countdown_hour",
    dataset="data/countdown/hundred",
    difficulty=(),
    max_prompt_len=12,  # whole blocks of 4, so that the completion begins with one: 44-15= 29,79- 29=50
    max_new_tokens=12,
    batch_size=84,
    max_iters=10_400,
    stop_at=None,
    learning_rate=1.5e-3,
    lr_schedule="cosine",
    lr_end=0.05,
    warmup_iters=100,
    ema_decay=0.99,
    eval_interval=1000,
    eval_size=400,
    eval_samples=1,
    save_interval=1000,
    keep_checkpoints=1,
    model=replace(base.model, d_model=192, n_head=6),
)
