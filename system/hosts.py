"""
Run several processes together, on one host or on many.

All run the same program, and each has the devices that it sees. Process 0 writes and prints.
"""

import contextlib
import dataclasses
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import distributed  # its barriers are no collectives of devices; JAX's own checkpoints use them, too
from jax.experimental import multihost_utils

from system import sections

LOST = 30  # seconds within which `watch` finds that another process has ended, even if its machine lost power
LEAVING = threading.Event()  # this process is about to end


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


def join(coordinator: str | None = None, count: int | None = None, index: int | None = None) -> None:
    """Make this process one of several, before anything is computed.

    coordinator: HOST:PORT of process 0, count: how many processes, index: the number of this one. Without arguments
    they meet as SLURM, Open MPI, Kubernetes or a TPU says; if none of these says anything, this process is alone.
    """
    if coordinator is None and count is None and index is None:
        meet_by_environment()
    elif coordinator is None or count is None or index is None:
        raise ValueError(
            f"coordinator={coordinator}, processes={count}, process_id={index}: several processes need "
            "all three, as in --coordinator=HOST:1234 --processes=2 --process_id=0"
        )
    elif not (0 <= index < count and ":" in coordinator):
        raise ValueError(
            f"coordinator={coordinator}, processes={count}, process_id={index}: expected HOST:PORT of "
            f"process 0, and a number from 0 to {count - 1}"
        )
    else:
        try:
            meet(
                f"process {index} of {count} waits for the others, which meet at {coordinator}: start process 0 "
                "there, and the rest, within two minutes",
                coordinator,
                count,
                index,
            )
        except RuntimeError as e:
            raise ValueError(
                f"process {index} of {count} found no others at {coordinator} within two minutes: start "
                f"all of them, process 0 at that address ({str(e).splitlines()[0][:120]})"
            ) from None


def meet_by_environment():
    """Meet the other processes of a SLURM, Open MPI, Kubernetes or TPU job, if this is one."""
    if "1" in (os.environ.get("SLURM_NTASKS"), os.environ.get("OMPI_COMM_WORLD_SIZE")):
        return
    try:
        meet("this process waits for the others")
    except ValueError:  # there is no such job
        pass
    except RuntimeError as e:
        if "before any JAX" not in str(e):  # a program that has already computed something is alone
            why = str(e).splitlines()[0][:120]
            raise ValueError(f"this process found no others within two minutes ({why})") from None


def meet(message, *where):
    """Meet the other processes, and watch them from then on. message: printed if they take long; where: coordinator,
    count, index, or nothing."""
    jax.config.update("jax_enable_recoverability", True)  # `watch` finds and names a process that is lost
    jax.config.update("jax_enable_preemption_service", False)  # the loop handles signals
    with waiting(message):
        jax.distributed.initialize(*where, initialization_timeout=600)
    client, host = distributed.global_state.client, distributed.global_state.coordinator_address.rpartition(":")[0]
    threading.Thread(target=watch, args=(client, *processes(), host), daemon=True).start()


@contextlib.contextmanager
def waiting(message: str, soon: float = 3, late: float = 120) -> Iterator[None]:
    """Print a message if the body takes more than `soon` seconds, and end the process after `late`.

    The body waits in C++, where Python handles no signals: ctrl-C ends the process at once. JAX itself would abort.
    """
    is_main = threading.current_thread() is threading.main_thread()  # only there can handlers be set
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if is_main else None
    over = threading.Event()

    def report():
        """Print the message when `soon` is over, and end the process when `late` is."""
        if not over.wait(soon):
            print(message, file=sys.stderr, flush=True)
            if not over.wait(late - soon):
                print("error: the others did not come, so this process leaves", file=sys.stderr, flush=True)
                os._exit(1)

    threading.Thread(target=report, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        if is_main:
            signal.signal(signal.SIGINT, before)


def watch(client, count, index, host):
    """Exit when another process dies, because a collective may then hang.

    Process 0 holds a TCP connection to each; when the system closes one, process 0 tells the others who died. JAX's own
    heartbeats would take longer and end this process by an abort, without a word about who died.
    """
    if index:
        address = client.blocking_key_value_get("watch", 120_000).rpartition(":")
        links = {socket.create_connection((address[0], int(address[2])), 60): "0"}
        next(iter(links)).sendall(f"{index:8}".encode())
    else:
        server = socket.create_server(("", 0))
        client.key_value_set("watch", f"{host}:{server.getsockname()[1]}")
        accepted = (server.accept()[0] for _ in range(count - 1))
        links = {link: link.recv(8).decode().strip() for link in accepted}
    for link in links:  # a machine that loses power is noticed within 25 seconds
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    ready = select.select(list(links), [], [])[0][0]
    lost = links[ready]
    with contextlib.suppress(OSError):
        lost = ready.recv(8).decode().strip() or lost
    for link in links:
        with contextlib.suppress(OSError):
            link.sendall(f"{lost:8}".encode())
    if not LEAVING.is_set():
        LEAVING.set()
        print(
            f"\nerror: process {lost} of this run has ended, so this one leaves: continue all of them from the last "
            "checkpoint with --resume=True",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)


def wait_for_watch() -> None:
    """After an error of the runtime, give `watch` time to find a lost process, and to leave."""
    if processes().size > 1:
        time.sleep(LOST)


def leave(code: Any) -> None:
    """Exit with this code. One of several processes first waits a few seconds for the others to come here."""
    if distributed.global_state.client is None or processes().size == 1:  # JAX itself may have no device to ask
        sys.exit(code)
    if not LEAVING.is_set():
        LEAVING.set()
        if isinstance(code, str):
            print(code, file=sys.stderr, flush=True)
        with contextlib.suppress(RuntimeError):
            distributed.global_state.client.wait_at_barrier("the end", 3000)
        time.sleep(processes().rank == 0)  # the others meet at process 0, so it ends last
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else code is not None)
    time.sleep(60)  # another thread is ending this process


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
