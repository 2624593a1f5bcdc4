"""A base in 8 or 4 bits: the codes of bitsandbytes and torchao, products of its numbers, gradients, memory, runs."""
import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from shared import KEY, byte_model, logits_of, refused, write_rows

import config
import model
import train
from checkpoints import adapters, checkpoint, huggingface
from loop import memory, same_run
from system import kernels, remat
from tools import complete
from variants import lora, quantized

SHAPE = model.ModelConfig(vocab_size=40, n_layer=2, n_head=2, d_model=64, d_ff=128, mask_id=39, eos_id=38, pad_id=38)
BITS = 8, 4


def close(a, b, tolerance=1e-6):
    np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def theirs():
    with open("tests/fixtures/quantized.json") as f:
        return json.load(f)


@pytest.fixture(scope="module")
def weights():
    """The matrix (O, I) of the fixture, whose codes bitsandbytes and torchao have made."""
    w = np.random.default_rng(2).standard_normal((12, 1536)).astype(np.float32) * np.float32(0.05)
    w[3], w[5], w[7, 10] = 0, w[5] * 20, 3
    return w


def codes_of(hexadecimal, dtype, *shape):
    return np.frombuffer(bytes.fromhex(hexadecimal), dtype).reshape(shape)


def test_codes_of_8_bits_are_those_of_torchao(weights, theirs):
    stored = quantized.packed(weights.T, 8, "float32")
    np.testing.assert_array_equal(stored.codes.T, codes_of(theirs["int8"], np.int8, 12, 1536))
    close(stored.scale[0], theirs["int8_scale"])
    assert (abs(stored.numbers().T - weights) <= np.float32(theirs["int8_scale"])[:, None] * 0.501).all()


