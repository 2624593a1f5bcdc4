"""objectives.py: what a rollout is made of, that every pass has masks of its own, and that GRPO learns and resumes."""

import dataclasses
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import config
import diffusion
import model
import objectives
import runs
import train

KEY = jax.random.key(0)
REWARD = """
def digits(prompts, completions, answer):
    return [sum(a == b for a, b in zip(text, right)) / 2 for text, right in zip(completions, answer)]

def short(prompts, completions):
    return [None if not text else 1.0 / len(text) for text in completions]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A data set "37" -> "73", a file of rewards, and a model that has seen a little of it."""
    folder = tmp_path_factory.mktemp("place")
    rows = [json.dumps({"prompt": f"{i:02d}", "completion": f"{i:02d}"[::-1], "answer": f"{i:02d}"[::-1]}) + "\n"
            for i in np.random.default_rng(0).permutation(100).tolist()]  # fmt: skip
    (folder / "train.jsonl").write_text("".join(rows[:80]))
    (folder / "val.jsonl").write_text("".join(rows[80:]))
    (folder / "my.py").write_text(REWARD)
    train.train(config.Config(**SECONDS, dataset=str(folder), out_dir=f"{folder}/base", rewards=("exact",),
                              max_iters=200, eval_interval=200, learning_rate=3e-3))  # fmt: skip
    return folder


SECONDS = dict(max_prompt_len=3, max_new_tokens=4, batch_size=8, eval_size=8, log_samples=0, diffusion_steps=4,
               warmup_iters=2, lr_schedule="constant",
               model=model.ModelConfig(n_layer=1, n_head=2, d_model=32))  # fmt: skip


@pytest.fixture
def tiny(place, tmp_path):
    """tiny(key=value, ...) -> the Config of a GRPO run of seconds."""
    fixed = dict(objective="grpo", dataset=str(place), init_from=f"{place}/base", rewards=(f"{place}/my.py:digits",),
                 group_size=4, batch_size=4, max_iters=4, eval_interval=4, save_interval=2, log_interval=1)  # fmt: skip
    return lambda **changes: config.Config(**SECONDS | fixed | dict(out_dir=f"{tmp_path}/out") | changes)


def begin(cfg):
    """cfg -> cfg with its model, tokenizer, task, the state before the first iteration."""
    cfg, tok, start, _ = train.prepare(cfg)
    task = objectives.OBJECTIVES["grpo"](cfg, tok, start)
    params = task.init(KEY)
    reference = jax.tree.map(jnp.copy, params) if cfg.kl_beta else None
    return cfg, tok, task, train.State(0, params, (), None, reference)


def one_iteration(cfg):
    """All minibatches of one iteration (the params are not updated in between), and what it notes."""
    cfg, tok, task, state = begin(cfg)
    made = list(task.batches(state, KEY))
    return cfg, tok, task, state, [b for b, _ in made], {k: v for _, notes in made for k, v in notes.items()}


def test_completions_of_a_prompt_are_neighbours_and_every_reward_meets_its_own(tiny, place):
    cfg, tok, _, _, (b,), notes = one_iteration(tiny(adv_norm="none"))
    prompts = [tok.decode([i for i in row if i != tok.pad_id]) for row in np.asarray(b["x"])[:, :3].tolist()]
    assert prompts == [p for p in prompts[::4] for _ in range(4)] and len(set(prompts)) == 4
    texts = objectives.texts(b["x"], tok, cfg)
    earned = np.array([sum(a == c for a, c in zip(t, p[::-1], strict=False)) / 2
                       for t, p in zip(texts, prompts, strict=True)])  # fmt: skip
    groups = earned.reshape(4, 4)
    np.testing.assert_allclose(b["adv"], (groups - groups.mean(1, keepdims=True)).reshape(-1), atol=1e-6)
    assert notes["reward"] == pytest.approx(earned.mean()) and notes["rewards/digits/mean"] == pytest.approx(
        earned.mean()
    )
    assert notes["frac_reward_zero_std"] == np.mean(groups.std(1) == 0)
    assert notes["unique_completions"] == np.mean([len(set(texts[i : i + 4])) / 4 for i in range(0, 16, 4)])


