"""Mixtures of experts: LLaDA2's own outputs, Qwen3-MoE in blocks, all experts for all tokens, and runs."""
import functools
import shutil
import sys

import cost
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared

if __name__ == "__main__":  # this file is also a program that runs on more devices: see `elsewhere`
    import conftest  # noqa: F401

from shared import SECONDS, close, elsewhere, far, fixture, logits_of, random_torch, refused, write_rows

import config
import diffusion
import model
import train
from checkpoints import adapters, checkpoint, families, family, huggingface
from loop import memory, runs
from loop.setup import prepare
from system import disk, sharding
from tools import complete
from variants import lora, moe

KEY, SLOW = jax.random.key(0), pytest.mark.slow
SMALL = model.ModelConfig(vocab_size=40, n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=48, qk_norm=True,
                          mask_id=39, eos_id=38, pad_id=37,
                          use=(moe.Shape(n_experts=8, experts_per_token=3, d_expert=24),))  # fmt: skip
SIGMOID = {"moe.routing": "sigmoid", "moe.norm_routing": True, "moe.routing_scale": 2.5, "moe.expert_groups": 4,
           "moe.groups_per_token": 2, "moe.n_shared": 1, "moe.first_dense": 1}  # fmt: skip


SDAR = shared.changed(SMALL, **{"blocks.block": 4}, d_head=16, **{"moe.norm_routing": True})
OURS = shared.changed(SMALL, **{"blocks.block": 32}, d_head=16, n_layer=3, rotary_share=0.5, **SIGMOID)
KINDS = {"sdar_moe": SDAR, "llada2_moe": OURS}
TOKENS = jax.random.randint(jax.random.key(1), (3, 12), 0, 37)


@functools.cache
def start(cfg, n_out=None):
    """Params far from their initialization, with a bias that changes which experts are picked."""
    return jax.tree.map(lambda w: far(w, 0.1) if w.ndim < 4 else w, model.init(KEY, cfg, n_out))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """written(name) -> the folder of a model of KINDS."""

    @functools.cache
    def write(name):
        folder = tmp_path_factory.mktemp("written") / name
        huggingface.save(folder, start(KINDS[name]), KINDS[name])
        return folder

    return write


@pytest.fixture
def saved(written, tmp_path):
    """saved(name) -> a copy of it that the test may change."""
    return lambda name: shutil.copytree(written(name), tmp_path / name)


def layer(cfg):
    """The weights of one layer's experts, of which some are seldom picked."""
    sizes = moe.shapes(cfg, cfg.n_layer - 1)
    keys = jax.random.split(KEY, len(sizes))
    return {name: jnp.asarray(np.asarray(jax.random.normal(key, shape)) * np.float32(shape[-2:][0] ** -0.5))
            for key, (name, shape) in zip(keys, sizes.items(), strict=True)}  # fmt: skip


def every_expert(h, w, cfg):
    """mixture(h, w, cfg), with all experts computed for all tokens."""
    expert, weight = moe.route(h, w, cfg)
    share = (jax.nn.one_hot(expert, moe.Shape.of(cfg).n_experts) * weight[..., None]).sum(-2)  # (B, S, E)
    inner = jax.nn.silu(jnp.einsum("bsd,edf->bsef", h, w["expert_gate"]))
    inner *= jnp.einsum("bsd,edf->bsef", h, w["expert_up"])
    out = jnp.einsum("bsef,efd,bse->bsd", inner, w["expert_down"], share)
    if moe.Shape.of(cfg).n_shared:
        out += (jax.nn.silu(h @ w["shared_gate"]) * (h @ w["shared_up"])) @ w["shared_down"]
    return out


def value_and_gradient(f, h, w, cfg):
    both = lambda h, w: (out := f(h, w, cfg), jax.vjp(lambda h, w: f(h, w, cfg), h, w)[1](jnp.sin(out)))
    return jax.jit(both)(h, w)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("name, B, S", [("llada2_moe", 2, 9), *(pytest.param(*x, marks=SLOW) for x in (
    ("sdar_moe", 2, 9), ("sdar_moe", 1, 1), ("llada2_moe", 1, 2), ("sdar_moe", 5, 31)))])  # fmt: skip
