"""train.py: the optimizer against numpy, and the loop run to its end, stopped, broken, poisoned and started again."""
import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import signal
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
import shared
from shared import KEY, batches_of, flat, left, lines, refused, slow, watch

import config
import data
import model
import rl
import train
from checkpoints import checkpoint, resume
from checkpoints.best import best_checkpoint
from loop import runs, setup
from loop.setup import prepare
from system import sections, terminal
from tools import complete

SHAPE = model.ModelConfig(n_layer=1, n_head=2, d_model=16)
pytestmark = pytest.mark.usefixtures("one_step_for_all_runs")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A data set: "37" -> "73", with the larger digit as its difficulty."""
    folder = tmp_path_factory.mktemp("rows")
    order = np.random.default_rng(0).permutation(100).tolist()
    shared.write_rows(folder, lambda prompt: {"difficulty": max(map(int, prompt))}, order)
    return str(folder)


SECONDS = dict(max_prompt_len=3, max_new_tokens=4, max_iters=12, batch_size=8, eval_interval=4, eval_size=8,
               save_interval=3, log_interval=2, diffusion_steps=4, rewards=("exact",),
               warmup_iters=2, ema_decay=0.9, model=SHAPE)  # fmt: skip


@pytest.fixture
def tiny(rows, tmp_path):
    """tiny(key=value, ...) -> a Config of a run of seconds."""
    return lambda **changes: shared.run(**SECONDS | dict(out_dir=f"{tmp_path}/out", dataset=rows) | changes)


@pytest.fixture(scope="module")
def unbroken(rows, tmp_path_factory):
    """The run, with an average of the weights, that others are compared with."""
    folder = tmp_path_factory.mktemp("unbroken")
    cfg = shared.run(**SECONDS, out_dir=f"{folder}/out", dataset=rows)
    train.train(cfg)
    return cfg


def written(cfg, path):
    """A config file that says cfg -> its path."""
    values = {config.without_model(name): value for name, value in config.flatten(cfg).items()}
    path.write_text(f"from config import Config, changed\nconfig = changed(Config(), {values!r})\n")
    return str(path)


def leave(cfg, monkeypatch, tmp_path):
    """`python train.py FILE`, in this process -> the error that it prints, or its exit code."""
    monkeypatch.setattr(sys, "argv", ["train.py", written(cfg, tmp_path / "run.py")])
    monkeypatch.setattr(runs, "prepare_process", lambda: None)
    said = []
    monkeypatch.setattr(terminal, "print", lambda text, file: said.append(text), raising=False)
    with pytest.raises(SystemExit) as e:
        terminal.run(train.main)
    return said[-1] if e.value.code == 2 else e.value.code


def change_task(monkeypatch, **changes):
    """The objective pretrain with parts of its Task replaced: name=function of the old part."""
    made = rl.OBJECTIVES["pretrain"]

    def altered(cfg, tok, start):
        task = made(cfg, tok, start)
        return task._replace(**{name: new(getattr(task, name)) for name, new in changes.items()})

    monkeypatch.setitem(rl.OBJECTIVES, "pretrain", altered)


def scripted(scores):
    """An evaluation that finds one score after the other, without sampling."""
    given = iter(scores)
    return lambda old: lambda state, key: ({"val/nelbo": 1.0, "val/sampled": next(given)}, [{"prompt": "a"}])


def send(monkeypatch, sent, step):
    """Send this process a signal in the iteration that begins at this step."""
    watch(monkeypatch, "pretrain", lambda start, state, batch: state.step == step and os.kill(os.getpid(), sent))


# ---- the optimizer ----
def test_the_rate_climbs_in_a_line_falls_in_half_a_cosine_and_ends_on_its_floor(tiny):
    _, rate = setup.optimizer(tiny(learning_rate=2e-3, lr_end=0.15, warmup_iters=10, max_iters=110))
    want = [2e-3 * (s + 1) / 10 if s < 10 else 3e-4 + (2e-3 - 3e-4) * (1 + np.cos(np.pi * (s - 10) / 100)) / 2
            for s in range(111)] + [3e-4, 3e-4]  # fmt: skip
    np.testing.assert_allclose([rate(s) for s in [*range(111), 111, 999]], want, rtol=1e-5)
    several = tiny(objective="grpo", init_from="x", rewards=("length",), updates_per_rollout=3, learning_rate=6e-3,
                   lr_schedule="constant", warmup_iters=2, max_iters=4)  # fmt: skip
    rates = [setup.optimizer(several)[1](s) for s in (0, 1, 2, 3, 4, 5, 6, 10**6)]
    np.testing.assert_allclose(rates, [1e-3, 2e-3, 3e-3, 4e-3, 5e-3, *[6e-3] * 3], rtol=1e-5)
    for schedule in ("cosine", "constant"):
        _, rate = setup.optimizer(tiny(learning_rate=2e-3, lr_schedule=schedule, warmup_iters=0))
        assert rate(0) == np.float32(2e-3)


def test_norms_biases_and_embeddings_do_not_decay_and_all_else_does(tiny):
    shape = model.ModelConfig(n_layer=1, n_head=2, d_model=16, qkv_bias=True, qk_norm=True, mask_id=258)
    tx, _ = setup.optimizer(tiny(learning_rate=0.1, weight_decay=0.5, warmup_iters=0))
    params = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), jax.eval_shape(lambda: model.init(KEY, shape)))
    updates = jax.jit(lambda p: tx.update(jax.tree.map(jnp.zeros_like, p), tx.init(p), p)[0])(params)
    decaying = {"['head']", *(f"['blocks'][0]['{n}']" for n in ("q", "k", "v", "o", "gate", "up", "down"))}
    kept = {"['embed']", "['norm']", *(f"['blocks'][0]['{n}']" for n in (
        "attn_norm", "mlp_norm", "q_norm", "k_norm", "q_bias", "k_bias", "v_bias"))}  # fmt: skip
    assert set(flat(params)) == decaying | kept
    for name, moved in flat(updates).items():
        np.testing.assert_allclose(moved, -0.1 * 0.5 if name in decaying else 0, rtol=1e-6)


def test_gradients_are_clipped_to_their_global_norm_and_reported_unclipped(tiny):
    loss = lambda params, batch: (jnp.sum(params["w"] * batch["x"].mean(0)), {})
    batch = {"x": jnp.tile(jnp.array([30.0, 40.0]), (8, 1))}  # a gradient of norm 50
    for clip, norm in ((1.0, 1.0), (60.0, 50.0), (None, 50.0)):
        tx, _ = setup.optimizer(cfg := tiny(grad_clip=clip, beta1=0.9))
        params = {"w": jnp.ones(2)}
        *_, opt_state, _, metrics = rl.make_update(loss, tx, cfg)(params, tx.init(params), None, 0, batch)
        assert float(metrics["grad_norm"]) == pytest.approx(50)
        mu = optax.tree_utils.tree_get(opt_state, "mu")["w"]
        np.testing.assert_allclose(mu, 0.1 * norm * np.array([0.6, 0.8]), rtol=1e-5)


def test_updates_are_adamw_as_its_paper_writes_it_and_the_average_of_the_weights_follows(tiny):
    cfg = tiny(learning_rate=0.1, warmup_iters=0, lr_schedule="constant", weight_decay=0.2, beta1=0.8, beta2=0.95,
               grad_clip=None, ema_decay=0.5)  # fmt: skip
    tx, _ = setup.optimizer(cfg)
    update = rl.make_update(lambda p, b: (jnp.sum(p["w"] ** 2 * b["x"].mean(0)), {}), tx, cfg)
    w, average, m, v = np.array([1.0, -2.0]), np.array([1.0, -2.0]), 0, 0
    state = {"w": jnp.array(w)}, tx.init({"w": jnp.array(w)}), {"w": jnp.array(w)}
    for step in range(12):
        x = np.random.default_rng(step).random((4, 2))
        *state, metrics = update(*state, step, {"x": jnp.array(x)})
        assert float(metrics["loss"]) == pytest.approx(np.sum(w**2 * x.mean(0)), rel=1e-4)
        g = 2 * w * x.mean(0)
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        m_hat, v_hat = m / (1 - 0.8 ** (step + 1)), v / (1 - 0.95 ** (step + 1))
        w = w - 0.1 * (m_hat / (np.sqrt(v_hat) + 1e-8) + 0.2 * w)
        np.testing.assert_allclose(state[0]["w"], w, rtol=1e-4, atol=1e-5)
        decay = min(0.5, (1 + step) / (10 + step))  # at step 8 the cap is reached
        average = decay * average + (1 - decay) * w
        np.testing.assert_allclose(state[2]["w"], average, rtol=1e-4, atol=1e-5)
    assert not np.allclose(w, average, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"paired": True}, {"loss_norm": "completion"}, {"objective": "judge"}])
def test_micro_batches_add_up_to_the_big_batch(tiny, changes):
    cfg, tok, start, _ = prepare(tiny(batch_size=16, rewards=(), **changes), train.train)
    parts = dataclasses.replace(cfg, gradient_accumulation_steps=4)
    task, other = (rl.OBJECTIVES[c.objective](c, tok, start) for c in (cfg, parts))
    params = task.init(KEY)
    ((batch, _),) = batches_of(task, rl.State(0, params, (), None, None), KEY)
    whole, summed = (jax.jit(rl.make_gradient(loss, c))(params, None, batch)
                     for loss, c in ((task.loss, cfg), (other.loss, parts)))  # fmt: skip
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), whole, summed)


# ---- a run, end to end ----
def test_a_run_leaves_its_logs_its_curves_its_last_checkpoints_and_its_best(unbroken):
    names = set(os.listdir(unbroken.out_dir))
    best = json.load(open(f"{unbroken.out_dir}/step-000012/run.json"))["best"]
    assert names == {*checkpoint.LOGS, "run.json", "report.html", "step-000009", "step-000012",
                     f"step-{best['step']:06d}"}  # fmt: skip


def test_the_log_has_loss_rate_and_gradient_norm_and_at_evaluations_nelbo_and_pass_rates(unbroken):
    log = lines(unbroken.out_dir)
    training, evaluations = ([r for r in log if ("loss" in r) == has] for has in (True, False))
    assert [r["step"] for r in training] == [2, 4, 6, 8, 10, 12]
    assert [r["step"] for r in evaluations] == [4, 8, 12]
    assert training[0].keys() >= {"loss", "grad_norm", "learning_rate", "step_time", "time", "nelbo"}
    seen = [r["step"] * unbroken.batch_size * (unbroken.max_prompt_len + unbroken.max_new_tokens) for r in training]
    assert [r["tokens"] for r in training] == seen
    assert evaluations[0].keys() >= {"val/nelbo", "val/greedy", "val/sampled", "time"}
    assert training[0]["loss"] == pytest.approx(np.log(258), abs=0.5)  # an untrained model knows nothing
    _, rate = setup.optimizer(unbroken)
    rates = [rate(r["step"] - 1) for r in training]
    np.testing.assert_allclose([r["learning_rate"] for r in training], rates, rtol=1e-6)
    assert [r["time"] for r in log] == sorted(r["time"] for r in log)


def test_a_checkpoint_is_a_model_with_its_tokenizer_and_holds_the_average(unbroken):
    params, shape = checkpoint.load(unbroken.out_dir)
    tok = data.open_tokenizer(checkpoint.find(unbroken.out_dir))
    assert shared.facts(tok) == shared.facts(data.Tokenizer.bytes())
    assert shape.vocab_size == tok.vocab_size and shape.mask_id == tok.mask_id
    saved = safetensors.numpy.load_file(f"{unbroken.out_dir}/step-000012/state.safetensors")
    for name, x in flat(params).items():
        np.testing.assert_array_equal(x, saved[f".average{name}"])
        assert not np.array_equal(x, saved[f".params{name}"])
    mask = np.ones((1, 7), int) * tok.mask_id
    assert model.logits(params, mask, shape).shape == (1, 7, 259)


@pytest.mark.parametrize("flag", ["--prompt=12", "--export=TMP/merged"])
def test_a_mask_that_the_tokenizer_does_not_know_is_refused(unbroken, tiny, tmp_path, monkeypatch, capsys, flag):
    folder = shutil.copytree(f"{unbroken.out_dir}/step-000012", tmp_path / "model")
    theirs = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(theirs | {"mask_token_id": 7}))
    monkeypatch.setattr(complete, "complete_texts", lambda *_: pytest.fail("it writes"))
    assert complete.main([str(folder), flag.replace("TMP", str(tmp_path))]) == 2
    said = "config.json says that the mask is id 7, and the tokenizer that it is id 256"
    assert said in capsys.readouterr().err and os.listdir(tmp_path) == ["model"]
    refused(said, prepare, tiny(init_from=str(folder)), train.train)


def test_another_seed_gives_another_run(unbroken, tiny):
    """The same one, the same to the bit: see the runs that are resumed."""
    other = tiny(seed=1)
    train.train(other)
    for mine, theirs in zip(left(other.out_dir)[0].items(), left(unbroken.out_dir)[0].items(), strict=True):
        assert (mine == theirs) == ("tensors" not in mine[0])


# ---- beginnings ----
def test_a_run_that_cannot_start_moves_nothing(unbroken, tiny, monkeypatch, tmp_path):
    cfg = tiny()
    shutil.copytree(unbroken.out_dir, cfg.out_dir)
    for wrong in (dict(dataset=f"{tmp_path}/none"), dict(rewards=("nothing",)), {"curriculum.difficulty": (50, 60)},
                  dict(order="best"), dict(init_from=f"{tmp_path}"), {"curriculum.schedule": ((0, -1),)}):  # fmt: skip
        code = leave(shared.changed(cfg, **wrong), monkeypatch, tmp_path)
        assert code.startswith("error: ") and "\n" not in code
    assert sorted(os.listdir(tmp_path)) == ["out", "run.py"]


def test_it_starts_from_the_weights_of_a_folder_or_of_another_run(unbroken, tiny):
    want = flat(checkpoint.load(unbroken.out_dir)[0])
    for path in (unbroken.out_dir, f"{unbroken.out_dir}/step-000012"):
        cfg, tok, start, resumed = prepare(tiny(init_from=path), train.train)
        assert resumed is None
        jax.tree.map(np.testing.assert_array_equal, flat(train.pretrain(cfg, tok, start).init(KEY)), want)


def test_a_start_that_contradicts_the_config_is_refused(unbroken, tiny, monkeypatch, tmp_path):
    shape = dataclasses.replace(SHAPE, n_layer=3)
    code = leave(tiny(init_from=unbroken.out_dir, model=shape), monkeypatch, tmp_path)
    assert "n_layer=3, but the model in" in code and "has n_layer=1" in code
    shape = model.ModelConfig(dtype="bfloat16", remat=True)
    cfg, *_ = prepare(tiny(init_from=unbroken.out_dir, model=shape), train.train)
    assert (cfg.model.d_model, cfg.model.dtype, cfg.model.remat) == (16, "bfloat16", True)


@pytest.mark.parametrize("typed, there", [("vocab_size=99", "vocab_size=259"), ("mask_id=None", "mask_id=256")])
def test_an_id_that_another_one_of_the_tokenizer_would_replace_is_refused(rows, tiny, tmp_path, typed, there):
    file = written(tiny(), tmp_path / "run.py")
    refused(f"{typed}, but the model of this run has {there}", prepare, config.load([file, f"--{typed}"]), train.train)


def test_a_start_that_is_a_config_file_is_trained_to_its_end_first_and_only_once(tiny, tmp_path, capsys):
    base = tiny(out_dir=f"{tmp_path}/base", log_interval=6, save_interval=6, eval_interval=12)
    train.train(base)
    shutil.rmtree(f"{tmp_path}/base/step-000012")  # it was broken off
    cfg = tiny(init_from=written(base, tmp_path / "base.py"))
    train.train(cfg)
    said = capsys.readouterr().out
    assert "which has not been run to its end: that first" in said and f"resuming {base.out_dir} at step 6" in said
    assert [r["step"] for r in lines(base.out_dir) if "loss" in r] == [6, 12]
    stamp = os.stat(f"{tmp_path}/base/step-000012").st_mtime_ns
    train.train(cfg)
    assert "that first" not in capsys.readouterr().out and len(lines(base.out_dir)) == 3
    assert os.stat(f"{tmp_path}/base/step-000012").st_mtime_ns == stamp


def test_a_curriculum_begins_with_the_easy_rows(tiny):
    cfg, tok, start, _ = prepare(tiny(**{"curriculum.schedule": ((0, 3), (5, 6), (9, 9))}, batch_size=32), train.train)
    task = train.pretrain(cfg, tok, start)
    hardest = []
    for step in (0, 1, 4, 5, 8, 9, 10):
        ((batch, _),) = batches_of(task, rl.State(step, {}, (), None, None), KEY)
        digits = [int(d) for row in np.asarray(batch.x)[:, 1:3].tolist() for d in tok.decode(row)]
        hardest.append(max(digits))
    assert hardest == [3, 3, 3, 6, 6, 9, 9]


# ---- endings ----
def test_it_stops_when_the_pass_rate_first_exceeds_stop_at_and_stays_stopped(tiny, monkeypatch):
    change_task(monkeypatch, evaluate=scripted([0.1, 0.3, 0.5, 0.9]))
    cfg = tiny(stop_at=0.3, eval_interval=2)
    assert train.train(cfg)[0].step == 6
    assert json.load(open(f"{checkpoint.find(cfg.out_dir)}/run.json"))["finished"]
    before = left(cfg.out_dir)
    assert train.train(dataclasses.replace(cfg, resume=True))[0].step == 6 and left(cfg.out_dir) == before
    assert train.train(dataclasses.replace(cfg, resume=True, stop_at=0.6))[0].step == 8


def test_the_best_checkpoint_and_of_equally_good_ones_the_later_is_kept_beside_the_newest(tiny, monkeypatch, capsys):
    nan = float("nan")
    change_task(monkeypatch, evaluate=scripted([nan, 0.1, 0.2, 0.2, nan, 0.1]))
    cfg = tiny(eval_interval=2, save_interval=1, **{"checkpoint.keep": 1})
    train.train(cfg)
    assert checkpoint.steps(cfg.out_dir) == [8, 12]
    assert json.load(open(f"{cfg.out_dir}/step-000012/run.json"))["best"] == {
        "step": 8, "score": 0.2, "measure": "val/sampled"}  # fmt: skip
    assert [r["val/sampled"] for r in lines(cfg.out_dir) if "val/sampled" in r] == [None, 0.1, 0.2, 0.2, None, 0.1]
    assert "best at step 8: val/sampled 0.2000, of 6 evaluations" in capsys.readouterr().out
    assert best_checkpoint(cfg.out_dir) == (f"{cfg.out_dir}/step-000008", "the best by val/sampled")
    assert checkpoint.find(cfg.out_dir) == f"{cfg.out_dir}/step-000012"


def test_without_rewards_the_best_has_the_lowest_nelbo(tiny, monkeypatch):
    given = iter([3.0, 1.0, 2.0])
    change_task(monkeypatch, evaluate=lambda old: lambda state, key: ({"val/nelbo": next(given)}, []))
    cfg = tiny(**{"checkpoint.keep": 1}, rewards=())
    train.train(cfg)
    assert checkpoint.steps(cfg.out_dir) == [8, 12]


def test_eval_only_measures_the_newest_checkpoint_loads_its_weights_alone_and_changes_nothing(
        unbroken, monkeypatch, capsys):
    monkeypatch.setattr(resume, "restore", lambda *_: pytest.fail("the optimizer was asked for"))
    times = lambda: {(d, f): os.stat(os.path.join(d, f)).st_mtime_ns for d, _, files in os.walk(unbroken.out_dir)
                     for f in files}  # fmt: skip
    before = times()
    state, _ = train.train(dataclasses.replace(unbroken, eval_only=True, ema_decay=None, beta1=0.5))
    assert state.step == 12 and state.opt_state == ()
    said = capsys.readouterr().out
    want = [r for r in lines(unbroken.out_dir) if "val/nelbo" in r][-1]
    assert f"step     12  val/nelbo {want['val/nelbo']:.4f}" in said
    assert f"val/greedy_se {want['val/greedy_se']:.4f}" in said  # all numbers: there is no log that has them
    assert times() == before


@pytest.mark.parametrize("changes, said", [
    ({"rule": "factor", "factor.limit": 0.5}, ": factor.limit=0.5 (it was None)\n"), ({"loss_type": "cispo"}, ""),
    ({}, "")])  # fmt: skip
def test_eval_only_measures_a_start_or_a_run_and_says_which_keys_of_variants_are_other_than_its_own(
        unbroken, tiny, capsys, changes, said):
    for cfg in (tiny(init_from=unbroken.out_dir), unbroken):
        train.train(config.changed(cfg, {"eval_only": True} | changes))
        out = capsys.readouterr().out
        assert said in out and ("evaluated with other keys than it was trained with" in out) == bool(said)
        assert "val/nelbo" in out and not os.path.exists(tiny().out_dir)


@pytest.mark.parametrize("sent, code, step", [
    (signal.SIGTERM, 143, 5), slow(signal.SIGINT, 130, 1), slow(signal.SIGINT, 130, 5), slow(signal.SIGTERM, 143, 8),
    slow(signal.SIGHUP, 129, 5)])
def test_sigterm_and_ctrl_c_save_and_a_resumed_run_equals_the_unbroken_one(
        unbroken, tiny, monkeypatch, tmp_path, capsys, sent, code, step):
    cfg = tiny()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that run under nohup ignore it, as a run there does
    with monkeypatch.context() as m:
        send(m, sent, step)
        assert leave(cfg, m, tmp_path) == code
    said = "".join(capsys.readouterr())
    assert "--resume=True" in said and "step/s" not in said and "\r" not in said, "a bar is for a terminal"
    assert checkpoint.steps(cfg.out_dir)[-1] == step + 1
    train.train(dataclasses.replace(cfg, resume=True))
    assert left(cfg.out_dir) == left(unbroken.out_dir)


def test_at_a_terminal_there_is_a_bar_and_every_message_begins_a_line(tiny, monkeypatch, tmp_path):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    send(monkeypatch, signal.SIGTERM, 5)
    with contextlib.redirect_stdout(Screen()) as screen, contextlib.redirect_stderr(screen):
        assert leave(tiny(), monkeypatch, tmp_path) == 143
    text = screen.getvalue()
    for message in ("step      4  val/nelbo", "    prompt '", "saving after this step", "saved "):
        assert re.search(rf"(^|[\r\n]){message}", text)
    assert "step/s" in text


@pytest.mark.slow
def test_a_judge_broken_off_and_resumed_learns_from_the_pairs_it_began_with(unbroken, tiny, monkeypatch):
    cfg = tiny(objective="judge", init_from=unbroken.out_dir, rewards=(), **{"judge.n_rows": 16}, max_iters=8,
               **{"judge.temperatures": (1.0,)})  # fmt: skip
    train.train(cfg)
    whole = left(cfg.out_dir)
    kinds = {row["kind"] for row in lines(cfg.out_dir, "samples.jsonl")}
    assert any(kind.startswith("filled") for kind in kinds) and len(kinds) > 1
    shutil.rmtree(f"{cfg.out_dir}/step-000008")
    train.train(dataclasses.replace(cfg, resume=True))
    assert left(cfg.out_dir) == whole


# ---- accidents ----
@pytest.mark.parametrize("poisoned", [0, 5])
def test_a_poisoned_row_stops_the_run_and_leaves_the_checkpoint_before_it(tiny, monkeypatch, tmp_path, poisoned):
    change_task(monkeypatch, evaluate=scripted([0.5, 0.4, 0.3]))
    watch(monkeypatch, "pretrain", lambda start, state, batch: batch._replace(
        weight=batch.weight * (jnp.nan if state.step == poisoned else 1)))  # fmt: skip
    cfg = tiny(log_interval=1)
    code = leave(cfg, monkeypatch, tmp_path)
    assert code.startswith(f"error: step {poisoned + 1}: loss nan, gradient norm nan. ") and "\n" not in code
    kept = [s for s in (3, 4, 6, 9) if s <= poisoned]
    assert checkpoint.steps(cfg.out_dir) == (sorted({*kept[-2:], 4}) if poisoned > 4 else kept)
    if poisoned:
        last = [r for r in lines(cfg.out_dir) if "loss" in r][-1]
        assert f"The last finite step was {poisoned}: loss {last['loss']:.4f}, gradient norm" in code
        assert f"lower learning_rate (now {cfg.learning_rate})" in code
        assert last["step"] == poisoned and f"step-{kept[-1]:06d}" in code
        params, _ = checkpoint.load(cfg.out_dir)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
    else:
        assert "first update, so the reason is no learning rate. Not finite: grad_norm, loss, nelbo, " in code


def test_a_gradient_that_overflows_stops_the_run_even_when_the_loss_does_not(tiny, monkeypatch, tmp_path):
    steep = lambda old: lambda params, batch: (1 + jnp.sqrt(0 * jnp.sum(params["norm"])), {})
    change_task(monkeypatch, loss=steep)
    assert re.match(r"error: step 1: loss 1\.0, gradient norm (nan|inf)\.", leave(tiny(), monkeypatch, tmp_path))


def test_weights_and_biases_gets_the_config_and_what_metrics_jsonl_gets_and_is_named_when_missing(tiny, monkeypatch):
    seen = []
    fake = types.SimpleNamespace(init=lambda **given: seen.append(given) or fake,
                                 log=lambda values, step: seen.append({"step": step} | values),
                                 finish=lambda exit_code: seen.append(exit_code), __spec__=1)  # fmt: skip
    monkeypatch.setitem(sys.modules, "wandb", fake)
    change_task(monkeypatch, evaluate=scripted([0.5] * 9))
    cfg = tiny(wandb=True, **{"wandb.project": "p", "wandb.entity": "e"})
    train.train(cfg)
    assert (seen[0]["project"], seen[0]["entity"], seen[0]["name"]) == ("p", "e", "out")
    assert seen[0]["config"]["model.d_model"] == 16 and seen[0]["config"]["max_iters"] == 12
    # It ends with the run: a second one of this process begins another.
    assert seen[1:] == [{k: v for k, v in row.items() if k != "time"} for row in lines(cfg.out_dir)] + [0]
    with pytest.raises(KeyError), sections.find(cfg, "wandb").logger(cfg):
        raise KeyError
    assert seen[-1] == 1
    monkeypatch.setitem(sys.modules, "wandb", None)
    refused("wandb=True needs the package wandb: pip install wandb", tiny, wandb=True)


def test_a_run_that_cannot_be_resumed_says_why(unbroken, tiny, monkeypatch, tmp_path):
    other = dict(ema_decay=None, seed=7, model=dataclasses.replace(SHAPE, d_model=32))
    code = leave(shared.changed(unbroken, resume=True, **other), monkeypatch, tmp_path)
    for part in ("ema_decay=None (it was 0.9)", "seed=7 (it was 0)", "model.d_model=32 (it was 16)",
                 f"--init_from={unbroken.out_dir}/step-000012 --out_dir=ANOTHER"):  # fmt: skip
        assert part in code
    assert "max_iters" not in code and lines(unbroken.out_dir)[-1]["step"] == 12  # and it is as it was
    code = leave(tiny(resume=True), monkeypatch, tmp_path)
    assert "there is no run in" in code and not os.path.exists(tiny().out_dir)


def stacked(state):
    """The arrays of a state file as they were when layers were stacked, and dense ones had names of their own."""
    found, layer = {}, re.compile(r"(.*\['blocks'\])\[(\d+)\]\['(.*)'\]")
    for path, x in state.items():
        if at := layer.fullmatch(path):
            kind = "dense_" * (f"{at[1]}[0]['gate']" in state and at[3] in ("gate", "up", "down")) + at[3]
            found.setdefault(f"{at[1]}['{kind}']", {})[int(at[2])] = x
        else:
            found[path] = x
    return {path: np.stack([x[i] for i in sorted(x)]) if isinstance(x, dict) else x for path, x in found.items()}


@pytest.mark.slow
def test_a_state_of_stacked_layers_is_resumed_to_the_bit(tiny):
    shape = shared.shape(n_layer=3, n_head=2, d_model=16, qk_norm=True, rotary_share=0.5, **{
        "moe.n_experts": 3, "moe.first_dense": 1, "moe.routing": "sigmoid", "moe.norm_routing": True, "moe.n_shared": 1,
        "blocks.block": 4})  # fmt: skip
    cfg = tiny(max_iters=4, save_interval=2, model=shape)
    whole, _ = train.train(cfg)
    shutil.rmtree(f"{cfg.out_dir}/step-000004")
    file = f"{cfg.out_dir}/step-000002/state.safetensors"
    safetensors.numpy.save_file(stacked(safetensors.numpy.load_file(file)), file)
    again, _ = train.train(dataclasses.replace(cfg, resume=True))
    jax.tree.map(np.testing.assert_array_equal, whole, again)


def test_what_does_not_change_a_run_may_change_when_it_is_resumed_and_a_finished_one_stays(unbroken, capsys):
    before = left(unbroken.out_dir)
    free = dict(max_iters=12, stop_at=0.99, log_interval=7, **{"checkpoint.keep": 9, "programs.workers": 1},
                init_from="elsewhere")
    assert train.train(shared.changed(unbroken, resume=True, **free))[0].step == 12
    assert "began from None: init_from=elsewhere is not looked at" in capsys.readouterr().out
    assert left(unbroken.out_dir) == before


def test_a_cosine_that_goes_on_in_a_longer_run_is_said_to_jump(tiny, capsys):
    train.train(tiny(max_iters=2))
    train.train(tiny(max_iters=3, resume=True))
    assert "max_iters was 2 and is 3: the learning rate goes on as in a run of 3 iterations" in capsys.readouterr().out


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew_and_keeps_its_logs(tiny, capsys):
    cfg = tiny(max_iters=1, log_interval=1, save_interval=1, resume=True)
    os.makedirs(cfg.out_dir)
    for step in 3, 1:
        with open(f"{cfg.out_dir}/metrics.jsonl", "w") as f:
            f.write(f'{{"step": {step}, "time": 0}}\n')
        with pytest.raises(ValueError, match="goes to step 3, but the checkpoints are gone: bring back a") if step > 1 \
                else contextlib.nullcontext():
            train.train(cfg)
    said = capsys.readouterr().out
    assert "logged to step 1, has no checkpoint: it begins anew" in said and f"moved to {cfg.out_dir}.1\n" in said
    assert len(lines(f"{cfg.out_dir}.1")) == 1 and len(lines(cfg.out_dir)) == 2


def test_only_one_run_writes_into_a_folder_and_one_that_cannot_start_leaves_none(unbroken, tiny, monkeypatch, tmp_path):
    with runs.locked(unbroken.out_dir):
        code = leave(unbroken, monkeypatch, tmp_path)
        assert re.fullmatch("error: another run writes into '.*': wait .* --out_dir", code)
        assert "another run writes" in leave(dataclasses.replace(unbroken, resume=True), monkeypatch, tmp_path)
    assert os.path.exists(f"{unbroken.out_dir}/step-000012")
    for wrong in ({"curriculum.difficulty": (50, 60)}, dict(batch_size=10**9)):
        leave(tiny(**wrong), monkeypatch, tmp_path)
    assert not os.path.exists(tiny().out_dir)


def test_a_base_is_told_its_keys_on_the_line_of_the_run_and_trains_beside_it(tiny, tmp_path, capsys):
    base = tiny(out_dir=f"{tmp_path}/base", max_iters=2, rewards=(), save_interval=5)
    path = written(tiny(init_from=written(base, tmp_path / "base.py"), max_iters=1, rewards=()), tmp_path / "run.py")
    argv = [path, "--base.seed=3", "--base.max_iters=1"]
    assert config.load([*argv, "--base.d_model=8"]).model.d_model == 8
    cfg = config.load(argv)
    assert cfg.base == ("seed=3", "max_iters=1") and cfg.seed == 0
    made = config.base_run(cfg)
    assert (made.seed, made.max_iters, made.out_dir) == (3, 1, f"{tmp_path}/out_base")
    assert config.base_run(config.load([*argv, "--base.out_dir=b"])).out_dir == "b"
    train.train(cfg)
    assert checkpoint.read_run(f"{tmp_path}/out_base/step-000001")["config"]["seed"] == 3
    with pytest.raises(ValueError, match=r"out_base was trained with other keys .*: seed=4 \(it was 3\). Move it away"):
        train.train(config.load([*argv[:1], "--base.seed=4", *argv[2:]]))
    # what is there is not needed to go on
    shutil.rmtree(f"{tmp_path}/out_base")
    assert train.train(dataclasses.replace(cfg, resume=True))[0].step == 1
    assert not os.path.exists(f"{tmp_path}/out_base")
    run = json.load(open(f"{cfg.out_dir}/step-000001/run.json"))
    assert os.path.isabs(run["config"]["init_from"])  # so that adapters find their base from any folder


def test_keys_of_the_base_of_a_base_go_through(tmp_path):
    first = written(config.Config(out_dir="out/1"), tmp_path / "first.py")
    second = written(config.Config(out_dir="out/2", init_from=first), tmp_path / "second.py")
    third = written(config.Config(out_dir="out/3", init_from=second), tmp_path / "third.py")
    chain = config.base_runs(config.load([third, "--base.base.seed=5"]))
    assert [(c.out_dir, c.seed) for c in chain] == [("out/3", 0), ("out/3_base", 0), ("out/3_base_base", 5)]


@pytest.mark.parametrize("given, rows, said", [
    ("config/sudoku.py", None, r"train\(config.load\(\['config/sudoku.py'\]\)\)"),
    (None, "x.jsonl", "Config.dataset='x.jsonl'")])  # fmt: skip
def test_slips_from_python_are_one_sentence(given, rows, said, tmp_path):
    refused(said, train.train, given or config.Config(out_dir=f"{tmp_path}/out"), rows=rows)
