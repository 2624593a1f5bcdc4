"""
Train LLaDA-8B-Instruct with diffu-GRPO on GSM8K, as in d1 (2504.12216): its prompt, its five rewards, and one forward
pass for all log-probabilities.

    python train.py config/llada_gsm8k_grpo.py
    python train.py config/llada_gsm8k_grpo.py --model=tiny      on a random LLaDA: does the recipe run?
    python train.py config/llada_gsm8k_grpo.py --model=small   countdown, on a base trained first: does it learn?

The LoRA fits one card of 40 GB; training all parameters (--lora=False) fits 8 cards of 80 GB, at 24 GB each
(--plan=8xH100).

Not run here on the real model. The paper: 7,700 updates, GSM8K from 76.7% to 79.8% (greedy, 256 tokens, 128 steps). Its
author says that this takes one to two days; a user expected about 4 days for all ten epochs on 8 H100 GPUs
(dllm-reasoning/d1#25). Tiny: 40 seconds on one of 2 cores of an Intel Xeon, 0.0%.
"""
from config import Config, diffucoder_grpo
from data import texts
from loop import evaluation
from model import ModelConfig
from variants import estimators, lora

FORMAT = "Respond in the following format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>\n\n"

config = Config(
    objective="grpo",
    out_dir="out/llada_gsm8k_grpo",
    init_from="models/LLaDA-8B-Instruct",
    # data
    dataset="gsm8k",
    max_prompt_len=200,
    max_new_tokens=256,
    # rollouts: blocks of 32 tokens from left to right, two tokens per step, those with the highest sampled probability
    # first, as in LLaDA's sampler
    batch_size=16,
    group_size=6,
    temperature=0.9,
    diffusion_steps=128,
    block_len=32,
    order="sampled",
    rule="quota",
    rollout_chunk=48,
    # rewards: at most 2 + 0.5 + 0.5 + 0.5 + 4 * 0.125 = 4; judges/formats.py says how they differ from d1's
    rewards=("xml_answer", "xml_strict", "xml_soft", "xml_int", "xml_tags"),
    reward_weights=(2.0, 0.5, 0.5, 0.5, 1.0),
    # log-probabilities: the whole completion masked, and 15% of the prompt, with new masks in each of twelve passes
    logp_est="one_step",
    ratio_level="token",
    adv_negative=1.0,
    updates_per_rollout=12,
    # advantages and loss
    adv_baseline="mean",
    adv_norm="none",
    loss_type="bnpo",
    clip_low=0.5,
    clip_high=0.5,
    kl_beta=0.04,
    # optimizer, for a LoRA on a base in 16 bits (the paper: 4 bits)
    learning_rate=3e-6,
    lr_schedule="constant",
    warmup_iters=0,  # the paper's is 1/10,000 of the run: one update
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.99,
    grad_clip=0.2,
    gradient_accumulation_steps=16,
    max_iters=642,  # 7,700 updates
    seed=42,
    eval_interval=50,
    eval_size=64,
    save_interval=50,
    use=(
        evaluation.Keys(samples=1),
        lora.Keys(rank=128, alpha=64.0),
        estimators.MaskedPrompt(share=0.15),
        # In the user's turn, because LLaDA's template has no system prompt by default.
        texts.Keys(chat_template="llada", instruction=FORMAT),
    ),
    model=ModelConfig(dtype="bfloat16", remat=True),
)

downloads = {
    "init_from": "GSAI-ML/LLaDA-8B-Instruct of huggingface.co, 16 GB",
}
shape = dict(vocab_size=126464, n_layer=32, n_head=32, d_model=4096, d_ff=12288, mask_id=126336, eos_id=126081,
             pad_id=126081)  # as in its config.json
tiny = diffucoder_grpo.tiny | {  # what --model=tiny changes
    "init_from": "data/tiny/llada",
    "dataset": "data/tiny/gsm8k",
    "out_dir": "out/tiny/llada_gsm8k_grpo",
    "max_prompt_len": 120,
    "max_new_tokens": 32,
    "block_len": 16,
    "lora.rank": 4,
}
small = diffucoder_grpo.small | {  # what --model=small changes
    "out_dir": "out/small/llada_gsm8k_grpo",
    "max_iters": 75,
    "block_len": 4,
    "eval_interval": 40,
}
