"""
GRPO on your own task: prompts from mine.jsonl, rewards from the function `reward` in mine.py, both in the folder you
work in. The base is trained first if it is not there.

    python train.py config/own_grpo.py

40 iterations of the README's example, 3 minutes on one of 2 cores of an AMD EPYC (Zen 4): of the letters, 92.2% to
97.9% are in their places when sampled, 99.4% to 99.7% greedily.
"""
from dataclasses import replace

from config.own_base import config as base
from config.sudoku_grpo import tuning

config = replace(base, **tuning | {
    "out_dir": "out/own_grpo",
    "init_from": "config/own_base.py",
    "rewards": ("mine.py:reward",),
    "rollout_chunk": 128,  # what stays in the cache of a CPU; on a GPU rather None, all at once
    "updates_per_rollout": 2,
    "max_iters": 40,
    "eval_interval": 20,
})  # fmt: skip
