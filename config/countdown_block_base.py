"""
The start of config/countdown_base.py as a model that is causal over blocks of 4 tokens (SDAR), of the same size.

    python train.py config/countdown_block_base.py

A step computes fewer tokens: of 21 texts the text and what two noisy copies have behind the prompt, 987, instead of
64 rows of 19. 700 steps, 3 minutes on one of 2 cores of an AMD EPYC (Zen 4) beside other work: 21.9% sampled and 39.1%
greedy. config/countdown_base.py: 1,150 steps, 4 minutes, 21.9% and 31.6%.
"""
from dataclasses import replace

from config.countdown_base import config as base

config = replace(
    base,
    out_dir="out/countdown_block_base",
    paired=True,  # the text, once, serves both of its copies
    batch_size=42,
    cache="prefix",  # of finished blocks it is exact
    diffusion_steps=4,  # of each block: a token a pass, of 4 columns; 8 passes over 19 columns are twice the work
    model=replace(base.model, block_causal=4, qk_norm=True),  # norms as in SDAR, whose folders can hold it
)
