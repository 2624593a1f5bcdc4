"""
Train Dream-v0-Instruct-7B with ESPO on countdown: three numbers, a target, one expression that uses each exactly once.
A whole completion is one action: the ratio compares bounds of its log-probability, estimated by pairs of complementary
masks.

    python train.py config/dream_countdown_grpo.py
    python train.py config/dream_countdown_grpo.py --model=tiny      on a random Dream: does the recipe run?
    python train.py config/dream_countdown_grpo.py --model=small   countdown, on a base trained first: does it learn?

The LoRA needs 24 GB and fits one card of 80 GB; training all parameters (--lora=False) fits 8 cards, at 24 GB each
(--plan=8xH100, with jax 0.12; with 0.10 a gigabyte more).

Not run here on the real model. The settings are those of the paper's script for Dream (2512.03759); the numbers of
prompts and masks are those of its experiments. The paper claims 20 to 40 points more than token-level losses reach;
d1's takes LLaDA from 19.5% to 31.3% in 5,000 updates. Tiny: 40 seconds on one of 2 cores of an Intel Xeon, 0.0%.
"""
from config import Config, diffucoder_grpo
from config.diffucoder_grpo import shape  # noqa: F401  (DiffuCoder has Dream's shape)
from config.llada_gsm8k_grpo import FORMAT
from data import texts
from loop import evaluation
from model import ModelConfig
from variants import curriculum, lora

config = Config(
    objective="grpo",
    out_dir="out/dream_countdown_grpo",
    init_from="models/Dream-v0-Instruct-7B",
    # data
    dataset="data/countdown_tasks",  # made on first use, from huggingface.co
    max_prompt_len=400,
    max_new_tokens=256,
    # rollouts: four tokens per step, lowest entropy first
    batch_size=16,
    group_size=6,
    temperature=1.0,
    diffusion_steps=64,
    order="entropy",
    rule="dream",
    rollout_chunk=48,
    rewards=("countdown",),  # 1 if solved with every number exactly once; 0.1 for another answer; 0 for none
    pass_at=1.0,
    # log-probabilities: two pairs of complementary masks, new in each of eight passes
    logp_est="coupled_elbo",
    adv_negative=1.0,
    logp_views=2,
    updates_per_rollout=8,
    # advantages and loss: the log ratio is a mean over tokens, so ratios stay close to 1
    adv_baseline="mean",
    adv_norm="none",
    ratio_level="sequence",
    loss_type="grpo",
    clip_low=4e-4,
    clip_high=4e-4,
    kl_beta=1e-3,
    kl_est="k2_sequence",
    # optimizer
    learning_rate=3e-6,
    lr_schedule="constant",
    warmup_iters=0,  # the paper's is 1/1000 of the run: five updates, less than one iteration
    weight_decay=0.01,
    beta1=0.9,
    beta2=0.99,
    grad_clip=0.2,
    gradient_accumulation_steps=32,
    max_iters=625,  # 5,000 updates, as many as d1
    seed=42,
    eval_interval=50,
    eval_size=64,
    save_interval=50,
    use=(
        curriculum.Keys(difficulty=(3, 3)),  # rows of three numbers
        evaluation.Keys(samples=1),
        lora.Keys(rank=128, alpha=64.0),
        texts.Keys(chat_template="chatml", instruction=FORMAT),
    ),
    model=ModelConfig(dtype="bfloat16", remat=True),
)

downloads = {
    "init_from": "Dream-org/Dream-v0-Instruct-7B of huggingface.co, 15 GB",
}
tiny = diffucoder_grpo.tiny | {  # what --model=tiny changes
    "init_from": "data/tiny/dream",
    "lora.rank": 4,
    "dataset": "data/tiny/countdown",
    "out_dir": "out/tiny/dream_countdown_grpo",
    "max_prompt_len": 180,
}
small = diffucoder_grpo.small | {  # what --model=small changes
    "out_dir": "out/small/dream_countdown_grpo",
    "max_iters": 30,
    "eval_interval": 15,
}
