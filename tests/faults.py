"""
A disk on which one operation fails: every open, write, fsync, rename, delete and close below a folder is counted, and
the one whose number a test gives fails, with an error or with the end of the process. As a program it is given a config
file, a folder and numbers: for each, the run into FOLDER/NUMBER/out is killed at that operation.
"""
import builtins
import contextlib
import dataclasses
import errno
import io
import os
import sys
import threading

import pytest

KINDS = {"full": errno.ENOSPC, "broken": errno.EIO, "interrupted": errno.EINTR, "killed": None}
PATHS = ("open", "mkdir", "rename", "replace", "unlink", "rmdir")  # what os has for paths, and for open files:
HANDLES = ("write", "fsync", "close")


class Killed(BaseException):
    """The end of the process: nothing of ours catches it, and nothing reaches the disk after it."""


def die():
    raise Killed


class Disk:
    """operations: [(name, path)] below the folder so far. Number `at` of them fails as `kind` says; None: none does."""

    def __init__(self, folder, at=None, kind=None, die=die):
        self.folder, self.at, self.kind, self.die = str(folder), at, kind, die
        self.operations, self.lock, self.dead = [], threading.Lock(), False

    def operate(self, name, path, first=None):
        """Counts an operation. Where it is to fail, `first` is what still happens of it."""
        if not str(path).startswith(self.folder):
            return
        with self.lock:
            failing = len(self.operations) == self.at
            self.operations.append((name, str(path)))
            self.dead = self.dead or failing and self.kind == "killed"
        if failing and first:
            first()
        if self.dead:
            self.die()
        if failing:
            number = KINDS[self.kind]
            raise OSError(number, os.strerror(number), *([] if name in HANDLES else [str(path)]))


class Raw(io.FileIO):
    """An open file of the program, below its buffers: half of a write that fails is written, nothing of one that a
    signal interrupts, which Python then tries again."""

    def __init__(self, disk, path, mode):
        disk.operate("open", path)
        self.disk, self.path = disk, path
        super().__init__(path, mode)

    def write(self, data):
        half = lambda: super(Raw, self).write(bytes(data)[: len(data) // 2])
        self.disk.operate("write", self.path, half if self.disk.kind != "interrupted" else None)
        return super().write(data)

    def close(self):
        if not self.closed:
            try:
                self.disk.operate("close", self.path)
            finally:
                super().close()


def opened(disk, plain, file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *rest, **more):
    """What `open` does, on this disk."""
    if isinstance(file, int) or not str(file).startswith(disk.folder):
        return plain(file, mode, buffering, encoding, errors, newline, *rest, **more)
    raw = Raw(disk, file, mode.replace("b", "").replace("t", ""))
    buffer = (io.BufferedReader if "r" in mode else io.BufferedWriter)(raw)
    return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline)


def place(path, dir_fd=None):
    """Where a path is that may be relative to an open folder."""
    return os.fspath(path) if dir_fd is None else f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{path}"


@contextlib.contextmanager
def faulty(disk):
    """While this lasts, the program's files are on this disk."""
    def of_path(name, act):
        def operated(path, *args, dir_fd=None, **more):
            disk.operate(name, place(path, dir_fd))
            return act(path, *args, **({"dir_fd": dir_fd} if dir_fd is not None else {}), **more)
        return operated

    def of_handle(name, act):
        def operated(handle, *args):
            closing = (lambda: act(handle)) if name == "close" else None  # also where that fails, it is closed
            path = os.readlink(f"/proc/self/fd/{handle}")
            if closing and os.path.isdir(path):  # which cannot fail
                return closing()
            try:
                disk.operate(name, path, closing)
            except Killed:
                with contextlib.suppress(OSError):
                    act(handle, *args)
                raise
            return act(handle, *args)
        return operated

    with pytest.MonkeyPatch.context() as m:
        for name in PATHS:
            m.setattr(os, name, of_path(name, getattr(os, name)))
        for name in HANDLES:
            m.setattr(os, name, of_handle(name, getattr(os, name)))
        plain = builtins.open
        for owner in (builtins, io):
            m.setattr(owner, "open", lambda file, *args, **more: opened(disk, plain, file, *args, **more))
        yield disk


def kill_each(path, folder, numbers):
    """The program: a process for each number, forked before JAX has a device, and with it threads."""
    import conftest  # noqa: F401 - as in the tests, so that the bits are the same
    import jax

    import config
    import train
    from loop import runs
    jax.config.update("jax_compilation_cache_dir", os.path.join(runs.cache_folder(), "tests"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    cfg = config.read_file(path)
    for number in numbers:
        if not os.fork():
            sys.stderr = sys.stdout = open(os.devnull, "w")
            out_dir = os.path.join(folder, number, "out")
            with faulty(Disk(out_dir, int(number), "killed", lambda: os._exit(9))):
                train.train(dataclasses.replace(cfg, out_dir=out_dir))
            os._exit(0)
        print(number, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)


if __name__ == "__main__":
    kill_each(sys.argv[1], sys.argv[2], sys.argv[3:])