def test_a_reward_gets_the_tokens_that_were_written_and_not_those_of_their_text(tiny, place):
    (place / "long.py").write_text(
        "def long(prompts, completions, token_ids):\n    return [len(t) for t in token_ids]\n")  # fmt: skip
    cfg, tok, _, _, (b,), notes = one_iteration(tiny(rewards=(f"{place}/long.py:long",), temperature=9.0))
    rows = [row[3:] for row in np.asarray(b["x"]).tolist()]
    lengths = [len(row[: row.index(tok.eos_id)] if tok.eos_id in row else row) for row in rows]
    assert notes["reward"] == np.mean(lengths)
    assert sum(len(tok.encode(text)) for text in objectives.texts(b["x"], tok, cfg)) > sum(lengths)  # no UTF-8


def test_what_counts_ends_with_the_first_end_of_text(tiny):
    for truncated in (False, True):
        _, tok, _, _, (b,), notes = one_iteration(tiny(mask_truncated=truncated))
        ended = []
        for row, mask in zip(np.asarray(b["x"]).tolist(), np.asarray(b["mask"]).tolist(), strict=True):
            written = row[3:]
            n = written.index(tok.eos_id) + 1 if tok.eos_id in written else 0 if truncated else len(written)
            assert mask == [False] * 3 + [True] * n + [False] * (4 - n)
            ended.append(tok.eos_id in written)
        assert notes["completions/terminated_frac"] == 1 - notes["completions/clipped_ratio"] == np.mean(ended)
        assert not np.asarray(b["w"]).swapaxes(0, 1)[:, ~np.asarray(b["mask"])].any()


@pytest.mark.parametrize("method", [m for m in diffusion.ESTIMATORS if m != "exact"])
def test_every_pass_has_masks_of_its_own_on_which_old_and_reference_were_scored(tiny, method):
    """Two passes of two minibatches: the known bug counts micro-steps, so that a chunk of completions never changes its
    masks. Here the rows of a pass are one permutation of the rollout's, all with the masks of that pass."""
    cfg = tiny(logp_est=method, updates_per_rollout=2, minibatch_size=8, kl_beta=0.1, logp_views=2)
    cfg, _, task, state, batches, _ = one_iteration(cfg)
    assert len(batches) == 4
    rows = lambda i: np.concatenate([np.asarray(b["x"]) for b in batches[2 * i : 2 * i + 2]])
    assert sorted(rows(0).tolist()) == sorted(rows(1).tolist())
    for b in batches:
        M, w = (np.asarray(b[k]).swapaxes(0, 1) for k in ("M", "w"))
        now = np.asarray(diffusion.token_logp(state.params, b["x"], M, w, cfg.model, b["valid"], 3))
        np.testing.assert_allclose(b["old"], now, atol=2e-5)
        np.testing.assert_allclose(b["ref"], now, atol=2e-5)
    by_row = [{tuple(x): m.tolist() for b in batches[2 * i : 2 * i + 2]
               for x, m in zip(np.asarray(b["x"]).tolist(), np.asarray(b["M"]), strict=True)}
              for i in (0, 1)]  # fmt: skip
    if method in ("coupled", "elbo", "coupled_elbo"):
        assert any(by_row[0][x] != by_row[1][x] for x in by_row[0])
        *_, stale, _ = one_iteration(dataclasses.replace(cfg, random_masking=False))
        sets = [sorted((np.asarray(x).tolist(), m.tolist()) for b in stale[2 * i : 2 * i + 2]
                       for x, m in zip(b["x"], np.asarray(b["M"]), strict=True)) for i in (0, 1)]  # fmt: skip
        assert sets[0] == sets[1]


