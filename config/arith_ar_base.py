"""
The same start as config/arith_base.py for an autoregressive model of the same size: it stops when it writes 40% of the
results without a mistake.

    python train.py config/arith_ar_base.py

394 seconds on one of 2 cores of an Intel Xeon, which other work shared: it stops after 800 steps, at val/sampled 46.1%
and val/greedy 71.1%.
"""
from dataclasses import replace

from config.arith_base import config as base

config = replace(base, out_dir="out/arith_ar_base", order="left", model=replace(base.model, causal=True, shift=True))
