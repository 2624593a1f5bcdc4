"""
Pretrain a denoiser that fills in 4x4 sudokus in place, with 4 to 12 of 16 cells empty.

    python train.py config/sudoku.py
"""
from config import Config
from model import ModelConfig

config = Config(
    out_dir="out/sudoku",
    dataset="sudoku_grid",
    fill_in=True,  # the text is the grid: given cells are given, and nothing stands before or behind it
    max_prompt_len=0,
    max_new_tokens=16,
    rewards=("sudoku_all",),
    max_iters=700,
    batch_size=128,
    learning_rate=2e-3,
    lr_end=0.05,
    eval_interval=100,
    diffusion_steps=16,
    model=ModelConfig(n_layer=4, n_head=4, d_model=64, rope_theta=100.0),  # few positions: no slow rotations
)
