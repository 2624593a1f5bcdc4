"""
Pretrain a denoiser that fills in 4x4 sudokus in place, 4 to 12 empty cells in four denoising steps, as the start for
reinforcement learning. It stops once it solves 20% of them, which is at another step on another kind of machine.

    python train.py config/sudoku_base.py

125 steps, 84 seconds on 2 cores of an AMD EPYC (Zen 4) that other work shared: val/sampled 25.6%, val/greedy 48.4%.
(Evaluations are 25 steps apart, so it may stop above 30%: seeds 1 and 2 stop at 20.7% and 36.3%.)
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
