"""
Notice that another process of a run of several has died.
"""
import contextlib
import os
import select
import socket
import sys
import threading
from typing import Any


def watch(client: Any, count: int, index: int, host: str, leaving: threading.Event) -> None:
    """Exit when another process dies, because a collective may then hang.

    Process 0 holds a TCP connection to each; when the system closes one, process 0 tells the others who died. JAX's own
    heartbeats would take longer and end this process by an abort, without a word about who died. leaving: set when this
    process is about to end.
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
    if not leaving.is_set():
        leaving.set()
        print(
            f"\nerror: process {lost} of this run has ended, so this one leaves: continue all of them from the last "
            "checkpoint with --resume=True",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)