def test_codes_of_4_bits_and_of_their_scales_are_those_of_bitsandbytes(weights, theirs):
    stored = quantized.packed(weights.T, 4, "float32")
    np.testing.assert_array_equal(stored.codes.T, codes_of(theirs["nf4"], np.uint8, 12, 768))
    close(stored.outer, theirs["outer"])
    close(stored.offset, theirs["offset"])
    scale, said = np.asarray(stored.scale.T).reshape(-1), codes_of(theirs["scale"], np.uint8, 288)
    # Its kernel for CPUs does not always take the nearest code: 1 of 500 is the one beside it.
    assert (scale != said).sum() <= 2 and (abs(scale.astype(int) - said) <= 1).all()
    numbers = np.asarray(stored.numbers()).T
    close(abs(numbers).astype(float).sum(1), theirs["rows_abs"], 5e-3)
    largest = abs(weights.reshape(12, 24, 64)).max(-1).repeat(64, 1)
    assert (abs(numbers - weights) <= 0.17 * largest + 0.06).all()  # half the widest gap of NF4, and the scale's own


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose tokenizer has bytes, and rows to train it on."""
    place = tmp_path_factory.mktemp("place")
    byte_model(place / "base", n_layer=2, d_model=64, d_ff=128)
    write_rows(place)
    (place / "own.py").write_text("def first(completion): return ord(completion[:1] or 'a') / 1e3")
    return place


def loaded(folder, bits, **more):
    return checkpoint.load(folder / "base", pack=quantized.packing(bits), **more)


@jax.jit
def as_numbers(params):
    """Params with codes -> the same with the numbers that they stand for."""
    return jax.tree.map(lambda w: w.numbers() if kernels.is_packed(w) else w, params, is_leaf=kernels.is_packed)


@pytest.mark.parametrize("bits, far", [(8, 0.01), pytest.param(4, 0.1, marks=pytest.mark.slow)])
def test_a_model_of_codes_computes_with_the_numbers_that_they_stand_for(bits, far, folder):
    params, cfg = loaded(folder, bits)
    z = jnp.array([[1, 2, cfg.mask_id, 4]])
    packed = {name for name, w in params["blocks"][0].items() if kernels.is_packed(w)}
    assert packed == {"q", "k", "v", "o", "gate", "up", "down"} and not kernels.is_packed(params["embed"])
    whole = checkpoint.load(folder / "base")[0]
    assert all(params["blocks"][0][name].shape == whole["blocks"][0][name].shape for name in packed)
    out, plain, exact = (logits_of(p, z, cfg) for p in (params, as_numbers(params), whole))
    close(out, plain)
    gap = float(abs(out - exact)[..., :-3].max() / exact[..., :-3].std())
    assert far / 20 < gap < 10 * far


def test_8_bits_are_multiplied_as_codes_and_their_sums_are_scaled():
    """So a GPU converts codes within the product. (It does not multiply them there.)"""
    x, w = jnp.ones((3, 8), "bfloat16"), quantized.empty((8, 16), 8, "bfloat16")
    program = jax.make_jaxpr(kernels.matmul)(x, w)
    found = [e for e, _ in shared.equations(program) if e.outvars[0].aval.shape == (8, 16)]
    assert {e.primitive.name for e in found} == {"add", "convert_element_type"}


@pytest.mark.parametrize("bits, on_cpu", [(4, True), shared.slow(8, True), shared.slow(4, False), (8, False)])
def test_the_gradient_of_adapters_is_that_beside_plain_numbers_and_that_of_finite_differences(
        bits, on_cpu, folder, monkeypatch):
    monkeypatch.setattr(remat, "sharding", types.SimpleNamespace(on_cpu=lambda: on_cpu))  # else there are barriers
    params, cfg = loaded(folder, bits)
    z = jnp.array([[1, 2, cfg.mask_id, 4]])
    new = lora.adapters(KEY, cfg, ("q", "down"), 2)
    new = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(KEY, x.shape), new)

    @jax.jit
    def loss(new, base):
        return jax.nn.log_softmax(model.logits(lora.adapted(base, new, 4.0), z, cfg))[0, 2, 7]

    ours, plain = (jax.jit(jax.grad(loss))(new, base)["blocks"] for base in (params, as_numbers(params)))
    jax.tree.map(lambda a, b: close(a, b, 1e-5), ours, plain)
    first, *others = new["blocks"]
    move = jax.random.normal(jax.random.key(1), first["q_a"].shape)

    def moved(by):
        return float(loss({"blocks": [first | {"q_a": first["q_a"] + by * move}, *others]}, params))

    numeric = (moved(1e-2) - moved(-1e-2)) / 2e-2
    assert abs(numeric - float((ours[0]["q_a"] * move).sum())) < 2e-3 * max(1, abs(numeric))


@pytest.mark.slow
def test_numbers_are_made_for_one_product_at_a_time_also_in_the_backward_pass():
    """The memory of a gradient grows by less than the numbers of a layer when a layer is added."""
    def temporaries(n_layer, bits):
        cfg = dataclasses.replace(SHAPE, n_layer=n_layer, d_model=256, d_ff=1024)
        params = jax.eval_shape(lambda: model.init(KEY, cfg))
        pack = quantized.packing(bits)
        stored = [{name: pack(name, x.shape, None, "float32") or x for name, x in w.items()} for w in params["blocks"]]
        new = jax.eval_shape(lambda: lora.adapters(KEY, cfg, ("q",), 2))

        def loss(new, base):
            return model.logits(lora.adapted(base, new, 4.0), jnp.zeros((1, 4), int), cfg).sum()

        compiled = jax.jit(jax.grad(loss)).lower(new, params | {"blocks": stored}).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    of_layer = 4 * (4 * 256 * 256 + 3 * 256 * 1024)  # its numbers
    for bits in BITS:
        assert temporaries(12, bits) - temporaries(9, bits) < 0.1 * 3 * of_layer


RUN = dict(objective="grpo", max_prompt_len=3, max_new_tokens=4, max_iters=4, batch_size=2, group_size=4,
           eval_interval=4, eval_size=8, save_interval=2, log_interval=1, diffusion_steps=4,
           warmup_iters=0, **{"checkpoint.keep": 9}, lr_schedule="constant", learning_rate=1e-2, rewards=("exact",),
           kl_beta=0.1, **{"lora.rank": 2}, updates_per_rollout=2, ratio_level="token", adv_negative=1.0)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("bits", BITS)
def test_a_run_keeps_its_base_and_goes_on_to_the_bit(bits, folder, tmp_path):
    given = RUN | dict(dataset=str(folder), init_from=f"{folder}/base", **{"quantized.bits": bits})
    given |= dict(rewards=(f"{folder}/own.py:first",))
    whole, _ = train.train(shared.run(**given, out_dir=f"{tmp_path}/whole"))
    part = shared.run(**given | dict(max_iters=2), out_dir=f"{tmp_path}/part")
    train.train(part)
    resumed, out = train.train(dataclasses.replace(part, max_iters=4, resume=True))
    jax.tree.map(np.testing.assert_array_equal, whole.params, resumed.params)
    assert any((x != 0).any() for w in whole.params["blocks"] for name, x in w.items() if name.endswith("_b"))
    found = complete.find_model(out)  # in the bits that it was trained in, with its adapters beside the codes
    assert isinstance(found.params["blocks"][0]["q"], quantized.Int8 if bits == 8 else quantized.Int4)
    z = jnp.array([[50, 51, found.cfg.mask_id]])
    merged = lora.adapted(loaded(folder, bits)[0], resumed.params, 16.0)
    close(model.logits(found.params, z, found.cfg), model.logits(merged, z, found.cfg), 1e-5)
    reopened, shape = checkpoint.load(out)  # as init_from, ref_from and judge_from open a run
    close(model.logits(reopened, z, shape), model.logits(merged, z, shape), 1e-4)
    assert complete.main([out, f"--export={tmp_path}/export"]) == 0  # the numbers that the adapters were trained beside
    exported, shape = checkpoint.load(tmp_path / "export")
    close(model.logits(exported, z, shape), model.logits(merged, z, shape), 1e-4)


@pytest.mark.parametrize("changes, said", [
    (dict(lora=False), "quantized.bits=8 is for a base that stays as it is: set lora.rank"),
    (dict(objective="judge", rewards=()), "quantized.bits=8: a judge is made of a model in 16 or 32 bits"),
    (dict(mesh=(1, 2, 1)), "quantized.bits=8 is for one device"),
    ({"quantized.bits": 6}, "quantized.bits=6: one of 8, 4")])
def test_what_does_not_go_with_a_base_of_few_bits_is_answered(changes, said, folder):
    refused(said, shared.run, **RUN | dict(init_from=f"{folder}/base", **{"quantized.bits": 8}) | changes)


def test_a_width_that_blocks_of_64_do_not_divide_is_named(tmp_path):
    cfg = dataclasses.replace(SHAPE, d_ff=96)
    huggingface.save(tmp_path, model.init(KEY, cfg), cfg)
    said = "quantized.bits=4: down has 96 inputs, and 64 of them share a scale: take quantized.bits=8"
    refused(said, checkpoint.load, tmp_path, pack=quantized.packing(4))
    assert checkpoint.load(tmp_path, pack=quantized.packing(8))


def test_the_estimate_counts_the_bytes_of_codes(folder):
    for bits in BITS:
        params, shape = loaded(folder, bits)
        cfg = shared.run(**RUN | dict(init_from=f"{folder}/base", **{"quantized.bits": bits}), model=shape)
        n, wide = memory.n_params(cfg), memory.bytes_per_number(shape)
        found = adapters.base_bytes(shape, config.pack_of(cfg), n, wide)
        assert found == sum(x.nbytes for x in jax.tree.leaves(params))


@pytest.mark.parametrize("changes, said", [({}, ""), ({"quantized.bits": 8}, "quantized.bits=8 (it was 4)")])
def test_eval_only_says_other_bits_than_those_beside_which_a_run_was_trained(changes, said, tmp_path, capsys):
    was = config.flatten(config.changed(config.Config(init_from="x"), {"lora.rank": 2, "quantized.bits": 4}))
    (tmp_path / "run.json").write_text(json.dumps({"config": was}))
    same_run.to_evaluate(config.changed(config.Config(eval_only=True), changes), str(tmp_path))
    assert capsys.readouterr().out.partition("trained with: ")[2].strip() == said
