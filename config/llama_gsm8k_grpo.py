"""
Train an autoregressive model, Llama-3-8B-Instruct, with GRPO on GSM8K: from left to right, one token per step, with
exact log-probabilities. The settings are those of EasyDeL's GSM8K script, the loss is DeepSeekMath's (2402.03300).

    python train.py config/llama_gsm8k_grpo.py
    python train.py config/llama_gsm8k_grpo.py --model=tiny      on a random Llama: does the recipe run?
    python train.py config/llama_gsm8k_grpo.py --model=small   countdown, on a base trained first: does it learn?
    python train.py config/llama_gsm8k_grpo.py --lora.rank=128 --lora.alpha=64 --memory.ref_offload=False

The first trains all parameters. It needs 149 GB on one device, more than a card of 80 GB has; 8 cards are enough, at
23 GB each (--plan=8xH100). The last trains a LoRA of d1's rank and needs 24 GB.

Not run here on the real model. Its authors report 79.6% on GSM8K (8 examples in the prompt) before GRPO; we know of no
number afterwards. Expect hours on several A100 GPUs. Tiny: 40 seconds on one of 2 cores of an Intel Xeon, 0.0%. A small
real model is data/smollm2: --init_from=data/smollm2 --texts.chat_template=chatml.
"""
from dataclasses import replace

from config import Config, diffucoder_grpo
from config.llada_gsm8k_grpo import FORMAT
from data import texts
from loop import evaluation, memory
from model import ModelConfig

config = Config(
    objective="grpo",
    out_dir="out/llama_gsm8k_grpo",
    init_from="models/Meta-Llama-3-8B-Instruct",  # or a later one: variants/rope.py has the rope_scaling of 3.1
    # data
    dataset="gsm8k",
    max_prompt_len=512,
    max_new_tokens=256,
    # rollouts: EasyDeL's script samples with top_p=0.95 and top_k=50 but computes its loss for the whole distribution.
    # With these keys, log-probs here would be those of the filtered distribution; without them nothing is filtered.
    batch_size=16,
    group_size=4,
    temperature=0.7,
    diffusion_steps=256,
    order="left",
    rollout_chunk=32,
    rewards=("xml_answer", "xml_tags"),
    reward_weights=(2.0, 1.0),
    # log-probabilities, advantages and loss
    logp_est="exact",
    ratio_level="token",
    adv_negative=1.0,
    adv_baseline="mean",
    adv_norm="group",
    loss_type="grpo",
    kl_beta=0.04,
    kl_est="k3",
    # optimizer
    learning_rate=1e-6,
    warmup_iters=10,
    gradient_accumulation_steps=16,
    max_iters=1401,  # 7,473 questions three times
    eval_interval=100,
    eval_size=64,
    save_interval=100,
    use=(
        evaluation.Keys(samples=1),
        memory.Keys(ref_offload=True),
        texts.Keys(chat_template="llama3", instruction=FORMAT),
    ),
    model=ModelConfig(causal=True, shift=True, dtype="bfloat16", remat=True),
)

downloads = {
    "init_from": "meta-llama/Meta-Llama-3-8B-Instruct of huggingface.co, 16 GB",
}
shape = dict(vocab_size=128256, n_layer=32, n_head=32, n_kv_head=8, d_model=4096, d_ff=14336, mask_id=128256,
             eos_id=128009)  # as its config.json has it; the mask is none of its ids
tiny = diffucoder_grpo.tiny | {  # what --model=tiny changes
    "init_from": "data/tiny/llama",
    "dataset": "data/tiny/gsm8k",
    "out_dir": "out/tiny/llama_gsm8k_grpo",
    "max_prompt_len": 120,
    "max_new_tokens": 32,
    "diffusion_steps": 32,
    "model": ModelConfig(causal=True, shift=True),
}
small = diffucoder_grpo.small | {  # what --model=small changes
    "out_dir": "out/small/llama_gsm8k_grpo",
    "max_iters": 200,
    "eval_interval": 100,
    # the same task and sizes, but of a model that reads from left to right
    "base": ("causal=True", "shift=True", "order=left", "diffusion_steps=11", "out_dir=out/small/countdown_ar_base"),
    "diffusion_steps": 11,
    "model": replace(diffucoder_grpo.small["model"], causal=True, shift=True),
}
