"""judges/sandbox/walls.py: the filter allows the listed system calls, packages stay closed. No kernel is asked."""

import os
import re
import struct

import pytest

from judges.sandbox import walls


def test_a_library_is_opened_without_the_packages_in_it(tmp_path):
    packages = "lib/python3.12/site-packages/answers lib/python3/dist-packages/a local/lib/python3.12/dist-packages/b"
    for name in (*packages.split(), *"lib/python3.12/json lib/x86 share/doc src/repo/data src/other".split()):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    (tmp_path / "lib" / "link").symlink_to(tmp_path / "src" / "repo")
    found = walls.without_packages([str(tmp_path), "/no/such/folder"], [str(tmp_path / "src/repo"), "/", str(tmp_path)])
    open_now = {os.path.relpath(place, tmp_path) for place in found}
    assert open_now == {"lib/python3.12/json", "lib/x86", "share", "src/other"}


def filter_says(steps, number, machine, args=()):
    """A machine for the filter's little language: what it answers to a system call."""
    data = struct.pack("IIQ6Q", number, machine, 0, *args, *[0] * (6 - len(args)))
    accumulator, at = 0, 0
    while True:
        code, yes, no, value = struct.unpack_from("HBBI", steps, 8 * at)
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("I", data, value)
        elif code == 6:
            return {0x7FFF0000: "allow", 0x50001: "EPERM", 0x50026: "ENOSYS", 0x80000000: "kill"}[value]
        else:
            at += yes if {0x15: accumulator == value, 0x45: accumulator & value != 0}[code] else no


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("more", ["", walls.RUNTIMES, walls.RUNTIMES + walls.COMPILERS, walls.JUDGE])
def test_the_filter_allows_what_is_listed_and_nothing_else(monkeypatch, machine, more):
    monkeypatch.setattr(os, "uname", lambda: type("U", (), {"machine": machine}))
    column, name = walls.MACHINES[machine]
    says = lambda number, *args: filter_says(steps, number, name, args)
    steps = walls.seccomp_filter(True, more)[1].raw
    listed = {int(row.split(":")[column]) for row in (walls.ALLOWED + more).split() if row.split(":")[column]}
    special = {
        "x86_64": {2, 16, 44, 45, 46, 47, 53, 56, 72, 157, 257, 302, 435},
        "aarch64": {25, 29, 56, 167, 199, 206, 207, 211, 212, 220, 261, 435},
    }[machine]
    for number in {*range(600), *range(1 << 30, (1 << 30) + 600)} - special:  # the second range is x32
        assert says(number) == ("allow" if number in listed else "EPERM"), number
    assert filter_says(steps, min(listed), 0x40000003) == "kill"  # a 32-bit call
    numbers = {"x86_64": (56, 257, 72, 44, 302, 53, 45, 46, 47), "aarch64": (220, 56, 25, 206, 261, 199, 207, 211, 212)}
    clone, openat, fcntl, sendto, prlimit, socketpair, recvfrom, sendmsg, recvmsg = numbers[machine]
    judge = more == walls.JUDGE
    assert says(clone, 0x10000) == "allow" and says(clone, 17) == ("allow" if walls.COMPILERS in more else "EPERM")
    assert says(435) == "ENOSYS"
    for call in ((openat, 0, 0, 0o102), (prlimit, 0), (fcntl, 3, 4), (sendto, 3, 0, 0, 0, 0), (recvfrom, 3, 0, 9, 0x40),
                 (sendto, 3, 0, 9, 0x4000), (socketpair, 1, 1), (socketpair, 1, 0x80001)):  # fmt: skip
        assert says(*call) == "allow"
    urgent = 1  # MSG_OOB
    for call in ((prlimit, 1), (fcntl, 3, 8), (fcntl, 3, 10), (sendto, 3, 0, 0, 0, 1), (sendto, 3, 0, 0, 0, 1 << 40),
                 (sendto, 3, 0, 9, urgent), (recvfrom, 3, 0, 9, urgent), (sendmsg, 3, 0, urgent),
                 (recvmsg, 3, 0, urgent), (socketpair, 1, 2), (socketpair, 1, 5), (socketpair, 2, 1)):  # fmt: skip
        assert says(*call) == "EPERM"
    assert says(sendmsg, 3, 0, 0) == says(recvmsg, 3, 0, 0) == ("allow" if judge else "EPERM")
    steps = walls.seccomp_filter(False)[1].raw  # no Landlock: the filter itself refuses to open for writing
    assert says(openat, 0, 0, 0) == "allow"
    assert {says(openat, 0, 0, flag) for flag in (1, 2, 0o100, 0o1000, 0x400000)} == {"EPERM"}


@pytest.mark.parametrize("column, header, pattern", [
    (1, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"__NR_(\w+) (\d+)"),
    (2, "/usr/include/asm-generic/unistd.h", r"__NR(?:3264)?_(\w+) (\d+)")])  # fmt: skip
def test_the_numbers_of_system_calls_are_the_kernels(column, header, pattern):
    if not os.path.exists(header):
        pytest.skip(f"{header} is not installed")
    with open(header) as f:
        numbers = dict(re.findall(r"#define " + pattern, f.read()))
    numbers["newfstatat"] = numbers.get("newfstatat", numbers.get("fstatat"))
    for row in (walls.ALLOWED + walls.RUNTIMES + walls.COMPILERS + walls.JUDGE + walls.FORKS).split():
        number = row.split(":")[column]
        if number:
            assert numbers[row.split(":")[0]] == number, row
