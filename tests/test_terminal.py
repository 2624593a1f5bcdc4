"""At the terminal: what a person may type, send or lack is answered with one sentence and an exit code, never lost."""
import ast
import contextlib
import errno
import fcntl
import fnmatch
import os
import re
import resource
import runpy
import signal
import subprocess
import sys
import time
import types

import cost
import jax
import pytest
from shared import refused
from tqdm import tqdm

import config
import data
import model
import rl
import train
from checkpoints import checkpoint, older
from loop import failures, runs, same_run, setup
from system import index, terminal, unknown
from tools import complete

WRONG = [  # a command line, and what must be in the one sentence that answers it. TMP is a folder with a FILE in it
    ("config/sudoku_grpo.py --n_layer=3", "n_layer=3, but the model of config/sudoku_base.py has n_layer=4"),
    ("config/sudoku_grpo.py --base.sed=1", "unknown config key 'sed', did you mean 'seed'?"),
    ("config/sudoku_grpo.py --logp_est=exact", "the model of config/sudoku_base.py is not causal"),
    ("config/sudoku_grpo.py --base.seed 1", "write it as --base.seed=VALUE"),
    ("config/sudoku_grpo.py --minibatch_size=36", "minibatch_size=36 must divide the 96 completions that learn: "
                                                  "--minibatch_size=12 does"),
    ("config/sudoku_grpo.py --batch_size=2 --gradient_accumulation_steps=16", "--gradient_accumulation_steps=8 does"),
    ("config/sudoku_grpo.py --judge_from=out/j", "is for the reward 'judge'; leave it out"),
    ("config/sudoku.py --resume=True --out_dir=TMP/typo", "there is no run in 'TMP/typo'"),
    ("config/sudoku.py --out_dir=TMP/FILE/x", "Not a directory"),
    ("config/sudoku.py --out_dir=TMP/FILE", "must be the name of a folder of its own"),
    ("config/sudoku.py --resume=TMP/typo", "the run that goes on is the one in out_dir: --out_dir=FOLDER --resume"),
    ("config/own_grpo.py --dataset=TMP/mine.jsonl", "no data set 'TMP/mine.jsonl': there is no such file"),
    ("config/sudoku_grpo.py --rewards=length(target=4", "'length(target=4' lacks a closing parenthesis"),
    ("config/sudoku_grpo.py --rewards=regex(pattern=()",
     "the reward 'regex' cannot be computed with pattern=(: missing ), unterminated subpattern"),
    ("config/countdown_grpo.py --max_prompt_len=3 --base.out_dir=TMP/base", "no row fits max_prompt_len=3"),
    ("config/sudoku_grpo.py --max_new_tokens=9 --base.out_dir=TMP/base", "no more tokens than max_new_tokens=9"),
    ("config/arith_grpo.py --texts.chat_template=llama3 --base.out_dir=TMP/base", "which this tokenizer does not have"),
    ("config/arith_grpo.py --curriculum.schedule=0,1 --base.out_dir=TMP/base", "but the easiest row has 2"),
    ("config/sudoku_grpo.py --base.max_iters=x", "--base.max_iters=x: expected a whole number"),
    ("config/sudoku_grpo.py --base.n_layer=x", "--base.n_layer=x: expected a whole number"),
    ("config/sudoku_grpo.py --step_baseline=0.5",
     "'step_baseline': there is no such thing here: credit per step gained nothing"),
    ("config/sudoku.py --logp_chunk=8", "'logp_chunk': here it is gradient_accumulation_steps"),
    ("config/sudoku.py --hosts.processes=2", "'hosts.processes': there is no such thing here: a run is one process"),
]


@pytest.mark.parametrize("command, sentence", WRONG)
def test_what_can_be_known_is_said_before_anything_is_moved_trained_or_compiled(
        command, sentence, tmp_path, monkeypatch):
    (tmp_path / "FILE").write_text("")
    place = lambda text: text.replace("TMP", str(tmp_path))
    monkeypatch.setattr(runs, "prepare_process", lambda: None)
    monkeypatch.setattr("loop.setup.find_or_train", lambda *_: pytest.fail("a base was trained first"))
    monkeypatch.setattr(sys, "argv", ["train.py", *place(command).split()])
    with pytest.raises(SystemExit) as e:
        train.main()
    assert e.value.code.startswith("error: ") and place(sentence) in e.value.code and "\n" not in e.value.code
    assert not re.search(r"\.py, line \d+: ", e.value.code)  # a sentence that somebody wrote
    assert os.listdir(tmp_path) == ["FILE"]


