"""
Pretrain a block diffusion model of 1.9M parameters on countdown as papers test it: three numbers up to 100, + - * /, a
target from 10 to 100. The 400,000 rows are made first, in 80 seconds.

    python train.py config/countdown_hour.py
    python sample.py out/countdown_hour --data=FILE --out=filled.jsonl
    python rewards.py filled.jsonl --rewards=countdown

A row of FILE is {"prompt": "44,15,79=50:", "numbers": [44, 15, 79], "target": 50}.

11,000 steps, 57 minutes in all on 2 cores of an idle AMD EPYC (Zen 4), which multiply large matrices at 150 to 180
GFLOP/s: 82.2% of 1,000 held-out puzzles greedily, 78.3% of 400 sampled. After every 1,100 steps (5.6 minutes) greedy
is 17, 33, 48, 60, 67, 75, 80, 81, 84 and 83%. Planning is the limit: of 178 wrong answers, 45 have a false first
equation; 116 have a true one that mostly leads nowhere, and a second that is bent to the target. 93% of the puzzles
that need only + and - are solved, and 54% of the others. A model of 0.9M parameters reached 70.0% in 5,000 steps. GRPO
hardly helps at the end (60 iterations, 20 minutes of one core: 80.9 to 81.1%), and in the middle pre-training wins by
far (from step 2,200 in 3 minutes: 34.8 to 44.5%, with GRPO to 29.0%); docs/tried.md says what was tried.
"""
from dataclasses import replace

from checkpoints import checkpoint
from config.countdown_block_base import config as base
from loop import evaluation
from variants import paired

config = replace(
    base,
    out_dir="out/countdown_hour",
    dataset="data/countdown/hundred",
    max_prompt_len=12,  # three blocks of 4, so that a completion begins a block: 44-15= 29,79- 29=50
    max_new_tokens=12,
    batch_size=84,
    max_iters=11_000,
    stop_at=None,
    learning_rate=1.5e-3,
    lr_schedule="cosine",
    lr_end=0.05,
    warmup_iters=100,
    ema_decay=0.99,
    eval_interval=1100,
    eval_size=400,
    save_interval=1100,
    use=(checkpoint.Keys(keep=1), evaluation.Keys(samples=1), paired.Keys()),
    model=replace(base.model, d_model=192, n_head=6),
)