@pytest.mark.parametrize("method", ["trace", "coupled"])
def test_the_first_ratio_is_exactly_one_and_one_update_needs_no_old_forward(tiny, method):
    *_, task, state, batches, _ = one_iteration(tiny(logp_est=method, minibatch_size=8, logp_views=4))
    _, metrics = task.loss(state.params, batches[0])
    assert float(metrics["ratio_max"]) == pytest.approx(1, abs=1e-5)
    *_, (alone,), _ = one_iteration(tiny(logp_est=method))
    assert alone["old"] is None and alone["ref"] is None
    _, metrics = task.loss(state.params, alone)
    assert float(metrics["ratio_max"]) == 1 and float(metrics["clip_ratio/region_mean"]) == 0


@pytest.mark.parametrize("name", ["dapo", "luspo", "spg"])
def test_micro_batches_add_up_to_the_whole(tiny, name):
    cfg = tiny(loss_type=name, logp_est="elbo", ratio_level="none" if name in ("wd1", "spg") else "token", logp_views=2)
    cfg, _, task, state, (b,), _ = one_iteration(cfg)
    tx, _ = train.optimizer(cfg)
    outs = {}
    for parts in (1, 4):
        more = dataclasses.replace(cfg, gradient_accumulation_steps=parts)
        params = jax.tree.map(jnp.copy, state.params)
        *_, metrics = train.make_update(task.loss, tx, more)(params, tx.init(params), None, 0, b)
        outs[parts] = {k: float(v) for k, v in metrics.items()}
    for k, v in outs.get(4, {}).items():
        assert v == pytest.approx(outs[1][k], rel=2e-3, abs=2e-5), k


def test_groups_that_agree_are_drawn_again_but_only_so_often(tiny, place):
    (place / "rare.py").write_text(
        "def rare(prompts, completions):\n    return [float(c[:1] > '6') if p < '50' else 0.0"
        " for p, c in zip(prompts, completions)]\n")  # fmt: skip
    once, often = (tiny(rewards=(f"{place}/rare.py:rare",), dynamic_sampling=n) for n in (0, 8))
    *_, before = one_iteration(once)
    cfg, tok, _, _, (b,), after = one_iteration(often)
    assert after["frac_reward_zero_std"] < before["frac_reward_zero_std"] and before["rollouts"] == 1
    assert 1 < after["rollouts"] <= 9 and b["x"].shape == (16, 7)
    prompts = [tok.decode(r) for r in np.asarray(b["x"])[:, 1:3].tolist()]
    assert prompts == [p for p in prompts[::4] for _ in range(4)]


def test_filling_in_asks_for_holes_in_the_rows_own_text_and_learns_from_nothing_else(tiny):
    cfg, tok, _, _, (b,), _ = one_iteration(tiny(fill_in=True, mask_ratio_min=0.5, mask_ratio_max=0.5))
    x, mask = np.asarray(b["x"]), np.asarray(b["mask"])
    assert (mask.sum(1) == 1).all() and not mask[:, :3].any()  # half of the two digits, the same for a group
    assert all(len({tuple(m) for m in mask[i : i + 4].tolist()}) == 1 for i in range(0, 16, 4))
    for row, m in zip(x.tolist(), mask.tolist(), strict=True):
        right = [*tok.encode(tok.decode(row[1:3])[::-1]), tok.eos_id, tok.eos_id]
        assert all(own == given for own, given, hole in zip(row[3:], right, m[3:], strict=True) if not hole)


def test_several_rewards_a_reward_without_opinion_and_a_diversity_bonus(tiny, place):
    both = (f"{place}/my.py:digits", f"{place}/my.py:short")
    *_, (b,), notes = one_iteration(
        tiny(rewards=both, reward_weights=(1.0, 0.5), diversity_bonus=0.1, reward_norm="each")
    )
    assert {"rewards/short/none_frac", "rewards/diversity_bonus/mean", "rewards/digits/std"} <= notes.keys()
    assert np.isfinite(b["adv"]).all() and abs(float(b["adv"].mean())) < 1e-3


