"""
Train with GRPO for right answers in few passes: like config/sudoku_grpo.py, but a pass commits every token that is 90%
sure, and a right grid is better the fewer passes it took. Watch `tokens_per_pass` and val/greedy.

    python train.py config/sudoku_fast_grpo.py
"""
from dataclasses import replace

from config.sudoku_grpo import config as sudoku

config = replace(
    sudoku,
    out_dir="out/sudoku_fast_grpo",
    rule="threshold",
    threshold=0.9,
    rewards=("sudoku_all", "passes(right=1)"),  # wrong grids gain nothing by being fast
    reward_norm="each",
    batch_size=64,
    keep_completions=48,
    learning_rate=4e-4,
    max_iters=60,
    eval_interval=30,
)
