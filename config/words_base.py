"""
Pretrain a model on one-step word problems, as the start for reinforcement learning; a solution ends in `#### answer`.
It stops once 30% of its sampled answers are right.

    python train.py config/words_base.py

116 seconds on 2 cores of an Intel Xeon: it stops after 700 steps, at val/sampled 32.0% and val/greedy 35.2%.
"""
from dataclasses import replace

from config.countdown_base import config as countdown
from variants import curriculum

config = replace(
    countdown,
    out_dir="out/words_base",
    dataset="words",
    max_prompt_len=22,
    max_new_tokens=9,
    rewards=("math",),
    batch_size=32,
    learning_rate=2e-3,
    stop_at=0.3,
    use=(curriculum.Keys(difficulty=(1, 1)),),
)