@pytest.mark.parametrize("flags", [{"diversity_bonus": 0.5}, {"loss_type": "wd1", "ratio_level": "none"}])
def test_a_completion_without_any_opinion_is_left_out(flags, tiny, place):
    (place / "shy.py").write_text(
        "def shy(prompts, completions):\n    return [None if c[:1] < '3' else len(set(c)) for c in completions]\n"
    )
    cfg, tok, _, _, (b,), _ = one_iteration(tiny(rewards=(f"{place}/shy.py:shy",), **flags))
    silent = np.array([text[:1] < "3" for text in objectives.texts(b["x"], tok, cfg)])
    assert 0 < silent.sum() < 16 and not np.asarray(b["adv"])[silent].any()


def test_a_group_teaches_if_what_is_weighed_and_added_differs_in_it(tiny, place):
    both = tuple(f"{place}/my.py:{name}" for name in ("digits", "short"))
    nan = np.nan
    each = np.array([[[1, 1, 0], [1, 1, 1], [1, 1, nan], [nan, nan, nan]],
                     [[0, 0, 0], [0, 1, 0], [0, 0, 0], [nan, nan, nan]]])  # fmt: skip
    scored = objectives.Scored([], None, [], each, {})
    spread = lambda *weights: objectives.spread(scored, tiny(rewards=both, reward_weights=weights)).tolist()
    assert spread(1.0, 1.0) == [True, True, True, False]
    assert spread(1.0, 0.0) == [True, False, True, False]
    assert spread(0.0, 1.0) == [False, True, False, False]


def test_updates_see_the_largest_advantages_of_the_signs_that_count(tiny):
    *_, (whole,), _ = one_iteration(tiny())
    *_, (some,), _ = one_iteration(tiny(keep_completions=5, adv_negative=0.0))
    *_, (half,), _ = one_iteration(tiny(adv_negative=0.25, logp_scale=2.0))
    adv, x = np.asarray(whole["adv"]), np.asarray(whole["x"])
    assert (adv < 0).any() and some["x"].shape == (5, 7)
    np.testing.assert_array_equal(some["adv"], np.sort(adv.clip(0))[::-1][:5])
    assert all(any((row == x[i]).all() and a == adv[i] for i in range(16)) for row, a in
               zip(np.asarray(some["x"]), np.asarray(some["adv"]), strict=True) if a)  # fmt: skip
    np.testing.assert_allclose(half["adv"], np.where(adv < 0, adv / 4, adv))
    np.testing.assert_allclose(half["w"], 2 * np.asarray(whole["w"]))


def test_a_clipped_reward_passes_where_it_reaches_the_clip(tiny, place):
    def rate(clip):
        *_, task, state = begin(tiny(rewards=("exact",), reward_clip=clip, eval_size=20))
        return task.evaluate(state, KEY)[0]["val/sampled"]

    assert rate(0.5) == rate(None) > 0


@pytest.mark.parametrize("chunk, parts", [(3, [3, 3, 3, 3, 3, 1]), (4, [4, 4, 4, 4]), (15, [8, 8]), (99, [16])])
def test_a_rollout_in_chunks_is_the_rollout(tiny, monkeypatch, chunk, parts):
    cfg = dict(updates_per_rollout=2, logp_chunk=8, keep_completions=8)
    *_, whole, expected = one_iteration(tiny(**cfg))
    fill, seen = objectives.fill, []
    monkeypatch.setattr(objectives, "fill", lambda params, keys, *a: seen.append(len(keys)) or fill(params, keys, *a))
    *_, again, notes = one_iteration(tiny(**cfg, rollout_chunk=chunk))  # 4 prompts with 4 completions each
    assert seen == parts
    for a, b in zip(whole, again, strict=True):
        assert (np.asarray(a["adv"]) != 0).any()
        for k in ("x", "M", "w", "mask", "adv", "weight"):
            np.testing.assert_array_equal(a[k], b[k])
        np.testing.assert_allclose(a["old"], b["old"], atol=1e-5)
    assert {k: v for k, v in notes.items() if "time" not in k} == pytest.approx(
        {k: v for k, v in expected.items() if "time" not in k})  # fmt: skip


