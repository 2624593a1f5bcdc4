"""
Pretrain an autoregressive model of the size of config/arith_base.py on the same sums and differences, until it gets
40% of the results right.

    python train.py config/arith_ar_base.py

394 seconds on one of 2 cores of an Intel Xeon, shared with other work: it stops after 800 steps, at val/sampled 46.1%
and val/greedy 71.1%.
"""
from dataclasses import replace

from config.arith_base import config as base

config = replace(base, out_dir="out/arith_ar_base", order="left", model=replace(base.model, causal=True, shift=True))
