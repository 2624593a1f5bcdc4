"""
GRPO on SmolLM2-135M after it became a block diffusion model (config/smollm2_block.py, which is run first if it was
not): word problems of one step.

    python train.py config/smollm2_block_grpo.py
"""
from dataclasses import replace

from config.smollm2_block import config as base
from config.smollm2_grpo import config as causal

config = replace(
    causal,
    out_dir="out/smollm2_block_grpo",
    init_from="config/smollm2_block.py",
    instruction=None,
    max_prompt_len=base.max_prompt_len,
    max_new_tokens=base.max_new_tokens,
    cache=base.cache,
    diffusion_steps=base.diffusion_steps,
    order="confidence",
    # As in config/countdown_block_grpo.py: a bound, by pairs of complementary masks, of what beats its group.
    logp_est="coupled_elbo",
    adv_negative=0.0,
    keep_completions=16,
    max_iters=50,
    eval_interval=25,
    save_interval=25,
    eval_size=base.eval_size,
    model=base.model,
)
