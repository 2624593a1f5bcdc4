"""One end of a socket between two processes of the sandbox: whole JSON messages, a deadline, and an end.

Neither end trusts the other: a message has a largest size, it is only parsed, and an end that exits, says nonsense or
is out of time raises Dead here. Dead is no Exception, so that a test's `except Exception` does not catch it, and it
stays (`dead`), so that a test's bare `except` cannot turn a crash into an exception that the test expected.
"""

import json
import struct
import time
from typing import Any, NoReturn

MESSAGE = 8 << 20  # bytes of the longest answer or output: a list of a million small ints fits
LENGTH = struct.Struct(">I")


class Dead(BaseException):
    """The other end is gone, out of time or talks nonsense."""


class Channel:
    """Send and receive messages over `sock`: at most `limit` bytes in each that comes, until `deadline`.

    deadline: in the time of time.monotonic(); None: none. `dead` says why the other end is dead, "" while it is not."""

    def __init__(self, sock, limit=1 << 40, deadline=None):
        self.sock, self.limit, self.deadline, self.dead = sock, limit, deadline, ""

    def die(self, why: str) -> NoReturn:
        self.dead = self.dead or why
        raise Dead(why)

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        self.wait(self.sock.sendall, LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        (size,) = LENGTH.unpack(self.take(LENGTH.size))
        if size > self.limit:
            self.die(f"sent {size} bytes at once, {self.limit} are allowed")
        try:
            return json.loads(self.take(size))
        except (ValueError, RecursionError, MemoryError) as e:
            self.die(f"sent no message: {type(e).__name__}")

    def take(self, size):
        """Receive exactly `size` bytes."""
        data = bytearray()
        while len(data) < size:
            part = self.wait(self.sock.recv, min(size - len(data), 1 << 20))
            if not part:
                self.die("exited")
            data += part
        return data

    def wait(self, operation, argument):
        """Return operation(argument), which may block until the deadline; Dead if it fails or takes longer."""
        if self.deadline:
            left = self.deadline - time.monotonic()
            if left <= 0:
                self.die("out of time")
            self.sock.settimeout(left)
        try:
            return operation(argument)
        except OSError as e:
            self.die("out of time" if isinstance(e, TimeoutError) else "exited")
