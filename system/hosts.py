"""
What several processes of a run exchange, on one host or on many (meeting.py: how they meet, and how they end).

All run the same program, and each has the devices that it sees. Process 0 writes and prints.
"""

import dataclasses
import pickle
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import distributed  # its barriers are no collectives of devices; JAX's own checkpoints use them, too
from jax.experimental import multihost_utils

from system import sections


class Processes(NamedTuple):
    size: int  # how many there are
    rank: int  # which one this is; 0 writes and prints


def processes() -> Processes:
    """Return how many processes there are, and which one this is."""
    return Processes(jax.process_count(), jax.process_index())


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    coordinator: str | None = sections.key(None, "HOST:PORT of process 0; None: from SLURM or MPI, or a single process")
    processes: int | None = sections.key(None, "number of processes")
    process_id: int | None = sections.key(None, "number of this process, from 0")


LOST = 30  # seconds within which meeting.watch finds that another process has ended, even if its machine lost power


def are_alone() -> bool:
    """True if this process has met no others. (JAX itself may have no device to ask.)"""
    return distributed.global_state.client is None or processes().size == 1


def wait_for_watch() -> None:
    """After an error of the runtime, give meeting.watch time to find a lost process, and to leave."""
    if processes().size > 1:
        time.sleep(LOST)


def barrier(name: str) -> None:
    """Wait until every process is here. A thread may wait while the devices compute: this is no collective."""
    client = distributed.global_state.client
    if client and processes().size > 1:
        client.wait_at_barrier(name, 600_000)


def local_shards(x: Any) -> dict[str, np.ndarray]:
    """Return the parts of an array that this process has to write -> {where it is, a range per side as in "0:4,8:16":
    part}. The place of a whole array, which process 0 writes, is ""; the others write nothing of it."""
    if getattr(x, "is_fully_addressable", True):
        return {} if processes().rank else {"": np.asarray(x)}
    parts = {}
    for part in x.addressable_shards:
        if part.replica_id == 0:
            ranges = [s.indices(n)[:2] for s, n in zip(part.index, x.shape, strict=True)]
            parts[",".join(f"{start}:{stop}" for start, stop in ranges)] = np.array(part.data)
    return parts


def gather(x: Any) -> np.ndarray:
    """Return the whole array in every process; all of them have to call this."""
    whole = getattr(x, "is_fully_addressable", True)
    return np.asarray(x if whole else multihost_utils.process_allgather(x, tiled=True))


def all_max(x: int) -> int:
    """Return the largest x of all processes."""
    return x if processes().size == 1 else int(multihost_utils.process_allgather(np.array(x)).max())


def my_rows(n: int) -> slice:
    """Return the slice of n rows that this process scores."""
    size, rank = processes()
    return slice(rank * n // size, (rank + 1) * n // size)


def all_gather_objects(make: Callable[[], Any]) -> list:
    """Return the results of make() in all processes, by rank. If one raises a ValueError or OSError, all raise the
    first of these errors as a ValueError."""
    if processes().size == 1:
        return [make()]
    mine: tuple[Any, str | None]
    try:
        mine = make(), None
    except (ValueError, OSError) as e:
        mine = None, f"process {processes().rank}: {e}"
    text = np.frombuffer(pickle.dumps(mine), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(len(text)))
    padded = multihost_utils.process_allgather(np.pad(text, (0, sizes.max() - len(text))))
    results = [pickle.loads(x[:size].tobytes()) for x, size in zip(padded, sizes, strict=True)]
    for _, error in results:
        if error:
            raise ValueError(error)
    return [made for made, _ in results]