def test_tokens_go_through_their_experts_only_and_their_sum_has_the_same_gradient(platform, name, B, S, monkeypatch):
    """On a TPU by ragged_dot, which runs here, too; elsewhere in tiles."""
    cfg = KINDS[name]
    monkeypatch.setattr(sharding, "platform", lambda: platform)
    h, w = jax.random.normal(KEY, (B, S, cfg.d_model)), layer(cfg)
    ours, theirs = (value_and_gradient(f, h, w, cfg) for f in (moe.mixture, every_expert))
    jax.tree.map(lambda a, b: close(a, b, 2e-5), ours, theirs)


def test_a_softmax_that_is_not_normed_weighs_experts_by_their_probabilities():
    """Whether sigmoid, bias, groups, norm and scale are right is in LLaDA2's own logits."""
    cfg = shared.changed(SMALL, **{"moe.n_experts": 4, "moe.experts_per_token": 2})
    p = np.exp([0, 1, 2, 0]) / np.exp([0, 1, 2, 0]).sum()
    expert, weight = moe.route(jnp.ones((1, 1, 1)), {"router": jnp.array([[0.0, 1, 2, 0]])}, cfg)
    assert expert[0, 0].tolist() == [2, 1]
    close(weight[0, 0], [p[2], p[1]], 1e-6)


def test_in_16_bits_the_router_computes_in_32():
    cfg = shared.changed(SDAR, dtype="bfloat16")
    params = model.prepared(start(cfg), cfg)["blocks"][0]
    assert params["router"].dtype == jnp.float32 and params["expert_up"].dtype == jnp.bfloat16
    stored = model.cast(start(OURS), "bfloat16")["blocks"][-1]
    assert {name for name, x in stored.items() if x.dtype == jnp.float32 and "norm" not in name} == {
        "router", "router_bias"}  # fmt: skip
    h, w = jax.random.normal(KEY, (2, 9, 32)).astype("bfloat16"), layer(SMALL)
    expert, weight = moe.route(h, w, SMALL)
    assert weight.dtype == jnp.float32
    np.testing.assert_array_equal(expert, moe.route(h.astype("float32"), w, SMALL)[0])
    low = logits_of(start(SDAR), TOKENS, cfg)
    close(np.delete(low, 39, -1), np.delete(logits_of(start(SDAR), TOKENS, SDAR), 39, -1), 0.2)


@pytest.mark.parametrize("b", [8, *(pytest.param(b, marks=SLOW) for b in (4, 32))])
def test_logits_equal_those_of_llada2s_own_code(b):
    params, cfg, e = fixture("llada2")
    own = moe.Shape.of(cfg)
    assert (cfg.block, own.first_dense, own.expert_groups, cfg.rotary_share) == (32, 1, 4, 0.5)
    ours = logits_of(params, e["ids"], shared.changed(cfg, **{"blocks.block": b}))
    close(np.delete(ours, 63, -1), np.delete(e[f"logits_{b}"], 63, -1), 2e-5)


def as_stored(tree, name, cfg):
    """The values in a tree like params that a tensor of LLaDA2's file has."""
    parts = [place for place in huggingface.tensor_places(cfg, None) if place.name == name]
    return np.concatenate([np.asarray(family.leaf_at(tree, place.path)[place.at]).T for place in parts])


def test_loss_and_gradients_equal_those_of_llada2s_own_code():
    params, cfg, e = fixture("llada2")
    cfg = shared.changed(cfg, **{"blocks.block": 8})
    loss = lambda params: -diffusion.gather_logp(model.logits(params, e["ids"], cfg), e["labels"]).mean()
    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    close(value, e["loss"], 1e-6)
    names = [key.removeprefix("gradient ") for key in e if key.startswith("gradient ")]
    assert len(names) == 6 and any("mlp.gate.weight" in name for name in names)
    for name in names:
        close(as_stored(gradient, name, cfg), e[f"gradient {name}"], 5e-6)


def test_what_a_config_does_not_say_is_elsewhere_or_usual(tmp_path):
    theirs = disk.read_json("tests/fixtures/llada2/config.json") | {"vocab_size": 157184}
    del theirs["mask_token_id"]
    disk.write_json(tmp_path / "config.json", theirs)
    assert huggingface.read_config(tmp_path).mask_id == 156895
    disk.write_json(tmp_path / "tokenizer.json", {"added_tokens": [{"content": "<|mask|>", "id": 156890}]})
    assert huggingface.read_config(tmp_path).mask_id == 156890


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    """A model of transformers, far from its initialization, and its folder."""
    folder = tmp_path_factory.mktemp("qwen3")
    theirs = random_torch("qwen3_moe", moe_intermediate_size=24, head_dim=16, num_experts=8, num_experts_per_tok=3,
                          norm_topk_prob=True)  # fmt: skip
    theirs.save_pretrained(folder)
    return theirs, folder


