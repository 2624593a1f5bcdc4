"""
Pretrain
"""
from dataclasses import replace

from config.sudoku import config as sudoku

# A constant learning rate and an average of the parameters: a cosine ends in a sharp minimum, which the first updates
# of reinforcement learning leave.
config = replace(
    sudoku,
    out_dir="out/sudoku_base",
    diffusion_steps=4,
    lr_schedule="constant",
    ema_decay=0.98,
    max_iters=3000,
    eval_interval=25,
    eval_size=512,
    stop_at=0.2,
)