def remains(cfg):
    """What must not depend on being stopped: the last state, and the logs without times."""
    folder = model.find(cfg.out_dir)
    state = open(f"{folder}/state.safetensors", "rb").read()
    rows = [json.loads(line) for line in open(f"{cfg.out_dir}/metrics.jsonl")]
    return state, [{k: v for k, v in row.items() if "time" not in k} for row in rows]


def test_killed_between_rollout_and_update_and_resumed_it_equals_the_unbroken_run(tiny, tmp_path, monkeypatch):
    options = dict(kl_beta=0.1, ref_mode="ema", ref_decay=0.5, updates_per_rollout=2, minibatch_size=8,
                   logp_est="coupled",                    ema_decay=0.9)  # fmt: skip
    whole = tiny(**options)
    state = train.train(whole)
    before = runs.flat(begin(whole)[-1].params)
    assert any(not np.allclose(x, before[k]) for k, x in runs.flat(state.reference).items())  # it followed

    class Killed(BaseException):
        pass

    def killed(cfg, tok, start):
        task = objectives.tune(cfg, tok, start)

        def batches(state, key):
            for n, made in enumerate(task.batches(state, key)):
                if state.step == 3 and n == 2:
                    raise Killed
                yield made

        return task._replace(batches=batches)

    cfg = tiny(**options, out_dir=f"{tmp_path}/killed")
    with monkeypatch.context() as m:
        m.setitem(objectives.OBJECTIVES, "grpo", killed)
        with pytest.raises(Killed):
            train.train(cfg)
    train.train(dataclasses.replace(cfg, resume=True))
    assert remains(cfg) == remains(whole)


def test_a_static_reference_never_changes_and_without_kl_there_is_none(tiny):
    cfg = tiny(kl_beta=0.1)
    start = runs.flat(begin(cfg)[-1].params)
    state = train.train(cfg)
    assert all(np.array_equal(x, start[k]) for k, x in runs.flat(state.reference).items())
    assert any(not np.array_equal(x, start[k]) for k, x in runs.flat(state.params).items())
    assert train.train(tiny(max_iters=1, ref_offload=True)).reference is None
    away = train.train(tiny(max_iters=1, kl_beta=0.1, ref_offload=True)).reference
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(away))
    assert all(np.array_equal(x, start[k]) for k, x in runs.flat(away).items())


def test_what_the_base_could_do_before_does_not_end_a_resumed_run(tiny, monkeypatch):
    """stop_at was passed by the start, and by no evaluation since: killed or not, the run goes on to its end."""
    class Killed(BaseException):
        pass

    def scripted(cfg, tok, start):
        def evaluate(state, key):
            return {"val/greedy": 0.0, "val/sampled": 0.1 if state.step else 0.9}, []

        def batches(state, key):
            if state.step == 3 and not cfg.resume:
                raise Killed
            yield from task.batches(state, key)

        task = objectives.tune(cfg, tok, start)
        return task._replace(evaluate=evaluate, batches=batches)

    monkeypatch.setitem(objectives.OBJECTIVES, "grpo", scripted)
    cfg = tiny(stop_at=0.5)
    with pytest.raises(Killed):
        train.train(cfg)
    assert train.train(dataclasses.replace(cfg, resume=True)).step == 4


