"""
The same GRPO as config/sudoku_grpo.py, on a denoiser that reads random tokens instead of masks.

    python train.py config/sudoku_uniform_grpo.py
"""
from dataclasses import replace

from config.sudoku_grpo import config as grpo
from config.sudoku_uniform_base import config as base

config = replace(grpo, out_dir="out/sudoku_uniform_grpo", init_from="config/sudoku_uniform_base.py", model=base.model)
