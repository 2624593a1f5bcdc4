"""Languages."""
import functools
import glob
import math
import os
import re
import shutil
import socket
import sys
from typing import NamedTuple

from judges.peer import Peer
from judges.walls import (
    ALL,
    COMPILERS,
    EXECUTE,
    LIBRARY,
    LIST,
    READ,
    RUNTIMES,
    WRITE,
    limit,
    lock,
    shut,
    without_packages,
)

COMPILER_MEMORY = 2 << 30
COMPILE_SECONDS = 20  # of CPU; javac takes 1


def java_names(code):
    """A program in Java -> the class that has its main, and the code as a file of that name: without a package, and no
    class of it public, because javac wants a public class to be called like its file."""
    quoted = r"""//[^\n]*|/\*.*?(?:\*/|\Z)|\"{3}.*?\"{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
    bare = re.sub(quoted, lambda m: " " * len(m[0]), code, flags=re.DOTALL)  # comments and texts may talk of classes
    kind = r"\b(?:class|record|enum|interface)\s+([A-Za-z_$][\w$]{0,99})"
    name = latest = "Main"
    depth, text = 0, list(code)
    for m in re.finditer(rf"[{{}}]|\bpublic\b|\bpackage\s[^;{{}}]+;|{kind}|\bvoid\s+main\b", bare):
        depth += (m[0] == "{") - (m[0] == "}")
        if depth == 0 and m[0].startswith(("public", "package")): text[m.start():m.end()] = " " * len(m[0])
        if depth == 0 and m[1]: latest = m[1]
        if depth == 1 and m[0].endswith("main"): name = latest
    return name, "".join(text)


class Language(NamedTuple):
    needs: str  # the program that must be installed
    package: str
    suffix: str
    compiler: str | list  # commands; {} is the program's name
    command: str | list
    reserve: int  # bytes of addresses it asks for and does not use
    hello: str


PYTHON = [sys.executable, "-I", "-S", "{}.py"]  # its path may have spaces
LANGUAGES = {
    "javascript": Language("node", "nodejs", "js", "", "node {}.js", 1 << 40, "console.log(1)"),
    "c": Language("gcc", "gcc", "c", "gcc -O1 -o {0} {0}.c -lm", "./{}", 0,
                  '#include <stdio.h>\nint main() { puts("1"); }'),
    "c++": Language("g++", "g++", "cpp", "g++ -std=gnu++2a -O1 -o {0} {0}.cpp", "./{}", 0,
                    "#include <iostream>\nint main() { std::cout << 1; }"),
    "java": Language("javac", "default-jdk-headless", "java", "javac -proc:none -J-XX:-UsePerfData {}.java",
                     "java -XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1 -cp . {}", 1 << 40,
                     "class Main { public static void main(String[] a) { System.out.println(1); } }"),
    "compiling probe": Language(sys.executable, "", "py", PYTHON, PYTHON, 0, ""),
    "probe": Language(sys.executable, "", "py", "", PYTHON, 0, "")}
SYNTAX = {"syntax": True}  # a test: does the program compile?
CHECKS = {  # how that is tried, and the CPU seconds it may take beside the time limit: what an empty program takes
    "javascript": ("node --check {}.js", 1), "c": ("gcc -fsyntax-only -w {}.c", 1),
    "c++": ("g++ -std=gnu++2a -fsyntax-only -w {}.cpp", 2),
    "java": ("javac -proc:none -nowarn -J-XX:-UsePerfData -J-XX:TieredStopAtLevel=1 -d . {}.java", 4)}
TOOLCHAIN = ("/usr", "/lib", "/lib64", "/bin", "/etc/alternatives", "/etc/java-*", "/etc/ld.so.cache")


def command_for(language, stage, name=""):
    """The words of the command to check, compile or run a program of this name."""
    lang = LANGUAGES[language]
    command = {"check": CHECKS.get(language, ("",))[0], "compile": lang.compiler, "run": lang.command}[stage]
    words = command.split() if type(command) is str else command
    return [word.replace("{0}", "{}").replace("{}", name) for word in words]


@functools.lru_cache(20)
def toolchain(needs, closed):
    """Rules for what a program and its compiler read and start."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which(needs))))
    paths = without_packages([home, *sum(map(glob.glob, TOOLCHAIN), [])], closed)
    rules = dict.fromkeys(paths, READ | LIST | EXECUTE)
    if needs == sys.executable: rules[LIBRARY] = rules.get(LIBRARY, 0) | LIST  # the probe cannot start without
    return rules | {"/dev/null": READ | WRITE, "/dev/urandom": READ}


def exec_program(fds, lang, command, stage, seconds, folder, limits, parent):
    """Become a program that can read the toolchain and its folder, or a compiler that can also write there."""
    try:
        path, runs = command[0] if command[0].startswith("./") else shutil.which(command[0]), stage == "run"
        line, stdin, stdout = fds
        stderr = os.open("/dev/null", os.O_WRONLY) if runs else stdout
        for fd, target in (stdin, 0), (stdout, 1), (stderr, 2), (line, 3): os.dup2(fd, target)
        os.set_inheritable(3, True)  # closes when the program ends, which is how the judge knows
        os.setsid()
        os.chdir(folder)
        memory = limits.memory if runs else COMPILER_MEMORY
        limit(AS=memory + lang.reserve, DATA=memory, CPU=math.ceil(seconds) + runs, FSIZE=0 if runs else 64 << 20)
        limit(CORE=1, NOFILE=256)
        rules = toolchain(lang.needs, tuple(limits.closed)) | {folder: READ | LIST | EXECUTE if runs else ALL}
        shut(lock(rules, RUNTIMES if runs else RUNTIMES + COMPILERS, limits.unsafe), parent)
        Peer(socket.socket(fileno=3)).send("ready")
        os.execve(path, command, {"PATH": "/usr/bin:/bin", "TMPDIR": folder, "HOME": folder, "LANG": "C.UTF-8",
                                  "OPENSSL_CONF": "/dev/null"})  # node reads it from /etc/ssl
    finally: os._exit(127)
