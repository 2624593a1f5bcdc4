"""
GRPO on countdown: three numbers up to 9, a target, and equations that are true and use every number once.

    python train.py config/countdown_grpo.py

150 iterations, 5 minutes on one of 2 cores of an Intel Xeon (`taskset -c 0`), with 4 denoising steps where the base was
measured with 8: greedy from 23.1% to 39.8%, sampled from 21.8% to 31.5%, 108 held-out puzzles.
"""
from dataclasses import replace

from config.countdown_base import config as base
from config.sudoku_grpo import tuning

config = replace(base, **tuning | {
    "out_dir": "out/countdown_grpo",
    "init_from": "config/countdown_base.py",
    "data_part": (0.7, 1),  # numbers and targets that the base has not seen
    "batch_size": 64,
    "group_size": 8,
    "temperature": 1.2,
    "diffusion_steps": 4,
    "updates_per_rollout": 2,  # there are few such puzzles, and with four passes they are learnt by heart
    "max_iters": 150,
    "eval_interval": 25,
})  # fmt: skip
