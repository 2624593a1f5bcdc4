"""Folders as they are published: their config.json, tensor names, extra tensors and shards, with small random weights.

The names are written down here once more, and those of transformers' classes are compared with the classes. Widths,
depths and vocabularies are small."""
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from shared import byte_model, refused

import config
import model
import rewards
import sample
from checkpoints import checkpoint, huggingface, parts
from data.texts import completion_ids
from rl import loss_mask
from system import sections
from system.tokens import bpe
from tools import complete

SIZES = dict(vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2)  # fmt: skip
QWEN = SIZES | dict(attention_dropout=0.0, bos_token_id=103, eos_token_id=105, hidden_act="silu",
                    initializer_range=0.02, max_position_embeddings=32768, max_window_layers=28, rms_norm_eps=1e-6,
                    rope_theta=1e6, sliding_window=None, torch_dtype="bfloat16", use_cache=True,
                    use_sliding_window=False)  # fmt: skip
QWEN3 = QWEN | dict(attention_bias=False, head_dim=16, max_position_embeddings=40960, rope=False)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True)
SDAR_MOE = QWEN3 | EXPERTS | dict(decoder_sparse_step=1, mlp_only_layers=[], output_router_logits=False,
                                   router_aux_loss_coef=0.001)  # fmt: skip
DREAM = QWEN | dict(architectures=["DreamModel"], model_type="Dream", mask_token_id=110, pad_token_id=103,
                    eos_token_id=103, rope=False, tie_word_embeddings=False, use_mrope=False)  # fmt: skip
LLAMA = SIZES | dict(architectures=["LlamaForCausalLM"], hidden_act="silu", initializer_range=0.02, rms_norm_eps=1e-5,
                     model_type="llama", use_cache=True)  # fmt: skip
LLADA = dict(
    activation_type="silu", alibi=False, alibi_bias_max=8.0, architectures=["LLaDAModelLM"], attention_dropout=0.0,
    attention_layer_norm=False, attention_layer_norm_with_affine=True, bias_for_layer_norm=False, block_group_size=1,
    block_type="llama", d_model=32, embedding_dropout=0.0, embedding_size=128, eos_token_id=103, flash_attention=False,
    include_bias=False, include_qkv_bias=False, init_device="meta", input_emb_norm=False, layer_norm_type="rms",
    layer_norm_with_affine=True, mask_token_id=110, max_sequence_length=4096, mlp_hidden_size=48, mlp_ratio=4,
    model_type="llada", multi_query_attention=None, n_heads=4, n_kv_heads=4, n_layers=2, pad_token_id=103,
    precision="amp_bf16", residual_dropout=0.0, rms_norm_eps=1e-5, rope=True, rope_full_precision=True,
    rope_theta=500000.0, scale_logits=False, use_cache=False, vocab_size=128, weight_tying=False,
)  # fmt: skip
LLADA2 = QWEN | EXPERTS | dict(
    architectures=["LLaDA2MoeModelLM"], model_type="llada2_moe", first_k_dense_replace=1, n_group=2, topk_group=1,
    num_shared_experts=1, norm_head=False, partial_rotary_factor=0.5, rotary_dim=8, routed_scaling_factor=2.5,
    score_function="sigmoid", moe_router_enable_expert_bias=True, use_bias=False, use_qkv_bias=False, use_qk_norm=True,
    head_dim=16, pad_token_id=103, rope=False, tie_word_embeddings=False, embedding_dropout=0.0,
)  # fmt: skip
del LLADA2["eos_token_id"], LLADA2["bos_token_id"]

# The names of tensors: {i} is a layer, {e} an expert; each line of letters in brackets stands for several names.
TOP = "model.embed_tokens model.norm"
NORMS = "model.layers.{i}.[input_layernorm|post_attention_layernorm]"
ATTENTION = "model.layers.{i}.self_attn.[q_proj|k_proj|v_proj|o_proj]"
QK_NORMS = "model.layers.{i}.self_attn.[q_norm|k_norm]"
MLP = "model.layers.{i}.mlp.[gate_proj|up_proj|down_proj]"
BIASES = "model.layers.{i}.self_attn.[q_proj|k_proj|v_proj].bias"
MIXTURE = "model.layers.{i}.mlp.gate model.layers.{i}.mlp.experts.{e}.[gate_proj|up_proj|down_proj]"
OF_LLAMA = f"{TOP} {NORMS} {ATTENTION} {MLP}"
OF_SDAR_MOE = f"{TOP} {NORMS} {ATTENTION} {QK_NORMS} {MIXTURE} lm_head"
OF_LLADA = ("model.transformer.[wte|ln_f|ff_out] model.transformer.blocks.{i}."
            "[attn_norm|ff_norm|q_proj|k_proj|v_proj|attn_out|ff_proj|up_proj|ff_out]")  # fmt: skip