THEIRS = """lr=learning_rate beta=kl_beta epsilon=clip_low num_generations=group_size kl_coef=kl_beta mode=objective
    max_completion_length=max_new_tokens device=JAX_PLATFORMS dp=mesh judge_checkpoint=judge_from
    ema_alpha=moving_reference.decay
    save_total_limit=checkpoint.keep normalize_advantages=adv_norm num_train_epochs=num_epochs min_lr=lr_end
    num_iterations=updates_per_rollout block_length=block_len gen_length=max_new_tokens steps=diffusion_steps
    remasking=order per_device_train_batch_size=batch_size max_prompt_length=max_prompt_len max-steps=max_iters
    actor_rollout_ref.model.path=init_from custom_reward_function.path=rewards micro_train_batch_size=gradient_acc
    max_tokens_to_generate=max_new_tokens loss=loss_type num_gpus=CUDA_VISIBLE_DEVICES"""


@pytest.mark.parametrize("theirs, ours", [pair.split("=") for pair in THEIRS.split()])
def test_a_key_of_another_system_is_answered_with_ours_of_that_meaning(theirs, ours):
    with pytest.raises(ValueError) as e:
        config.load(["config/sudoku.py", f"{'' if '.' in theirs else '--'}{theirs}=1"])  # verl's have no dashes
    assert ours in str(e.value).partition(":")[2] and "did you mean" not in str(e.value)


def test_every_key_that_a_table_names_is_there():
    keys = {*index.all_keys()}
    known = {name.split(".")[-1] for name in config.flatten(config.Config())} | keys
    table = unknown.foreign_keys()
    assert {re.match(r"[\w.]+", answer)[0] for _, sign, answer in table if sign == "="} <= known
    assert {line.split()[1] for line in older.RENAMED.read_text().splitlines()} <= known
    named = {word for *_, answer in table for word in re.findall(r"(?<![\w.-])[a-z]+_[a-z_.]*[a-z]\b", answer)}
    of_others = {"xml_tags", "xml_answer", "grad_norm", "update_norm", "update_ratio"}  # rewards, metrics
    of_others |= {"dr_grpo", "entropy_bonus", "one_step"}  # values
    assert named - known <= of_others and {sign for _, sign, _ in table} == {"=", "-"}
    known -= {"checkpoint"}  # our file, and the key of others for init_from
    assert not [name for name in known for theirs, *_ in table if fnmatch.fnmatchcase(name, theirs)]
    assert len({theirs for theirs, *_ in table}) == len(table)
    assert {key.removeprefix("model.") for key in same_run.FREE + same_run.LENGTH} <= known


def test_other_keys_follow_where_that_is_what_was_meant():
    cfg = config.load(["config/sudoku_grpo.py", "--batch_size=2", "--learning_rate=1e-6"])
    assert (config.n_update(cfg), config.minibatch(cfg), config.updates_per_iter(cfg)) == (8, 8, 4)
    assert cost.count_rows(cfg) == 4 * 8 * 2
    _, rate = setup.optimizer(cfg)
    assert float(rate(4 * 200)) == pytest.approx(1e-6 / 60)
    assert config.minibatch(config.load(["config/smollm2_grpo.py", "--batch_size=2", "--init_from=x"])) == 16
    causal = "config/sudoku_d1_grpo.py --init_from=config/arith_ar_base.py --order=left --logp_est="
    assert config.load((causal + "exact").split()).logp_est == "exact"  # a causal base is known by its config file
    refused("causal: take exact", config.load, (causal + "trace").split())


def test_the_program_runs_from_any_folder_and_writes_where_one_is(tmp_path, monkeypatch):
    root = os.getcwd()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    cfg = config.load(["config/sudoku_grpo.py", "--out_dir=~/x"])
    assert (cfg.init_from, cfg.out_dir) == (f"{root}/config/sudoku_base.py", f"{tmp_path}/x")
    assert config.load([f"{root}/config/sudoku_grpo.py"]).out_dir == "out/sudoku_grpo"
    assert config.base_run(cfg).out_dir == "out/sudoku_base"
    assert config.read_file("config/grammar.py").rewards == (f"{root}/data/grammar/prepare.py:grammatical",)
    (tmp_path / "rows.jsonl").write_text("{}")
    assert config.load(["config/sudoku.py", "--dataset=~/rows.jsonl"]).dataset == f"{tmp_path}/rows.jsonl"
    os.mkdir("config")
    (tmp_path / "config/sudoku.py").write_text("from config import Config\nconfig = Config(seed=9)")
    assert config.read_file("config/sudoku.py").seed == 9  # what is in the working folder comes first


