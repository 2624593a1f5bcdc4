"""
GRPO without a checkable answer: holes in couplets are filled in, and the reward is the opinion of a judge that was
trained on real and corrupted ones (config/grammar_judge.py). A judge can be fooled, so what it says is printed beside
three things that training never sees: the grammar's own checker (val/sampled), the likelihood under the frozen base
(coherence), and how many of all trigrams are different (distinct_3).

    python train.py config/grammar_grpo.py

40 iterations, 7 minutes on one of 2 cores of an Intel Xeon (`taskset -c 0`, while the other was at work, too). The
judge's opinion of greedy fill-ins rises from 0.54 to 0.69, and the share of them that is grammatical falls from 45% to
41% (sampled ones: 0.44 to 0.53, and 32% to 33%): the judge is outwitted, which is the lesson here.
"""
from dataclasses import replace

from config.grammar import config as base
from config.sudoku_grpo import tuning

config = replace(base, **tuning | {
    "out_dir": "out/grammar_grpo",
    "init_from": "config/grammar.py",
    "judge_from": "config/grammar_judge.py",
    # Not by the standard deviation of the group: else eight wrong fill-ins, of which the judge likes one a little
    # better, count as much as a right one among wrong ones.
    "adv_norm": "none",
    "rewards": ("judge",),
    "eval_rewards": ("data/grammar/prepare.py:grammatical", "coherence"),
    "fill_in": True,
    "mask_ratio_min": 0.2,
    "mask_ratio_max": 0.5,
    "diffusion_steps": 6,
    "temperature": 0.7,
    "batch_size": 32,
    "group_size": 8,
    "learning_rate": 2e-4,
    "max_iters": 40,
    "eval_size": 128,
    "eval_interval": 20,
})  # fmt: skip
