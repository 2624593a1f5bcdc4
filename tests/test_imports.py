"""Imports go one way, runtime packages are few, and nothing happens at import."""
import ast
import glob
import graphlib
import io
import os
import subprocess
import sys
import tokenize
from typing import NamedTuple

import pytest

# who may import whom; what a function imports only when it is called counts, too
ARROWS = {
    "machine/mesh": set(), "machine/terminal": set(), "assets/report": set(), "data": set(), "grpo": set(),
    "data/texts": {"data", "machine/mesh"},
    "machine/kernels": {"machine/mesh"}, "model": {"machine/kernels", "machine/mesh"},
    "variants/blocks": {"machine/mesh", "model"}, "variants/caches": {"model"},
    "diffusion": {"machine/kernels", "machine/mesh", "model", "variants/blocks"},
    "machine/lora": {"model"}, "machine/slots": {"machine/mesh", "sample"},
    "sample": {"diffusion", "machine/kernels", "machine/mesh", "machine/terminal", "model", "variants/blocks",
               "variants/caches"},
    "config": {"data", "diffusion", "grpo", "machine/terminal", "model"},
    "disk": {"config", "data", "machine/lora", "machine/mesh", "model"},
    "runs": {"assets/report", "config", "data", "disk", "machine/mesh", "machine/terminal"},
    "judges/rules": set(), "judges/channel": set(), "judges/operations": set(), "judges/values": set(),
    "judges/walls": set(), "judges/stubs": {"judges/operations", "judges/values"},
    "judges/peer": {"judges/channel", "judges/operations", "judges/stubs", "judges/values"},
    "judges/asserts": {"judges/operations", "judges/stubs"}, "judges/languages": {"judges/channel", "judges/walls"},
    "judges/candidate": {"judges/operations", "judges/peer", "judges/stubs", "judges/values", "judges/walls"},
    "judges/zygote": {"judges/candidate", "judges/operations", "judges/peer", "judges/walls"},
    "judges/judge": {"judges/asserts", "judges/channel", "judges/languages", "judges/peer", "judges/values",
                     "judges/walls", "judges/zygote"},
    "judges/warden": {"judges/judge", "judges/languages", "judges/walls", "judges/zygote"},
    "judges/sandbox": {"judges/channel", "judges/judge", "judges/languages", "judges/values", "judges/walls"},
    "judges/programs": {"judges/languages", "judges/rules", "judges/sandbox"},
    "judges/learned": {"config", "data", "data/texts", "diffusion", "disk", "machine/mesh", "model", "sample"},
    "rewards": {"judges/learned", "judges/programs", "judges/rules", "data", "machine/terminal"},
    "machine/writer": {"config", "data", "disk", "machine/mesh", "machine/terminal", "rewards", "runs", "sample"},
    "judges/scores": {"data", "data/texts", "disk", "grpo", "judges/learned", "judges/rules", "machine/mesh",
                      "machine/slots", "rewards", "sample"},
    "rl": {"config", "data", "data/texts", "diffusion", "grpo", "judges/learned", "judges/scores",
                   "machine/mesh", "machine/slots", "model", "rewards", "runs", "sample", "variants/blocks"},
    "machine/cost": {"config", "diffusion", "machine/kernels", "machine/lora", "machine/mesh", "model", "rl",
                     "sample"},
    "machine/start": {"config", "data", "data/texts", "disk", "judges/scores", "machine/cost", "machine/mesh", "model",
                      "runs", "sample"},
}  # fmt: skip
ARROWS["train"] = set(ARROWS) - {"train", "machine/writer"}
PACKAGES = {"jax", "numpy", "optax", "tiktoken", "tqdm", "safetensors", "matplotlib", "wandb"}
PACKAGES |= {"tokenizers", "jinja2", "huggingface_hub", "pyarrow"}  # imported by what needs them


def imported(path):
    """A file -> what it imports: packages, and of folders their files; not what it does as a program, which is
    `__main__` then, that nobody imports."""
    names, tree = set(), ast.parse(open(path).read())
    tree.body = [n for n in tree.body if not (isinstance(n, ast.If) and "__main__" in ast.unparse(n.test))]
    for n in ast.walk(tree):
        if isinstance(n, ast.Import):
            names |= {a.name for a in n.names}
        elif isinstance(n, ast.ImportFrom):
            inside = lambda name, at=n.module: os.path.isfile(f"{at}/{name}.py")
            names |= {f"{n.module}.{a.name}" if inside(a.name) else n.module for a in n.names}
    names = {n.replace(".", "/") for n in names}
    return {n if n in ARROWS else n.split("/")[0] for n in names}


FILES = {name: glob.glob(f"{name}.py") or [f"{name}/__init__.py"] for name in ARROWS} | {"data/bpe": ["data/bpe.py"]}


@pytest.mark.parametrize("name", FILES)
def test_imports_go_one_way(name):
    names, own = imported(FILES[name][0]), "data" if name == "data/bpe" else name
    assert names & set(ARROWS) - {own} <= ARROWS.get(name, set())
    others = names - set(ARROWS) - {own} - sys.stdlib_module_names
    assert others <= PACKAGES, f"{name} needs {others - PACKAGES}"


def test_every_python_file_of_the_program_is_on_the_list():
    there = sum((glob.glob(f"{folder}*.py") for folder in ("", "data/[a-z]", "judges/", "machine/", "variants/")), [])
    assert {f.removesuffix(".py") for f in there} - {"data/bpe"} <= set(ARROWS)


def test_no_arrow_leads_back():
    graphlib.TopologicalSorter(ARROWS).prepare()


def test_a_function_fits_on_a_screen():
    folders = (".", "judges", "machine", "variants", "config", "data/**")
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
    assert sum(a.tokens for a in amounts) <= 23_000
    assert max(a.tokens / a.lines for a in amounts) <= 13.7


def test_lines_of_the_program_are_not_dense():
    folders = ("", "assets/", "config/", "judges/", "machine/", "variants/", "data/")
    paths = [path for folder in folders for path in glob.glob(f"{folder}*.py")]
    recipes = {path for path in glob.glob("config/*.py") if not path.endswith("__init__.py")}
    amounts = [amount(path) for path in paths if path not in recipes]
    assert sum(a.tokens for a in amounts) / sum(a.lines for a in amounts) <= 11.5
    assert sum(a.lambdas for a in amounts) <= 95


def test_functions_of_the_core_have_few_parameters():
    functions = [n for name in CORE for n in ast.walk(ast.parse(open(f"{name}.py").read()))
                 if isinstance(n, ast.FunctionDef)]  # fmt: skip
    assert max(len(n.args.args) + len(n.args.kwonlyargs) for n in functions) <= 9


def test_the_sandbox_starts_without_jax_and_imports_print_nothing():
    code = "import sys; from judges import programs, rules, sandbox; sys.exit(bool({'jax', 'numpy'} & {*sys.modules}))"
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


def test_a_hidden_package_cannot_be_imported():
    code = "import pytest\ntry: import jinja2\nexcept ModuleNotFoundError as e: print(e.name)"
    env = os.environ | {"UNMASK_HIDDEN": "jinja2", "PYTHONPATH": "tests/hidden"}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == "jinja2\n"


def test_ci_runs_the_test_command_before_it_installs_anything_else():
    lines = open(".ci/run").read().splitlines()
    first = next(i for i, line in enumerate(lines) if 'bash -c "$command"' in line)
    assert not any("pip install" in line and "sed" not in line for line in lines[:first])
    assert sum("python -m pytest" in line and "pip install" in line for line in open("README.md")) == 1
