"""
Train the model of config/countdown_joint_base.py with GRPO on exact log-probs: rollouts are written by drafts, so they
have the distribution of the autoregressive model, and one causal pass scores them.

    python train.py config/countdown_joint_grpo.py

100 iterations, 4:31 minutes on 2 cores of an Intel Xeon after 81 seconds for the base, 256 held-out rows, the
mean of five seeds: greedy rises from 40.6% to 56.3%, sampled (at 1.3) from 9.3% to 30.8%, pass@4 from 30.7% to 66.0%.
"""
from dataclasses import replace

from config.countdown_block_grpo import config as blocks
from config.countdown_joint_base import config as base

config = replace(
    blocks,
    out_dir="out/countdown_joint_grpo",
    init_from="config/countdown_joint_base.py",
    rule=base.rule,
    order=base.order,
    cache=base.cache,
    logp_est="exact",
    model=base.model,
)