def test_a_device_that_is_not_there_is_said_in_one_sentence(monkeypatch, capsys):
    def nothing():
        raise RuntimeError("Unable to initialize backend 'cuda': no GPU\nand forty lines more")

    monkeypatch.setattr(jax, "devices", nothing)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    sentence = "JAX finds no device as JAX_PLATFORMS=cuda asks for .* no GPU.: unset"
    monkeypatch.setattr(sys, "argv", ["train.py", "config/sudoku.py"])
    for main in (train.main, lambda: complete.main(["out/x", "--prompt=a"])):  # both programs say it in one manner
        with pytest.raises(SystemExit, match="^2$"):
            terminal.run(main)
        assert re.fullmatch(f"error: {sentence}.*\n", capsys.readouterr().err)


def test_an_old_python_reads_the_programs_and_says_which_one_is_needed(monkeypatch):
    for program in ("system/terminal.py", "train.py", "sample.py", "rewards.py"):
        first = ast.parse(open(program).read(), feature_version=(3, 8)).body[1:3]
        begins = [call for call in ("terminal.begin()", "terminal.launch") for n in first if call in ast.unparse(n)]
        assert program == "system/terminal.py" or begins
    assert all(isinstance(kind, str) for kind in terminal.guarded.__annotations__.values())  # which it need not know
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(SystemExit, match="error: Python 3.11 or newer is needed, this is "):
        terminal.begin()


@pytest.mark.parametrize("line, place", [
    ("x, y = 1, 2, 3", ".* (FILE, line 2: x, y = 1, 2, 3)"), ("raise ValueError('mine')", "mine"),
    ("jnp.ones((2, 3)) + jnp.ones(4)", ".* (FILE, line 2: jnp.ones((2, 3)) + jnp.ones(4))"),
])  # fmt: skip
def test_an_error_that_no_raise_of_ours_made_names_the_last_line_outside_of_packages(line, place, tmp_path):
    (tmp_path / "a.py").write_text(f"import jax.numpy as jnp\n{line}\n")
    run, state = types.SimpleNamespace(cfg=config.Config()), rl.State(0, {}, (), None, None)
    with pytest.raises(SystemExit) as e, terminal.errors_explained():
        try:
            runpy.run_path(str(tmp_path / "a.py"))
        except ValueError as error:
            raise failures.save_and_explain(run, state, None, "step 1", error) from error
    said = re.escape(place).replace(r"\.\*", ".*").replace("FILE", str(tmp_path / "a.py"))
    assert re.fullmatch(f"error: step 1: {said}", e.value.code)


def test_a_device_that_runs_out_of_memory_is_one_sentence(monkeypatch):
    def full(cfg):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmuch more")

    monkeypatch.setattr(train, "train", full)
    monkeypatch.setattr(runs, "prepare_process", lambda: None)
    monkeypatch.setattr(sys, "argv", ["train.py", "config/sudoku.py"])
    with pytest.raises(SystemExit, match="error: the device has no memory left: a smaller batch_size.*9 bytes.*$"):
        train.main()


@pytest.mark.parametrize("limit", [False, True])
def test_a_full_disk_is_said_with_the_checkpoint_that_is_whole_and_does_not_stay_full(limit, tmp_path):
    out, before = str(tmp_path / "out"), resource.getrlimit(resource.RLIMIT_FSIZE)
    os.makedirs(f"{out}/step-000003")
    words = f"{'File too large' if limit else 'No space left on device'} at {out}/.writing/.*: "
    with pytest.raises(ValueError, match=f"{words}{out}/step-000003 is whole; make room and"):
        with runs.locked(out):
            os.makedirs(f"{out}/{checkpoint.WRITING}")
            if not limit:
                raise OSError(errno.ENOSPC, "?", f"{out}/{checkpoint.WRITING}/model.safetensors")
            try:
                shape = model.ModelConfig(n_layer=1, n_head=1, d_model=16, mask_id=1)
                state = rl.State(4, model.init(jax.random.key(0), shape), (), None, None)
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
                checkpoint.save_run(config.Config(out_dir=out, model=shape), state, None, None, False)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(out) == ["step-000003"]
    with pytest.raises(FileNotFoundError), runs.locked(out):  # other errors are what they are
        open(f"{out}/nothing")
    with pytest.raises(OSError, match="_base"), runs.locked(out):  # also those of a run whose name only begins so
        os.mkdir(f"{out}/{checkpoint.WRITING}")
        raise OSError(errno.ENOSPC, "?", f"{out}_base/{checkpoint.WRITING}/model.safetensors")
    assert os.listdir(f"{out}/{checkpoint.WRITING}") == []


