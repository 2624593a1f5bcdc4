"""
Pretrain a model on few answers: 600 puzzles of countdown (3,251 rows), as the start for rewards on puzzles without any.

    python train.py config/countdown_few.py

TODO
"""
from dataclasses import replace

from config.countdown_base import config as base

config = replace(
    base,
    out_dir="out/countdown_few",
    dataset="data/countdown/few",
    difficulty=(),
    stop_at=None,  # the best checkpoint is kept: after that it learns its rows by heart
    max_iters=2000,
    eval_interval=200,
)
