"""
Train a small released denoiser, Qwen3-0.6B-diffusion-mdlm (dllm's Tiny-A2D), with GRPO on GSM8K: the settings of
config/llada_gsm8k_grpo.py, with a smaller LoRA and fewer completions at a time.

    python train.py config/a2d_gsm8k_grpo.py
    python train.py config/a2d_gsm8k_grpo.py --model=tiny      on a random model of its family: does the recipe run?
    python train.py config/a2d_gsm8k_grpo.py --model=small     countdown, on a base trained first: does it learn?

Not run here on the real weights; the rate and the rank are guesses. --plan, compiled for each card and not run, says
2.0 GB of the 6.0 that JAX takes on a card of 8 GB (1x4060), 2.7 on one of 16 GB (1xT4), 2.0 on one of 24 GB (1x4090):
there is room for a larger rollout_chunk. On a CPU it takes at least 1.4 GB, by the estimate that a run prints. Its
authors report 29.3% on GSM8K before any GRPO. --init_from=dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1 fetches the model
(pip install huggingface_hub). Tiny: 26 seconds of processor time, 0.0%. Small, one seed on 28 November 2026: sampled
from 23.0% to 26.3%, greedy from 31.6% to 28.1%, so d1's settings hardly learn there, as in docs/estimators.md.
"""
from dataclasses import replace

from config import llada_gsm8k_grpo
from data import texts
from loop import evaluation
from model import ModelConfig
from variants import estimators, lora

config = replace(
    llada_gsm8k_grpo.config,
    out_dir="out/a2d_gsm8k_grpo",
    init_from="models/Qwen3-0.6B-diffusion-mdlm-v0.1",
    rollout_chunk=24,
    gradient_accumulation_steps=48,
    learning_rate=3e-5,
    use=(
        evaluation.Keys(samples=1),
        lora.Keys(rank=16, alpha=32.0),
        estimators.MaskedPrompt(share=0.15),
        texts.Keys(chat_template="chatml", instruction=llada_gsm8k_grpo.FORMAT),
    ),
)

downloads = {"init_from": "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1 of huggingface.co, 1.5 GB"}
# As in Qwen3-0.6B's config.json; its tokenizer has the mask.
shape = dict(vocab_size=151936, n_layer=28, n_head=16, n_kv_head=8, d_model=1024, d_head=128, d_ff=3072, qk_norm=True,
             tie_embeddings=True, rope_theta=1e6, norm_eps=1e-6, mask_id=151669, eos_id=151645, pad_id=151643)
tiny = llada_gsm8k_grpo.tiny | {  # what --model=tiny changes
    "init_from": "data/tiny/a2d",
    "out_dir": "out/tiny/a2d_gsm8k_grpo",
    "max_prompt_len": 140,
    "model": ModelConfig(),
}
small = llada_gsm8k_grpo.small | {"out_dir": "out/small/a2d_gsm8k_grpo"}  # what --model=small changes
