"""Imports go one way, runtime packages are few, and nothing happens at import."""
import ast
import functools
import glob
import graphlib
import io
import re
import sys
import tokenize
import types
from typing import NamedTuple

import jax
import numpy as np
import pytest
import shared
from shared import without

import data
import model
from checkpoints import huggingface
from variants import moe

# Programs, that nothing imports but for a flag: tools/complete.py for --page. train.py, sample.py and
# rewards.py launch theirs, which stand above them.
PROGRAMS = {"tools/anatomy", "tools/complete", "tools/page",
            "tools/plan", "tools/score"}  # fmt: skip
PACKAGES = {"jax", "numpy", "optax", "tiktoken", "tqdm", "safetensors", "wandb"}
PACKAGES |= {"tokenizers", "huggingface_hub", "pyarrow"}  # imported by what needs them
CORE = "model", "diffusion", "sample", "grpo", "rl", "train"
SANDBOX = "judges/sandbox/", "judges/sandbox/wire/", "judges/sandbox/tests/"
FOLDERS = "", "checkpoints/", "data/", "judges/", *SANDBOX, "loop/", "system/", "system/tokens/", "tools/", "variants/"
FILES = {path.removesuffix(".py"): path for folder in FOLDERS for path in glob.glob(f"{folder}*.py")}
FILES = {name.removesuffix("/__init__"): path for name, path in FILES.items()} | {"config": "config/__init__.py"}


@functools.cache
def nodes(path):
    with open(path) as f:
        return [*ast.walk(ast.parse(f.read()))]


def functions(paths):
    return [(path, n) for path in paths for n in nodes(path) if isinstance(n, ast.FunctionDef)]


def imported(path):
    """A file -> what it imports, our files by their path; also in functions and as a program."""
    names = set()
    for n in nodes(path):
        if isinstance(n, ast.Import):
            names |= {a.name for a in n.names}
        elif isinstance(n, ast.ImportFrom):
            inside = lambda name, at=n.module: f"{at}/{name}".replace(".", "/") in FILES
            names |= {f"{n.module}.{a.name}" if inside(a.name) else n.module for a in n.names}
    names = {n.replace(".", "/") for n in names}
    return {n if n in FILES else n.split("/")[0] for n in names}


IMPORTED = {name: imported(path) - {name} for name, path in FILES.items()}
OURS = {name: found & FILES.keys() for name, found in IMPORTED.items()}


def of(folder, names):
    """Those of these files that are in a folder."""
    return {name for name in names if name.startswith(folder)}


def test_no_import_leads_back():
    """Nor by a package, whose own file runs before each of its modules."""
    packages = {name: {other.rpartition("/")[0] for other in found} & FILES.keys() for name, found in OURS.items()}
    ran = {name: found | packages[name] - {name} for name, found in OURS.items()}
    graphlib.TopologicalSorter(ran).prepare()


def test_few_packages_are_needed():
    ours = FILES.keys() | sys.stdlib_module_names | {folder.strip("/") for folder in FOLDERS}
    assert {name: found - ours - PACKAGES for name, found in IMPORTED.items() if found - ours - PACKAGES} == {}


def test_the_core_stands_on_a_few_small_files_of_system_and_only_the_loop_on_what_wraps_it():
    """A variant imports the core and adds itself to its tables."""
    under = {"system/kernels", "system/recipe", "system/sections", "system/sharding", "system/terminal",
             "system/filters", "system/remat", "system/index", "system/unknown"}
    for name in (*CORE, "config"):
        assert of("system/", OURS[name]) <= under, name


# The rooms of this house, the ground first. `loop` is what stands around the loop of train.py: runs, setup, evaluation.
FLOORS = ("system", "data", "grpo", "model", "diffusion", "sample", "config", "checkpoints", "judges", "rewards", "rl",
          "loop", "train", "variants", "tools")  # fmt: skip
# Which add themselves to its table.
UPWARD = {(f"judges/{name}", "rewards") for name in ("programs", "formats", "batches", "sudoku")}


def test_a_file_imports_only_what_stands_on_its_floor_or_below():
    def floor(name):
        return FLOORS.index(name.split("/")[0])

    up = {(name, other) for name, found in OURS.items() for other in found if floor(other) > floor(name)}
    assert up == UPWARD
    assert not OURS["grpo"]  # which may be copied alone


