"""
Train DiffuCoder-7B-Instruct with coupled-GRPO, as in its paper (2506.20639), on Python questions of AceCode. The reward
is the fraction of their tests that a single fenced block passes.

    python train.py config/diffucoder_grpo.py
    python train.py config/diffucoder_grpo.py --model=tiny      on a random DiffuCoder: does the recipe run?
    python train.py config/diffucoder_grpo.py --model=small   countdown, on a base trained first: does it learn?
    python train.py config/diffucoder_grpo.py --lora.rank=128 --lora.alpha=64 --moving_reference=False \
        --memory.ref_offload=False

The first trains all parameters, as the paper does. It needs 142 GB on one device, more than a card of 80 GB has; 8
cards are enough, at 22 GB each (--plan=8xH100). The last trains a LoRA of d1's rank and needs 24 GB.

Not run here on the real model. The paper: 40 hours on 8 H100 GPUs, 21,000 questions once, +4.4% on EvalPlus. Tiny: 40
seconds of one of 2 cores of an Intel Xeon, mostly to compile; every pass rate is 0.0%.
"""
from config import Config
from config.countdown_base import config as base
from data import texts
from judges import programs
from loop import evaluation, memory
from model import ModelConfig
from variants import curriculum, moving_reference

config = Config(
    objective="grpo",
    out_dir="out/diffucoder_grpo",
    init_from="models/DiffuCoder-7B-Instruct",
    # data: the paper takes the fifth of the questions on which other models' programs pass the fewest tests. Where the
    # fifth ends depends on the whole file; 0.5 approximates it. The paper also takes only questions on which the
    # programs differ, and repeats some as a signature to complete.
    dataset="data/acecode",  # made on first use, from huggingface.co
    max_prompt_len=200,
    max_new_tokens=256,
    # rollouts: one token per step, lowest entropy first. The paper samples with top_p=0.95 but computes its loss for
    # the whole distribution, so its completions come from another policy than the trained one. Here there is no top_p.
    batch_size=8,
    group_size=10,
    temperature=1.0,
    diffusion_steps=256,
    order="entropy",
    rule="dream",
    rollout_chunk=40,
    # rewards: 2 * fraction of tests + 0.5 * format
    rewards=("tests_fenced", "fenced"),
    pass_at=1.0,  # all tests of a problem
    reward_weights=(2.0, 0.5),
    # log-probabilities: from three copies: all tokens masked, a random half masked, and the other half masked
    logp_est="coupled",
    ratio_level="token",
    adv_negative=1.0,
    mask_ratio_min=0.2,
    mask_ratio_max=0.8,
    # Two passes, each with new masks. (The paper's code counts micro-steps, so both passes of a completion share
    # masks.)
    updates_per_rollout=2,
    # advantages and loss
    adv_baseline="loo",
    adv_norm="none",
    loss_type="bnpo",
    clip_low=0.5,
    clip_high=0.5,
    kl_beta=0.01,
    # optimizer
    learning_rate=1e-6,
    warmup_iters=0,  # the paper's is 1/10,000 of the run: less than an update
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.99,
    grad_clip=0.2,
    gradient_accumulation_steps=16,
    max_iters=2625,  # 21,000 questions once
    seed=42,
    log_interval=10,
    eval_interval=100,
    eval_size=64,
    save_interval=100,
    use=(
        curriculum.Keys(difficulty=(0.5, 1.0)),
        evaluation.Keys(samples=1),
        memory.Keys(ref_offload=True),
        moving_reference.Keys(mode="periodic", interval=32, mix=0.6),  # 64 updates, two per iteration
        programs.Keys(timeout=5.0),
        texts.Keys(chat_template="chatml"),
    ),
    model=ModelConfig(dtype="bfloat16", remat=True),
)

downloads = {
    "init_from": "apple/DiffuCoder-7B-Instruct of huggingface.co, 15 GB",
}
shape = dict(vocab_size=152064, n_layer=28, n_head=28, n_kv_head=4, d_model=3584, d_ff=18944, qkv_bias=True, shift=True,
             mask_id=151666, eos_id=151643, pad_id=151667)  # as in its config.json; Dream's is the same
tiny = {  # what --model=tiny changes
    "init_from": "data/tiny/diffucoder",
    "dataset": "data/tiny/acecode",
    "out_dir": "out/tiny/diffucoder_grpo",
    "max_prompt_len": 90,
    "max_new_tokens": 16,
    "diffusion_steps": 8,
    "batch_size": 2,
    "group_size": 4,
    "rollout_chunk": None,
    "gradient_accumulation_steps": 1,
    "max_iters": 2,
    "log_interval": 1,
    "eval_interval": 2,
    "eval_size": 8,
    "model": ModelConfig(),
}
small = {  # what --model=small changes: the task, the sizes, and the learning rate, which depends on them
    "init_from": "config/countdown_base.py",
    "dataset": "countdown",
    "curriculum.difficulty": (1, 1),
    "texts.chat_template": None,
    "texts.instruction": None,
    "max_prompt_len": 8,
    "max_new_tokens": 11,
    "rewards": ("countdown",),
    "reward_weights": (),
    "pass_at": 1.0,
    "out_dir": "out/small/diffucoder_grpo",
    "diffusion_steps": 8,
    "batch_size": 32,
    "rollout_chunk": None,
    "memory.ref_offload": False,
    "lora": False,  # a small model is smaller than the adapters of a large one
    "learning_rate": 1e-4,
    "gradient_accumulation_steps": 1,
    "max_iters": 85,  # every recipe gets 27 TFLOP, the autoregressive one 4
    "eval_interval": 45,
    "eval_size": 256,
    "evaluation.samples": 4,
    "model": base.model,
}
