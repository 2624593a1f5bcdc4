"""What pairs of variants compute, for test_plugging.py:  python tests/plugging.py forward|backward

Prints {"a b": what a run with both computes, or why it is refused} as JSON. Each pair has a process of its own, which
imports the two files in this order, or in the other one. What is computed is told from the traced programs (jaxprs) of
the model, the sampler, the views and the loss, and from what the steps outside of them return.
"""
import hashlib
import itertools
import json
import os
import re
import sys
import types

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import jax
import jax.numpy as jnp
import numpy as np

import config
import model
import rl
import sample
from system import index
from tools import plan

BASE = {"objective": "grpo", "init_from": "x/", "batch_size": 2, "group_size": 2, "max_prompt_len": 4, "kl_beta": 0.1,
        "max_new_tokens": 4, "diffusion_steps": 2, "logp_views": 2, "logp_est": "elbo", "rewards": ("exact",),
        "vocab_size": 40,
        "n_layer": 2, "n_head": 2, "d_model": 16, "mask_id": 39, "eos_id": 38, "pad_id": 37}  # fmt: skip
RATIOS = {"ratio_level": "token", "updates_per_rollout": 2}
# name: the keys that make it possible, and those that turn it on.
VARIANTS = {
    "blocks": ({}, {"blocks.block": 2}),
    "causal": ({"logp_est": "exact", "order": "left"}, {"causal": True, "shift": True}),
    "cispo": (RATIOS, {"loss_type": "cispo", "cispo.cap": 2.0}),
    "curriculum": ({}, {"curriculum.difficulty": (1, 2)}),
    "entropy": ({}, {"rule": "entropy", "entropy.budget": 0.5}),
    "entropy_bonus": ({}, {"entropy_bonus.coef": 0.1}),
    "factor": ({}, {"rule": "factor", "factor.limit": 0.5}),
    "gemma": ({}, {"gemma.window": 3}),
    "lora": ({}, {"lora.rank": 2, "lora.targets": ("q",)}),
    "masked_prompt": ({"logp_est": "one_step"}, {"masked_prompt.share": 0.5}),
    "moe": ({}, {"moe.n_experts": 4}),
    "moving_reference": ({}, {"moving_reference.mode": "ema"}),
    "nll": ({}, {"nll.coef": 0.5}),
    "paired": ({"objective": "pretrain", "batch_size": 4}, {"paired": True}),
    "quantized": ({"lora.rank": 2, "lora.targets": ("q",)}, {"quantized.bits": 8}),
    "repetition_penalty": ({}, {"repetition_penalty.penalty": 2.0}),
    "reward_clip": ({}, {"reward_clip.bound": 0.5}),
    "rope": ({}, {"rope.scaling": (8.0, 1.0, 4.0, 64.0)}),
    "wd1": ({"adv_negative": 1.0}, {"loss_type": "wd1"}),
}


OF_GRPO = "cispo", "masked_prompt"  # the keys of its loss are not read in pretraining


def traced(f, *shapes):
    """Trace a function -> its program as text, without addresses."""
    return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(f)(*shapes)))


def steps(cfg):
    """Return what the steps outside of the traced programs make of small inputs."""
    rows, values = [{"difficulty": d} for d in range(4)], np.array([0.2, 2.0])
    adv, rewards = jnp.array([[1.0, -1.0], [0.5, -0.5]]), np.zeros((1, 2, 2))
    state = rl.State(1, {"w": jnp.ones(2)}, (), None, {"w": jnp.zeros(2)})
    said = []
    for section in cfg.use:
        rows, values = section.rows(rows, "train", cfg), section.reward(values, cfg)
        adv = section.credit(types.SimpleNamespace(rewards=rewards), adv, cfg)
        said.append(str(section.reference(state, cfg)))
    return [str(x) for x in (rows, values, adv, sorted({*said}))]


def sampled(params, key, cfg):
    """Trace the sampler."""
    z, how = jax.ShapeDtypeStruct((2, 8), "int32"), sample.plan(cfg, cfg.temperature)
    return traced(lambda params, key, z: sample.generate(params, key, z, cfg.model, how), params, key, z)


def programs(cfg):
    """Yield all that a run computes, as text."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    _, state, base, merged = plan.abstract_run(cfg)
    yield from map(str, (state.params, base, model.shapes(cfg.model)))
    if cfg.objective == "pretrain":
        text = plan.abstract_batch(cfg)
        loss = rl.denoising_loss(cfg)
        yield traced(lambda params, base, b: loss(rl.whole(params, base, cfg), b), state.params, base, text)
        yield sampled(merged.params, key, cfg)
        return
    batch = plan.abstract_minibatches(cfg, merged)[-1]
    yield traced(lambda params, base, b: rl.policy_loss(rl.whole(params, base, cfg), b, cfg), state.params, base, batch)
    yield traced(lambda key, r: rl.draw_views(key, r, cfg), key, batch.rollout)
    yield sampled(merged.params, key, cfg)


def computed(keys):
    """Make the run with these keys -> a digest of all that it computes, or why it is refused."""
    try:
        cfg = config.changed(config.Config(), BASE | keys)
        config.check_model(cfg, cfg.model, "here")
    except ValueError as e:
        return f"refused: {e}"
    texts = [*steps(cfg), *programs(cfg)]
    return hashlib.sha1("\n".join(texts).encode()).hexdigest()


def of_pair(a, b, backward):
    """Compute with two variants, and without the first or the second -> [digest or message, ...]; None: they name two
    entries of one table, of which a run has one."""
    needs, own = (VARIANTS[a][i] | VARIANTS[b][i] for i in (0, 1))
    both = [VARIANTS[name][0] | VARIANTS[name][1] for name in (a, b)]
    if any(both[0][key] != both[1][key] for key in both[0].keys() & both[1].keys()):
        return None
    for name in (b, a) if backward else (a, b):
        index.find_key(name)  # imports its file
    found = [computed(needs | own)]
    if backward or found[0].startswith("refused"):
        return found
    for one, other in ((a, b), (b, a)):
        idle = other == "paired" and one in OF_GRPO or VARIANTS[one][1].items() <= VARIANTS[other][0].items()
        found += [] if idle else [computed(needs | VARIANTS[other][1])]
    return found


def in_a_process(f, *arguments):
    """Call a function in a process of its own -> its result."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(writer, json.dumps(f(*arguments)).encode())
        except BaseException as e:
            os.write(writer, json.dumps([f"failed: {type(e).__name__}: {e}"[:2000]]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        found = json.load(answer)
    os.waitpid(child, 0)
    return found


if __name__ == "__main__":
    assert not [name for name in sys.modules if name.startswith("variants.")]
    backward = sys.argv[1:] == ["backward"]
    pairs = [pair for pair in itertools.combinations(VARIANTS, 2) if not sys.argv[2:] or {*pair} & {*sys.argv[2:]}]
    print(json.dumps({f"{a} {b}": in_a_process(of_pair, a, b, backward) for a, b in pairs}))
