"""
Start and end a program so that nobody at a terminal sees a traceback: ctrl-C, closed pipes, full disks.
"""

from __future__ import annotations  # an older Python has to get as far as `begin`

import contextlib
import errno
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn


def begin() -> None:
    """Check the version of Python, and let ctrl-C end the program silently during the imports, which take seconds."""
    if sys.version_info < (3, 11):
        raise SystemExit("error: Python 3.11 or newer is needed, this is " + sys.version.split()[0])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.stdout is None or sys.stderr is None:
        raise SystemExit("error: stdout and stderr have to be open: send them to a file or to /dev/null")


def launch(program: str) -> None:
    """Import the program of this name, such as "tools.complete", run its main(), and end the process.

    A library that is also typed as a command (`python sample.py`) calls this first of all. So the program stands above
    the library and imports it, and the library imports nothing of the program."""
    begin()
    run(importlib.import_module(program).main)


def launch_by_flag(programs: dict[str, str]) -> None:
    """Launch the first program whose flag is on the command line, with or without "=VALUE"; begin() if there is none.

    programs: {flag: the program's name}."""
    given = [word.partition("=")[0] for word in sys.argv[1:]]
    for flag, program in programs.items():
        if flag in given:
            launch(program)
    begin()


def leave(number: int, frame: Any) -> NoReturn:
    """Handle a signal that ends the program."""
    raise KeyboardInterrupt(number)


def run(main: Callable) -> None:
    """Run a program and leave with its exit code: 2 after a mistake of the user, 130 after ctrl-C, 129 after SIGHUP: if
    its terminal is closed, or its output cannot be written (`| head`, a full disk)."""
    signal.signal(signal.SIGINT, leave)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, leave)
    try:
        with guarded(sys.stdout), guarded(sys.stderr):
            code = main()
    except SystemExit as e:
        code = e.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 2
    except KeyboardInterrupt as e:
        code = 128 + (e.args or (signal.SIGINT,))[0]
    sys.exit(code)


@contextlib.contextmanager
def guarded(stream: Any) -> Iterator[None]:
    """If a stream cannot be written (`| head`, `> /dev/full`), silence it and raise SIGHUP, as when a terminal is
    closed.

    Unless the reason is only that nobody reads it, the other stream says why. Under nohup, which ignores SIGHUP, the
    program goes on in silence. Characters that the terminal lacks are escaped."""
    plain_write = stream.write
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")

    def write(text):
        try:
            size = plain_write(text)
            stream.flush()
            return size
        except OSError as e:
            silence(stream)
            name, other = ("stdout", sys.stderr) if stream is sys.stdout else ("stderr", sys.stdout)
            if e.errno != errno.EPIPE:
                print(f"error: {name} cannot be written: {e.strerror}", file=other)
            signal.raise_signal(signal.SIGHUP)
            return len(text)

    stream.write = write
    try:
        yield
    finally:
        stream.write = plain_write


def parts(text: str) -> list[str]:
    """Split a list at its commas, except in parentheses: "a, b(c=1, d=2)" -> ["a", "b(c=1, d=2)"]."""
    depth, out = 0, [""]
    for c in re.findall(r"\\.|.", text, re.S):  # \( is no parenthesis
        depth += (c == "(") - (c == ")")
        if c == "," and depth <= 0:
            out.append("")
        else:
            out[-1] += c
    return [part.strip() for part in out]


@contextlib.contextmanager
def errors_explained() -> Iterator[None]:
    """End the program with a sentence if the body raises a ValueError, meets an error of the disk, or finds no memory
    left on the device."""
    try:
        yield
    except (ValueError, OSError, RuntimeError) as e:
        if isinstance(e, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(e):
            raise
        from system import unknown

        raise SystemExit(f"error: {unknown.explain(e)}") from None


def silence(stream: Any) -> None:
    """Send everything that is still written to a stream to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