def test_a_misspelt_reward_is_refused_before_its_base_is_trained(tiny, monkeypatch):
    monkeypatch.setattr(train, "trained", lambda path: pytest.fail(f"{path} was trained first"))
    for changes, words in (({"rewards": ("exakt",)}, "Did you mean 'exact'"),
                           ({"eval_rewards": ("keywords",)}, "needs the column 'keywords'"),
                           ({"rewards": ("exact",), "eval_rewards": ("exact",)}, "in rewards and in eval_rewards")
                           ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            train.prepare(tiny(init_from="config/sudoku_base.py", **changes))


def test_filling_in_needs_completions(tiny, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "12", "completion": "21"}\n' * 30 + '{"prompt": "34"}\n' * 10)
    with pytest.raises(ValueError, match="fill_in=True makes holes in completions, and .* rows of .* have none"):
        begin(tiny(dataset=f"{tmp_path}/rows.jsonl", fill_in=True))


def test_it_learns_and_says_what_it_was_before_and_after(tiny, capsys):
    cfg = tiny(
        max_iters=60, batch_size=8, group_size=8, learning_rate=3e-3, eval_interval=60, eval_samples=4, eval_size=20
    )
    train.train(cfg)
    out = capsys.readouterr().out
    assert all(
        re.search(rf"val/{name}: [\d.]+% before, [\d.]+% after", out) for name in ("greedy", "sampled", "pass@4")
    )
    rows = [json.loads(line) for line in open(f"{cfg.out_dir}/metrics.jsonl")]
    reward = [r["reward"] for r in rows if "reward" in r]
    assert np.mean(reward[-20:]) > np.mean(reward[:5]) + 0.15, reward  # 0.2 and more with each of four seeds
    first = json.loads(open(f"{cfg.out_dir}/samples.jsonl").readline())
    assert {"prompt", "greedy", "sampled", "rewards", "advantages", "step"} == first.keys() and len(
        first["sampled"]
    ) == 4
    assert sum(first["advantages"]) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("changes, words", [
    ({"group_size": 1}, "group_size=1"),
    ({"rewards": ()}, "needs rewards"),
    ({"init_from": None}, "needs init_from"),
    ({"minibatch_size": 5}, "minibatch_size=5 must divide batch_size=4 x group_size=4 = 16 completions"),
    ({"gradient_accumulation_steps": 3}, "gradient_accumulation_steps=3 must divide"),
    ({"logp_chunk": 5}, "logp_chunk=5"),
    ({"mask_ratio_min": 0.9}, "mask_ratio_min=0.9"),
    ({"temperature": 0.0}, "temperature=0"),
    ({"clip_cap": 1.1}, "above 1 + clip_high = 1.2"),
    ({"top_p": 0.9}, "top_p=0.9"),
    ({"fill_in": True, "mask_truncated": True}, "mask_truncated=True with fill_in=True"),
    ({"kl_est": "k1", "kl_beta": 0.1}, "gradient that is 0 on average"),
    ({"loss_type": "spg"}, "logp_est='elbo'"),
    ({"loss_type": "wd1"}, "ratio_level='none'"),
    ({"logp_est": "exact", "init_from": "config/sudoku_base.py", "model": model.ModelConfig()}, "no causal one"),
    ({"group_size": 10**9}, "this run cannot fit: "),
    ({"group_size": 10**9, "init_from": "config/sudoku_base.py", "model": model.ModelConfig()}, "--group_size="),
    ({"rewards": ("judge",)}, "judge_from"),
    ({"rewards": ("keywords",)}, "needs the column 'keywords'; there are"),
    ({"rewards": ("exact",), "judge_from": "BASE"}, "but rewards are exact"),
    ({"rewards": ("judge",), "judge_from": "BASE"}, "is not a judge"),
    ({"reward_weights": (1.0, 2.0)}, "2 numbers for 1 rewards"),
    ({"max_prompt_len": 1}, "no row fits"),
])  # fmt: skip
def test_what_cannot_work_is_said_before_anything_compiles(tiny, place, changes, words):
    changes = {k: f"{place}/base" if v == "BASE" else v for k, v in changes.items()}
    with pytest.raises(ValueError, match=re.escape(words)):
        begin(tiny(**changes))


def test_a_machine_that_contains_nothing_is_refused_before_the_first_rollout(tiny, tmp_path, monkeypatch):
    import sandbox

    def nothing_holds(self, jobs):
        raise RuntimeError("this machine does not contain: network")

    monkeypatch.setattr(sandbox.Sandbox, "run", nothing_holds)
    row = json.dumps({"prompt": "12", "completion": "21", "tests": ["assert True"]}) + "\n"
    (tmp_path / "rows.jsonl").write_text(row * 30)
    with pytest.raises(ValueError, match="does not contain: network"):
        begin(tiny(rewards=("tests",), dataset=f"{tmp_path}/rows.jsonl"))


def test_pretraining_on_rows_without_a_completion_is_refused(tiny, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "12", "completion": "21"}\n' * 30 + '{"prompt": "34"}\n' * 10)
    with pytest.raises(ValueError, match="rows have no completion to learn from"):
        train.train(config.Config(**SECONDS, dataset=f"{tmp_path}/rows.jsonl", out_dir=f"{tmp_path}/out"))


def test_a_model_and_a_tokenizer_must_mean_the_same_mask(tiny, place, tmp_path):
    folder = shutil.copytree(model.find(f"{place}/base"), tmp_path / "other")
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | {"mask_token_id": 7}))
    with pytest.raises(ValueError, match="config.json says that the mask is id 7, and the tokenizer that it is id 256"):
        train.prepare(tiny(init_from=str(folder)))


