"""
Pretrain a denoiser of couplets from a small grammar with agreement, topic and rhyme. A judge then learns to tell its
couplets from real ones (config/grammar_judge.py).

    python train.py config/grammar.py
    python sample.py out/grammar --prompt="two _ _ sing at the _," --show

700 steps, 2.2 minutes on one of 2 cores of an Intel Xeon. Without a prompt it hardly ever writes a right couplet; with
30 to 90% of the tokens masked it completes 7% of the couplets rightly, with 20 to 50% masked 30%. The judge needs
mistakes to learn from.
"""
from config import Config
from model import ModelConfig

config = Config(
    out_dir="out/grammar",
    dataset="grammar",
    max_prompt_len=0,
    max_new_tokens=24,
    rewards=("data/grammar/prepare.py:grammatical",),
    max_iters=700,
    batch_size=64,
    learning_rate=2e-3,
    lr_schedule="constant",
    ema_decay=0.98,
    diffusion_steps=12,
    model=ModelConfig(n_layer=4, n_head=4, d_model=128, rope_theta=100.0),
)
