"""
Pretrain a denoiser on sums and differences of two-digit numbers, as the start for reinforcement learning. It stops once
it gets 40% of the results right, however long that takes.

    python train.py config/arith_base.py

200 seconds on one of 2 cores of an Intel Xeon: it stops after 625 steps, at val/sampled 47.3% and val/greedy 68.0%.
"""
from config import Config
from model import ModelConfig
from variants import curriculum

config = Config(
    out_dir="out/arith_base",
    dataset="arith",
    max_prompt_len=6,
    max_new_tokens=4,
    rewards=("exact",),
    max_iters=4000,
    batch_size=128,
    learning_rate=1e-3,
    lr_schedule="constant",
    ema_decay=0.98,
    eval_interval=25,
    diffusion_steps=4,
    stop_at=0.4,
    use=(curriculum.Keys(difficulty=(2, 2)),),
    model=ModelConfig(n_layer=4, n_head=4, d_model=128, rope_theta=100.0),
)
