"""Passes of each row, tokens per pass, in rollouts, in evaluations, as a reward; what compiles, what a GPU copies."""
import math
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from shared import KEY, TINY, advantages, sharp, slow

import config
import data
import model
import rl
import sample
from sample import Plan
from system import placement, sharding
from tools import plan as planning
from variants import quantized, slots


def rows_of_different_length():
    """Six rows of twelve tokens, of which the last 2 to 11 are to be written."""
    tokens = np.random.default_rng(3).integers(0, TINY.eos_id, (6, 12))
    return data.Batch(tokens, np.arange(12) >= np.array([1, 3, 5, 7, 9, 10])[:, None], None)


CASES = {
    "quota": ({}, Plan(steps=4)),
    "threshold": ({}, Plan(rule="threshold", threshold=0.6)),
    "dream": ({}, Plan(rule="dream", steps=12)),  # whose first pass commits nothing
    "early end": ({}, Plan(rule="threshold", threshold=0.6, early_end=True, order="left")),
    "a cache, for which rows wait": ({}, Plan(rule="threshold", threshold=0.6, block_len=4, cache="dual")),
    "blocks": ({"blocks.block": 4}, Plan(rule="dynamic", threshold=0.6, steps=4)),
    "causal": ({"causal": True, "shift": True}, Plan(order="left")),
}


@pytest.mark.parametrize("name", [name if name == "threshold" else slow(name) for name in CASES])
def test_a_row_took_as_many_passes_as_it_takes_when_all_rows_are_copies_of_it(name):
    """A batch of copies of a row takes n_steps passes, and no row waits for another."""
    keys, plan = CASES[name]
    cfg, batch, row_keys = shared.changed(TINY, **keys), rows_of_different_length(), sample.row_keys(KEY, 6)
    run, params = types.SimpleNamespace(model=cfg), sharp(cfg, 9, sure=40)
    x, trace = sample.fill_rows(params, row_keys, batch, run, plan, 6)
    alone = []
    for i in range(6):
        copies = jax.tree.map(lambda a, i=i: a[jnp.full(6, i)], (row_keys, batch))
        y, of_copies = sample.fill_rows(params, *copies, run, plan, 6)
        np.testing.assert_array_equal(y[0], x[i])
        alone.append(int(of_copies["n_steps"]))
    assert np.asarray(trace["passes"]).tolist() == alone
    assert len(set(alone)) > 1 or name == "dream", "all rows take as many passes: nothing is tested"


@pytest.mark.parametrize("changes, n, size, taken", [
    (dict(rule="threshold"), 4, 2, "slots"),
    (dict(rule="threshold"), 2, 2, "chunks"),  # all rows fit at once
    (dict(rule="threshold"), 5, 2, "chunks"),
    (dict(rule="quota"), 4, 2, "chunks"),  # all rows take as many steps
    (dict(rule="threshold", cache="dual", block_len=2), 4, 2, "chunks"),
])  # fmt: skip
def test_rows_take_turns_only_where_their_numbers_of_passes_may_differ(changes, n, size, taken, monkeypatch):
    monkeypatch.setattr(slots, "in_turn", lambda *_: "slots")
    monkeypatch.setattr(sharding, "in_chunks", lambda *_: "chunks")
    batch = data.Batch(jnp.zeros((n, 4), jnp.int32), jnp.ones((n, 4), bool), None)
    keys, run = sample.row_keys(KEY, n), types.SimpleNamespace(model=TINY)
    assert sample.fill_rows({}, keys, batch, run, shared.plan(**changes), size) == taken


def lightning(right, fast):
    """LightningRL's advantages (N, G), by the formula of its paper: both are normalized in their group, added, and
    normalized in the batch."""
    z = [(a - a.mean(1, keepdims=True)) / np.where(a.std(1) > 0, a.std(1), 1)[:, None] for a in (right, fast)]
    total = z[0] + z[1]
    return (total - total.mean()) / total.std()


def test_a_right_and_a_fast_answer_have_the_advantages_of_lightningrl():
    rng = np.random.default_rng(0)
    right, fast = rng.integers(0, 2, (6, 8)).astype(float), 16 / rng.integers(1, 9, (6, 8))
    right[0], fast[1] = 0, 2.0  # groups in which all are wrong, or equally fast
    cfg = config.Config(rewards=("countdown", "passes"), reward_norm="each")
    found = np.asarray(advantages(np.stack([right, fast]), cfg))
    sample_std = (47 / 48) ** 0.5  # ours divides by n - 1, which cancels in the groups but not in the batch
    np.testing.assert_allclose(found, lightning(right, fast) * sample_std, atol=1e-3)


