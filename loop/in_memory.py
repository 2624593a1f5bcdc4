"""
Give the rows and the reward functions of a Python program names, so that a Config can name them (train.train).
"""

import contextlib
import dataclasses
import itertools
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

import data
import rewards
from data import readers
from judges import own
from system.unknown import quote


@contextlib.contextmanager
def in_memory(cfg: Any, rows: Any, fns: Any) -> Iterator[Any]:
    """Give rows and reward functions of a Python program names, and yield the Config that uses these names.

    rows: a list, {"train": list, "val"?: list} or None. fns: a function, a list, {name: fn} or None; the run trains on
    all of them unless cfg.rewards names some. The names last as long as the context.
    """
    known = {name: own.as_reward(f"reward {name!r}:", name, fn) for name, fn in by_name(fns).items()}
    before = {name: rewards.REWARDS[name] for name in known if name in rewards.REWARDS}  # which loads their files
    if rows is not None:
        splits = as_splits(rows)
        number = zlib.crc32(json.dumps(splits, default=repr).encode())  # so that no run is resumed on other rows
        name = f"{len(splits['train']) + len(splits['val'])} {data.IN_MEMORY}, {number:08x}"
        cfg, data.MEMORY[name] = dataclasses.replace(cfg, dataset=name), splits
    try:
        rewards.REWARDS.update(known)
        yield dataclasses.replace(cfg, rewards=cfg.rewards or tuple(known))
    finally:
        for reward in known:
            rewards.REWARDS.pop(reward, None)  # another thread's run may have taken out the same
        rewards.REWARDS.update(before)
        if rows is not None:
            data.MEMORY.pop(name, None)


def as_splits(rows):
    """Turn the rows that a Python program gives into {"train": list, "val": list}.

    rows: an iterable, or {split: iterable}. Without val, the last 5% of train are val."""
    if isinstance(rows, (str, os.PathLike)):
        name = str(rows)
        raise ValueError(f"rows={name!r}: a file or a data set is named in the config, Config(dataset={name!r})")
    given = rows if isinstance(rows, dict) else {"train": rows}
    try:
        splits = {
            split: list(next((given[name] for name in names if name in given), ()))
            for split, names in data.SPLITS.items()
        }
    except TypeError:
        splits = {"train": [], "val": []}
    too_few = len(splits["train"]) < 2 and not (splits["train"] and splits["val"])
    if too_few or given.keys() - set(itertools.chain(*data.SPLITS.values())):
        raise ValueError(
            f"rows={quote(rows)}: expected a list of two rows or more, or {{'train': rows, 'val': rows}}"
        )
    if not splits["val"]:
        splits = {split: readers.held_out_part(splits["train"], split, "the list of rows") for split in splits}
    return splits


def by_name(fns):
    """Turn the reward functions of a Python program, one, a list or {name: fn}, into {name: fn}."""
    if isinstance(fns, dict):
        return fns
    fns = fns if isinstance(fns, (list, tuple)) else [fns] if fns is not None else []
    if strange := [fn for fn in fns if not callable(fn)]:
        raise ValueError(
            f"rewards: {strange[0]!r} is no function; what has a name already is named in the config, "
            "Config(rewards=('exact',))"
        )
    named = {getattr(fn, "__name__", type(fn).__name__): fn for fn in fns}
    if len(named) < len(fns):
        raise ValueError("rewards: two functions have one name; give them as {name: function}")
    return named
