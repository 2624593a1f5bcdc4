"""
Train with GRPO on 4,758 puzzles of countdown that have no answers, from a model that has seen 600 answered ones.

    python train.py config/countdown_asked_grpo.py

300 iterations, two seeds, 256 held-out puzzles: greedy rises from 13.7% to 29.7% and from 14.5% to 23.4%, sampled (at
1.3) from 5.9% to 24.9% and from 5.8% to 19.6%, pass@4 from 14.5% to 34.0% and from 15.6% to 31.6%. 8 minutes of
processor time on 2 cores of a shared Intel Xeon (docs/few-answers.md).
"""
from dataclasses import replace

from config.countdown_grpo import config as base

config = replace(
    base,
    out_dir="out/countdown_asked_grpo",
    init_from="config/countdown_few.py",
    dataset="data/countdown/asked",
    difficulty=(),
)
