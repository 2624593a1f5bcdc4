"""
Pretrain a model on few answers: 600 puzzles of countdown (3,251 rows), as the start for rewards on puzzles without any.

    python train.py config/countdown_few.py

600 steps, 2 minutes of processor time on 2 cores of a shared Intel Xeon: 13.3% greedy and 10.5% sampled. With more
steps it learns its rows by heart (docs/tried.md).
"""
from dataclasses import replace

from config.countdown_base import config as base

config = replace(
    base,
    out_dir="out/countdown_few",
    dataset="data/countdown/few",
    stop_at=None,
    max_iters=600,
    eval_interval=200,
    use=(),
)
