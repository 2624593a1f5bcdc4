"""
What a rewrite must not change: tokens of the samplers, losses and gradients of recipes in small, as recorded once. As
long as they hold, so do the results of docs/results.md (see tests/tables.py).

Where arithmetic or random numbers change on purpose, record them anew and say so in the commit:

    UNMASK_FREEZE=1 python -m pytest -m "" -n 0 tests/test_frozen.py
"""
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import config
import sample
import train
from system import checkpoint, runs

RECORD = "tests/fixtures/frozen.json"
FREEZE = bool(os.environ.get("UNMASK_FREEZE"))
FIXTURES = "llada", "sdar", "fastdllm2"
RULES = "quota", "dream", "threshold", "factor", "entropy", "dynamic"
SMALL = ["--n_layer=2", "--d_model=32", "--n_head=2", "--batch_size=16", "--max_iters=3", "--log_interval=1",
         "--eval_interval=99", "--eval_size=4", "--stop_at=None", "--warmup_iters=0", "--log_samples=0"]
BASES = "sudoku_base", "sudoku_d1_base", "countdown_block_base", "arith_ar_base"
REWARD = ["--rewards=length(target=9)", "--pass_at=None", "--eval_rewards="]  # what a model of three steps can earn
GRPO = {"sudoku_grpo": "sudoku_base", "sudoku_d1_grpo": "sudoku_d1_base",
        "countdown_block_grpo": "countdown_block_base", "arith_ar_grpo": "arith_ar_base"}  # fmt: skip


def same(name, found, **close):
    """Compare with the record, or write it."""
    record = json.load(open(RECORD)) if os.path.exists(RECORD) else {}
    if FREEZE:
        with open(RECORD, "w") as f:
            json.dump(dict(sorted((record | {name: found}).items())), f, indent=0)
    elif close:
        np.testing.assert_allclose(np.array(found), np.array(record[name]), **close)
    else:
        assert found == record[name]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fixture", FIXTURES)
def test_the_likeliest_tokens_and_their_steps(fixture, rule):
    """Prompts of 8 tokens, a whole number of blocks, and 16 masks, some of them behind a given token."""
    params, cfg = checkpoint.load(f"tests/fixtures/{fixture}")
    rows = jax.random.randint(jax.random.key(1), (3, 24), 5, 200)
    z = jnp.where(jnp.arange(24) < 8, rows, cfg.mask_id).at[2, 13].set(77)
    plan = sample.Plan(rule=rule, steps=2 if hasattr(cfg, "block_causal") else 6, threshold=0.3, factor=1.5, budget=1.0,
                       cache="prefix" if hasattr(cfg, "block_causal") else "none")  # fmt: skip
    x, trace = sample.generate(params, jax.random.key(0), z, cfg, plan)
    same(f"tokens {fixture} {rule}", [np.asarray(a)[:, 8:].tolist() for a in (x, trace["step"])])
    same(f"logp {fixture} {rule}", np.asarray(trace["logp"])[:, 8:].tolist(), atol=2e-5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """trained(recipe) -> the metrics of its three steps in small, each run once."""
    folder, done = tmp_path_factory.mktemp("frozen"), {}

    def run(name):
        if name not in done:
            line = [f"config/{name}.py", *SMALL, f"--out_dir={folder}/{name}"]
            if base := GRPO.get(name):
                run(base)
                line += [f"--init_from={folder}/{base}", "--keep_completions=32", "--rollout_chunk=32", *REWARD]
            cfg = config.load(line)
            with pytest.MonkeyPatch.context() as m:
                m.setattr(runs, "draw", lambda out_dir: None)
                train.train(cfg)
            rows = [json.loads(text) for text in open(f"{folder}/{name}/metrics.jsonl")]
            done[name] = [[row["loss"], row["grad_norm"]] for row in rows if "grad_norm" in row]
        return done[name]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [*BASES, *GRPO])
def test_loss_and_gradient_norm_of_three_steps(recipe, trained):
    same(f"steps {recipe}", trained(recipe), rtol=1e-4, atol=1e-6)
