"""
Pretrain a denoiser of the hardest 4x4 sudokus (12 empty cells), as the start for reinforcement learning. It stops once
it solves 30% of them in four denoising steps. Bases differ: 48% to 66% greedy were seen.

    python train.py config/sudoku_d1_base.py

56 seconds on 2 cores of an AMD EPYC (Zen 5): it stops after 425 steps, at val/sampled 32.8% and val/greedy 56.2%.
"""
from dataclasses import replace

from config.sudoku_d1 import config as sudoku
from variants import curriculum

# A constant learning rate and an average of the parameters: a cosine ends in a sharp minimum, which the first updates
# of reinforcement learning leave.
config = replace(
    sudoku,
    out_dir="out/sudoku_d1_base",
    diffusion_steps=4,
    learning_rate=1e-3,
    lr_schedule="constant",
    ema_decay=0.98,
    max_iters=3000,
    eval_interval=25,
    eval_size=192,
    stop_at=0.3,
    use=(curriculum.Keys(difficulty=(12, 12)),),
)