OF_LLADA2 = ("model.[word_embeddings|norm] lm_head " + NORMS + " model.layers.{i}.attention."
             "[query_key_value|dense|query_layernorm|key_layernorm] model.layers.0.mlp.[gate_proj|up_proj|down_proj] "
             "model.layers.1.mlp.[gate|gate.expert_bias] model.layers.1.mlp.experts.{e}.[gate_proj|up_proj|down_proj] "
             "model.layers.1.mlp.shared_experts.[gate_proj|up_proj|down_proj]")  # fmt: skip


def spelled(names):
    """Write out names -> {full name}."""
    found = set()
    for name in names.split():
        head, _, rest = name.partition("[")
        inner, _, tail = rest.partition("]")
        for middle in inner.split("|"):
            full = head + middle + tail
            full += "" if full.endswith("bias") else ".weight"
            found |= {full.format(i=i, e=e) for i in range(2) for e in range(4)}
    return found


class Published(NamedTuple):
    """A folder, and how it should open."""

    config: dict
    tensors: str
    opens: dict  # fields of the ModelConfig
    extra: str = ""  # "head" (the embeddings again) or "rotary" (buffers)
    generation: dict = {}  # generation_config.json
    tokenizer: dict = {}  # added tokens
    name: str = "model"  # of the folder
    dtype: str = "bfloat16"


