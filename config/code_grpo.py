"""
GRPO on Python functions that it has never seen: every body runs against unit tests in the sandbox.

    python train.py config/code_grpo.py

100 iterations, 12 minutes on one of 2 cores of an Intel Xeon (`taskset -c 0`), with 8 denoising steps where the base
was measured with 24: greedy from 39.8% to 57.8%, sampled from 22.3% to 46.9%, 128 held-out functions.
"""
from dataclasses import replace

from config.code_base import config as base
from config.sudoku_grpo import tuning

config = replace(base, **tuning | {
    "out_dir": "out/code_grpo",
    "init_from": "config/code_base.py",
    "updates_per_rollout": 2,
    "learning_rate": 4e-4,
    "diffusion_steps": 8,  # a third of what the base was measured with
    "max_iters": 150,
    "eval_interval": 10,
})  # fmt: skip
