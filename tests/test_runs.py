"""loop/runs.py: checkpoints appear whole or not at all, logs lose nothing, and runs are really killed."""
import builtins
import contextlib
import dataclasses
import datetime
import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import shared
from faults import Killed
from shared import flat, left, lines, refused, write_rows

import config
import data
import model
import train
from checkpoints import checkpoint, huggingface, resume
from loop import runs, same_run
from system import disk
from tools import complete, score

TOK = data.Tokenizer.bytes()
SHAPE = model.ModelConfig(n_layer=1, n_head=1, d_model=4, d_ff=4, mask_id=TOK.mask_id, eos_id=TOK.eos_id)
PARAMS = jax.jit(model.init, static_argnames="cfg")(jax.random.key(0), SHAPE)


def state_at(step):
    params = jax.tree.map(lambda x: x + step, PARAMS)
    return train.State(step, params, (jnp.int32(step), {"mu": params}), None, None)


@pytest.fixture
def cfg(tmp_path):
    (tmp_path / "out").mkdir()
    return shared.run(out_dir=f"{tmp_path}/out", **{"checkpoint.keep": 2}, model=SHAPE)


def save(cfg, step, best=None, finished=False):
    checkpoint.save_run(cfg, state_at(step), TOK, best and {"step": best, "score": 1.0}, finished)


def assert_whole(cfg, steps):
    """Assert that exactly these checkpoints are there, and that each can be opened and resumed."""
    assert checkpoint.steps(cfg.out_dir) == steps
    for step in steps:
        folder = f"{cfg.out_dir}/step-{step:06d}"
        state, run = resume.restore(folder, state_at(0))
        params, shape = checkpoint.load(folder)
        assert run["step"] == state.step == step
        assert shared.facts(data.open_tokenizer(folder)) == shared.facts(TOK)
        for kept in (state.params, state.opt_state[1]["mu"], params):
            for name, x in flat(state_at(step).params).items():
                np.testing.assert_array_equal(flat(kept)[name], x)
        assert state.opt_state[0] == step and state.opt_state[0].dtype == jnp.int32


def test_numbers_of_all_dtypes_are_saved_and_restored(tmp_path):
    tree = {"a": jnp.array([0.0, -0.0, 1e-45, jnp.inf, jnp.nan]), "b": jnp.array([3, 2**31 - 1]),
            "c": jnp.array([True]), "d": jnp.array([1.5], jnp.bfloat16), "e": jnp.uint32(7)}
    fetched = []
    fetch = lambda name, x: lambda: fetched.append(name) or np.asarray(x)
    disk.write_tensors(tmp_path / "t", [(name, x, fetch(name, x)) for name, x in checkpoint.leaves(tree).items()])
    assert fetched == list(flat(tree))  # each once
    for name, x in safetensors.numpy.load_file(tmp_path / "t").items():
        want = flat(tree)[name]
        assert x.tobytes() == want.tobytes() and x.shape == want.shape and x.dtype == want.dtype


def test_states_are_restored_bit_for_bit_and_of_checkpoints_the_newest_and_the_best_are_kept(cfg):
    for name in ("step-000002.old", "step-x", "notes"):  # which are not ours to delete
        os.mkdir(f"{cfg.out_dir}/{name}")
    save(cfg, 5, best=5)
    assert_whole(cfg, [5])
    run, written = checkpoint.read_run(f"{cfg.out_dir}/step-000005"), os.stat(f"{cfg.out_dir}/step-000005").st_mtime_ns
    assert run["best"] == {"step": 5, "score": 1.0} and run["finished"] is False
    assert run["config"]["model.d_model"] == 4 and run["config"]["checkpoint.keep"] == 2
    save(cfg, 5, finished=True)
    assert os.stat(f"{cfg.out_dir}/step-000005").st_mtime_ns == written  # one that is there is not written again
    for step, best in ((10, 5), (15, 5), (20, 20), (25, 20), (30, 20)):
        save(cfg, step, best)
        assert (5 in checkpoint.steps(cfg.out_dir)) == (best == 5)
    assert_whole(cfg, [20, 25, 30])
    for step in (95, 1_000_000, 1_000_005):  # more digits than the folder's name has by default
        save(cfg, step)
    assert_whole(cfg, [1_000_000, 1_000_005])
    assert checkpoint.find(cfg.out_dir).endswith("step-1000005")
    assert {*os.listdir(cfg.out_dir)} == {"step-000002.old", "step-x", "notes", "step-1000000", "step-1000005"}


CALLS = [(builtins, "open"), *((os, f) for f in ("open", "rename", "replace", "fsync", "mkdir", "unlink", "rmdir"))]


