"""Imports go one way, runtime packages are few, and nothing happens at import."""
import ast
import glob
import subprocess
import sys

import pytest

# who may import whom; what a function imports only when it is called counts, too
ARROWS = {
    "machine/mesh": set(), "machine/terminal": set(), "assets/report": set(), "data": set(), "grpo": set(),
    "model": {"machine/mesh"}, "diffusion": {"machine/mesh", "model"},
    "config": {"data", "diffusion", "grpo", "machine/terminal", "model"},
    "disk": {"config", "data", "machine/mesh", "model"},
    "runs": {"assets/report", "config", "disk", "machine/mesh", "machine/terminal"},
    "judges/rules": set(), "judges/sandbox": set(), "judges/programs": {"judges/rules", "judges/sandbox"},
    "judges/learned": {"data", "diffusion", "disk", "machine/mesh", "model"},
    "rewards": {"judges/learned", "judges/programs", "judges/rules", "data", "machine/terminal"},
    "sample": {"config", "data", "diffusion", "disk", "machine/mesh", "machine/terminal", "model", "rewards", "runs"},
    "objectives": {"config", "data", "diffusion", "disk", "grpo", "judges/learned", "judges/rules", "machine/mesh",
                   "model", "rewards", "sample"},
    "machine/cost": {"config", "diffusion", "machine/mesh", "model", "objectives", "sample"},
}  # fmt: skip
ARROWS["train"] = set(ARROWS) - {"train"}
PACKAGES = {"jax", "numpy", "optax", "tiktoken", "tqdm", "safetensors", "matplotlib", "wandb"}
FOLDERS = "judges", "machine"
PACKAGES |= {"tokenizers", "huggingface_hub", "pyarrow", "jinja2"}  # asked for by what needs them


def imported(path):
    """A file -> what it imports: packages, and of folders their files."""
    names = set()
    for n in ast.walk(ast.parse(open(path).read())):
        if isinstance(n, ast.Import):
            names |= {a.name for a in n.names}
        elif isinstance(n, ast.ImportFrom):
            names |= {f"{n.module}/{a.name}" for a in n.names} if n.module in FOLDERS else {n.module}
    return {n.replace(".", "/") if n.startswith((*FOLDERS, "assets")) else n.split(".")[0] for n in names}


FILES = {name: glob.glob(f"{name}.py") or [f"{name}/__init__.py"] for name in ARROWS} | {"data/bpe": ["data/bpe.py"]}


@pytest.mark.parametrize("name", FILES)
def test_imports_go_one_way(name):
    names, own = imported(FILES[name][0]), name.split("/")[0] if name.startswith("data") else name
    assert names & set(ARROWS) - {own} <= ARROWS.get(name, set())
    others = names - set(ARROWS) - {own} - sys.stdlib_module_names
    assert others <= PACKAGES, f"{name} needs {others - PACKAGES}"


def test_every_python_file_of_the_program_is_on_the_list():
    there = sum((glob.glob(f"{folder}*.py") for folder in ("", "judges/", "machine/")), [])
    assert {f.removesuffix(".py") for f in there} <= set(ARROWS)


def test_a_function_fits_on_a_screen():
    folders = (".", "judges", "machine", "config", "data/**")
    paths = [f for folder in folders for f in glob.glob(f"{folder}/*.py", recursive=True)]
    long = {f"{path}: {n.name}" for path in paths for n in ast.walk(ast.parse(open(path).read()))
            if isinstance(n, ast.FunctionDef) and n.end_lineno - n.lineno >= 60}  # fmt: skip
    assert not long


def test_the_sandbox_starts_without_jax_and_imports_print_nothing():
    code = "import sys; from judges import programs, rules, sandbox; sys.exit(bool({'jax', 'numpy'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 0 and done.stdout == done.stderr == b""
