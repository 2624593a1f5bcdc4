"""A fault at every write: whichever operation on a run's folder fails, nothing that was saved is lost or changed."""
import collections
import dataclasses
import os
import shutil

import pytest
import shared
from faults import KINDS, Disk, Killed, faulty
from shared import left, write_rows
from test_train import written

import model
import train
from checkpoints import checkpoint

pytestmark = pytest.mark.usefixtures("one_step_for_all_runs")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run without a fault: its Config, and what it leaves."""
    folder = tmp_path_factory.mktemp("whole")
    write_rows(folder)
    shape = model.ModelConfig(n_layer=1, n_head=1, d_model=4, d_ff=4)
    cfg = shared.run(out_dir=f"{folder}/out", dataset=str(folder), max_prompt_len=3, max_new_tokens=4,
                        max_iters=4, batch_size=4, eval_interval=2, eval_size=2, save_interval=2, log_interval=1,
                        diffusion_steps=1, **{"checkpoint.keep": 1}, warmup_iters=0,
                        model=shape)  # fmt: skip
    train.train(cfg)
    train.train(shared.changed(cfg, out_dir=(killed := f"{folder}/out_killed"), **{"checkpoint.keep": 2}))
    shutil.rmtree(f"{killed}/step-000004")
    return cfg, left(cfg.out_dir)


def fresh(cfg, was):
    """A run that begins."""
    return cfg


def resumed(cfg, was):
    """A run that goes on after its step 2, and had logged more."""
    shutil.copytree(f"{was.out_dir}_killed", cfg.out_dir)
    return dataclasses.replace(cfg, resume=True)


def anew(cfg, was):
    """A run that begins where an earlier one is."""
    shutil.copytree(was.out_dir, cfg.out_dir)
    return cfg


def broken(cfg, on):
    """Trains on a disk -> how it ended: done, said or killed."""
    try:
        with faulty(on):
            train.train(cfg)
        return "done"
    except (ValueError, OSError) as e:
        said, (_, path) = str(e), on.operations[on.at]
        assert os.strerror(KINDS[on.kind]) in said and cfg.out_dir in said, said
        if path.startswith(cfg.out_dir) and not said.startswith(f"{path} cannot be read"):
            assert f"{'make room' if on.kind == 'full' else 'mend that'} and" in said, said
            whole = [checkpoint.checkpoint_folder(cfg.out_dir, step) for step in checkpoint.steps(cfg.out_dir)[-1:]]
            assert (f"{whole[0]} is whole" in said and "--resume=True" in said) if whole else "start again" in said
        return "said"
    except Killed:
        return "killed"


def mended(cfg, want):
    """Goes on after a fault, as the message says, on a disk without faults; then all is as if there had been none."""
    begun = checkpoint.steps(cfg.out_dir) or os.path.exists(f"{cfg.out_dir}/metrics.jsonl")
    train.train(dataclasses.replace(cfg, resume=bool(begun)))
    assert left(cfg.out_dir) == want
    names = {name for name in os.listdir(cfg.out_dir) if not name.startswith("step-")}
    assert names == {*checkpoint.LOGS, "run.json", "report.html"}


def fault(scenario, whole, tmp_path, on):
    """One fault on an empty disk, and what becomes of it -> how the run ended."""
    was, want = whole
    for name in os.listdir(tmp_path):
        shutil.rmtree(tmp_path / name)
    start = scenario(dataclasses.replace(was, out_dir=on.folder), was)
    how = broken(start, on)
    assert (how == "killed") == (on.kind == "killed")
    if scenario is anew:
        earlier = f"{on.folder}.1" if os.path.isdir(f"{on.folder}.1") else on.folder
        assert left(earlier) == want
    mended(start, want)
    return how


def faults(scenario, whole, tmp_path, chosen):
    """chosen(how many operations there are) -> [(number, kind)] of faults: {(operation, kind, how it ended): times}."""
    counted, ended, wrong = Disk(tmp_path / "out"), collections.Counter(), []
    start = scenario(dataclasses.replace(whole[0], out_dir=counted.folder), whole[0])
    with faulty(counted):
        train.train(start)
    assert left(counted.folder) == whole[1]
    for at, kind in chosen(len(counted.operations)):
        on = Disk(tmp_path / "out", at, kind)
        try:
            how = fault(scenario, whole, tmp_path, on)
            ended[on.operations[at][0], kind, how] += 1
        except Exception as e:
            wrong.append(f"{kind} at {at}, {on.operations[at:at + 1]}: {type(e).__name__} {str(e)[:400]}")
    assert not wrong, "\n".join([f"{len(wrong)} faults", *wrong])
    return ended


SCENARIOS = [fresh, resumed, anew]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_at_some_operations_on_a_runs_folder_loses_nothing(scenario, whole, tmp_path):
    kinds = [*KINDS]
    faults(scenario, whole, tmp_path, lambda n: [(n * i // 4 + i, kinds[i]) for i in range(4)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_at_every_operation_on_a_runs_folder_loses_nothing(scenario, kind, whole, tmp_path):
    """Errors that the program treats alike fall on every second operation each."""
    first, step = {"full": (0, 1), "killed": (0, 1), "broken": (0, 2), "interrupted": (1, 2)}[kind]
    ended = faults(scenario, whole, tmp_path, lambda n: [(at, kind) for at in range(first, n, step)])
    print(f"\n{scenario.__name__}, {kind}: {ended.total()} faults", dict(ended))
    assert ended.total() > 100 // step


@pytest.mark.slow
def test_a_process_that_ends_at_an_operation_loses_nothing(whole, tmp_path):
    cfg, want = whole
    with faulty(Disk(tmp_path / "out")) as counted:
        train.train(dataclasses.replace(cfg, out_dir=counted.folder))
    numbers = [str(n) for n in range(0, len(counted.operations), int(os.environ.get("UNMASK_FAULTS", 20)))]
    config_file = written(cfg, tmp_path / "run.py")
    done = shared.python("tests/faults.py", config_file, tmp_path, *numbers, PYTHONPATH=os.getcwd())
    assert done.stdout.splitlines() == [f"{number} 9" for number in numbers], done.stderr
    for number in numbers:
        mended(dataclasses.replace(cfg, out_dir=f"{tmp_path}/{number}/out"), want)
    print(f"\n{len(numbers)} processes were killed")
