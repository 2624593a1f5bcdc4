"""
Countdown as the field's papers test small models on it: three numbers up to 100, + - * /, a target from 10 to 100. A
model of 0.9M parameters, causal over blocks of 4 tokens, from 400,000 rows, which are made first in 80 seconds.

    python train.py config/countdown_hour.py
    python sample.py out/countdown_hour --data=FILE --rewards=countdown          # rows {"prompt": "44,15,79=50:"}

5,000 steps, 66 minutes on one of 2 cores of an AMD EPYC (Zen 4) beside other work: 70.0% of 1,000 held-out puzzles
greedily, 42% sampled. By minutes: 1% after 7, 12% after 13, 28% after 28, 52% after 44, 66% after 56. What limits it is
arithmetic, that is time: 272 of the 300 wrong answers have a false equation, and 83% are right where + and - do, 39%
where a * or / is needed. GRPO on it has not helped yet, the lab notebook says what was tried.
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
    max_iters=5000,
    stop_at=None,
    learning_rate=2e-3,
    lr_schedule="cosine",
    lr_end=0.05,
    warmup_iters=100,
    ema_decay=0.99,
    eval_interval=500,
    eval_size=400,
    eval_samples=1,
    save_interval=500,
    keep_checkpoints=1,
)
