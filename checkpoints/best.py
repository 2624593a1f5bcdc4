"""
Choose the checkpoint of a run to use, not to train on.
"""

import os
from typing import NamedTuple

from checkpoints import checkpoint


class Found(NamedTuple):
    """A folder, and why it was chosen."""

    folder: str
    reason: str


def best_checkpoint(path: str) -> Found:
    """Find the folder to use, not to train on: `path` itself, or the best checkpoint in a run's out_dir."""
    newest = checkpoint.find(path)
    if newest == path:
        return Found(path, "asked for")
    known = checkpoint.read_run(newest).get("best")
    if not known:
        return Found(newest, "the newest; none was evaluated")
    folder = checkpoint.checkpoint_folder(path, known["step"])
    if not os.path.isdir(folder):
        return Found(newest, f"the newest; the best by {known['measure']}, step {known['step']}, is not here")
    return Found(folder, f"the best by {known['measure']}" + (", and the newest" if folder == newest else ""))
