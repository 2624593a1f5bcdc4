"""
Train Gemma 2 2B (instruction-tuned, autoregressive) with GRPO on GSM8K: exact log-probabilities, DeepSeekMath's loss
(2402.03300), and the settings of config/llama_gsm8k_grpo.py except for the chat template.

    python train.py config/gemma2_gsm8k_grpo.py
    python train.py config/gemma2_gsm8k_grpo.py --model=tiny      on a random Gemma: does the recipe run?
    python train.py config/gemma2_gsm8k_grpo.py --lora.rank=64 --lora.alpha=64 --memory.ref_offload=False

`pip install huggingface_hub pyarrow` is needed to fetch and read GSM8K. --init_from=google/gemma-2-2b-it also fetches
the model, once you have accepted its licence and logged in (`hf auth login`). Not run here on the real model; we know
of no published number for these settings. Tiny: 43 seconds of one of 2 cores of a shared machine, 0.0%.
"""
from dataclasses import replace

from config.llada_gsm8k_grpo import FORMAT
from config.llama_gsm8k_grpo import config as llama
from config.llama_gsm8k_grpo import tiny as llama_tiny
from data import texts
from loop import evaluation, memory
from model import ModelConfig
from variants import gemma

config = replace(
    llama,
    out_dir="out/gemma2_gsm8k_grpo",
    init_from="models/gemma-2-2b-it",
    use=(
        evaluation.Keys(samples=1),
        memory.Keys(ref_offload=True),
        texts.Keys(chat_template="gemma", instruction=FORMAT),
    ),
    model=ModelConfig(causal=True, shift=True, tie_embeddings=True, use=(gemma.Shape(),), dtype="bfloat16", remat=True),
)

downloads = {"init_from": "google/gemma-2-2b-it of huggingface.co, 5 GB"}
# As in transformers' Gemma2Config.
shape = dict(vocab_size=256000, n_layer=26, n_head=8, n_kv_head=4, d_model=2304, d_head=256, d_ff=9216, norm_eps=1e-6,
             mask_id=256000, eos_id=107, pad_id=0)  # 107 ends a turn; the mask is none of its ids
shape |= {"gemma.window": 4096, "gemma.query_scale": 256, "gemma.attn_cap": 50.0, "gemma.logit_cap": 30.0}
tiny = llama_tiny | {  # what --model=tiny changes
    "init_from": "data/tiny/gemma2",
    "out_dir": "out/tiny/gemma2_gsm8k_grpo",
    "model": ModelConfig(causal=True, shift=True, tie_embeddings=True, use=(gemma.Shape(),)),
}
