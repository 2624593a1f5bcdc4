"""Hide the packages in UNMASK_HIDDEN from every Python below, to see what the tests do on a machine that lacks them.

    UNMASK_HIDDEN=pyarrow,torch PYTHONPATH=tests/hidden python -m pytest
"""
import os
import sys

HIDDEN = set(filter(None, os.environ.get("UNMASK_HIDDEN", "").split(",")))


class Hide:
    """A finder that knows only what may not be found."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)


sys.meta_path.insert(0, Hide)
