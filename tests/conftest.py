"""Set up all tests: sys.path (the modules of this project are plain files, not a package), and quick compiling."""
import collections
import gc
import importlib.metadata
import importlib.util
import math
import os
import re
import subprocess
import sys

# XLA of jaxlib 0.10 has two ways to compile fusions, and the older is quicker to compile: tests/test_model.py and
# tests/test_rl.py take 42 instead of 70 CPU seconds. From 0.11.1 on there is one way and no such flag (XLA ends a
# process that sets an unknown one): they take 57 with 0.12, and no other flag made that less.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false"

import jax
import numpy as np
import pytest
from hypothesis import settings

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)
os.chdir(ROOT)
settings.register_profile("the same in every run", derandomize=True, deadline=None)
settings.load_profile("the same in every run")


def normal(key, shape=(), dtype=None, draw=jax.random.normal, **more):
    """Stand for jax.random.normal, equal to the bit, without compiling for each new shape: 0.05 instead of 0.25 s."""
    if dtype is not None or more or type(shape) is not tuple or isinstance(key, jax.core.Tracer):
        return draw(key, shape, **more | ({} if dtype is None else {"dtype": dtype}))
    size = math.prod(shape)
    flat = draw(key, (1 << max(10, (size - 1).bit_length()),))  # the first numbers do not depend on how many there are
    return jax.numpy.asarray(np.asarray(flat)[:size].reshape(shape))


jax.random.normal = normal
jax.config.update("jax_disable_most_optimizations", True)  # of what test files compute as they are imported, too


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """Compile each program once and keep it on disk, also for the next run of the tests; in memory, for one module.

    Most of the time of the tests would go into compiling small programs, many of them again and again."""
    from loop import runs  # found only now that ROOT is on sys.path

    jax.config.update("jax_compilation_cache_dir", os.path.join(runs.cache_folder(), "tests"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_disable_most_optimizations", True)  # what the tests start as programs is compiled as it is
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def one_step_for_all_runs():
    """Let the runs of a module share their compiled steps, see shared.compiled_once."""
    from shared import compiled_once

    with compiled_once():
        yield


@pytest.fixture(scope="module")
def llada():
    """A small model of LLaDA's code -> its params, its ModelConfig, what that code makes of it."""
    from checkpoints import checkpoint

    folder = "tests/fixtures/llada"
    return *checkpoint.load(folder), np.load(f"{folder}/expected.npz")


@pytest.fixture(scope="module")
def browser():
    """Start a Chromium for the tests of a module, see browser.py."""
    from browser import Browser

    browser = Browser()
    yield browser
    browser.close()


NOT_HERE = {name: importlib.util.find_spec(name) is None for name in ("tokenizers", "jinja2", "matplotlib")}
LONG = "walkthrough mesh imports faults sandbox anatomy bench".split()  # files whose single tests take longest


def pytest_configure(config):
    """Stop with the reason if JAX does not start. XLA ends the process then (an unknown flag in XLA_FLAGS will do), and
    the reason is lost with what pytest has captured: each worker would only be "not properly terminated"."""
    if not hasattr(config, "workerinput"):  # a worker was asked before it was started
        tried = subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], capture_output=True, text=True)
        if tried.returncode:
            raise pytest.exit(f"JAX does not start:\n{tried.stderr[-2000:]}", returncode=1)


def pytest_collection_modifyitems(items):
    """Begin with the longest files, then those of most tests: a file stays with one worker, and a long one that begins
    last would leave the other workers idle."""
    tests_in = collections.Counter(item.path for item in items)

    def order(item):
        name = item.path.stem.removeprefix("test_")
        return LONG.index(name) if name in LONG else len(LONG), -tests_in[item.path], item.path

    items.sort(key=order)


def pytest_collection_finish():
    """Let the garbage collector skip all that was imported: 4% of the seconds went into looking at it again."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Skip a test that needs an optional package which is not installed, as the message of the program says. With
    UNMASK_ORACLES=required, fail it, and also a test that would be skipped because it cannot import what it compares
    with, or because there is no browser here (browser.NONE_HERE)."""
    report = yield
    says = r"(?:is not\s+installed: pip install |No module named ')(tokenizers|jinja2|matplotlib)"
    needs = report.failed and re.search(says, str(report.longrepr))
    if needs and NOT_HERE[needs[1]]:
        path, line, _ = item.location
        report.outcome, report.longrepr = "skipped", (path, line, f"could not import {needs[1]}")
    lacking = report.skipped and re.search("could not import|no Chromium here", str(report.longrepr))
    if lacking and os.environ.get("UNMASK_ORACLES") == "required":
        report.outcome, report.longrepr = "failed", f"{report.longrepr[-1]}; UNMASK_ORACLES=required forbids to skip it"
    return report