CHAT = dict(bos_token_id=103, eos_token_id=[105, 103], pad_token_id=103)
ENDS = dict(eos_id=105, end_ids=(103,))
CAUSAL = dict(causal=True, shift=True)
MASK = {"<|MASK|>": 110}
FOLDERS = {
    "LLaDA-8B": Published(LLADA, OF_LLADA, dict(mask_id=110, eos_id=103, max_positions=4096)),
    "Dream-7B": Published(DREAM, f"{OF_LLAMA} {BIASES} lm_head", dict(shift=True, mask_id=110, max_positions=32768)),
    "Llama-2-7b": Published(
        LLAMA | dict(bos_token_id=1, eos_token_id=2, max_position_embeddings=4096, pretraining_tp=1, rope=False,
                     tie_word_embeddings=False, torch_dtype="float16", num_key_value_heads=4),
        f"{OF_LLAMA} lm_head", CAUSAL | dict(eos_id=2), "rotary", dict(eos_token_id=2, pad_token_id=0, max_length=4096),
        dtype="float16"),
    "Llama-3.2-1B-Instruct": Published(
        LLAMA | dict(attention_bias=False, attention_dropout=0.0, bos_token_id=100, eos_token_id=[101, 108, 109],
                     head_dim=8, max_position_embeddings=131072, mlp_bias=False, rope_theta=5e5,
                     tie_word_embeddings=True, rope_scaling=dict(
                         factor=32.0, high_freq_factor=4.0, rope_type="llama3", low_freq_factor=1.0,
                         original_max_position_embeddings=8192)),
        OF_LLAMA, CAUSAL | dict(eos_id=101, end_ids=(108, 109), **{"rope.scaling": (32.0, 1.0, 4.0, 8192)})),
    "SmolLM2-135M": Published(
        LLAMA | dict(bos_token_id=0, eos_token_id=0, is_llama_config=True, rope_interleaved=False, rope_theta=1e5,
                     rope=False, tie_word_embeddings=True, max_position_embeddings=8192),
        OF_LLAMA, CAUSAL | dict(tie_embeddings=True)),
    "Qwen2.5-0.5B-Instruct": Published(
        QWEN | dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", tie_word_embeddings=True,
                    sliding_window=32768), f"{OF_LLAMA} {BIASES}", CAUSAL | ENDS, generation=CHAT),
    "Qwen3-0.6B": Published(
        QWEN3 | dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", tie_word_embeddings=True),
        f"{OF_LLAMA} {QK_NORMS}", CAUSAL | ENDS | dict(tie_embeddings=True, max_positions=40960), "head", CHAT),
    "Qwen3-8B": Published(
        QWEN3 | dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", tie_word_embeddings=False),
        f"{OF_LLAMA} {QK_NORMS} lm_head", CAUSAL | ENDS, generation=CHAT),
    "gemma-2-2b-it": Published(
        SIZES | dict(architectures=["Gemma2ForCausalLM"], model_type="gemma2", attention_bias=False, head_dim=16,
                     attention_dropout=0.0, attn_logit_softcapping=50.0, bos_token_id=2, cache_implementation="hybrid",
                     eos_token_id=[1, 107], final_logit_softcapping=30.0, hidden_act="gelu_pytorch_tanh",
                     hidden_activation="gelu_pytorch_tanh", max_position_embeddings=8192, pad_token_id=0,
                     query_pre_attn_scalar=16, rms_norm_eps=1e-6, rope_theta=1e4, sliding_window=4096),
        f"{OF_LLAMA} model.layers.{{i}}.[pre_feedforward_layernorm|post_feedforward_layernorm]",
        CAUSAL | dict(tie_embeddings=True, eos_id=1, end_ids=(107,)), tokenizer={"<mask>": 4}),
    "SDAR-8B-Chat": Published(
        QWEN3 | dict(architectures=["SDARForCausalLM"], model_type="sdar", eos_token_id=103, tie_word_embeddings=False,
                     debug=False, ep_size=1, fuse_cross_entropy=True, micro_forward=False, skip_checkpoint=False),
        f"{OF_LLAMA} {QK_NORMS} lm_head", dict(**{"blocks.block": 4}, mask_id=110, eos_id=103, end_ids=(105,)),
        generation=CHAT, tokenizer=MASK),
    "Fast_dLLM_v2_1.5B": Published(
        QWEN | dict(architectures=["Fast_dLLM_QwenForCausalLM"], model_type="Fast_dLLM_Qwen", bd_size=32,
                    layer_types=["full_attention"] * 2, tie_word_embeddings=True, mask_token_id=110),
        f"{OF_LLAMA} {BIASES}", dict(**{"blocks.block": 32}, shift=True, mask_id=110)),
    "Qwen3-0.6B-diffusion-bd3lm-v0.1": Published(
        QWEN3 | dict(architectures=["A2DQwen3LMHeadModel"], model_type="a2d-qwen3", tie_word_embeddings=True),
        f"{OF_LLAMA} {QK_NORMS}", dict(**{"blocks.block": 32}, shift=False, mask_id=110), tokenizer=MASK,
        name="Qwen3-0.6B-diffusion-bd3lm-v0.1"),
    "SDAR-30B-A3B-Chat-b8": Published(
        SDAR_MOE | dict(architectures=["SDARMoeForCausalLM"], model_type="sdar_moe", tie_word_embeddings=False),
        OF_SDAR_MOE, dict(**{"blocks.block": 8}, mask_id=110), generation=CHAT, tokenizer=MASK,
        name="SDAR-30B-A3B-Chat-b8"),
    "LLaDA2.0-mini": Published(
        LLADA2, OF_LLADA2, {"blocks.block": 32, "mask_id": 110, "eos_id": None, "rotary_share": 0.5},
        tokenizer={"<|mask|>": 110}),
}  # fmt: skip


def weights(folder, case):
    """Draw the tensors of a folder with a config.json -> {name: tensor}."""
    cfg, rng = huggingface.read_config(folder), np.random.default_rng(0)
    like = model.shapes(cfg)
    kind, dtype = case.config["model_type"], getattr(ml_dtypes, case.dtype, None) or np.dtype(case.dtype)
    found = {}
    for name, places in parts.by_name(huggingface.tensor_places(cfg, None, kind)):
        _, shape = parts.shapes_of(places, like)
        found[name] = rng.normal(0, 0.1, shape).astype(np.float32 if name.endswith("expert_bias") else dtype)
    if case.extra == "head":
        found["lm_head.weight"] = found["model.embed_tokens.weight"].copy()
    if case.extra == "rotary":
        found |= {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32) for i in range(2)}
    return found


