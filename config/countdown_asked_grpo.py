"""
Train with GRPO on 4,758 puzzles of countdown that have no answers, from a model that has seen 600 answered ones.

    python train.py config/countdown_asked_grpo.py

TODO
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
