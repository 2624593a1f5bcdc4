"""Imports go one way, runtime packages are few, and nothing happens at import."""
import ast
import glob
import graphlib
import io
import os
import subprocess
import sys
import tokenize
import types
from typing import NamedTuple

import pytest

# who may import whom; what a function imports only when it is called counts, too
ARROWS = {
    "system/sharding": set(), "system/terminal": set(), "grpo": set(), "system/hosts": set(), "system/report": set(),
    "system/collapse": set(),
    "judges/helper": set(), "judges/answers": {"judges/helper", "judges/rules"}, "judges/rules": set(),
    "judges/fences": set(), "judges/small_pytest": set(), "judges/walls": set(), "judges/values": set(),
    "judges/channel": set(),
    "judges/operations": set(), "system/kernels": {"system/sharding"},
    "system/disk": {"data/bpe", "system/hosts"},
    "data": {"data/bpe", "data/known", "data/learn", "data/readers", "data/template", "system/terminal"},
    "judges/languages": {"judges/channel", "judges/walls"}, "judges/stubs": {"judges/operations", "judges/values"},
    "variants/checks": set(), "variants/rope": set(), "variants/speed": set(), "variants/uniform": set(),
    "variants/moe": {"system/kernels", "system/sharding"},
    "model": {"system/kernels", "system/sharding", "variants/checks", "variants/moe", "variants/rope",
              "variants/uniform"},
    "data/texts": {"data", "data/bpe", "system/hosts"},
    "judges/peer": {"judges/channel", "judges/operations", "judges/stubs", "judges/values"},
    "judges/asserts": {"judges/operations", "judges/small_pytest", "judges/stubs"},
    "variants/lora": {"model"}, "variants/caches": {"model"},
    "variants/blocks": {"model", "system/sharding"},
    "judges/candidate": {"judges/operations", "judges/peer", "judges/stubs", "judges/values", "judges/walls"},
    "system/huggingface": {"data/bpe", "model", "system/disk", "system/foreign", "system/hosts", "system/sharding",
                           "variants/moe"},
    "diffusion": {"model", "system/kernels", "system/sharding", "variants/blocks"},
    "judges/zygote": {"judges/candidate", "judges/operations", "judges/peer", "judges/walls"},
    "variants/joint": {"diffusion", "model"},
    "variants/drafts": {"diffusion", "model", "system/kernels", "system/sharding", "variants/caches",
                        "variants/joint"},
    "sample": {"diffusion", "model", "system/kernels", "system/sharding", "system/terminal", "variants/blocks",
               "variants/caches", "variants/checks", "variants/drafts", "variants/joint"},
    "config": {"data", "diffusion", "grpo", "model", "system/terminal", "variants/checks"},
    "judges/judge": {"judges/asserts", "judges/channel", "judges/languages", "judges/peer", "judges/values",
                     "judges/walls", "judges/zygote"},
    "variants/slots": {"sample", "system/sharding", "variants/speed"},
    "variants/hints": {"data/texts", "judges/scores", "system/hosts"},
    "checkpoint": {"config", "data/bpe", "model", "system/adapters", "system/disk", "system/hosts",
                   "system/huggingface", "system/sharding"},
    "judges/sandbox": {"judges/channel", "judges/judge", "judges/languages", "judges/values", "judges/walls"},
    "judges/warden": {"judges/judge", "judges/languages", "judges/walls", "judges/zygote"},
    "runs": {"checkpoint", "config", "data", "system/collapse", "system/disk", "system/hosts", "system/report",
             "system/terminal"},
    "judges/model_judge": {"checkpoint", "data", "diffusion", "model", "system/sharding"},
    "tools/film": {"checkpoint", "data", "judges/rules", "sample", "system/report"},
    "rewards": {"judges/rules", "system/terminal"},
    "judges/programs": {"judges/fences", "judges/formats", "judges/languages", "judges/sandbox", "rewards"},
    "judges/scores": {"data/texts", "grpo", "judges/model_judge", "judges/programs", "rewards", "system/hosts",
                      "variants/speed"},
    "tools/score": {"data", "judges/formats", "judges/model_judge", "judges/programs", "rewards", "system/terminal"},
    "tools/compare": {"checkpoint", "runs", "system/disk", "system/report", "system/terminal"},
    "tools/page": {"config", "data", "data/bpe", "data/texts", "model", "sample", "system/report", "variants/rope"},
    "tools/complete": {"checkpoint", "config", "data", "rewards", "runs", "sample", "system/huggingface",
                       "system/sharding", "system/terminal", "tools/doctor", "tools/options", "tools/page"},
    "tools/options": set(),
    "tools/doctor": {"checkpoint", "config", "data", "diffusion", "model", "system/adapters", "system/disk",
                     "system/foreign", "system/huggingface", "system/memory"},
    "rl": {"config", "data", "data/texts", "diffusion", "grpo", "judges/scores", "model", "rewards", "runs", "sample",
           "system/evaluation", "system/sharding", "variants/blocks", "variants/dpo", "variants/hints",
           "variants/joint", "variants/judge", "variants/slots"},
    "system/memory": {"config", "diffusion", "model", "system/kernels", "system/sharding", "variants/lora"},
    "system/start": {"checkpoint", "config", "data", "data/texts", "judges/scores", "model", "runs", "sample",
                     "system/adapters", "system/disk", "system/hosts", "system/huggingface", "system/kernels",
                     "system/memory", "variants/checks", "variants/dpo"},
    "tools/plan": {"checkpoint", "config", "data", "rl", "sample", "system/huggingface", "system/memory",
                   "system/sharding", "system/start", "variants/dpo", "variants/joint"},
    "tools/anatomy": {"checkpoint", "config", "data/bpe", "data/texts", "diffusion", "grpo", "judges/scores", "rewards",
                      "rl", "runs", "sample", "system/report", "system/sharding", "variants/blocks", "variants/drafts",
                      "variants/lora"},
    "data/bpe": set(),
    "system/evaluation": {"config", "data/texts", "diffusion", "grpo", "judges/rules", "judges/scores", "rewards",
                          "sample", "system/sharding", "variants/slots", "variants/speed"},
    "system/in_memory": {"data", "rewards"},
    "variants/dpo": {"data", "data/texts", "diffusion", "judges/scores", "runs", "system/evaluation",
                     "system/sharding"},
    "variants/judge": {"checkpoint", "config", "data", "data/texts", "judges/model_judge", "model", "sample",
                       "system/sharding"},
    "judges/formats": {"judges/answers", "judges/helper", "judges/rules", "rewards"},
    "system/adapters": {"model", "system/disk", "system/huggingface", "variants/lora"},
    "system/families": {"system/huggingface"},
    "system/foreign": {"data/bpe", "data/foreign"},
    "data/foreign": {"data/bpe"},
    "data/learn": {"data/bpe"},
    "data/known": {"system/terminal"},
    "data/readers": {"data/bpe"},
    "data/template": set(),
}  # fmt: skip
# Programs, that nothing imports but for a flag: train.py for --anatomy and --plan, sample.py for --explain and --page.
# sample.py, rewards.py and runs.py launch tools/complete.py, score.py and compare.py, which stand above them.
PROGRAMS = {"tools/anatomy", "tools/compare", "tools/complete", "tools/doctor", "tools/film", "tools/page",
            "tools/plan", "tools/score"}  # fmt: skip