@contextlib.contextmanager
def killed_at(monkeypatch, n):
    """Raise Killed in the n-th call that changes the disk, and in every later one."""
    count = itertools.count()

    def counted(act, *args, **kwargs):
        if next(count) >= n:
            raise Killed
        return act(*args, **kwargs)

    with monkeypatch.context() as m:
        for owner, name in CALLS:
            m.setattr(owner, name, functools.partial(counted, getattr(owner, name)))
        with contextlib.suppress(Killed):
            yield count


def moments(monkeypatch, act):
    """Count the calls of act() that change the disk."""
    with killed_at(monkeypatch, 10**9) as count:
        act()
        total = next(count)
    assert total > 3
    return total


def test_a_kill_at_any_moment_of_saving_leaves_whole_checkpoints_and_the_next_save_cleans_up(cfg, monkeypatch):
    """At every third one; test_faults.py has every operation of whole runs."""
    for step in (5, 10):
        save(cfg, step)
    shutil.copytree(cfg.out_dir, f"{cfg.out_dir}.copy")
    found = set()
    for n in range(0, moments(monkeypatch, lambda: save(cfg, 15)), 3):
        shutil.rmtree(cfg.out_dir)
        shutil.copytree(f"{cfg.out_dir}.copy", cfg.out_dir)
        with killed_at(monkeypatch, n):
            save(cfg, 15)
        left = checkpoint.steps(cfg.out_dir)
        assert_whole(cfg, left)
        assert left in ([5, 10], [5, 10, 15], [10, 15])
        found.add(len(left))
        save(cfg, 15)
        save(cfg, 20)
        assert_whole(cfg, [15, 20])
        assert sorted(os.listdir(cfg.out_dir)) == ["step-000015", "step-000020"]
    assert found == {2, 3} and n > 20


def test_a_checkpoint_is_synced_before_it_gets_its_name(cfg, monkeypatch):
    synced = []
    old_sync, old_rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or old_sync(fd))
    monkeypatch.setattr(os, "rename", lambda a, b: synced.append(f"-> {b}") or old_rename(a, b))
    (open(f"{cfg.out_dir}/{log}", "w").close() for log in checkpoint.LOGS)
    save(cfg, 5)
    folder, final = f"{cfg.out_dir}/{checkpoint.WRITING}", f"{cfg.out_dir}/step-000005"
    before = synced[: synced.index(f"-> {final}")]
    assert {folder, *(f"{folder}/{name}" for name in os.listdir(final))} <= set(before)
    assert synced[-1] == cfg.out_dir