# ---- autoregressive models ----

CAUSAL = dict(order="left", model=model.ModelConfig(n_layer=1, n_head=2, d_model=32, causal=True, shift=True))


@pytest.fixture(scope="module")
def causal(place):
    """Flags of a GRPO run that starts from an autoregressive model which has seen a little of the data set."""
    train.train(config.Config(**SECONDS | CAUSAL, dataset=str(place), out_dir=f"{place}/causal", rewards=("exact",),
                              max_iters=200, eval_interval=200, learning_rate=3e-3))  # fmt: skip
    return CAUSAL | dict(init_from=f"{place}/causal", logp_est="exact")


def test_a_causal_model_learns_the_next_token(causal, place):
    rows = runs.read_lines(f"{place}/causal/metrics.jsonl")
    losses = [r["loss"] for r in rows if "loss" in r]
    assert losses[0] > 4 and losses[-1] < 1 and [r for r in rows if "val/nelbo" in r][-1]["val/nelbo"] < 3


def test_what_a_causal_model_scored_is_what_it_sampled(tiny, causal):
    _, _, task, state, (b,), _ = one_iteration(tiny(**causal))
    assert not np.asarray(b["M"]).any() and len(set(map(tuple, np.asarray(b["x"]).tolist()))) > 4
    _, metrics = task.loss(state.params, b)
    assert float(metrics["behaviour_gap"]) < 1e-5  # with a cache at the rollout, and without one here


def test_a_causal_model_is_tuned_like_any_other(tiny, causal, tmp_path):
    rows = []
    for chunk in None, 8, 2:  # of 2, half a group: then no prompt is shared
        out = f"{tmp_path}/{chunk}"
        train.train(tiny(**causal, rollout_chunk=chunk, max_iters=2, out_dir=out))
        rows.append([r["reward"] for r in runs.read_lines(f"{out}/metrics.jsonl") if "reward" in r])
    assert rows[0] == rows[1] == rows[2] and len(rows[0]) == 2


@pytest.mark.parametrize("changes, words", [
    ({"order": "confidence"}, "order='confidence': a causal model reads from left to right and needs order='left'"),
    ({"logp_est": "trace"}, "needs logp_est='exact'"),
    ({"init_from": "BASE", "model": SECONDS["model"]}, "is no causal one"),
])  # fmt: skip
def test_causal_models_and_denoisers_are_not_mixed_up(tiny, causal, place, changes, words):
    changes = {k: f"{place}/base" if v == "BASE" else v for k, v in changes.items()}
    with pytest.raises(ValueError, match=re.escape(words)):
        begin(tiny(**causal | changes))


def test_a_causal_model_writes_the_pairs_of_a_judge_is_its_trunk_and_is_judged_by_it(tiny, causal, place, tmp_path):
    cfg = config.Config(**SECONDS | CAUSAL, dataset=str(place), objective="judge", init_from=f"{place}/causal",
                        judge_rows=16, max_iters=1, eval_interval=1, out_dir=f"{tmp_path}/judge")  # fmt: skip
    train.train(cfg)
    assert any("filled at" in row["kind"] for row in runs.read_lines(f"{tmp_path}/judge/samples.jsonl"))
    notes = one_iteration(tiny(**causal, rewards=("judge",), judge_from=f"{tmp_path}/judge"))[-1]
    assert 0 < notes["reward"] < 1


