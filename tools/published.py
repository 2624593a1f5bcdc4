"""
The plans with which the authors of released models published their numbers:  python sample.py FOLDER --as_published

Each writes one token per step unless a threshold is given. A model of another name has no entry, and neither has what
was not found.
"""
import re
import sys
from typing import Any, NamedTuple

from checkpoints import foreign, huggingface


class Published(NamedTuple):
    """How the authors of a model sampled from it."""

    name: str  # a regular expression that is found in the name of the folder
    families: str  # the model_types of config.json that it may have
    max_new_tokens: int
    plan: dict[str, Any]  # fields of sample.Plan
    source: str


GREEDY = {"temperature": 0.0}
DREAM = {"rule": "dream", "order": "entropy", "tempered": True}
DIFFUCODER = DREAM | {"top_p": 0.95}
PUBLISHED = [
    # ML-GSAI/LLaDA b7e6c35, EVAL.md. The settings of other tasks also keep ends of text from being sure, or banned.
    Published("LLaDA-8B-Base", "llada", 1024, GREEDY, "ML-GSAI/LLaDA, EVAL.md: Table 1 of the paper"),
    Published("LLaDA-8B-Instruct", "llada", 256, GREEDY | {"block_len": 8}, "ML-GSAI/LLaDA, EVAL.md: GSM8K in blocks"),
    Published("LLaDA-1.5", "llada", 256, GREEDY | {"block_len": 16}, "ML-GSAI/LLaDA, EVAL.md: GPQA"),
    # DreamLM/Dream fac0a7f, eval_instruct/eval.sh and eval/eval_dream_gen.sh
    Published("Dream-v0-Instruct", "Dream", 256, DREAM | {"temperature": 0.1, "top_p": 0.9},
              "DreamLM/Dream, eval_instruct/eval.sh: GSM8K"),
    Published("Dream-v0-Base", "Dream", 256, DREAM | {"temperature": 0.0, "top_p": 0.95},
              "DreamLM/Dream, eval/eval_dream_gen.sh: GSM8K"),
    # apple/ml-diffucoder f735e01, README.md, whose examples are of HumanEval and MBPP
    Published("DiffuCoder-7B-Base", "Dream", 256, DIFFUCODER | {"temperature": 0.2}, "apple/ml-diffucoder, README.md"),
    Published("DiffuCoder-7B-(Instruct|cpGRPO)", "Dream", 256, DIFFUCODER | {"temperature": 0.4},
              "apple/ml-diffucoder, README.md"),
    # DreamLM/Dream-Coder a9461f0, instruct/code_eval/README.md
    Published("Dream-Coder-v0-Instruct", "Dream", 1024, DREAM | {"temperature": 0.1, "top_p": 0.9},
              "DreamLM/Dream-Coder, instruct/code_eval: BigCodeBench"),
    # JetAstra/SDAR c2041a8, README.md and evaluation/opencompass/configs/eval_sdar_lmdeploy.py
    Published("SDAR-", "sdar sdar_moe", 4096, GREEDY | {"rule": "static"}, "JetAstra/SDAR, README.md: static, greedy"),
    # Gen-Verse/dLLM-RL 10b4fd1, configs/trado_eval.yaml; the probability of the token that was drawn is its confidence
    Published("TraDo-.*Instruct", "sdar", 2000,
              {"rule": "dynamic", "order": "sampled", "threshold": 0.9, "temperature": 1.0, "steps": 4},
              "Gen-Verse/dLLM-RL, configs/trado_eval.yaml"),
    # NVlabs/Fast-dLLM, v2/eval_script.sh and the defaults of v2/eval.py, read in wangziyannb/Fast-dLLM dc28d18, 1aea573
    Published("Fast_dLLM_v2", "Fast_dLLM_Qwen", 2048, GREEDY | {"rule": "dynamic", "threshold": 1.0},
              "NVlabs/Fast-dLLM, v2/eval_script.sh: GSM8K"),
    # ZHZisZZ/dllm ca17675, examples/a2d/mdlm/eval.sh; one token per step, so their way to round is not needed
    Published("diffusion-mdlm", "a2d-qwen3 a2d-qwen2 a2d-llama", 256, GREEDY,
              "ZHZisZZ/dllm, examples/a2d/mdlm/eval.sh"),
    # the card of inclusionAI/LLaDA2.0-mini-preview; the threshold is the default of its `generate`
    Published("LLaDA2.0-", "llada2_moe", 2048, GREEDY | {"rule": "dynamic", "threshold": 0.95, "steps": 32},
              "the model card"),
]  # fmt: skip


def plan_of(folder: str, open_as: str | None = None) -> Published:
    """Find the entry of a folder, by its name and the family that its config.json states."""
    name = foreign.name_of(folder)
    kind = huggingface.read_kind(folder, open_as)
    for entry in PUBLISHED:
        if kind in entry.families.split() and re.search(entry.name, name):
            return entry
    known = ", ".join(entry.name for entry in PUBLISHED if kind in entry.families.split())
    raise ValueError(f"--as_published: no plan is known for the folder {name!r} of the family {kind}: leave it out, or "
                     f"let the folder have its published name; known in this family: {known or 'none'}")


def fill_in(options: Any, given: dict[str, Any], folder: str) -> dict[str, Any]:
    """Add to `given`, fields of sample.Plan, and to the options of sample.py what the authors of a folder set -> fields
    of Plan."""
    found = plan_of(folder, vars(options)["checkpoint.open_as"])
    options.max_new_tokens = options.max_new_tokens or found.max_new_tokens
    plan = found.plan | given
    flags = " ".join(f"--{name}={value}" for name, value in {**plan, "max_new_tokens": options.max_new_tokens}.items())
    print(f"as published ({found.source}): {flags}", file=sys.stderr)
    return plan
