"""How files of variants/ add to the tables of the core, and what happens when somebody sets a name."""
import dataclasses
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
from shared import KEY, refused, without

import config
import diffusion
import grpo
import model
import rl
import sample
from system import sections
from tools import options
from variants import blocks, lora, losses

TINY = model.ModelConfig(vocab_size=9, n_layer=1, n_head=1, d_model=8, mask_id=8)


@pytest.mark.parametrize("table, key, first, second", [
    (sample.RULES, "rule", lambda b, plan: b.rank < 1, lambda b, plan: b.rank < 2),
    (sample.ORDERS, "order", sample.left, lambda *inputs: inputs[-1] * 1.0),
])  # fmt: skip
def test_a_rule_or_an_order_that_is_defined_again_in_the_same_process_is_used(table, key, first, second, monkeypatch):
    params, z = model.init(KEY, TINY), jnp.full((1, 6), 8)

    def steps():
        return sample.generate(params, KEY, z, TINY, sample.Plan(**{key: "mine", "steps": 6}))[1]["step"]

    monkeypatch.setitem(table, "mine", first)
    of_first = steps()
    table["mine"] = second
    assert (steps() != of_first).any()
    del table["mine"]
    table["mine"] = first
    assert (steps() == of_first).all()


def test_an_estimator_that_is_defined_again_is_used_and_its_views_are_counted(monkeypatch):
    def of(n):
        def estimator(key, completion, inputs):
            masked = jnp.repeat(completion[:, None], n, 1)
            return masked, masked, completion

        return estimator

    there = jnp.ones((2, 6), bool)
    rollout = rl.Rollout(there * 1, None, there, there, there * 0, there * 0.0, there[:, 0], jnp.arange(len(there)))
    for n in (3, 4):
        monkeypatch.setitem(diffusion.ESTIMATORS, "mine", of(n))
        cfg = config.Config(objective="grpo", init_from="a", logp_est="mine", logp_views=5)
        assert n in rl.draw_views(KEY, rollout, cfg).masked.shape and config.n_views(cfg) == n
    by_key = lambda key, completion, inputs: of(lora.Keys.of(inputs).rank)(key, completion, inputs)
    monkeypatch.setitem(diffusion.ESTIMATORS, "mine", by_key)
    cfg = dataclasses.replace(cfg, use=(lora.Keys(rank=7),))
    assert 7 in rl.draw_views(KEY, rollout, cfg).masked.shape and config.n_views(cfg) == 7


@pytest.mark.parametrize("table, key, first, second", [
    (grpo.LOSSES, "loss_type", grpo.Loss(grpo.clipped, grpo.per_token), grpo.Loss(grpo.clipped, grpo.summed)),
    (grpo.AGGREGATIONS, "aggregation", grpo.per_token, grpo.summed)])  # fmt: skip
def test_a_loss_or_an_aggregation_that_is_defined_again_weighs_the_tokens(table, key, first, second, monkeypatch):
    there, name = jnp.ones((2, 6), bool), next(iter(table))
    rollout = rl.Rollout(there * 1, None, there, there, there * 0, there * 0.0, there[:, 0], jnp.arange(len(there)))
    views = diffusion.Views(there[:, None], there[:, None] * 1.0, there * 1.0)
    cfg = config.Config(objective="grpo", init_from="a", max_prompt_len=2, max_new_tokens=4, **{key: name})
    for function, weight in ((first, 1 / 12), (second, 1 / 2)):
        monkeypatch.setitem(table, name, function)
        weights = rl.new_minibatch(rl.Chosen(rollout, jnp.ones(2), {}), views, cfg).loss.weight
        np.testing.assert_allclose(weights, weight, rtol=1e-6)


def test_a_kl_that_is_defined_again_is_used(monkeypatch):
    loss, ones = jax.jit(grpo.loss, static_argnames="cfg"), jnp.ones((2, 6))
    batch = grpo.LossBatch(ones[:, 0], ones > 0, ones, ones / 12, ref_logp=0 * ones)
    for size in (3.0, 5.0):
        monkeypatch.setitem(grpo.KLS, "k3", lambda logr, batch, size=size: jnp.full_like(logr, size))
        assert loss(ones, batch, grpo.LossConfig(kl_beta=1.0))[1]["kl_loss"] == 12 * size


def test_a_mask_that_is_defined_again_is_used(monkeypatch):
    cfg = model.ModelConfig(vocab_size=9, n_layer=1, n_head=1, d_model=8, mask_id=8, use=(blocks.Shape(2),))
    params, z, logits = model.init(KEY, cfg), jnp.arange(6)[None], jax.jit(model.logits, static_argnames="cfg")
    in_blocks = logits(params, z, cfg)
    monkeypatch.setitem(model.MASKS, "blocks", model.see_all)
    assert (logits(params, z, cfg) != in_blocks).any()


def mine(*_):
    """Stand for a function of a user."""


@pytest.mark.parametrize("table, name", [(sample.RULES, "dream"), (diffusion.ESTIMATORS, "trace"),
                                         (grpo.LOSSES, "bnpo"), (sample.SAMPLERS, "caches")])  # fmt: skip
def test_a_name_that_a_user_has_set_stays_theirs_when_the_file_that_has_it_is_imported_later(table, name, monkeypatch):
    assert sections.plugged(table, name)
    file = sections.written_in(table[name])
    monkeypatch.setitem(table, name, mine)
    monkeypatch.delitem(sys.modules, f"variants.{file}")
    monkeypatch.setattr(sys.modules["variants"], file, None)  # which is restored, as the import sets it
    refused("rule='nowhere': one of", sample.Plan, rule="nowhere")  # this imports all variants
    assert f"variants.{file}" in sys.modules and table[name] is mine


def test_a_loss_of_a_user_turns_on_no_variant_of_its_name(monkeypatch):
    monkeypatch.setitem(grpo.LOSSES, "nll", grpo.Loss(mine, grpo.per_token))
    assert config.Config(objective="grpo", init_from="a", loss_type="nll").use == ()
    monkeypatch.setitem(grpo.LOSSES, "like_cispo", grpo.Loss(mine, grpo.per_token, losses.cap_metrics))
    assert config.Config(objective="grpo", init_from="a", loss_type="like_cispo").use == ()


def test_the_options_of_sampling_have_the_keys_of_the_rules_in_variants():
    ours = {os.path.basename(path)[:-3] for path in shared.tracked("variants/*.py")}
    keys = {name for name in options.PLAN if "." in name and ours & {*sections.files_of(name.partition(".")[0])}}
    assert keys == {"entropy.budget", "factor.limit", "repetition_penalty.penalty"}


WITHOUT = """
import glob
from pathlib import Path
import config, sample
from system import sections

def said(fn, *args):
    try:
        fn(*args)
    except ValueError as e:
        return str(e)

for path in map(Path, sorted(glob.glob("variants/*.py"))):
    if wrong := said(sections.load, f"variants.{path.stem}"):
        print(wrong)
for path in glob.glob("config/[!_]*.py"):
    if wrong := said(config.read_file, path):
        print(wrong)
assert said(config.load, ["config/sudoku_grpo.py"]) is None
assert "one of quota" in said(lambda: sample.Plan(rule="nowhere"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(path.stem for path in Path("variants").glob("*.py")))
def test_without_a_file_all_works_but_what_imports_it_or_names_what_it_has(file):
    done = without(f"variants.{file}", "-c", WITHOUT)
    assert not done.returncode, done.stderr
    names = {file} | {name for name, of in sections.FILE_OF.items() if of == file}
    assert all(any(name in line for name in names) for line in done.stdout.splitlines()), done.stdout