def test_a_causal_model_becomes_a_denoiser_that_is_resumed_as_one(causal, place, tmp_path):
    cfg = config.Config(**SECONDS, dataset=str(place), init_from=f"{place}/causal", adapt=True, max_iters=2,
                        eval_interval=2, save_interval=2, out_dir=f"{tmp_path}/out")  # fmt: skip
    train.train(cfg)
    train.train(dataclasses.replace(cfg, max_iters=4, resume=True))
    _, shape = model.load(cfg.out_dir)
    assert (model.family(shape), shape.causal, shape.shift, shape.mask_id) == ("Dream", False, True, 256)
    with pytest.raises(ValueError, match="is a denoiser already"):
        train.train(dataclasses.replace(cfg, init_from=f"{place}/base", out_dir=f"{tmp_path}/other"))
    with pytest.raises(ValueError, match="adapt=True turns the causal model in init_from"):
        dataclasses.replace(cfg, objective="judge")


# ---- the rest ----


def test_when_no_reward_has_an_opinion_the_run_ends(tiny, tmp_path):
    (tmp_path / "mute.py").write_text("def mute(prompts, completions):\n    return [None] * len(prompts)\n")
    with pytest.raises(ValueError, match="no reward .mute. has an opinion on any of the 16 completions"):
        one_iteration(tiny(rewards=(f"{tmp_path}/mute.py:mute",)))


# ---- what else a row and a run can ask for ----


def test_rows_may_say_themselves_which_tokens_to_fill(tiny, tmp_path):
    row = lambda i: json.dumps({"prompt": f"{i}", "masked": f"{i}<|mask|>a", "answer": "-"})
    rows = "".join(row(i) + "\n" for i in range(10, 40))
    (tmp_path / "train.jsonl").write_text(rows)
    (tmp_path / "val.jsonl").write_text(rows[: rows.index("\n") + 1] * 3)
    cfg, tok, _, _, batches, _ = one_iteration(tiny(dataset=str(tmp_path), fill_in=True))
    x, mask = np.asarray(batches[0]["x"]), np.asarray(batches[0]["mask"])
    assert (mask.sum(1) == 1).all() and mask[:, cfg.max_prompt_len + 2].all()
    for row in x.tolist():
        assert row[:2] == row[3:5] or row[1:3] == row[3:5]
        assert row[6] == tok.encode("a")[0]
    (tmp_path / "train.jsonl").write_text(rows.replace("<|mask|>", "b"))
    with pytest.raises(ValueError, match="0 <.mask.> among 4 tokens"):
        one_iteration(tiny(dataset=str(tmp_path), fill_in=True))


def test_what_trace_scores_before_the_first_update_is_what_was_drawn(tiny):
    gaps = {}
    for method in ("trace", "one_step"):
        cfg, _, task, state, batches, _ = one_iteration(tiny(logp_est=method))
        gaps[method] = float(task.loss(state.params, batches[0])[1]["behaviour_gap"])
    assert gaps["trace"] < 1e-4 < gaps["one_step"]


def test_lengths_are_counted_in_tokens_of_the_policy(tiny):
    *_, notes = one_iteration(tiny(rewards=("overlong",), max_new_tokens=4))
    assert -1 <= notes["rewards/overlong/mean"] <= 0


def test_an_evaluation_in_chunks_is_the_evaluation(tiny):
    def samples(chunk):
        *_, task, state = begin(tiny(rollout_chunk=chunk, eval_size=7))
        return task.evaluate(state, KEY)

    assert samples(None) == samples(4)


def test_a_reference_off_the_device_is_the_same_reference(tiny):
    tree = lambda seed: {"w": jax.random.normal(jax.random.key(seed), (3, 2))}
    for mode in ("ema", "periodic"):
        cfg = tiny(kl_beta=0.1, ref_mode=mode, ref_sync_interval=2)
        state = train.State(2, tree(0), (), None, tree(1))
        here, away = (train.new_reference(state, dataclasses.replace(cfg, ref_offload=off)) for off in (False, True))
        assert isinstance(away["w"], np.ndarray) and (away["w"] == np.asarray(here["w"])).all()