@SLOW
@pytest.mark.parametrize("name, b", [("SDAR-30B-A3B", 4), ("SDAR-30B-A3B-Chat-b8", 8)])
def test_sdar_moe_is_qwen3_moe_whose_tokens_see_their_block(name, b, qwen3, tmp_path):
    import torch
    theirs, folder = qwen3
    said = disk.read_json(folder / "config.json")
    said |= {"model_type": "sdar_moe", "architectures": ["SDARMoeForCausalLM"],
             "num_experts": said.get("num_experts") or said["num_local_experts"]}  # fmt: skip
    (tmp_path / name).mkdir()
    shutil.copy(folder / "model.safetensors", tmp_path / name)
    disk.write_json(tmp_path / name / "config.json", said)
    disk.write_json(tmp_path / name / "tokenizer.json", {"added_tokens": [{"content": "<|MASK|>", "id": 39}]})
    params, cfg = checkpoint.load(tmp_path / name)
    assert (cfg.block, cfg.mask_id, cfg.shift, cfg.causal) == (b, 39, False, False)
    own = moe.Shape.of(cfg)
    assert (own.n_experts, own.experts_per_token, own.norm_routing) == (8, 3, True)
    huggingface.save(tmp_path / "again", params, cfg)
    ours, stored = (disk.open_tensors(f"{place}/model.safetensors") for place in (tmp_path / "again", folder))
    assert ours.keys() == stored.keys()  # so that ours open in their code
    for tensor in ours:
        np.testing.assert_array_equal(ours[tensor].get_tensor(tensor), stored[tensor].get_tensor(tensor))
    block = torch.arange(12) // b
    seen = (block[None] <= block[:, None])[None, None].expand(3, 1, 12, 12)
    theirs.zero_grad()
    raw = theirs(torch.tensor(np.asarray(TOKENS)), attention_mask=torch.where(seen, 0.0, -1e30)).logits
    close(np.delete(model.logits(params, TOKENS, cfg), 39, -1), np.delete(raw.detach(), 39, -1))
    torch.sin(raw[..., :39]).mean().backward()
    gradient = jax.grad(lambda params: jnp.sin(model.logits(params, TOKENS, cfg)[..., :39]).mean())(params)["blocks"][1]
    mlp = theirs.model.layers[1].mlp
    assert float(abs(mlp.gate.weight.grad).max()) > 1e-4
    close(gradient["router"].T, mlp.gate.weight.grad, 1e-6)
    close(gradient["expert_down"].swapaxes(1, 2), mlp.experts.down_proj.grad, 1e-6)
    gate_up = np.concatenate([gradient["expert_gate"], gradient["expert_up"]], -1)
    close(gate_up.swapaxes(1, 2), mlp.experts.gate_up_proj.grad, 1e-6)


@pytest.mark.parametrize("name, change, named", [
    ("sdar_moe", dict(num_experts=None), "missing num_experts"),
    ("sdar_moe", dict(num_experts=9), r"missing tensors: model.layers.0.mlp.experts.8"),
    ("sdar_moe", dict(num_experts=7), r"unknown tensors: model.layers.0.mlp.experts.7"),
    ("sdar_moe", dict(moe_intermediate_size=23), r"gate_proj.weight has the shape \(24, 32\), but .* \(23, 32\)"),
    ("sdar_moe", dict(decoder_sparse_step=2), "decoder_sparse_step=2"),
    ("sdar_moe", dict(mlp_only_layers=[0]), r"mlp_only_layers=\[0\]"),
    ("sdar_moe", dict(rope_parameters={"partial_rotary_factor": 0.5}), "partial_rotary_factor=0.5"),
    ("llada2_moe", dict(num_attention_heads=2), r"query_key_value.weight has the shape \(128, 32\)"),
    ("llada2_moe", dict(score_function="softmax"), "score_function='softmax'"),
    ("llada2_moe", dict(use_qkv_bias=True), "use_qkv_bias=True"), ("llada2_moe", dict(n_group=None), "missing n_group"),
])  # fmt: skip
def test_what_does_not_fit_is_named(name, change, named, saved):
    file = saved(name) / "config.json"
    disk.write_json(file, disk.read_json(file) | change)
    refused(named, checkpoint.load, file.parent)


