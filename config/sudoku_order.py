"""
Train which cells to fill first, and how many at a time: GRPO on a small policy, the denoiser stays as it is.

    python train.py config/sudoku_order.py

60 iterations, 4 minutes on 2 cores of an Intel Xeon, one seed, 192 held-out grids: greedy goes from 79.7% with
3.9 tokens per pass, where the rule `threshold` is, to 89.1% with 2.6, as good as the best rule (docs/learned-order.md).
"""
from dataclasses import replace

from config.sudoku_d1_grpo import config as sudoku

config = replace(
    sudoku,
    out_dir="out/sudoku_order",
    rule="learned",
    threshold=0.5,  # greedily: fill what the policy fills with at least this probability
    logp_est="decisions",
    score_after_end=True,
    top_k=1,  # the likeliest token: only the decisions are drawn
    rewards=("sudoku_all", "passes(right=1)"),
    reward_weights=(1.0, 0.1),
    batch_size=64,
    group_size=8,
    keep_completions=None,
    updates_per_rollout=1,
    adv_norm="none",  # divided by their spread, advantages would favour speed where all grids are right
    adv_negative=1.0,  # these log-probs are exact, so what lowers them lowers the probability
    weight_decay=0.0,
    learning_rate=1e-3,
    max_iters=60,
    eval_interval=20,
)
