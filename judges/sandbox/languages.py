"""Programs in C, C++ and Java: how they are checked, compiled and run, behind which walls.

The walls are weaker than around Python. A program can read the toolchain (/usr, /lib, but no Python packages) and
become another program of it, which stays inside. A compiler can also start processes and write to one folder. The
warden starts both, because the zygote is a Python.
"""

import functools
import glob
import math
import os
import re
import shutil
import socket
import sys
from typing import NamedTuple

from judges.sandbox.walls import (
    ALL,
    COMPILERS,
    EXECUTE,
    LIBRARY,
    LIST,
    READ,
    RUNTIMES,
    WRITE,
    Limits,
    limit,
    lock,
    shut,
    without_packages,
)
from judges.sandbox.wire.channel import Channel

COMPILER_MEMORY = 2 << 30
COMPILE_SECONDS = 20  # of CPU; javac takes 1
SYNTAX = {"syntax": True}  # a test: does the program compile?
TOOLCHAIN = ("/usr", "/lib", "/lib64", "/bin", "/etc/alternatives", "/etc/java-*", "/etc/ld.so.cache")
OPEN_TO_ALL = {"/dev/null": READ | WRITE, "/dev/urandom": READ}


class Language(NamedTuple):
    """How programs of a language are run. A command is text, or a list of words; {} is the program's name."""

    needs: str  # the program that must be installed
    suffix: str  # of its files
    run: str | list
    compile: str | list = ""
    check: str = ""
    check_seconds: int = 0  # of CPU that a check may take beside the time limit: what an empty program takes
    package: str = ""  # the Debian package that has `needs`
    reserve: int = 0  # bytes of addresses that it asks for and does not use


LANGUAGES = {
    "c": Language(
        needs="gcc",
        package="gcc",
        suffix="c",
        check="gcc -fsyntax-only -w {}.c",
        check_seconds=1,
        compile="gcc -O1 -o {} {}.c -lm",
        run="./{}",
    ),
    "c++": Language(
        needs="g++",
        package="g++",
        suffix="cpp",
        check="g++ -std=gnu++2a -fsyntax-only -w {}.cpp",
        check_seconds=2,
        compile="g++ -std=gnu++2a -O1 -o {} {}.cpp",
        run="./{}",
    ),
    "java": Language(
        needs="javac",
        package="default-jdk-headless",
        suffix="java",
        check="javac -proc:none -nowarn -J-XX:-UsePerfData -J-XX:TieredStopAtLevel=1 -d . {}.java",
        check_seconds=4,
        compile="javac -proc:none -J-XX:-UsePerfData {}.java",
        run="java -XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1 -cp . {}",
        reserve=1 << 40,
    ),
}
PYTHON = [sys.executable, "-I", "-S", "{}.py"]  # its path may have spaces
PROBES = {  # with which the sandbox tries the walls around a program, and around a compiler
    "probe": Language(needs=sys.executable, suffix="py", run=PYTHON),
    "compiling probe": Language(needs=sys.executable, suffix="py", run=PYTHON, compile=PYTHON),
}
ALL_LANGUAGES = LANGUAGES | PROBES


def command_for(language: str, stage: str, name: str = "") -> list[str]:
    """Return the words of the command that checks a program's syntax, compiles or runs it (stage: check, compile or
    run); none if the language has no such stage. name: the program's, without it the command of an unnamed one."""
    lang = ALL_LANGUAGES[language]
    command = {"check": lang.check, "compile": lang.compile, "run": lang.run}[stage]
    words = command.split() if type(command) is str else command
    return [word.replace("{}", name) for word in words]


@functools.lru_cache(20)
def toolchain(needs: str, closed: tuple) -> dict:
    """Return Landlock's rules {path: rights} for the files that a program and its compiler read and start.

    needs: the program that must be installed (ValueError if not); closed: folders that stay closed"""
    path = shutil.which(needs)
    if not path:
        raise ValueError(f"{needs} is not installed")
    home = os.path.dirname(os.path.dirname(os.path.realpath(path)))
    paths = without_packages([home, *sum(map(glob.glob, TOOLCHAIN), [])], list(closed))
    rules = dict.fromkeys(paths, READ | LIST | EXECUTE)
    if needs == sys.executable:
        rules[LIBRARY] = rules.get(LIBRARY, 0) | LIST  # the probe cannot start without
    return rules | OPEN_TO_ALL


def exec_program(fds: tuple, command: list[str], lang: Language, runs: bool, seconds: float, folder: str,
                 limits: Limits, parent: int) -> None:  # fmt: skip
    """Become a program that can read the toolchain and its folder, or (if not `runs`) a compiler that writes there.

    fds: the line to the judge, stdin, stdout. A compiler's stderr goes to its stdout."""
    try:
        path = command[0] if command[0].startswith("./") else shutil.which(command[0]) or ""
        line, stdin, stdout = fds
        stderr = os.open("/dev/null", os.O_WRONLY) if runs else stdout
        for fd, target in (stdin, 0), (stdout, 1), (stderr, 2), (line, 3):
            os.dup2(fd, target)
        os.set_inheritable(3, True)  # closes when the program ends, which is how the judge knows
        os.setsid()
        os.chdir(folder)
        memory = limits.memory if runs else COMPILER_MEMORY
        limit(AS=memory + lang.reserve, DATA=memory, CPU=math.ceil(seconds) + runs, FSIZE=0 if runs else 64 << 20)
        limit(CORE=1, NOFILE=256)
        rules = toolchain(lang.needs, tuple(limits.closed)) | {folder: READ | LIST | EXECUTE if runs else ALL}
        shut(lock(rules, RUNTIMES if runs else RUNTIMES + COMPILERS, limits.unsafe), parent)
        Channel(socket.socket(fileno=3)).send("ready")
        home = {"PATH": "/usr/bin:/bin", "TMPDIR": folder, "HOME": folder, "LANG": "C.UTF-8"}
        os.execve(path, command, home)
    finally:
        os._exit(127)


def blank(match):
    return " " * len(match[0])


def java_names(code: str) -> tuple[str, str]:
    """Return the name of the class that has main, and the code as a file of that name.

    Without a package, and with no class public, because javac wants a public class to be called like its file."""
    quoted = r"""//[^\n]*|/\*.*?(?:\*/|\Z)|\"{3}.*?\"{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
    bare = re.sub(quoted, blank, code, flags=re.DOTALL)  # comments and texts may talk of classes
    kind = r"\b(?:class|record|enum|interface)\s+([A-Za-z_$][\w$]{0,99})"
    name = latest = "Main"
    depth, text = 0, list(code)
    for match in re.finditer(rf"[{{}}]|\bpublic\b|\bpackage\s[^;{{}}]+;|{kind}|\bvoid\s+main\b", bare):
        word, class_name = match[0], match[1]
        depth += (word == "{") - (word == "}")
        if depth == 0 and word.startswith(("public", "package")):
            text[match.start() : match.end()] = blank(match)
        if depth == 0 and class_name:
            latest = class_name
        if depth == 1 and word.endswith("main"):
            name = latest
    return name, "".join(text)
