"""
What a rewrite must not change: tokens of the samplers, and of recipes in small the losses, gradients, learning rates,
evaluations, rows and rewards, as recorded once. In tests/tables.py these records stand for the code that made a result.

Where arithmetic or random numbers change on purpose, record them anew and say so in the commit:

    UNMASK_FREEZE=1 python -m pytest -m "" -n 0 tests/test_frozen.py
"""
import hashlib
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import config
import rewards
import sample
import train
from checkpoints import checkpoint
from data import texts
from variants import rules

pytestmark = pytest.mark.slow
RECORD = "tests/fixtures/frozen.json"
FREEZE = bool(os.environ.get("UNMASK_FREEZE"))
FIXTURES = "llada", "sdar", "fastdllm2"
RULES = "quota", "dream", "threshold", "factor", "entropy", "dynamic"
SMALL = ["--n_layer=2", "--d_model=32", "--n_head=2", "--batch_size=16", "--max_iters=3", "--log_interval=1",
         "--eval_interval=99", "--eval_size=4", "--stop_at=None", "--warmup_iters=2"]
BASES = "sudoku_base", "sudoku_d1_base", "countdown_block_base", "arith_ar_base"
REWARD = ["--rewards=length(target=9)", "--pass_at=None"]  # what a model of three steps can earn
GRPO = {"sudoku_grpo": "sudoku_base", "sudoku_d1_grpo": "sudoku_d1_base",
        "countdown_block_grpo": "countdown_block_base", "arith_ar_grpo": "arith_ar_base"}  # fmt: skip


def same(name, found, **close):
    """Compare with the record, or write what differs from it."""
    record = json.load(open(RECORD)) if os.path.exists(RECORD) else {}
    try:
        if close:
            np.testing.assert_allclose(np.array(found), np.array(record[name]), **close)
        else:
            assert found == record[name]
    except (AssertionError, KeyError):
        if not FREEZE:
            raise
        with open(RECORD, "w") as f:
            json.dump(dict(sorted((record | {name: found}).items())), f, indent=0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fixture", FIXTURES)
def test_the_likeliest_tokens_and_their_steps(fixture, rule):
    """Prompts of 8 tokens, a whole number of blocks, and 16 masks, some of them behind a given token."""
    params, cfg = checkpoint.load(f"tests/fixtures/{fixture}")
    rows = jax.random.randint(jax.random.key(1), (3, 24), 5, 200)
    z = jnp.where(jnp.arange(24) < 8, rows, cfg.mask_id).at[2, 13].set(77)
    use = rules.Entropy(1.0), rules.Factor(1.5)
    plan = sample.Plan(rule=rule, steps=2 if cfg.block else 6, threshold=0.3, cache="prefix" if cfg.block else "none",
                       use=use)  # fmt: skip
    x, trace = sample.generate(params, jax.random.key(0), z, cfg, plan)
    same(f"tokens {fixture} {rule}", [np.asarray(a)[:, 8:].tolist() for a in (x, trace["step"])])
    same(f"logp {fixture} {rule}", np.asarray(trace["logp"])[:, 8:].tolist(), atol=2e-5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """trained(recipe) -> the rows of metrics.jsonl of its three steps in small, each run once."""
    folder, done = tmp_path_factory.mktemp("frozen"), {}

    def run(name):
        if name not in done:
            line = [f"config/{name}.py", *SMALL, f"--out_dir={folder}/{name}"]
            if base := GRPO.get(name):
                run(base)
                own = config.load(line[:1]).rewards
                line += [f"--init_from={folder}/{base}", "--keep_completions=32", "--rollout_chunk=32", *REWARD,
                         f"--eval_rewards={','.join(own)}"]  # fmt: skip
            cfg = config.load(line)
            train.train(cfg)
            done[name] = [json.loads(text) for text in open(f"{folder}/{name}/metrics.jsonl")]
        return done[name]

    return run


@pytest.mark.parametrize("recipe", [*BASES, *GRPO])
def test_loss_and_gradient_norm_of_three_steps(recipe, trained):
    rows = [[row["loss"], row["grad_norm"], row["learning_rate"]] for row in trained(recipe) if "grad_norm" in row]
    same(f"steps {recipe}", rows, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("recipe", [*BASES, *GRPO])
def test_what_the_last_evaluation_measures(recipe, trained):
    last = trained(recipe)[-1]
    measured = {key: value for key, value in last.items() if key.startswith("val/")}
    same(f"measures {recipe}", sorted(measured))
    same(f"evaluation {recipe}", [measured[key] for key in sorted(measured)], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("recipe", [*BASES, *GRPO])
def test_the_rows_of_a_data_set_and_what_their_own_completions_earn(recipe):
    cfg = config.load([f"config/{recipe}.py"])
    rows = [texts.split_rows(cfg, split)[:8] for split in ("train", "val")]
    fns = rewards.resolve([*cfg.rewards, *cfg.eval_rewards])
    completions = [row["completion"] for row in rows[1]]
    columns = rewards.as_columns(rows[1])
    _, earned = rewards.combine(fns, None, [row["prompt"] for row in rows[1]], completions, columns)
    text = json.dumps([rows, {name: part.tolist() for name, part in earned.items()}])
    same(f"rows {recipe}", hashlib.sha1(text.encode()).hexdigest())
