"""
The same base as config/sudoku_base.py, but where a cell is missing the network reads a random token instead of a mask.

    python train.py config/sudoku_uniform_base.py
"""
from dataclasses import replace

from config.sudoku_base import config as base

config = replace(base, out_dir="out/sudoku_uniform_base", model=replace(base.model, noise="uniform"))
