"""
The sampler of Nemotron-Labs-Diffusion, `generate` in its folder:  --rule=nemotron --block_len=8 --threshold=0.9

Its blocks begin at the prompt's end. The finished text, which is causal, says the first token of each block; the others
are filled in together, by the rule `threshold`. The rule `drafts` is its other sampler.
"""
import dataclasses
import functools

import sample
from variants import block_steps, prompt_blocks


def fill(params, keys, z, cfg, plan, valid, group):
    """Fill the masks of z (B, T) in blocks of plan.block_len tokens (None: those of the model)."""
    cfg = dataclasses.replace(cfg, block_causal=plan.block_len or cfg.block_causal)
    plan = dataclasses.replace(plan, cache="prefix")
    filler = functools.partial(block_steps.fill_in_blocks, begins_alone=True)
    return prompt_blocks.fill_from_prompt(filler, params, keys, z, cfg, plan, valid, group)


def check(cfg, plan):
    """Raise a ValueError if a model or a plan cannot be used with rule="nemotron"."""
    if not cfg.causal_text:
        raise ValueError("rule='nemotron' needs a model that is autoregressive and a denoiser at once, and this has "
                         "causal_text=False: take another rule, such as quota")
    if plan.cache == "dual":
        raise ValueError("cache='dual': rule='nemotron' has an exact cache of its own: leave it out")


def scored_as(cfg):
    """Say that a run cannot be scored: training counts the blocks from the text's beginning, and masks all of them."""
    raise ValueError("rule='nemotron' begins blocks at the prompt's end, each with a token from left to right, and "
                     "training does neither, so log-probs would be others: take rule='threshold' or rule='drafts'")


sample.RULES["nemotron"] = sample.threshold
sample.SAMPLERS["nemotron"] = fill
sample.CHECKS["nemotron"] = check
sample.SCORED_AS["nemotron"] = scored_as