ARROWS["train"] = set(ARROWS) - PROGRAMS | {"tools/anatomy", "tools/plan"}
PACKAGES = {"jax", "numpy", "optax", "tiktoken", "tqdm", "safetensors", "matplotlib", "wandb"}
PACKAGES |= {"tokenizers", "jinja2", "huggingface_hub", "pyarrow"}  # imported by what needs them


def imported(path):
    """A file -> what it imports: packages, and of folders their files; also in functions and as a program."""
    names = set()
    for n in ast.walk(ast.parse(open(path).read())):
        if isinstance(n, ast.Import):
            names |= {a.name for a in n.names}
        elif isinstance(n, ast.ImportFrom):
            inside = lambda name, at=n.module: os.path.isfile(f"{at}/{name}.py")
            names |= {f"{n.module}.{a.name}" if inside(a.name) else n.module for a in n.names}
    names = {n.replace(".", "/") for n in names}
    return {n if n in ARROWS else n.split("/")[0] for n in names}


FILES = {name: glob.glob(f"{name}.py") or [f"{name}/__init__.py"] for name in ARROWS}


@pytest.mark.parametrize("name", FILES)
def test_imports_go_one_way(name):
    names = imported(FILES[name][0])
    assert names & set(ARROWS) - {name} <= ARROWS.get(name, set())
    others = names - set(ARROWS) - sys.stdlib_module_names
    assert others <= PACKAGES, f"{name} needs {others - PACKAGES}"


def test_every_python_file_of_the_program_is_on_the_list():
    folders = ("", "data/[a-z]", "judges/", "system/", "tools/", "variants/")
    there = sum((glob.glob(f"{folder}*.py") for folder in folders), [])
    assert {f.removesuffix(".py") for f in there} <= set(ARROWS)


def test_nothing_imports_a_program():
    assert {name: names & PROGRAMS for name, names in ARROWS.items() if names & PROGRAMS} == {
        "train": {"tools/anatomy", "tools/plan"}, "tools/complete": {"tools/doctor", "tools/page"}}  # fmt: skip


def test_only_a_file_that_is_typed_as_a_command_launches_a_program_and_does_nothing_else_then():
    found = {}
    for name in ARROWS:
        for n in ast.walk(ast.parse(open(FILES[name][0]).read())):
            if isinstance(n, ast.Call) and ast.unparse(n.func) == "terminal.launch":
                found[name] = ast.literal_eval(n.args[0])
    assert found == {"sample": "tools.complete", "runs": "tools.compare", "rewards": "tools.score"}


def test_no_arrow_leads_back():
    graphlib.TopologicalSorter(ARROWS).prepare()