@pytest.mark.parametrize("name", [*CASES, "slots"])
def test_no_pass_of_a_sampler_rounds_a_matrix_to_16_bits(name):
    """A GPU would read and write all parameters in each pass: of LLaDA's shape 65 GB instead of 20 for one text."""
    keys, plan = CASES["threshold" if name == "slots" else name]
    cfg, size = shared.changed(TINY, dtype="bfloat16", **keys), 3 if name == "slots" else 6
    run, params, batch = types.SimpleNamespace(model=cfg), sharp(cfg, 9), rows_of_different_length()
    check_matrices_are_rounded_once(
        lambda params: sample.fill_rows(params, sample.row_keys(KEY, 6), batch, run, plan, size), params)  # fmt: skip


def test_no_micro_batch_of_scoring_rounds_a_matrix_to_16_bits():
    shape = shared.changed(TINY, dtype="bfloat16")
    cfg = config.Config(objective="grpo", init_from="x", rewards=("exact",), max_prompt_len=0, max_new_tokens=12,
                        model=shape, batch_size=2, group_size=3, gradient_accumulation_steps=2)  # fmt: skip
    tokens, copies = np.zeros((6, 12), int), np.ones((6, 2, 12), bool)
    r = rl.Rollout(tokens, None, *[tokens > 0] * 3, tokens + 0.0, np.ones(6), np.arange(6))
    check_matrices_are_rounded_once(lambda params: rl.logp_of(params, r, (copies, copies + 0.0, None), cfg),
                                    sharp(shape, 9))  # fmt: skip


def check_matrices_are_rounded_once(f, params):
    """Check that f(params) rounds matrices to 16 bits, and none of them in a loop."""
    shapes = {x.shape for x in jax.tree.leaves([params["blocks"], params["head"]]) if x.ndim > 1}
    rounded = [in_loop for e, in_loop in shared.equations(jax.make_jaxpr(f)(params))
               if e.primitive.name == "convert_element_type"
               and e.params["new_dtype"] == "bfloat16" and e.invars[0].aval.shape in shapes]  # fmt: skip
    assert rounded and not any(rounded)


@pytest.mark.slow
def test_an_iteration_of_the_first_recipe_compiles_few_programs(tmp_path):
    """Each operation on arrays outside of a compiled function compiles a program, which takes a GPU about a second."""
    run = ["train.py", "config/sudoku_grpo.py", "--init_from=assets/sudoku_base", f"--out_dir={tmp_path}/run",
           "--max_iters=1", "--eval_size=8"]  # fmt: skip
    done = shared.python(*run, JAX_LOG_COMPILES="1", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    programs = re.findall(r"Finished XLA compilation of (\S+)", done.stderr)
    assert len(programs) <= 25, sorted(programs)


@pytest.mark.slow
@pytest.mark.skipif(planning.topology("1xH100") is None, reason="needs the compiler of a GPU, and cuDNN")
@pytest.mark.parametrize("bits, cache", [(16, "none"), (16, "dual"), (8, "dual"), (4, "none")])
def test_a_gpu_cuts_and_copies_no_matrix_of_llada_in_a_pass_of_the_sampler(bits, cache):
    """In a loop XLA copied each matrix out of a stack of all layers before it was multiplied: 2.3 times the time. Of 8
    bits it wrote the numbers, and read them again: 4 times the bytes."""
    cfg = model.ModelConfig(vocab_size=126464, n_layer=2, n_head=32, d_model=4096, d_ff=12288, mask_id=126336,
                            eos_id=126081, dtype="bfloat16")  # fmt: skip
    pack = quantized.packing(bits) if bits < 16 else lambda *_: None
    with planning.traced_for_gpu():
        params = jax.eval_shape(lambda: model.cast(model.init(jax.random.key(0), cfg), "bfloat16"))
        params["blocks"] = [{name: pack(name, x.shape, None, "bfloat16") or x for name, x in w.items()}
                            for w in params["blocks"]]  # fmt: skip
        shapes = params, jax.eval_shape(lambda: sample.row_keys(jax.random.key(0), 1)), jnp.zeros((1, 320), "int32")
        where = placement.shardings(shapes, placement.make(None, planning.topology("1xH100").devices))
        given = jax.tree.map(lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to), shapes, where)
        text = sample.generate.lower(*given, cfg, Plan(steps=64, block_len=32, cache=cache)).compile().as_text()
    kinds = "dynamic-slice|slice|copy" if bits == 4 else "dynamic-slice|slice|copy|convert|fusion"  # 4 bits are too few
    fused = set(re.findall(r" fusion\(.*calls=%([\w.-]+)", text))  # what happens in these is never written
    program = "\n".join(part for part in text.split("\n\n") if part.lstrip("\n%").split(" ")[0] not in fused)
    moved = re.findall(rf" = \w+\[([\d,]*)\]\S* (?:{kinds})\(", program)
    assert moved and max(math.prod(map(int, sides.split(","))) for sides in moved if sides) < 2**24