FILES = ["model.safetensors", "state.safetensors", "run.json", "config.json", "tokenizer.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_in_the_message(cfg, name):
    """Cut off at any length, full of noise, or gone."""
    def opened():
        found = checkpoint.find(cfg.out_dir)
        checkpoint.load(found)
        data.open_tokenizer(found)
        resume.restore(found, state_at(0))

    save(cfg, 7)
    folder = f"{cfg.out_dir}/step-000007"
    whole = open(f"{folder}/{name}", "rb").read()
    lengths = {0, 7, 8, 9, *range(0, len(whole), 1 + len(whole) // 12), len(whole) - 1}
    for broken in [*(whole[:length] for length in lengths), random.Random(0).randbytes(999), None]:
        os.remove(f"{folder}/{name}")
        if broken is not None:
            open(f"{folder}/{name}", "wb").write(broken)
        with pytest.raises(ValueError) as e:
            opened()
        said = str(e.value)
        assert "step-000007" in said and "\n" not in said and len(said) < 600
        assert broken is None or name in said and (name in FILES[3:] or f"delete {folder} to " in said)
        open(f"{folder}/{name}", "wb").write(whole)
    opened()


def test_somebody_elses_model_in_out_dir_is_not_resumed(cfg):
    folder = f"{cfg.out_dir}/step-000009"
    huggingface.save(folder, PARAMS, SHAPE)
    assert checkpoint.read_run(folder) == {}
    refused("step-000009 has no run.json .* --init_from", resume.restore, folder, state_at(0))
    for foreign in ("[1, 2]", '"text"', "3", "null", '{"step": 1}', '{"config": 3}', '{"config": null}', '{"step": 1'):
        open(f"{folder}/run.json", "w").write(foreign)
        refused("run.json", resume.restore, folder, state_at(0))
        if foreign in ('{"config": 3}', '{"config": null}'):
            refused(f"run.json is damaged.*; delete {folder} to resume", checkpoint.read_run, folder)


def test_a_state_of_another_model_or_optimizer_is_refused(cfg):
    save(cfg, 7)
    folder = checkpoint.find(cfg.out_dir)
    wide = model.init(jax.random.key(0), dataclasses.replace(SHAPE, d_ff=8))
    for other in (state_at(0)._replace(params=wide), state_at(0)._replace(average=PARAMS),
                  state_at(0)._replace(opt_state=())):  # fmt: skip
        refused(r"of another model or optimizer than this config: \.\S+ and \d+ more", resume.restore, folder, other)
    os.rename(f"{folder}/state.safetensors", f"{folder}/state-00001-of-00002.safetensors")
    refused("was written by several processes, .* its model opens as init_from", resume.restore, folder, state_at(0))


def test_logs_are_cut_back_to_the_step_a_run_resumes_from_and_their_clock_goes_on(cfg, monkeypatch):
    log = runs.Log(cfg, 0)
    log.begun -= 100
    monkeypatch.setattr(runs.time, "time", lambda: 0.0)  # the machine's clock is set back
    for step in (2, 4, 6):
        log.metrics(step, {"loss": step / 2})
        log.samples(step, [{"prompt": str(step)}])
    again = runs.Log(cfg, 4)
    assert [r["step"] for r in lines(cfg.out_dir)] == [r["step"] for r in lines(cfg.out_dir, "samples.jsonl")] == [2, 4]
    again.metrics(5, {"loss": 0.1})
    assert lines(cfg.out_dir)[0]["loss"] == 1.0 and lines(cfg.out_dir)[-1]["time"] >= 100
    runs.Log(cfg, 0)
    assert lines(cfg.out_dir) == []


def test_a_line_cut_by_a_kill_is_dropped_and_earlier_lines_are_kept(cfg):
    whole = '{"step": 1, "time": 1.0}\n{"step": 2, "time": 2.0}\n'
    for cut in ('{"step": 3, "ti', '{"step"', "[1]", "7", "{}", "\0\0\0", "nul"):
        open(f"{cfg.out_dir}/metrics.jsonl", "w").write(whole + cut)
        runs.Log(cfg, 9)
        assert [r["step"] for r in lines(cfg.out_dir)] == [1, 2]


def test_a_kill_while_logs_are_cut_back_loses_no_line(cfg, monkeypatch):
    def fill():
        for name in checkpoint.LOGS:
            open(f"{cfg.out_dir}/{name}", "w").writelines(f'{{"step": {s}, "time": 0}}\n' for s in range(9))
    fill()
    for n in range(moments(monkeypatch, lambda: runs.Log(cfg, 4))):
        fill()
        with killed_at(monkeypatch, n):
            runs.Log(cfg, 4)
        for name in checkpoint.LOGS:
            assert [r["step"] for r in lines(cfg.out_dir, name)][:5] == [0, 1, 2, 3, 4]
        runs.Log(cfg, 4)
        assert sorted(os.listdir(cfg.out_dir)) == sorted([*checkpoint.LOGS, "run.json"])


def test_nan_and_infinity_are_logged_as_null(cfg):
    log = runs.Log(cfg, 0)
    log.metrics(1, {"a": float("nan"), "b": float("inf"), "c": np.float64(2), "d": "text"})
    log.samples(1, [{"prompt": "x", "p": float("nan")}, {"prompt": "y", "p": 0.5}])
    written = {k: v for k, v in lines(cfg.out_dir)[0].items() if k != "time"}
    assert written == {"step": 1, "a": None, "b": None, "c": 2, "d": "text"}
    want = [{"step": 1, "prompt": "x", "p": None}, {"step": 1, "prompt": "y", "p": 0.5}]
    assert lines(cfg.out_dir, "samples.jsonl") == want


def test_only_a_run_is_moved_aside_and_never_onto_another(cfg, tmp_path, capsys):
    same_run.move_aside(cfg.out_dir)
    runs.Log(cfg, 0)  # empty logs: a run that never made a step
    open(f"{cfg.out_dir}/notes.txt", "w").close()
    same_run.move_aside(cfg.out_dir)
    same_run.move_aside(f"{tmp_path}/none")
    assert os.listdir(tmp_path) == ["out"] and capsys.readouterr().out == ""
    save(cfg, 3)
    os.mkdir(f"{tmp_path}/out.1")
    same_run.move_aside(cfg.out_dir + "/")
    assert sorted(os.listdir(tmp_path)) == ["out.1", "out.2"]
    assert {"notes.txt", "step-000003"} < set(os.listdir(f"{tmp_path}/out.2"))
    assert f"moved to {tmp_path}/out.2 (--resume=True" in capsys.readouterr().out
    runs.Log(cfg, 0).metrics(1, {})  # killed before its first checkpoint
    same_run.move_aside(cfg.out_dir)
    assert sorted(os.listdir(tmp_path)) == ["out.1", "out.2", "out.3"]


def test_signals_are_noted_and_their_handlers_restored(capsys):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    for first in (signal.SIGTERM, signal.SIGINT):
        with runs.StopRequested() as asked:
            assert not asked.signal
            signal.raise_signal(first)  # to this thread, so it is noted at once
            assert asked.signal == first
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    assert "saving after this step; ctrl-C again leaves at once" in capsys.readouterr().err


FILE = """
from config import Config
from model import ModelConfig
from variants import paired

config = Config(
    out_dir="{folder}/unbroken", dataset="{folder}", max_prompt_len=3, max_new_tokens=4, rewards=("exact",),
    max_iters=200, batch_size=8, gradient_accumulation_steps=2, use=(paired.Keys(),), ema_decay=0.9, learning_rate=5e-3,
    eval_interval=50, eval_size=8, save_interval=3, log_interval=1, diffusion_steps=2,
    model=ModelConfig(n_layer=1, n_head=2, d_model=16))
"""


def start(folder, *argv):
    """Start `python train.py` on FILE in a folder, with one compilation cache for all of these runs."""
    env = os.environ | {"XDG_CACHE_HOME": f"{folder}/cache", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "train.py", f"{folder}/run.py", *argv]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def killable(tmp_path_factory):
    """Return a folder with FILE, its data and a finished run."""
    folder = tmp_path_factory.mktemp("killable")
    (folder / "run.py").write_text(FILE.format(folder=folder))
    write_rows(folder)
    out, err = (process := start(folder)).communicate()
    assert process.returncode == 0, err
    return folder


@pytest.mark.slow
def test_a_run_killed_five_times_at_random_and_resumed_equals_the_unbroken_one_bit_for_bit(killable):
    folder, rng, reached, finished = killable, random.Random(0), [], 0
    argv, log = (f"--out_dir={folder}/killed", "--resume=True"), f"{folder}/killed/metrics.jsonl"
    os.mkdir(f"{folder}/killed")
    open(log, "w").close()  # what a run leaves that was killed before it logged anything
    # While it starts; and a little after four lines of its log, wherever it is then: it trains, evaluates or saves. Of
    # steps, not seconds: how long a run lives depends on what else the machine does.
    for line in (None, *sorted(rng.sample(range(5, 190), 4))):
        process = start(folder, *argv)
        while line and process.poll() is None and len(runs.read_lines(log)) < line:
            time.sleep(0.002)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.random() * (0.02 if line else 2))
        process.kill()
        out, err = process.communicate()
        assert "Traceback" not in err and process.returncode in (0, -signal.SIGKILL), err
        finished += process.returncode == 0
        reached.append(max(checkpoint.steps(f"{folder}/killed"), default=0))
    assert reached == sorted(reached) and len(set(reached)) > 1 and finished < 4, reached
    out, err = (process := start(folder, *argv)).communicate()
    assert process.returncode == 0, err
    assert left(f"{folder}/killed") == left(f"{folder}/unbroken")
    assert checkpoint.WRITING not in os.listdir(f"{folder}/killed")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="of other systems it keeps nothing")
def test_used_memory_is_not_given_back():
    program = """if True:
        import resource
        from loop import runs
        runs.prepare_process()
        import jax, jax.numpy as jnp
        f = jax.jit(lambda x: jnp.sin(x @ x) @ x)  # 3 times 16 MB, and as much for what is between
        x = f(jnp.eye(2048)).block_until_ready()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            x = f(x).block_until_ready()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert int(out) < 1000  # pages of 4 KB; given back and asked for again it were 40,000


@pytest.mark.parametrize("plugin, argv, flags, left_to_xla", [
    ("jax_cuda12_plugin", ["config/sudoku_grpo.py"], None, "--xla_gpu_autotune_level=0"),
    ("jax_cuda13_plugin", ["config/countdown_grpo.py"], None, "--xla_gpu_autotune_level=0"),
    ("jax_cuda12_plugin", ["config/sudoku_grpo.py"], "", ""),  # the user's own
    ("jax_cuda12_plugin", ["config/sudoku9_grpo.py"], None, None),  # large enough
    ("jax_cuda12_plugin", ["config/sudoku_grpo.py", "--init_from=out/other"], None, None),  # of unknown size
    ("jax", ["config/sudoku_grpo.py"], None, None),
])  # fmt: skip
def test_a_gpu_searches_no_kernels_for_a_new_small_model(plugin, argv, flags, left_to_xla, monkeypatch):
    monkeypatch.setattr(runs.importlib.util, "find_spec", lambda name: name == plugin or None)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if flags is not None:
        monkeypatch.setenv("XLA_FLAGS", flags)
    runs.skip_autotuning(config.load(argv))
    assert os.environ.pop("XLA_FLAGS", None) == left_to_xla


def test_a_run_with_a_key_that_is_gone_is_not_continued_as_another():
    was = {"dataset": "sudoku", "step_baseline": 0.5, "kl_in_reward": False, "min_p": None}
    with pytest.raises(ValueError, match=r"was run with step_baseline=0.5, .* its model opens as init_from"):
        same_run.check(config.Config(), was, "out/x/step-000001")
    was = {"dataset": "sudoku", "use": ["collapse", "dynamic_sampling"], "on_collapse": "warn", "dynamic_sampling": 0}
    same_run.check(config.Config(), was | {"rollout_steps": None}, "out/x/step-000001")
    refused("with rollout_steps=16, which is not", same_run.check, config.Config(), was | {"rollout_steps": 16}, "")
    with pytest.raises(ValueError, match="was run with dynamic_sampling=1, on_collapse='stop', which is not"):
        same_run.check(config.Config(), was | {"on_collapse": "stop", "dynamic_sampling": 1}, "out/x/step-000001")
    was = {"dataset": "sudoku", "causal_weight": 0.0, "model.causal_text": False, "model.noise": "mask"}
    same_run.check(config.Config(), was, "out/x/step-000001")
    with pytest.raises(ValueError, match=r"was run with model.noise='uniform', .* the commit that can continue it$"):
        same_run.check(config.Config(), was | {"model.noise": "uniform"}, "out/x/step-000001")


@pytest.mark.slow
@pytest.mark.parametrize("max_iters", [2, 3])
def test_an_evaluation_that_failed_is_made_up_for_when_the_run_is_resumed(tmp_path, max_iters):
    def reward(completion):
        return 1.0 if mended else 1 / 0

    rows, mended = [{"prompt": f"{n}:", "completion": "b"} for n in range(9)], False
    shape = model.ModelConfig(n_layer=1, d_model=8, n_head=1)
    cfg = shared.run(
        out_dir=str(tmp_path / "out"), max_iters=max_iters, batch_size=2, max_prompt_len=2, max_new_tokens=2,
        eval_size=2, eval_interval=2, diffusion_steps=2, model=shape,
    )  # fmt: skip
    refused("evaluation at step 2: .*Saved", train.train, cfg, rows, reward)
    mended = True
    train.train(dataclasses.replace(cfg, resume=True), rows, reward)
    log = [json.loads(line) for line in open(tmp_path / "out/metrics.jsonl")]
    assert [row["step"] for row in log if "val/sampled" in row] == [2, 3][: max_iters - 1]
    assert checkpoint.read_run(checkpoint.find(cfg.out_dir))["finished"]


ODD = {"n": np.int64(3), "x": np.arange(2), "day": datetime.date(2026, 11, 27)}
PLAIN = {"n": 3, "x": [0, 1], "day": "2026-11-27"}


def test_the_name_of_a_folder_that_is_no_text_is_written_and_read(tmp_path):
    disk.write_json(tmp_path / "run.json", {"out_dir": "out/\udcff"})
    assert disk.read_json(tmp_path / "run.json") == {"out_dir": "out/\udcff"}


def test_columns_that_json_does_not_know_are_logged_and_written(tmp_path, monkeypatch):
    log = runs.Log(config.Config(out_dir=str(tmp_path)), -1)
    log.samples(1, [{"columns": ODD}])
    assert json.loads((tmp_path / "samples.jsonl").read_text()) == {"step": 1, "columns": PLAIN}
    monkeypatch.setattr(data, "read_rows", lambda path: [{"prompt": "a", "completion": "b", "answer": "b"} | ODD])
    out = str(tmp_path / "out.jsonl")
    monkeypatch.setattr(sys, "argv", ["rewards.py", str(tmp_path / "samples.jsonl"), "--rewards=exact", f"--out={out}"])
    assert score.main() == 0 and json.loads(open(out).read()).items() >= PLAIN.items()
    complete.write_completions([{"prompt": "a"} | ODD], iter("b"), out + "2")
    assert json.loads(open(out + "2").read()) == {"prompt": "a", "completion": "b"} | PLAIN
