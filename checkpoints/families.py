"""
The families of models that other people trained, and those of ours that no plain denoiser is: each is one entry of
family.FAMILIES, which is filled when a folder or a configuration is not of the family that is there already.

A family that differs from another in names only is one entry.
"""

import functools
from typing import Any

import model
from checkpoints.family import ANY_FAMILY, BLOCK_LENGTHS, FAMILIES, LLADA_KEYS, TOKEN_KEYS, Family, can_hold, is_of_kind
from system import sections

# Our tensor -> theirs, see family.LLADA_TENSORS.
LLAMA_TENSORS = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attn_norm": "model.layers.{}.input_layernorm",
    "mlp_norm": "model.layers.{}.post_attention_layernorm",
    "q_norm": "model.layers.{}.self_attn.q_norm",
    "k_norm": "model.layers.{}.self_attn.k_norm",
    "q": "model.layers.{}.self_attn.q_proj",
    "k": "model.layers.{}.self_attn.k_proj",
    "v": "model.layers.{}.self_attn.v_proj",
    "o": "model.layers.{}.self_attn.o_proj",
    "gate": "model.layers.{}.mlp.gate_proj",
    "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj",
}
GEMMA_TENSORS = LLAMA_TENSORS | {
    "attn_out_norm": "model.layers.{}.post_attention_layernorm",
    "mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
    "mlp_out_norm": "model.layers.{}.post_feedforward_layernorm",
}
SDAR_MOE_TENSORS = LLAMA_TENSORS | {  # {e} is the expert
    "router": "model.layers.{}.mlp.gate",
    "expert_gate": "model.layers.{}.mlp.experts.{e}.gate_proj",
    "expert_up": "model.layers.{}.mlp.experts.{e}.up_proj",
    "expert_down": "model.layers.{}.mlp.experts.{e}.down_proj",
}
LLADA2_TENSORS = SDAR_MOE_TENSORS | {
    "embed": "model.word_embeddings",
    "q": "model.layers.{}.attention.query_key_value",
    "k": "model.layers.{}.attention.query_key_value",
    "v": "model.layers.{}.attention.query_key_value",
    "o": "model.layers.{}.attention.dense",
    "q_norm": "model.layers.{}.attention.query_layernorm",
    "k_norm": "model.layers.{}.attention.key_layernorm",
    "router_bias": "model.layers.{}.mlp.gate.expert_bias",
    "shared_gate": "model.layers.{}.mlp.shared_experts.gate_proj",
    "shared_up": "model.layers.{}.mlp.shared_experts.up_proj",
    "shared_down": "model.layers.{}.mlp.shared_experts.down_proj",
}
LLAMA_KEYS = TOKEN_KEYS | {
    "vocab_size": "vocab_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "d_head": "head_dim",
    "n_kv_head": "num_key_value_heads",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "tie_embeddings": "tie_word_embeddings",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "max_positions": "max_position_embeddings",
    "rope.scaling": "rope_scaling",
}
BLOCK_KEYS = LLAMA_KEYS | {"blocks.block": "block_size"}
SDAR_MOE_KEYS = BLOCK_KEYS | {
    "moe.n_experts": "num_experts",
    "moe.experts_per_token": "num_experts_per_tok",
    "moe.d_expert": "moe_intermediate_size",
    "moe.norm_routing": "norm_topk_prob",
}
LLADA2_KEYS = SDAR_MOE_KEYS | {
    "rotary_share": "partial_rotary_factor",
    "moe.routing_scale": "routed_scaling_factor",
    "moe.expert_groups": "n_group",
    "moe.groups_per_token": "topk_group",
    "moe.n_shared": "num_shared_experts",
    "moe.first_dense": "first_k_dense_replace",
}
del LLADA2_KEYS["moe.norm_routing"]  # it divides by the sum whatever config.json says
GEMMA_KEYS = LLAMA_KEYS | {
    "gemma.window": "sliding_window",
    "gemma.query_scale": "query_pre_attn_scalar",
    "gemma.attn_cap": "attn_logit_softcapping",
    "gemma.logit_cap": "final_logit_softcapping",
}
# The values that config.json has to give these keys, if it has them, for our model to be that network.
LLAMA_REQUIRES = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "llama_4_scaling_beta": None,  # of queries, in Ministral 3
}
WITHOUT_BLOCKS = LLAMA_REQUIRES | dict.fromkeys((*BLOCK_LENGTHS, "dlm_paradigm"))
SDAR_MOE_REQUIRES = LLAMA_REQUIRES | {"decoder_sparse_step": 1, "mlp_only_layers": []}
LLADA2_REQUIRES = {
    "hidden_act": "silu",
    "use_sliding_window": False,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_qk_norm": True,
    "norm_head": False,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True,
    "quantization_config": None,
}
GEMMA_REQUIRES = WITHOUT_BLOCKS | {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "use_bidirectional_attention": False,
}

