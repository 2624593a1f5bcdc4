"""Hide the packages and modules in UNMASK_HIDDEN from every Python below, to see what it does without them.

    UNMASK_HIDDEN=pyarrow,variants.moe PYTHONPATH=tests/hidden python -m pytest
"""
import os
import sys

HIDDEN = set(filter(None, os.environ.get("UNMASK_HIDDEN", "").split(",")))


class Hide:
    """A finder that knows only what may not be found."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if {name, name.partition(".")[0]} & HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)


sys.meta_path.insert(0, Hide)