def test_a_function_fits_on_a_screen():
    folders = (".", "judges", "system", "tools", "variants", "config", "data/**")
    paths = [f for folder in folders for f in glob.glob(f"{folder}/*.py", recursive=True)]
    long = {f"{path}: {n.name}" for path in paths for n in ast.walk(ast.parse(open(path).read()))
            if isinstance(n, ast.FunctionDef) and n.end_lineno - n.lineno >= 60}  # fmt: skip
    assert not long


class Amount(NamedTuple):
    """How much there is to read in a file, without comments and docstrings."""

    tokens: int
    lines: int
    lambdas: int


def amount(path):
    source = open(path).read()
    doc = {line for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Module | ast.FunctionDef | ast.ClassDef)
           and ast.get_docstring(n) is not None for line in range(n.body[0].lineno, n.body[0].end_lineno + 1)}
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    found = [t for t in found if t.type not in layout and t.start[0] not in doc]
    lines = {line for t in found for line in range(t.start[0], t.end[0] + 1)}
    return Amount(len(found), len(lines), sum(isinstance(n, ast.Lambda) for n in ast.walk(ast.parse(source))))


CORE = "model", "diffusion", "sample", "grpo", "rl", "train"


def test_what_is_to_be_read_first_is_read_in_an_afternoon():
    amounts = [amount(f"{name}.py") for name in CORE]
    assert sum(a.tokens for a in amounts) <= 22_440
    assert max(a.tokens / a.lines for a in amounts) <= 12.5


def test_lines_of_the_program_are_not_dense():
    folders = ("", "config/", "judges/", "system/", "tools/", "variants/", "data/")
    paths = [path for folder in folders for path in glob.glob(f"{folder}*.py")]
    recipes = {path for path in glob.glob("config/*.py") if not path.endswith("__init__.py")}
    amounts = [amount(path) for path in paths if path not in recipes]
    assert sum(a.tokens for a in amounts) / sum(a.lines for a in amounts) <= 11.0
    assert max(a.tokens / a.lines for a in amounts) <= 12.7
    assert sum(a.lambdas for a in amounts) <= 40


def test_functions_of_the_core_have_few_parameters():
    functions = [n for name in CORE for n in ast.walk(ast.parse(open(f"{name}.py").read()))
                 if isinstance(n, ast.FunctionDef)]  # fmt: skip
    assert max(len(n.args.args) + len(n.args.kwonlyargs) for n in functions) <= 9


def test_the_sandbox_starts_without_jax_and_imports_print_nothing():
    code = "import sys; from judges import rules, sandbox, warden; sys.exit(bool({'jax', 'numpy'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 0 and done.stdout == done.stderr == b""


@pytest.mark.slow
@pytest.mark.parametrize("packages", ["huggingface_hub", "pyarrow,wandb"])  # CI's first stage lacks all but the first
def test_the_quick_tests_pass_without_an_optional_package(packages):
    """In the files that name it, and in those of data sets and tiny models, which open what it might be needed for."""
    named = [f for f in glob.glob("tests/test_*.py") if any(p in open(f).read() for p in packages.split(","))]
    files = {*named} - {"tests/test_imports.py"}
    files |= {"tests/test_data.py", "tests/test_tiny.py"}
    env = {k: v for k, v in os.environ.items() if k != "UNMASK_ORACLES"}
    env |= {"UNMASK_HIDDEN": packages, "PYTHONPATH": "tests/hidden"}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "0", *sorted(files)], env=env,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.slow
def test_the_first_commands_of_the_readme_need_no_optional_package(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "UNMASK_ORACLES"}
    env |= {"UNMASK_HIDDEN": "tokenizers,jinja2,matplotlib", "PYTHONPATH": "tests/hidden"}
    tiny = ["--max_iters=1", "--eval_size=4", "--batch_size=8", "--keep_completions=8", "--rollout_chunk=None"]
    train = ["train.py", "config/sudoku_grpo.py", "--init_from=assets/sudoku_base", f"--out_dir={tmp_path}/run", *tiny]
    for command in (train, ["sample.py", f"{tmp_path}/run", "--prompt=3_2__1________43", "--show"]):
        done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_hidden_package_cannot_be_imported():
    code = "import pytest\ntry: import jinja2\nexcept ModuleNotFoundError as e: print(e.name)"
    env = os.environ | {"UNMASK_HIDDEN": "jinja2", "PYTHONPATH": "tests/hidden"}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == "jinja2\n"


def test_ci_runs_the_test_command_before_it_installs_anything_else():
    lines = open(".ci/run").read().splitlines()
    first = next(i for i, line in enumerate(lines) if 'bash -c "$command"' in line)
    assert not any("pip install" in line and "sed" not in line for line in lines[:first])
    assert sum("python -m pytest" in line and "pip install" in line for line in open("README.md")) == 1


def test_functions_of_the_core_have_few_names_of_their_own():
    def codes(code):
        inside = [c for c in code.co_consts if isinstance(c, types.CodeType)]
        return inside + [c for found in map(codes, inside) for c in found]

    functions = [c for name in CORE for c in codes(compile(open(f"{name}.py").read(), name, "exec"))]
    assert max(len({*c.co_varnames, *c.co_cellvars}) for c in functions) <= 25
