"""
Train with DPO on countdown: of two answers to a puzzle, one right and one wrong, prefer the right one.

    python train.py config/countdown_dpo.py
"""
from dataclasses import replace

from config.countdown_base import config as base

config = replace(
    base,
    objective="dpo",
    out_dir="out/countdown_dpo",
    init_from="config/countdown_base.py",
    dataset="data/countdown/pairs",
    logp_est="elbo",
    logp_views=2,
    kl_beta=0.1,
    nll_coef=1.0,  # without it the right answers lose probability, too
    learning_rate=3e-4,
    lr_schedule="cosine",
    ema_decay=None,
    stop_at=None,
    max_iters=200,
    eval_interval=50,
)
