"""
Train with GRPO for right answers in few passes: like config/sudoku_grpo.py, but a pass commits every token that is 90%
sure, and a right grid is better the fewer passes it took. Watch `tokens_per_pass` and val/greedy.

    python train.py config/sudoku_fast_grpo.py

Not run to its end yet. Two iterations of 8 puzzles took 2 minutes on 2 cores of an Intel Xeon that other work shared,
nearly all of it to compile. The base starts at val/greedy 79.7% with 3.9 tokens per pass, and 53.5% sampled with 3.8.
An iteration has at most 508 GFLOP (a pass per cell), so all 120 have up to 61 TFLOP.
"""
from dataclasses import replace

from config.sudoku_grpo import config as sudoku

config = replace(
    sudoku,
    out_dir="out/sudoku_fast_grpo",
    rule="threshold",
    threshold=0.9,
    diffusion_steps=16,
    rewards=("sudoku_all", "passes(right=1)"),  # wrong grids gain nothing by being fast
    reward_norm="each",
    max_iters=120,
)