def test_a_lock_is_between_processes_and_ends_with_a_kill(tmp_path):
    hold = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print(1, flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", hold, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    with pytest.raises(ValueError, match="another run writes into"), runs.locked(str(tmp_path)):
        pass
    other.kill()
    other.communicate()
    (tmp_path / "kept").write_text("")
    with runs.locked(str(tmp_path)):
        pass


def test_a_folder_that_another_run_deletes_while_it_is_locked_is_made_and_locked_again(tmp_path, monkeypatch):
    out, flock, rmdir = str(tmp_path / "out"), fcntl.flock, os.rmdir

    def after_deletion(handle, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        rmdir(out)
        flock(handle, how)

    def is_locked(path):
        with pytest.raises(ValueError, match="another run writes into"), runs.locked(path):
            pass

    monkeypatch.setattr(fcntl, "flock", after_deletion)
    with runs.locked(out):
        monkeypatch.setattr(os, "rmdir", is_locked)  # of an empty folder, at the end: it is still locked
        is_locked(out)
    monkeypatch.undo()


def test_when_nobody_reads_any_more_the_loop_is_asked_to_save_and_goes_on(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with terminal.guarded(stream), runs.StopRequested() as asked:
            print("to nobody")
            tqdm.write("nor this")
            assert asked.signal == signal.SIGHUP
        monkeypatch.undo()
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream, contextlib.redirect_stdout(stream), pytest.raises(SystemExit) as e:
        terminal.run(lambda: print("to nobody"))
    assert e.value.code == 129


def test_a_hangup_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with runs.StopRequested() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
            assert asked.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_data_is_made_where_ctrl_c_does_not_reach(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "ROOT", tmp_path)
    os.mkdir(tmp_path / "own")
    (tmp_path / "own/prepare.py").write_text("import os, pathlib\npathlib.Path(__file__).with_name('group').write_text("
                                             "str(os.getpgrp()))")
    data.prepare(tmp_path / "own")
    assert int((tmp_path / "own/group").read_text()) != os.getpgrp()


def test_ctrl_c_during_the_imports_is_quiet():
    process = subprocess.Popen([sys.executable, "train.py", "config/sudoku.py"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)  # fmt: skip
    while "numpy" not in open(f"/proc/{process.pid}/maps").read():
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.communicate() == (b"", b"") and process.returncode == -signal.SIGINT  # in a shell, 130


@pytest.mark.parametrize("name, other", [("stdout", "stderr"), ("stderr", "stdout")])
def test_a_stream_that_cannot_be_written_ends_the_program_and_the_other_says_why(
        name, other, tmp_path, monkeypatch, capsys):
    def main():
        with runs.locked(str(tmp_path / "out")):  # which is not to blame
            print("words", file=getattr(sys, name))
            pytest.fail("it goes on")

    with open("/dev/full", "w") as full, monkeypatch.context() as m, pytest.raises(SystemExit) as e:
        m.setattr(sys, name, full)
        terminal.run(main)
    assert e.value.code == 129
    assert getattr(capsys.readouterr(), other[3:]) == f"error: {name} cannot be written: No space left on device\n"


def test_a_closed_stream_is_refused():
    done = subprocess.run(["sh", "-c", "exec $0 train.py >&-", sys.executable], capture_output=True, text=True)
    assert done.returncode == 1 and re.fullmatch("error: stdout and stderr have to be open: .*\n", done.stderr)


@pytest.mark.parametrize("encoding, shown", [("ascii", "\\xe9 \\U0001f600"), ("latin-1", "é \\U0001f600")])
def test_what_a_terminal_cannot_show_is_escaped(encoding, shown, tmp_path, monkeypatch):
    with open(tmp_path / "out", "w", encoding=encoding) as stream, pytest.raises(SystemExit) as e:
        monkeypatch.setattr(sys, "stdout", stream)
        terminal.run(lambda: print("é 😀"))
    assert e.value.code is None and (tmp_path / "out").read_text(encoding=encoding) == shown + "\n"


@pytest.mark.parametrize("flag, said", [
    ("--plan=9", "error: --plan=9: expected "), ("--plan", "error: --plan=: expected "),
    ("--anatomy=.", "error: --anatomy=. must name a new file"), ("--anatomy", "error: --anatomy="),
])  # fmt: skip
def test_a_program_that_a_flag_of_train_launches_says_what_is_wrong_in_one_sentence(
        flag, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", "config/sudoku.py", flag])
    with pytest.raises(SystemExit, match="^2$"):
        runpy.run_path("train.py", run_name="__main__")
    err = capsys.readouterr().err
    assert err.startswith(said) and err.count("\n") == 1


@pytest.mark.parametrize("file, folder, said", [
    ("sudoku_grpo.py", "config", "a config file is no program: python train.py sudoku_grpo.py"),
    ("config/sudoku_grpo.py", ".", "a config file is no program: python train.py config/sudoku_grpo.py"), *(
        (f"tools/{name}.py", ".", "error: type python ") for name in "anatomy complete page plan".split())])
def test_a_config_file_or_a_tool_that_is_run_as_a_program_says_what_to_type(file, folder, said):
    done = subprocess.run([sys.executable, file], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout and re.fullmatch(re.escape(said) + ".*\n", done.stderr)