def test_nothing_imports_a_program():
    found = {name: names & PROGRAMS for name, names in OURS.items() if names & PROGRAMS}
    assert found == {"tools/complete": {"tools/page"}}


def test_only_a_file_that_is_typed_as_a_command_launches_a_program_and_does_nothing_else_then():
    found = {name: ast.unparse(n.args[0]) for name, path in FILES.items() for n in nodes(path)
             if isinstance(n, ast.Call) and ast.unparse(n.func).startswith("terminal.launch")}  # fmt: skip
    assert found == {
        "sample": "'tools.complete'", "rewards": "'tools.score'",
        "train": "{'-h': 'loop.help', '--help': 'loop.help', '--plan': 'tools.plan', '--anatomy': 'tools.anatomy'}"
    }  # fmt: skip


NEEDED = {  # a file of variants/ -> fields of a model that needs it
    "moe": {"use": (moe.Shape(),), "blocks.block": 4, "qk_norm": True},
    "rope": {"rope.scaling": (8.0, 1.0, 4.0, 64.0), "causal": True, "shift": True},
    "causal": {"causal": True, "shift": True}, "blocks": {"blocks.block": 4, "qk_norm": True},
    "gemma": {"causal": True, "shift": True, "gemma": True, "tie_embeddings": True},
}  # fmt: skip
READ = """
import sys
from checkpoints import huggingface
try:
    huggingface.read_config(sys.argv[1])
except ValueError as e:
    print(e)
"""


@pytest.mark.slow
@pytest.mark.parametrize("hidden", ["variants", "tokenizers"])
def test_the_first_commands_of_the_readme_need_neither_variants_nor_an_optional_package(hidden, tmp_path):
    tiny = ["--max_iters=1", "--eval_size=4", "--batch_size=8"]
    base, run = (["train.py", f"config/sudoku_{name}.py", f"--out_dir={tmp_path}/{name}", *tiny]
                 for name in ("base", "grpo"))  # fmt: skip
    run += ["--init_from=assets/sudoku_base", "--keep_completions=8", "--rollout_chunk=None"]
    for command in (base, run, ["sample.py", f"{tmp_path}/grpo", "--prompt=3_2__1________43", "--show"]):
        done = without(hidden, *command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDED)
def test_without_a_variant_a_model_that_needs_it_says_so(name, tmp_path):
    cfg = shared.shape(vocab_size=12, n_layer=1, n_head=2, d_model=16, mask_id=11, **NEEDED[name])
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), cfg))
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params)
    huggingface.save(tmp_path, params, cfg)
    done = without(f"variants.{name}", "-c", READ, tmp_path)
    assert done.returncode == 0, done.stderr
    lacking = (rf"no file of variants/ has {name}\b.*, which such a model needs|"
               rf"mask={name!r}: one of all(, \w+)*; no file variants/{name}.py adds it")  # fmt: skip
    assert re.fullmatch(f"{re.escape(str(tmp_path))}/config.json: ({lacking})\n", done.stdout)


def test_a_function_fits_on_a_screen_and_those_of_the_core_have_few_parameters():
    folders = (".", "checkpoints", "judges/**", "loop", "system/**", "tools", "variants", "config", "data/**")
    paths = [f for folder in folders for f in glob.glob(f"{folder}/*.py", recursive=True)]
    assert not {f"{path}: {n.name}" for path, n in functions(paths) if n.end_lineno - n.lineno >= 60}
    few = [n.args for _, n in functions([f"{name}.py" for name in CORE])]
    assert max(len(args.args) + len(args.kwonlyargs) for args in few) <= 9


class Amount(NamedTuple):
    """How much there is to read in a file, without comments and docstrings."""

    tokens: int
    lines: int
    lambdas: int


LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
OPENS, CLOSES = getattr(tokenize, "FSTRING_START", None), getattr(tokenize, "FSTRING_END", None)  # since Python 3.12


def tokens(source):
    """List the tokens of a source without its layout. An f-string is one token, as in Python 3.11."""
    found, opened = [], []
    for t in tokenize.generate_tokens(io.StringIO(source).readline):
        if t.type == OPENS:
            opened.append(t.start)
        elif t.type == CLOSES:
            t = t._replace(start=opened.pop())
        if t.type not in LAYOUT and not opened:
            found.append(t)
    return found