def write(folder, case, **changes):
    """Write a folder with tensors scattered over two shards -> its path, its tensors."""
    folder = folder / case.name
    folder.mkdir()
    files = {"config": case.config | changes, "generation_config": case.generation}
    files["tokenizer"] = {"added_tokens": [{"content": text, "id": i} for text, i in case.tokenizer.items()]}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    tensors = weights(folder, case)
    place = {name: f"model-{i % 2 + 1:05d}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for shard in set(place.values()):
        save_file({name: x for name, x in tensors.items() if place[name] == shard}, folder / shard)
    index = {"metadata": {"total_size": 0}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder, tensors


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_opens_as_it_is_published_and_is_exported_with_its_numbers(name, tmp_path):
    case = FOLDERS[name]
    folder, tensors = write(tmp_path, case)
    copies = {"head": "lm_head.weight", "rotary": "inv_freq", "": "?"}
    extras = {name for name in tensors if name.endswith(copies[case.extra])}
    assert set(tensors) - extras == spelled(case.tensors)
    params, cfg = checkpoint.load(folder, None)
    assert sections.flat(cfg).items() >= case.opens.items()
    assert cfg.dtype == "bfloat16" and params["embed"].dtype == jnp.bfloat16
    embed = next(x for name, x in tensors.items() if "embed" in name or "wte" in name)
    np.testing.assert_array_equal(params["embed"], embed.astype(ml_dtypes.bfloat16))
    huggingface.save(tmp_path / "again", params, cfg)
    saved = load_file(tmp_path / "again" / "model.safetensors")
    if huggingface.family_of(cfg) == case.config["model_type"]:
        for name in set(tensors) - extras:
            np.testing.assert_array_equal(saved[name], tensors[name].astype(saved[name].dtype))
            assert case.dtype == "float16" or saved[name].dtype == tensors[name].dtype
    again, same = checkpoint.load(tmp_path / "again", None)
    assert same == cfg or same.head_dim == cfg.head_dim and same.ends == cfg.ends
    jax.tree.map(np.testing.assert_array_equal, again, params)


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    name for name, case in FOLDERS.items() if case.config["model_type"] in ("llama", "qwen2", "qwen3", "gemma2")])
def test_these_names_are_those_of_the_classes_of_transformers(name, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    case = FOLDERS[name]
    (tmp_path / "config.json").write_text(json.dumps(case.config))
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    tied = {"lm_head.weight"} if case.config.get("tie_word_embeddings", "gemma" in name) else set()
    assert set(theirs.state_dict()) - tied == spelled(case.tensors)


REFUSED = [
    ("Qwen3-0.6B", dict(quantization_config=dict(quant_method="gptq", bits=4)), "quantization_config=.*gptq.* is not"),
    ("Dream-7B", dict(block_size=32), "block_size=32 is not supported; this code computes block_size=None"),
    ("Qwen3-8B", dict(bd_size=32), "bd_size=32 is not supported"),
    ("LLaDA-8B", dict(architectures=["LLaDAMoEModelLM"]), "LLaDAMoEModelLM.* another network than LLaDAModelLM"),
    ("Dream-7B", dict(architectures=["DreamForCausalLM"]), "DreamForCausalLM.* another network than DreamModel, perh"),
    ("Qwen3-0.6B", dict(rope_scaling=dict(rope_type="yarn", factor=4.0)),
     "rope_scaling=.*yarn.* is not supported"),
    ("Qwen3-0.6B", dict(rope_parameters=dict(llama_4_scaling_beta=0.1)), "llama_4_scaling_beta=0.1 is not supported"),
    ("Qwen3-0.6B", dict(model_type="qwen3_moe"), "'qwen3_moe': causal models with experts are gone .*known famil"),
    ("Qwen3-0.6B", dict(model_type="illada"), "'illada': iLLaDA is gone .*known families: llada, Dream, llama"),
    ("Qwen3-0.6B", dict(model_type="ministral3"), "'ministral3': this code does not compute such a network; known"),
]  # fmt: skip


@pytest.mark.parametrize("name, change, said", REFUSED)
def test_what_this_code_would_not_compute_is_refused_in_a_sentence(name, change, said, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FOLDERS[name].config | change))
    refused(said, checkpoint.load, tmp_path)


