"""Models that read random tokens in place of masks: the noise, their bound, what they write, and its exact gradient."""
import dataclasses
import functools
import itertools
import json

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from shared import all_paths, noise_of, slow

import config
import diffusion
import model
import sample
import train
from sample import Plan
from system import checkpoint, huggingface, start
from tools import page
from variants import renoise, uniform

KEY = jax.random.key(0)
MASK = 3
CFG = model.ModelConfig(vocab_size=4, n_layer=2, n_head=2, d_model=16, d_ff=32, mask_id=MASK, noise="uniform")
PLAIN = dataclasses.replace(CFG, noise=None)  # the same network, which reads what it is given
PARAMS = jax.tree.map(lambda w: w + 0.4 * jax.random.normal(KEY, w.shape), model.init(KEY, CFG))  # sure of something
TEXTS = np.array([*itertools.product(range(3), repeat=3)])  # all completions of the prompt 1
STATES = np.array([*itertools.product(range(4), repeat=3)])  # and all states on the way there
CODE = np.array([16, 4, 1])  # STATES[z @ CODE] is z
likelihood = jax.jit(diffusion.likelihood, static_argnames=("cfg", "n"))
noise = jax.jit(noise_of, static_argnames=("cfg", "paired"))
loss = jax.jit(diffusion.loss, static_argnames="cfg")
noisy = jax.jit(uniform.noisy, static_argnames="cfg")
view_logp = jax.jit(diffusion.view_logp, static_argnames=("cfg", "chunk"))
REWARD = np.random.default_rng(1).normal(size=(3, 3, 3)).astype(np.float32) + 1


def close(a, b, tol=2e-5):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=tol, rtol=0)


def with_prompt(rows, first=1):
    return jnp.pad(jnp.asarray(rows), ((0, 0), (1, 0)), constant_values=first)


# ---- the noise -------------------------------------------------------------------------------------------------------
@functools.cache
def many_rows():
    """2,000 rows of 8 tokens, a quarter of them masks."""
    return jax.random.randint(KEY, (2000, 8), 0, 4)


def test_a_mask_is_read_as_any_other_id_and_given_tokens_as_they_are():
    z = many_rows()
    read = np.asarray(noisy(z, None, CFG))
    masked = np.asarray(z == MASK)
    np.testing.assert_array_equal(read[~masked], z[~masked])
    counts = np.bincount(read[masked], minlength=4)
    assert counts[MASK] == 0
    expected = masked.sum() / 3
    assert ((counts[:3] - expected) ** 2 / expected).sum() < 14  # 2 degrees of freedom, p = 0.001
    low = dataclasses.replace(CFG, mask_id=0)
    counts = np.bincount(np.asarray(noisy(z, None, low))[np.asarray(z == 0)], minlength=4)
    assert counts[0] == 0 and (counts[1:] > 0).all(), "the mask may be any id"


def test_when_one_token_changes_all_noise_is_new():
    z = many_rows()
    for column in (0, 3, 7):
        other = z.at[:, column].set((z[:, column] + 1) % 3)
        masked = np.asarray((z == MASK) & (other == MASK))
        a, b = (np.asarray(noisy(rows, None, CFG))[masked] for rows in (z, other))
        assert abs((a == b).mean() - 1 / 3) < 0.02
    swapped = jnp.concatenate([z[:, 1:2], z[:, :1], z[:, 2:]], 1)  # the same tokens in another order
    masked = np.asarray((z == MASK) & (swapped == MASK) & (z[:, :1] != z[:, 1:2]))
    a, b = (np.asarray(noisy(rows, None, CFG))[masked] for rows in (z, swapped))
    assert abs((a == b).mean() - 1 / 3) < 0.03


