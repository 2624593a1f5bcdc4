"""
The same start as config/arith_base.py for an autoregressive model of the same size: it stops when it writes 40% of the
results without a mistake.

    python train.py config/arith_ar_base.py

TBD
"""
from dataclasses import replace

from config.arith_base import config as base

config = replace(base, out_dir="out/arith_ar_base", order="left", model=replace(base.model, causal=True, shift=True))
