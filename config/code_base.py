"""
A start for reinforcement learning on Python functions: signature and docstring in, body out, judged by unit tests in
the sandbox. It stops when 30% of its sampled bodies pass all their tests.

    python train.py config/code_base.py

224 seconds on 2 cores of an Intel Xeon: it stops after 1000 steps, at val/sampled 35.9% and val/greedy 51.6%.
"""
from dataclasses import replace

from config.countdown_base import config as countdown

config = replace(
    countdown,
    out_dir="out/code_base",
    dataset="code",
    difficulty=(),
    max_prompt_len=32,  # three quarters of the functions: those with a body of up to 24 tokens
    max_new_tokens=24,
    rewards=("tests_all",),
    batch_size=32,
    learning_rate=2e-3,
    diffusion_steps=24,
    eval_interval=100,
    eval_size=128,
)