def test_every_other_family_refuses_to_turn_a_share_of_a_head(tmp_path):
    for kind in families.FAMILIES.keys() - {"llada2_moe"}:
        disk.write_json(tmp_path / "config.json", {"model_type": kind, "partial_rotary_factor": 0.5})
        refused("partial_rotary_factor=0.5 is not supported", huggingface.read_config, tmp_path)


@pytest.mark.parametrize("changes, named", [
    ({"moe.d_expert": None}, "d_expert=None: expected a whole number"), ({"moe.d_expert": 0}, "d_expert=0"),
    ({"moe.n_experts": 0}, "n_experts=0"), ({"moe.routing": "top"}, "routing='top': one of softmax, sigmoid"),
    ({"moe.n_shared": -1}, "n_shared=-1"), ({"moe.experts_per_token": 0}, "experts_per_token=0"),
    ({"moe.first_dense": 2}, "first_dense=2: expected 0 to 1"), ({"moe.expert_groups": 0}, "expert_groups=0"),
    ({"moe.expert_groups": 8}, "each has two or more"),
    ({"moe.expert_groups": 3}, "moe.n_experts=8 must be a multiple of moe.expert_groups=3"),
    ({"moe.experts_per_token": 9}, "experts_per_token=9: expected 1 to 8"),
    ({"moe.expert_groups": 4, "moe.experts_per_token": 3}, "experts_per_token=3: expected 1 to 2"),
    ({"moe.expert_groups": 4, "moe.groups_per_token": 5}, "moe.groups_per_token=5: expected 1 to moe"),
    (dict(rotary_share=0.0), "0.0 of a head's 8 columns"), (dict(rotary_share=1.5), "1.5 of a head's"),
])  # fmt: skip
def test_impossible_configurations_are_refused(changes, named):
    refused(named, shared.changed, SMALL, **changes)


@pytest.mark.parametrize("name, targets", [("sdar_moe", ("q", "v")), pytest.param("llada2_moe", ("o",), marks=SLOW)])
def test_a_folder_of_adapters_loads_as_their_base_with_them_merged(name, targets, saved, tmp_path):
    cfg, folder = KINDS[name], saved(name)
    new = lora.adapters(KEY, cfg, targets, 2)
    new = {"blocks": [{n: x if n.endswith("_a") else 0.1 + x for n, x in w.items()} for w in new["blocks"]]}
    disk.write_files(tmp_path / "lora", adapters.adapter_files(new, cfg, str(folder), 4.0))
    merged, _ = checkpoint.load(tmp_path / "lora")
    unmerged = lora.adapted(start(cfg), new, 4.0)
    ours, want, base = (logits_of(params, TOKENS, cfg)[..., :37] for params in (merged, unmerged, start(cfg)))
    close(ours, want, 1e-5)
    assert float(abs(want - base).max()) > 1e-3


@pytest.mark.parametrize("name, targets, known", [("sdar_moe", ("q", "gate"), "q, k, v, o"),
                                                  ("llada2_moe", ("q", "o"), "o")])  # fmt: skip
def test_adapters_on_experts_or_on_a_part_of_a_tensor_are_refused_before_the_weights_are_read(
        name, targets, known, saved, monkeypatch):
    folder = saved(name)
    monkeypatch.setattr(checkpoint, "load", lambda *_: pytest.fail("the weights were read"))
    cfg = shared.run(dataset="arith", init_from=str(folder), **{"lora.rank": 2, "lora.targets": targets})
    advice = f"--lora.targets={known.replace(' ', '')}$"
    refused(f"only {known} can have adapters .*: {advice}", prepare, cfg, train.train)


def test_the_estimates_know_that_a_token_goes_through_a_few_experts():
    shape = shared.changed(OURS, blocks=False)
    cfg = config.Config(model=shape, batch_size=16, max_prompt_len=0, max_new_tokens=64)
    flops, T, D, Q, KV = cost.estimate_flops(cfg)["update"], 64, 32, 64, 32
    matrices = 3 * 2 * D * (Q + KV) + 3 * D * 48 + 2 * 3 * D * (3 + 1) * 24  # a dense layer, two of 3 + 1 experts
    assert flops == pytest.approx(3 * 16 * 2 * T * (matrices + 3 * D * 8 + D * 40 + 2 * 3 * T * Q))
    assert memory.n_params(cfg) == sum(x.size for x in jax.tree.leaves(start(OURS)))