@pytest.mark.parametrize("change, said", [
    ({"lm_head.weight": np.ones((128, 32), np.float16)}, "tie_word_embeddings, but lm_head.weight is not model.embed_"),
    ({"model.norm.weight": np.ones(32, np.int8)}, "model.norm.weight is of the type I8, a packed or quantized tensor"),
])  # fmt: skip
def test_tensors_that_are_not_those_of_the_model_are_refused(change, said, tmp_path):
    folder, tensors = write(tmp_path, FOLDERS["Qwen3-0.6B"])
    (folder / "model.safetensors.index.json").unlink()
    save_file(tensors | change, folder / "model.safetensors")
    refused(said, checkpoint.load, folder)


def test_an_export_keeps_16_bits_and_positions_and_says_which_code_it_needs(tmp_path, capsys):
    byte_model(folder := f"{tmp_path}/a", "bfloat16", max_positions=512)
    assert complete.main([folder, f"--export={tmp_path}/b"]) == 0
    said = capsys.readouterr().err
    assert "transformers has no LLaDAModelLM" in said and "needs the code of huggingface.co/GSAI-ML/LLaDA-8B" in said
    theirs = json.loads((tmp_path / "b" / "config.json").read_text())
    assert theirs["torch_dtype"] == "bfloat16" and theirs["max_sequence_length"] == 512
    jax.tree.map(np.testing.assert_array_equal, *(checkpoint.load(tmp_path / name, None)[0] for name in "ab"))


def test_sample_computes_in_the_stored_dtype_or_as_asked(tmp_path):
    byte_model(folder := f"{tmp_path}/a", "bfloat16")
    for dtype, expected in ((None, "bfloat16"), ("float32", "float32")):
        loaded = complete.find_model(folder, dtype=dtype)
        assert loaded.cfg.dtype == str(loaded.params["embed"].dtype) == expected
    assert complete.main([folder, "--prompt=a", "--max_new_tokens=2", "--dtype=float32"]) == 0


def test_the_end_of_the_tokenizer_joins_those_of_the_files(tmp_path):
    """LLaDA2.0 names no end at all; SDAR's texts end with two, of which its tokenizer has one."""
    byte_model(folder := f"{tmp_path}/a", "bfloat16")
    file = tmp_path / "a" / "config.json"
    theirs = json.loads(file.read_text())
    for named, generation, expected in ((None, None, (258,)), (7, [7, 9], (7, 9, 258)), ([258, 7], None, (258, 7))):
        file.write_text(json.dumps(theirs | {"eos_token_id": named}))
        (tmp_path / "a" / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
        found = complete.find_model(folder).cfg
        assert found.ends == expected and found.eos_id == expected[0]
        huggingface.save(tmp_path / "b", checkpoint.load(folder)[0], found)
        assert huggingface.read_config(tmp_path / "b").ends == expected


def test_what_is_written_behind_any_end_is_no_part_of_an_answer():
    """7 ends a text as well as eos, 8. early_end fills up with eos behind it; loss, rewards and lengths stop there."""
    cfg = model.ModelConfig(vocab_size=10, n_layer=1, n_head=2, d_model=16, mask_id=9, eos_id=8, end_ids=(7,))
    params = model.init(jax.random.key(0), cfg)
    params["head"] = params["head"].at[:, 7].set(0.0).at[:, :7].set(-1.0).at[:, 8].set(-1.0)
    params["norm"] = params["norm"] * 0 + 1.0
    params = jax.tree.map(lambda x: x, params) | {"embed": jnp.abs(params["embed"]) + 1}  # states are positive: 7 wins
    z = jnp.array([[1, 2, 9, 9, 9, 9]])
    key, plan = jax.random.key(0), sample.Plan(steps=4, order="left", temperature=0.0, early_end=True)
    x, trace = sample.generate(params, key, z, cfg, plan)
    assert int(x[0, 2]) == 7 and x[0, 3:].tolist() == [8, 8, 8] and int(trace["n_steps"]) == 1
    tokens, completion = jnp.array([[1, 2, 3, 7, 4, 8]]), jnp.array([[False, False, True, True, True, True]])
    run = config.Config(max_prompt_len=2, max_new_tokens=4, model=cfg)
    assert completion_ids(tokens, bpe.Tokenizer.bytes(), run) == [[3]]
    assert rewards.written(tokens, completion, cfg.ends).tolist() == [2]
    assert loss_mask(tokens, completion, cfg.ends, run)[0].tolist() == [False, False, True, True, False, False]