llama_like = functools.partial(Family, tensors=LLAMA_TENSORS, keys=LLAMA_KEYS, requires=WITHOUT_BLOCKS)
block_like = functools.partial(Family, tensors=LLAMA_TENSORS, keys=BLOCK_KEYS, requires=LLAMA_REQUIRES)
CAUSAL = {"causal": True, "shift": True}
DLLM = "github.com/ZHZisZZ/dllm"
FAMILIES |= {
    "Dream": llama_like(
        "DreamModel", {"shift": True, "qkv_bias": True}, code="huggingface.co/Dream-org/Dream-v0-Instruct-7B"
    ),
    "llama": llama_like("LlamaForCausalLM", CAUSAL),
    "qwen2": llama_like("Qwen2ForCausalLM", CAUSAL | {"qkv_bias": True}),
    "qwen3": llama_like("Qwen3ForCausalLM", CAUSAL | {"qk_norm": True}),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        CAUSAL | {"gemma": True, "tie_embeddings": True},
        GEMMA_TENSORS,
        GEMMA_KEYS,
        GEMMA_REQUIRES,
    ),
    # A block model's config.json need not give the block length: it is in the folder's name, or the usual one.
    "sdar": block_like(  # and TraDo
        "SDARForCausalLM",
        {"blocks.block": 4, "qk_norm": True},
        code="huggingface.co/JetLM/SDAR-1.7B-Chat",
    ),
    "Fast_dLLM_Qwen": block_like(  # as config/smollm2_block.py makes one, too
        "Fast_dLLM_QwenForCausalLM",
        {"blocks.block": 32, "shift": True, "qkv_bias": True},
        keys=LLAMA_KEYS | {"blocks.block": "bd_size"},
        code="huggingface.co/Efficient-Large-Model/Fast_dLLM_v2_7B",
    ),
    # dllm's Tiny-A2D, and our own models with blocks: with blocks or without
    "a2d-qwen3": block_like("A2DQwen3LMHeadModel", {"qk_norm": True}, code=DLLM),
    "a2d-qwen2": block_like("A2DQwen2LMHeadModel", {"qkv_bias": True}, code=DLLM),
    "a2d-llama": block_like("A2DLlamaLMHeadModel", {}, code=DLLM),
    "sdar_moe": Family(
        "SDARMoeForCausalLM",
        {"blocks.block": 4, "qk_norm": True},
        SDAR_MOE_TENSORS,
        SDAR_MOE_KEYS,
        SDAR_MOE_REQUIRES,
        "huggingface.co/JetLM/SDAR-30B-A3B-Chat",
    ),
    "llada2_moe": Family(
        "LLaDA2MoeModelLM",
        {"blocks.block": 32, "qk_norm": True, "moe.routing": "sigmoid", "moe.norm_routing": True, "rotary_share": 0.5}
        | {"mask_id": 156895},
        LLADA2_TENSORS,
        LLADA2_KEYS,
        LLADA2_REQUIRES,
        "huggingface.co/inclusionAI/LLaDA2.0-mini",
    ),
}

# Families that were here once: model_type -> what became of them.
GONE = {
    "nemotron_labs_diffusion": "models whose finished text is causal and whose open block is not are gone from here; "
    "commit 6adddab opens them (docs/tried.md)",
    "unmask_uniform": "models that read random tokens in place of masks are gone from here; commit 6adddab opens them "
    "(docs/tried.md)",
    "illada": "iLLaDA is gone from here; commit 6adddab opens it (docs/tried.md)",
    "qwen3_moe": "causal models with experts are gone from here; commit 6adddab opens them (docs/tried.md)",
}


def check_kind(kind: Any, given: str) -> None:
    """Raise ValueError unless a family has this name. given: where the name was given, and the name"""
    if not isinstance(kind, str) or kind not in FAMILIES:
        gone = GONE.get(str(kind), "this code does not compute such a network")
        raise ValueError(f"{given}: {gone}; known families: {', '.join(FAMILIES)}")


def family_of(cfg: model.ModelConfig) -> str:
    """Find the name of the first family whose folders can hold this configuration."""
    of_kind = {name: family for name, family in FAMILIES.items() if is_of_kind(family, cfg)}
    for name, family in of_kind.items():
        if can_hold(family, cfg):
            return name
    raise ValueError(
        "no Hugging Face family has these switches together: "
        + ", ".join(f"{field}={value}" for field, value in switches(cfg).items())
        + "; there are "
        + (
            "; ".join(f"{name}: {' '.join(family.fields) or 'none'}" for name, family in of_kind.items())
            or "none; a field of your own needs a name in a family's keys, as LLADA_KEYS in checkpoints/family.py"
        )
    )


def switches(cfg: model.ModelConfig) -> dict[str, Any]:
    """Return the fields that tell families apart, where they are not those of a plain model {name: value}."""
    plain = sections.flat(model.ModelConfig())
    sizes = {*LLADA_KEYS} - {"qkv_bias"} | {*ANY_FAMILY} - {"d_head"}
    there = {name: value for name, value in sections.flat(cfg).items() if name not in sizes}
    return {name: value for name, value in there.items() if name not in plain or value != plain[name]}
