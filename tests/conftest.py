"""Puts the repository root on sys.path: the modules of this project are plain files, not a package."""
import os
import sys

# Half of what compiling for a CPU costs: a first run of a tiny model takes 11 instead of 21 CPU seconds.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false"

import jax
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)
os.chdir(ROOT)
jax.config.update("jax_disable_most_optimizations", True)  # of what test files compute as they are imported, too


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """Most of the time goes into compiling small programs, many of them again and again: each is compiled once and kept
    on disk, for the next run of the tests, too. In memory they are kept no longer than a module's tests take."""
    import runs  # found only now that ROOT is on sys.path

    jax.config.update("jax_compilation_cache_dir", os.path.join(runs.cache_folder(), "tests"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_disable_most_optimizations", True)  # what the tests start as programs is compiled as it is
    yield
    jax.clear_caches()
