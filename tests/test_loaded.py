"""A run loads what it uses: which files one tiny iteration of config/sudoku_grpo.py imports, its base included."""
import os
import subprocess
import sys

import pytest
from test_imports import FILES, amount

CODE = """
import atexit, os, runpy, sys

def report():
    files = [os.path.realpath(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None)]
    print("LOADED", *{os.path.relpath(f) for f in files if f.startswith(os.getcwd() + os.sep)})

atexit.register(report)
sys.argv = ["train.py", *sys.argv[1:]]
sys.path.insert(0, os.getcwd())
runpy.run_path("train.py", run_name="__main__")
"""
TINY = """--max_iters=1 --eval_size=4 --batch_size=8 --keep_completions=8 --rollout_chunk=32 --base.max_iters=2
    --base.stop_at=None --base.eval_size=4 --base.n_layer=1 --base.d_model=32 --base.n_head=1""".split()
ONLY_IF_ASKED_FOR = {
    "rewards that run programs": ["judges/programs", "judges/sandbox", "judges/fences", "judges/languages"],
    "rules of mathematics and of forms": ["judges/formats", "judges/answers", "system/helper"],
    "models as judges": ["judges/model_judge"],
    "a user's own rewards": ["judges/own"],
    "other objectives": ["variants/judge", "variants/dpo"],
    "other people's folders": ["system/families", "system/foreign", "system/adapters", "system/adapt"],
    "other people's tokenizers, chats and rows": ["data/foreign", "data/template", "data/known", "data/readers"],
    "learning a tokenizer, making rows": ["data/learn", "data/making"],
    "chats": ["data/chats"],
    "merges": ["data/byte_merges"],
    "downloads": ["data/hub", "system/recipe"],
    "a base that is there, resuming": ["system/same_run", "system/resume"],
    "a collapse": ["system/restart"],
    "a run that does not fit": ["system/fit", "system/cost"],
    "several devices": ["system/placement"],
    "a GPU": ["system/cudnn"],
    "sampling from some tokens": ["system/top_p"],
    "a mistake in a key or a config file": ["system/unknown"],
    "rows and rewards of a Python program": ["system/in_memory"],
    "programs": [name for name in FILES if name.startswith("tools/")],
}  # fmt: skip


@pytest.mark.slow
def test_the_first_recipe_loads_only_what_it_uses(tmp_path):
    folders = [f"--out_dir={tmp_path}/run", f"--base.out_dir={tmp_path}/base"]
    done = subprocess.run([sys.executable, "-c", CODE, "config/sudoku_grpo.py", *TINY, *folders], text=True,
                          capture_output=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    last = next(line for line in done.stdout.splitlines() if line.startswith("LOADED"))
    loaded = {name: path for name, path in FILES.items() if path in last.split()}
    for what, names in ONLY_IF_ASKED_FOR.items():
        assert set(names) <= FILES.keys(), f"{what}: these files were renamed"
        assert not set(names) & loaded.keys(), what
    assert len(loaded) <= 30
    assert sum(amount(path).tokens for path in loaded.values()) <= 65_600
