"""
Train with GRPO without a checkable answer: the model fills masks in couplets, and the reward is the score of a judge
that was trained on real and corrupted couplets (config/grammar_judge.py). A judge can be fooled, so its score is
printed beside three measures that training never uses: the grammar's own checker (val/sampled), the likelihood under
the frozen base (coherence), and the fraction of distinct trigrams (distinct_3).

    python train.py config/grammar_grpo.py

130 iterations, 16 minutes on one of 2 cores of an Intel Xeon (`taskset -c 1`, while the other core was busy). On 1,200
held-out couplets the judge's score of greedy completions rises from 0.57 to 0.87 (sampled: 0.50 to 0.80), and the
fraction of grammatical ones from 46.3% to 49.7% (sampled: 33.0% to 45.4%). With a quarter of the couplets per iteration
the policy fools the judge: its score rises, and the fraction of grammatical couplets falls.
"""
from dataclasses import replace

from config.grammar import config as base
from config.sudoku_grpo import tuning

config = replace(base, **tuning | {
    "out_dir": "out/grammar_grpo",
    "init_from": "config/grammar.py",
    "judge_from": "config/grammar_judge.py",
    # Divided by the standard deviation of the group, four wrong completions of which the judge likes one a little
    # better would count as much as a right one among wrong ones.
    "adv_norm": "none",
    "rewards": ("judge",),
    "eval_rewards": ("data/grammar/prepare.py:grammatical", "coherence"),
    "fill_in": True,
    "mask_ratio_min": 0.2,
    "mask_ratio_max": 0.5,
    "diffusion_steps": 6,
    "temperature": 0.7,
    "keep_completions": 96,
    "max_iters": 130,
    "eval_size": 400,
    "eval_interval": 26,
})  # fmt: skip
