"""
Train with GRPO on 4,758 puzzles of countdown that have no answers, from a model that has seen 600 answered ones.

    python train.py config/countdown_asked_grpo.py

300 iterations, three seeds, 256 held-out puzzles: greedy rises from 13.9% to 24.0% (29.7, 23.4 and 18.8%), sampled (at
1.3) from 6.4% to 19.9%, pass@4 from 16.1% to 30.3%. Answers alone reach at most 18.8%: three seeds do not settle that
rewards beat them (t = 1.6). 7 minutes on one of 2 cores of an Intel Xeon (docs/tried.md).
"""
from dataclasses import replace

from config.countdown_grpo import config as base
from variants import rules

config = replace(
    base,
    out_dir="out/countdown_asked_grpo",
    init_from="config/countdown_few.py",
    dataset="data/countdown/asked",
    use=(rules.Entropy(budget=0.3),),
)
