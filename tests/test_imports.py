"""Imports go one way, runtime packages are few, and nothing happens at import."""
import ast
import glob
import subprocess
import sys

import pytest

# who may import whom; what a function imports only when it is called counts, too
ARROWS = {
    "model": set(), "config": {"model"}, "data": set(), "rules": set(), "sandbox": set(), "diffusion": {"model"},
    "programs": {"rules", "sandbox"}, "runs": {"config", "diffusion", "model", "terminal"},
    "judge": {"data", "diffusion", "model", "runs"},
    "rewards": {"programs", "rules", "data", "judge", "terminal"},
    "sample": {"config", "data", "diffusion", "model", "rewards", "runs", "terminal"}, "grpo": set(), "terminal": set(),
    "tiny": {"data", "model"},
    "objectives": {"config", "data", "diffusion", "grpo", "judge", "model", "rewards", "rules", "sample"},
}  # fmt: skip
ARROWS["train"] = set(ARROWS)
PACKAGES = {"jax", "numpy", "optax", "tiktoken", "tqdm", "safetensors", "matplotlib", "wandb"}


def imported(path):
    nodes = [n for n in ast.walk(ast.parse(open(path).read())) if isinstance(n, (ast.Import, ast.ImportFrom))]
    return {name.split(".")[0] for n in nodes
            for name in ([a.name for a in n.names] if isinstance(n, ast.Import) else [n.module])}  # fmt: skip


FILES = {name: glob.glob(f"{name}.py") or [f"{name}/__init__.py"] for name in ARROWS} | {"data/bpe": ["data/bpe.py"]}


@pytest.mark.parametrize("name", FILES)
def test_imports_go_one_way(name):
    names = imported(FILES[name][0])
    assert names & set(ARROWS) - {"data" if name == "data/bpe" else name} <= ARROWS.get(name, set()) | {
        "data" if name == "data" else name}  # fmt: skip
    others = names - set(ARROWS) - sys.stdlib_module_names
    assert others <= PACKAGES, f"{name} needs {others - PACKAGES}"


def test_every_python_file_of_the_program_is_on_the_list():
    assert {f.removesuffix(".py") for f in glob.glob("*.py")} <= set(ARROWS)


def test_the_sandbox_starts_without_jax_and_imports_print_nothing():
    code = "import sys, sandbox, programs, rules; sys.exit(bool({'jax', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 0 and done.stdout == done.stderr == b""
