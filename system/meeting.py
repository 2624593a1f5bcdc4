"""
How several processes of a run meet, watch each other, and end (hosts.py: what they exchange).
"""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import distributed  # a barrier that is no collective of devices; JAX's own checkpoints use it, too

from system.hosts import processes

LEAVING = threading.Event()  # this process is about to end


def join(coordinator: str | None = None, count: int | None = None, index: int | None = None) -> None:
    """Make this process one of several, before anything is computed.

    coordinator: HOST:PORT of process 0, count: how many processes, index: the number of this one. Without arguments
    they meet as SLURM, Open MPI, Kubernetes or a TPU says; if none of these says anything, this process is alone.
    """
    if coordinator is None and count is None and index is None:
        meet_by_environment()
    elif coordinator is None or count is None or index is None:
        raise ValueError(
            f"hosts.coordinator={coordinator}, hosts.processes={count}, hosts.process_id={index}: several processes "
            "need all three, as in --hosts.coordinator=HOST:1234 --hosts.processes=2 --hosts.process_id=0"
        )
    elif not (0 <= index < count and ":" in coordinator):
        raise ValueError(
            f"hosts.coordinator={coordinator}, hosts.processes={count}, hosts.process_id={index}: expected HOST:PORT "
            f"of process 0, and a number from 0 to {count - 1}"
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


def leave(code: Any) -> None:
    """Wait a few seconds for the others to come here, and exit with this code."""
    if not LEAVING.is_set():
        LEAVING.set()
        if isinstance(code, str):
            print(code, file=sys.stderr, flush=True)
        with contextlib.suppress(RuntimeError):
            distributed.global_state.client.wait_at_barrier("the end", 3000)  # type: ignore[union-attr]
        time.sleep(processes().rank == 0)  # the others meet at process 0, so it ends last
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else code is not None)
    time.sleep(60)  # another thread is ending this process