def test_the_noise_of_places_and_of_rows_is_independent():
    noise = np.asarray(noisy(jnp.full((1, 3000), MASK), None, CFG))[0]
    assert abs((noise[1:] == noise[:-1]).mean() - 1 / 3) < 0.03
    z = jnp.concatenate([jnp.arange(3000)[:, None] % 60, jnp.arange(3000)[:, None] // 60, jnp.full((3000, 1), 60)], 1)
    last = np.asarray(noisy(z, None, dataclasses.replace(CFG, vocab_size=61, mask_id=60)))[:, 2]
    assert abs(np.corrcoef(last[1:], last[:-1])[0, 1]) < 0.06


def test_neither_padding_nor_other_rows_change_what_is_read():
    z = many_rows()[:50]
    alone = noisy(z, None, CFG)
    for filler in (0, MASK):
        padded = jnp.pad(z, ((0, 0), (3, 0)), constant_values=filler)
        valid = jnp.arange(11) >= jnp.full((50, 1), 3)
        np.testing.assert_array_equal(noisy(padded, valid, CFG)[:, 3:], alone)
    np.testing.assert_array_equal(noisy(z[7:9], None, CFG), alone[7:9])


# ---- oracles by enumeration. The noise is written into z, and the network is told that there is none -----------------
@jax.jit
def table(params):
    """Compute the probabilities (64, 3, V) of all tokens in all states."""
    read = noisy(with_prompt(STATES), None, CFG)
    return jax.nn.softmax(model.logits(params, read, PLAIN)[:, 1:])


def path_probability(params, x, step):
    """Compute p (n,) of drawing the tokens x (n, 3) at the steps (n, 3)."""
    before = jnp.where(step[:, None, :] < step[:, :, None], x[:, None, :], MASK)  # (n, 3, 3)
    return table(params)[before @ CODE, jnp.arange(3), x].prod(1)


def choices(z, plan, n):
    """List what may be committed at step n in the state z (3,) -> [(chance, (3,) bool)]."""
    masked = np.flatnonzero(z == MASK)
    size = -(-len(masked) // (plan.steps - n))
    if plan.order == "random":
        sets = [*itertools.combinations(masked, size)]
    else:
        best = np.asarray(table(PARAMS))[z @ CODE].max(-1)
        sets = [masked[np.argsort(-best[masked])[:size]]]
    return [(1 / len(sets), np.isin(range(3), s)) for s in sets]


def paths(plan):
    """List all ways from three masks to none -> x, step (n, 3), chance (n,) of the choices of places."""
    return all_paths(lambda z, n: choices(z, plan, n), MASK)


def text_probability(plan):
    """Compute the probability (27,) that the sampler writes each of TEXTS."""
    x, step, chance = paths(plan)
    p = chance * np.asarray(path_probability(PARAMS, x, step), np.float64)
    assert abs(p.sum() - 1) < 1e-5
    return np.bincount(x @ [9, 3, 1], p, minlength=27)


RANDOM = Plan(order="random", steps=3, temperature=1.0)
SUREST = Plan(order="confidence", steps=2, temperature=1.0)


# ---- the bound -------------------------------------------------------------------------------------------------------
@functools.cache
def exact_bound():
    """Compute the bound (27,) from all sets of masks: 1 to 3 masks are equally likely, and so are sets of a size."""
    masked = np.array([m for m in itertools.product([False, True], repeat=3) if any(m)])  # (7, 3)
    p = np.asarray(table(PARAMS))
    total = np.zeros(27)
    for m in masked:
        z = np.where(m, MASK, TEXTS)
        logp = np.log(p[z @ CODE][np.arange(27)[:, None], np.arange(3), TEXTS])
        n = m.sum()
        sets = sum(other.sum() == n for other in masked)
        total -= (logp * m).sum(1) * 3 / n / sets / 3
    return total


def test_the_likelihood_and_the_loss_are_that_bound_on_average():
    n = 200
    x = with_prompt(np.tile(TEXTS, (n, 1)))
    batch = x, jnp.broadcast_to(jnp.arange(4) > 0, x.shape), None
    bound = -likelihood(PARAMS, batch, jax.random.split(KEY, len(x)), CFG, n=3)
    by_text = np.asarray(bound).reshape(n, 27)
    error = by_text.std(0) / n**0.5
    assert (abs(by_text.mean(0) - exact_bound()) < 4.5 * error + 1e-3).all()
    close(3 * loss(PARAMS, noise(KEY, batch, CFG), CFG)[0], exact_bound().mean(), 0.1)


# ---- what is written -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("plan", [slow(RANDOM), SUREST], ids=["random", "confidence"])
def test_completions_have_the_enumerated_distribution(plan):
    n = 8192
    p = text_probability(plan)
    z = with_prompt(np.full((n, 3), MASK))
    x, trace = sample.generate(PARAMS, jax.random.key(7), z, CFG, plan)
    seen = np.bincount(np.asarray(x)[:, 1:] @ [9, 3, 1], minlength=27)
    assert ((seen - n * p) ** 2 / (n * p)).sum() < 26 + 4 * 52**0.5
    steps = np.asarray(trace["step"])[:, 1:]
    logp = np.asarray(trace["logp"])[:, 1:].sum(1)
    close(logp, np.log(path_probability(PARAMS, np.asarray(x)[:, 1:], steps)), 1e-4)


# ---- log-probs -------------------------------------------------------------------------------------------------------
def trace_logp(params, x, step):
    """Score completions x (n, 3) with `trace` -> log p (n,)."""
    completion = jnp.broadcast_to(jnp.arange(4) > 0, (len(x), 4))
    views = diffusion.views(KEY, "trace", completion, step=with_prompt(step, -1), n=3)
    return diffusion.token_logp(params, with_prompt(x), views, CFG).sum(1)


@pytest.mark.parametrize("plan, seed", [(SUREST, 20), slow(SUREST, 21), slow(RANDOM, 20),
                                        slow(dataclasses.replace(SUREST, steps=3), 20)])  # fmt: skip
def test_the_gradient_of_trace_is_that_of_the_expected_reward(plan, seed, monkeypatch):
    """For any noise, so also on average over all of them."""
    monkeypatch.setattr(uniform, "SEED", seed)
    if seed != 20:
        jax.clear_caches()
    x, step, chance = paths(plan)
    reward = REWARD[tuple(x.T)]
    p = chance * np.asarray(path_probability(PARAMS, x, step))

    def expected_reward(params):
        return jnp.sum(chance * path_probability(params, x, step) * reward)

    def policy_gradient(params, step):
        return jnp.sum(p * reward * trace_logp(params, x, step))

    flat = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]
    exact = flat(jax.jit(jax.grad(expected_reward))(PARAMS))
    ours = jax.jit(jax.grad(policy_gradient))
    close(flat(ours(PARAMS, step)), exact)
    assert abs(flat(ours(PARAMS, step * 0)) - exact).max() > 0.05, "as if all tokens had been drawn at once"
    if seed != 20:
        jax.clear_caches()


def test_views_in_chunks_are_read_with_the_same_noise():
    x = with_prompt(TEXTS)
    masked = jax.random.bernoulli(KEY, 0.5, (4, 27, 4)) & (jnp.arange(4) > 0)
    whole, _ = view_logp(PARAMS, x, masked, CFG)
    parts, _ = view_logp(PARAMS, x, masked, CFG, chunk=9)
    close(parts, whole, 1e-5)


# ---- a rule that looks back ------------------------------------------------------------------------------------------
def block(masked, confidence, i, steps):
    """Make the Block of one row."""
    masked, confidence = jnp.array([masked]), jnp.array([confidence])
    rank = sample.rank_of(jnp.where(masked, confidence, -jnp.inf))
    return sample.Block(masked, rank, confidence, confidence, jnp.array([[i]]), jnp.array([[steps]]))


def test_renoise_keeps_as_many_tokens_as_quota_but_the_most_probable_ones():
    b, standing = block([False, True, True, False], [0.9, 0.8, 0.3, 0.9], 1, 3), jnp.array([[0.7, 0.0, 0.0, 0.1]])
    assert (b.masked & sample.quota(b, None)).tolist() == [[False, True, False, False]]
    after = [[True, True, True, False]]
    assert renoise.renoise(b, standing, None).tolist() == after, "the token that is 0.1 probable gives way"
    last = b._replace(i=jnp.array([[2]]))
    assert renoise.renoise(last, standing, None).all()


@pytest.mark.slow
def test_with_renoise_all_steps_are_taken_and_given_tokens_stay():
    z = jnp.full((64, 9), MASK).at[:, 3].set(2)
    plan = Plan(rule="renoise", steps=4, temperature=1.0)
    x, trace = sample.generate(PARAMS, KEY, z, CFG, plan)
    assert trace["n_steps"] == 4 and (x != MASK).all() and (x[:, 3] == 2).all()
    keys, s = sample.row_keys(KEY, 64), sample.begin(z)
    taken_back = 0
    for _ in range(4):
        after = renoise.fill_step(PARAMS, keys, s, CFG, plan, None)
        taken_back += int(((after.z == MASK) & (s.z != MASK)).sum())
        s = after
    assert taken_back > 20


@pytest.mark.parametrize("rule", ["renoise", "another"])
def test_a_rule_that_takes_back_is_not_trained_with_trace(rule, monkeypatch):
    monkeypatch.setitem(sample.RULES, "another", renoise.renoise)
    monkeypatch.setitem(sample.SAMPLERS, "another", renoise.fill_and_take_back)
    cfg = config.Config(objective="grpo", rule=rule, logp_est="trace", rewards=("exact",), init_from="out/x")
    with pytest.raises(ValueError, match=f"rule='{rule}' takes tokens back, so logp_est='trace'"):
        start.check(cfg)


# ---- runs, folders, and what does not work ---------------------------------------------------------------------------
def test_a_checkpoint_says_that_it_reads_noise_and_opens_as_such(tmp_path):
    huggingface.save(tmp_path, PARAMS, CFG)
    assert json.load(open(tmp_path / "config.json"))["model_type"] == "unmask_uniform"
    params, cfg = checkpoint.load(tmp_path)
    assert cfg.noise == "uniform" and cfg.mask_id == MASK
    jax.tree.map(np.testing.assert_array_equal, params, PARAMS)


@pytest.mark.slow
def test_a_run_that_is_resumed_and_one_that_starts_from_it_read_noise(tmp_path):
    shape = model.ModelConfig(n_layer=1, n_head=2, d_model=16, noise="uniform")
    cfg = config.Config(max_prompt_len=17, max_new_tokens=16, batch_size=4, eval_size=4, log_samples=0, warmup_iters=1,
                        lr_schedule="constant", diffusion_steps=2, max_iters=4, model=shape)  # fmt: skip
    run = lambda name, **more: train.train(dataclasses.replace(cfg, out_dir=f"{tmp_path}/{name}", **more))[0].params
    unbroken = run("unbroken")
    run("broken", max_iters=2)
    jax.tree.map(np.testing.assert_array_equal, run("broken", resume=True), unbroken)
    run("tuned", objective="grpo", logp_est="trace", init_from=f"{tmp_path}/unbroken", rewards=("sudoku",),
        group_size=2)  # fmt: skip
    assert checkpoint.load(checkpoint.find(f"{tmp_path}/tuned"))[1].noise == "uniform"


def test_what_does_not_go_with_noise_is_named(tmp_path):
    whole = "noise='uniform' is for denoisers that see the whole text"
    for changes, said in ((dict(causal=True, shift=True), whole), (dict(block_causal=2), whole),
                          (dict(shift=True), whole), (dict(noise="unifrom"), "noise='unifrom': expected uniform")):
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(CFG, **changes)
    for cache in ("prefix", "dual"):
        with pytest.raises(ValueError, match=f"cache='{cache}' would keep keys of noise"):
            sample.check(CFG, Plan(cache=cache))
    with pytest.raises(ValueError, match="no Hugging Face family has these switches together: .*noise=uniform"):
        huggingface.save(tmp_path, PARAMS, dataclasses.replace(CFG, qk_norm=True))
    assert "noise" not in page.SWITCHES, "the page refuses every switch that it does not know"
    with pytest.raises(ValueError, match="use=uniform: the model .* has none of that"):
        config.check_model(config.Config(model=CFG), PLAIN, "in out/x")