def measure(name, rows):
    """FLOPs per device, logits and gradients of a model, as one vector each."""
    params, tokens, cfg = sharding.shard(start(KINDS[name])), jnp.tile(TOKENS, (3, 1))[:rows], KINDS[name]
    loss = lambda params: (out := model.logits(params, tokens, cfg)[..., :37], jnp.sin(out).sum())[::-1]
    both = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(params).compile()
    (_, out), gradient = both(params)
    found = both.cost_analysis()["flops"], out, *jax.tree.leaves(gradient)
    return [np.asarray(x, np.float64).ravel() for x in found]


@SLOW
@pytest.mark.parametrize("n, sizes, name, rows", [
    (4, "1,2,2", "llada2_moe", 4), (2, "1,1,2", "llada2_moe", 3), (4, "2,1,2", "sdar_moe", 3),
    (5, "1,1,5", "sdar_moe", 2)])  # fmt: skip
def test_a_mesh_gives_the_logits_and_gradients_of_one_device(n, sizes, name, rows, tmp_path):
    """Also with rows that devices cannot share evenly, and with widths of experts that they cannot: 24 on 5."""
    elsewhere(n, __file__, sizes, name, rows, tmp_path / "x.npz")
    (flops, *many), (alone, *one) = np.load(tmp_path / "x.npz").values(), measure(name, rows)
    for a, b in zip(many, one, strict=True):
        close(a, b, 1e-4)
    print(f"FLOPs per device: {flops.item() / alone.item():.2f} of one device's")
    assert name != "llada2_moe" or flops < 1.2 * alone / n


RUN = SECONDS | dict(cache="prefix")
EXPERTS = {"moe.n_experts": 4, "moe.experts_per_token": 2, "moe.d_expert": 16}
SHAPES = {
    "sdar_moe": dict(n_layer=1, **EXPERTS),
    "llada2_moe": dict(n_layer=2, rotary_share=0.5, **EXPERTS | SIGMOID | {"moe.expert_groups": 2}),
}


@SLOW
@pytest.mark.parametrize("name", SHAPES)
def test_a_mixture_is_pretrained_tuned_and_asked(name, tmp_path, capsys):
    write_rows(tmp_path)
    shape = shared.shape(n_head=2, d_model=32, **{"blocks.block": 4}, qk_norm=True, **SHAPES[name])
    train.train(shared.run(**RUN | dict(max_iters=20, eval_interval=20), dataset=str(tmp_path), learning_rate=3e-3,
                              paired=True, out_dir=f"{tmp_path}/base", model=shape))  # fmt: skip
    rows = runs.read_lines(f"{tmp_path}/base/metrics.jsonl")
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0] - 0.5
    reward = "def length(completions):\n    return [len(x) + sum(map(ord, x)) % 5 for x in completions]"
    (tmp_path / "r.py").write_text(reward)
    train.train(shared.run(**RUN, ratio_level="token", objective="grpo", dataset=str(tmp_path), group_size=4,
                              out_dir=f"{tmp_path}/tuned", init_from=f"{tmp_path}/base", kl_beta=0.1,
                              rewards=(f"{tmp_path}/r.py:length",), temperature=1.0, pass_at=None))  # fmt: skip
    rows = runs.read_lines(f"{tmp_path}/tuned/metrics.jsonl")
    assert [row["grad_norm"] > 0 for row in rows if "grad_norm" in row] == [True]
    before, after = (checkpoint.load(checkpoint.find(f"{tmp_path}/{run}"))[0]["blocks"] for run in ("base", "tuned"))
    for was, now in zip(before, after, strict=True):
        moved = {leaf for leaf in was if not np.array_equal(was[leaf], now[leaf])}
        assert moved == was.keys() - {"router_bias"}
    assert huggingface.family_of(checkpoint.load(checkpoint.find(f"{tmp_path}/tuned"))[1]) == name
    assert complete.main([f"{tmp_path}/tuned", "--prompt=12", "--max_new_tokens=5"]) == 0


if __name__ == "__main__":
    sizes, name, rows, file = sys.argv[1:]
    with sharding.use(tuple(map(int, sizes.split(",")))):
        found = measure(name, int(rows))
    np.savez(file, **{str(i): x for i, x in enumerate(found)})
