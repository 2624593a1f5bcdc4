"""
Train a block diffusion model on countdown with the estimator and the ratio of LLaDA2.1 (EBPO): one ratio for each
completion, from the ELBO of all its blocks, for which each masked copy needs one forward pass.

    python train.py config/countdown_ebpo.py

100 iterations, 256 held-out puzzles: greedy rises from 41.0% to 66.8%, sampled (at 1.3) from 10.0% to 40.4%, pass@4
from 32.4% to 73.4%. 4 minutes on one core of an AMD EPYC (Zen 5), with the base.
"""
from dataclasses import replace

from config.countdown_block_grpo import config as base

config = replace(
    base,
    out_dir="out/countdown_ebpo",
    logp_est="elbo",
    logp_views=2,  # as many masked copies as one pair of coupled_elbo
    ratio_level="sequence",  # the mean over the tokens of a completion, where LLaDA2.1 has the sum
    updates_per_rollout=2,  # the first has a ratio of 1
)
