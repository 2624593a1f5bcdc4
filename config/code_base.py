"""
A start for reinforcement learning on Python functions: signature and docstring in, body out, judged by unit tests in
the sandbox. It stops when 20% of its sampled bodies pass all their tests.

    python train.py config/code_base.py

171 seconds on 2 cores of an AMD EPYC (Zen 5): it stops after 650 steps, at val/sampled 23.4% and val/greedy 36.3%.
"""
from dataclasses import replace

from config.countdown_base import config as countdown

config = replace(
    countdown,
    out_dir="out/code_base",
    dataset="code",
    difficulty=(1, 24),  # two thirds of the functions: those whose body has so many tokens
    max_prompt_len=32,
    max_new_tokens=24,
    rewards=("tests_all",),
    batch_size=32,
    learning_rate=2e-3,
    diffusion_steps=24,
    eval_interval=50,
    eval_size=256,
    stop_at=0.2,
)
