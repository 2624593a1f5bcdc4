"""
A judge of couplets: it tells real ones from those that config/grammar.py fills in and from corrupted ones. val/pair_acc
is how often it scores the real one of a held-out pair higher.

    python train.py config/grammar_judge.py

1000 steps, 7 minutes on one of 2 cores of an Intel Xeon (the other was at work, too): val/pair_acc 0.971, and 0.947
after the first 3 minutes.
"""
from dataclasses import replace

from config.grammar import config as grammar

config = replace(
    grammar,
    objective="judge",
    out_dir="out/grammar_judge",
    init_from="config/grammar.py",
    rewards=(),
    judge_rows=24_000,  # all there are
    max_iters=1000,  # 95% of the pairs take 400; the rest are what a policy finds and lives on
    learning_rate=5e-4,
    eval_size=512,
)