@functools.cache
def amount(path):
    """Measure a file. What an f-string formats counts as it would outside, with two tokens for its braces."""
    with open(path) as f:
        source = f.read()
    doc = {line for n in nodes(path) if isinstance(n, ast.Module | ast.FunctionDef | ast.ClassDef)
           and ast.get_docstring(n) is not None for line in range(n.body[0].lineno, n.body[0].end_lineno + 1)}
    found = [t for t in tokens(source) if t.start[0] not in doc]
    lines = {line for t in found for line in range(t.start[0], t.end[0] + 1)}
    formatted = [len(tokens(ast.unparse(n.value))) + 2 for n in nodes(path) if isinstance(n, ast.FormattedValue)]
    return Amount(len(found) + sum(formatted), len(lines), sum(isinstance(n, ast.Lambda) for n in nodes(path)))


def test_what_an_f_string_formats_is_counted_alike_by_all_versions_of_python(tmp_path):
    (tmp_path / "a.py").write_text('x = f"a {b + f(1):.{digits}f} {c[0]!r}"\n')
    assert amount(tmp_path / "a.py")[:2] == (3 + (6 + 2) + (1 + 2) + (4 + 2), 1)


def test_what_is_to_be_read_first_is_read_in_an_afternoon():
    amounts = [amount(f"{name}.py") for name in CORE]
    assert sum(a.tokens for a in amounts) <= 15_500
    assert max(a.tokens / a.lines for a in amounts) <= 12.5


def test_lines_of_the_program_are_not_dense():
    found = {path: amount(path) for path in {*FILES.values()} & {*shared.tracked("**/*.py")}}
    amounts = found.values()
    assert sum(a.tokens for a in amounts) / sum(a.lines for a in amounts) <= 11.2
    assert not {path: a.tokens / a.lines for path, a in found.items() if a.tokens > 12.5 * a.lines}
    assert sum(a.lambdas for a in amounts) <= 40


@pytest.mark.slow
def test_the_quick_tests_of_data_sets_pass_without_the_package_that_fetches_them():
    """The other optional packages are not there in CI's first stage, which runs all quick tests."""
    files = "tests/test_data.py", "tests/test_tiny.py"
    done = without("huggingface_hub", "-m", "pytest", "-q", "-n", "0", *files)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_functions_of_the_core_have_few_names_of_their_own():
    def codes(code):
        inside = [c for c in code.co_consts if isinstance(c, types.CodeType)]
        return inside + [c for found in map(codes, inside) for c in found]

    found = [c for name in CORE for c in codes(compile(open(f"{name}.py").read(), name, "exec"))]
    assert max(len({*c.co_varnames, *c.co_cellvars}) for c in found) <= 25


IMPORTED_BY_A_RUN = """
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
ONLY_IF_ASKED_FOR = of("tools/", FILES) | of("judges/sandbox/", FILES) | set("""judges/programs judges/fences
    judges/formats judges/answers judges/model_judge judges/own variants/judge system/helper judges/batches
    judges/sudoku loop/memory loop/failures loop/reference
    checkpoints/families checkpoints/foreign checkpoints/parts checkpoints/adapters checkpoints/adapt
    checkpoints/resume system/recipe
    loop/same_run system/index system/remat system/sixteen_bits system/stretches system/placement system/cudnn
    system/filters system/unknown loop/in_memory data/known data/readers data/learn data/making data/chats
    data/hub data/fill_in checkpoints/best system/tokens/foreign
    system/tokens/byte_merges""".split())


@pytest.mark.slow
def test_the_first_recipe_loads_only_what_it_uses(tmp_path):
    folders = [f"--out_dir={tmp_path}/run", f"--base.out_dir={tmp_path}/base"]
    data.tokenizer("sudoku_grid")  # which makes it, once
    done = shared.python("-c", IMPORTED_BY_A_RUN, "config/sudoku_grpo.py", *TINY, *folders, JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr[-2000:]
    last = next(line for line in done.stdout.splitlines() if line.startswith("LOADED"))
    loaded = {name: path for name, path in FILES.items() if path in last.split()}
    assert not ONLY_IF_ASKED_FOR - FILES.keys(), "these files were renamed"
    assert not ONLY_IF_ASKED_FOR & loaded.keys()
    assert len(loaded) <= 26
    assert sum(amount(path).tokens for path in loaded.values()) <= 52_000
