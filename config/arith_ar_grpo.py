"""
GRPO on sums and differences of numbers with two digits, by an autoregressive model: the same program with another
estimator. Its log-probs are exact, so both signs of the advantage and the clipped ratio do what they should.

    python train.py config/arith_ar_grpo.py

TBD
"""
from dataclasses import replace

from config.arith_ar_base import config as base
from config.sudoku_grpo import tuning

config = replace(base, **tuning | {
    "out_dir": "out/arith_ar_grpo",
    "init_from": "config/arith_ar_base.py",
    "logp_est": "exact",
    "ratio_level": "token",
    "adv_negative": 1.0,
    "max_iters": 60,
    "eval_interval": 10,
})  # fmt: skip
