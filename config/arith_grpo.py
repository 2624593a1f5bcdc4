"""
Train a denoiser with GRPO on sums and differences of two-digit numbers. config/arith_ar_grpo.py does the same with an
autoregressive model.

    python train.py config/arith_grpo.py

60 iterations, 158 seconds on one of 2 cores of an Intel Xeon: greedy from 68.0% to 88.3%, sampled from 42.1% to 75.5%.
"""
from dataclasses import replace

from config.arith_base import config as base
from config.sudoku_grpo import tuning

config = replace(
    base,
    **tuning,
    out_dir="out/arith_grpo",
    init_from="config/arith_base.py",
    max_iters=60,
    eval_interval=10,
)
