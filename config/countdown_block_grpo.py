"""
GRPO on countdown as in config/countdown_grpo.py, of the model that is causal over blocks.

    python train.py config/countdown_block_grpo.py

An update computes as many tokens: 170 completions and two masked copies of each, instead of two copies of 256.
"""
from dataclasses import replace

from config.countdown_block_base import config as base
from config.countdown_grpo import config as bidirectional

config = replace(
    bidirectional,
    out_dir="out/countdown_block_grpo",
    init_from="config/countdown_block_base.py",
    keep_completions=170,
    cache=base.cache,
    diffusion_steps=base.diffusion_steps,
    model=base.model,
)
