"""Find the code in a completion: fenced blocks as people and models write them, and code between sentences."""

import ast
import itertools
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

MAX_SOURCE = 100_000  # characters: bounds the time and the stack of the parser, on Python 3.10 to 3.14
TRIES = 8  # of ends of a block, and of parts that make one statement
# A fence may stand in a list, behind its mark, and is indented with it.
OPENING = re.compile(r"([ \t]{0,40}(?:[-*+]|\d{1,3}[.)])?[ \t]{0,9})(`{3,99}|~{3,99})[^`]*")
CODE = re.compile(r"@|(?:def|class|async|import|from)\s|\w+\s*(?::[^=]*)?=")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
PARTS = (ast.Import, ast.ImportFrom, *DEFINITIONS, ast.Assign, ast.AnnAssign)


class Block(NamedTuple):
    """A fenced block."""

    code: str
    closed: bool  # False if the text ends before its end


def parse(code: str) -> tuple[float, ast.Module | None]:
    """Parse Python -> verdict, tree: 1.0 parses; -1.0 not; 0.0 blank, comments, too long, too deep or NUL."""
    if len(code) > MAX_SOURCE or "\0" in code:  # NUL: ValueError until 3.11, SyntaxError since; one value for both
        return 0.0, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a "\d" in a completion is no news for the trainer's console
            tree = ast.parse(code)
    except SyntaxError:
        return -1.0, None
    except (ValueError, RecursionError, MemoryError):  # lone surrogates; nesting beyond the parser's stack
        return 0.0, None
    return (1.0, tree) if tree.body else (0.0, None)


def answer(text: str) -> str:
    """Return a completion without its reasoning, <think> ... </think>, without a byte order mark, and without what
    stands around [BEGIN] and [DONE], the marks of MBPP's examples."""
    head, end, tail = text.partition("</think>")
    reasoned = end and ("<think>" in head or "```" not in head)
    text = (tail if reasoned else text).lstrip("\ufeff")
    begun, marked = re.match(r"\s*\[BEGIN\]\n?", text), re.split(r"^\[DONE\]", text, maxsplit=1, flags=re.M)[0]
    return marked[begun.end() :] if begun else marked


def blocks(text: str, language: str = "python") -> list[Block]:
    """List the fenced blocks of a completion, in order; the last one may be cut off."""
    lines, found, i = answer(text).split("\n"), [], 0
    while i < len(lines):
        opened = OPENING.fullmatch(lines[i].rstrip("\r"))
        i += 1
        if opened:
            prefix, fence = opened.groups()
            end, at, closed = find_end(lines, i, fence, language)
            inside = [*lines[i:end], lines[end][:at]] if at else lines[i:end]
            code = "\n".join(re.sub(rf"^[ \t]{{0,{len(prefix)}}}", "", line) for line in inside)
            found.append(Block(code + "\n" * (bool(inside) and not at), closed) if closed else Block(code, False))
            i = end + 1
    return found


def find_end(lines, start, fence, language):
    """Find where a block ends: its line, the column there, and whether it is closed.

    A fence may be part of the code, in a string. So the block ends at the first fence before which it parses, else at
    the first one that has a line for itself, else at the first."""
    ends = list(itertools.islice(fences_in(lines, start, fence), TRIES))
    if not ends:
        return len(lines), 0, False
    if language == "python":
        for j, at in ends:
            code = "\n".join([*lines[start:j], lines[j][:at]])
            if not code.strip() or parse(dedent(code))[1]:
                return j, at, True
    alone = [(j, at) for j, at in ends if not lines[j].strip().strip(fence[0])]
    return *(alone or ends)[0], True


def fences_in(lines, start, fence) -> Iterator[tuple[int, int]]:
    """Find the lines that have a fence -> line, column; column 0 if nothing stands before it."""
    for j in range(start, len(lines)):
        before, found, _ = lines[j].partition(fence)
        if found:
            yield j, len(before) if before.strip() else 0


def dedent(code):
    """Remove the indentation of the first line that is not blank from all lines."""
    first = next(line for line in code.split("\n") if line.strip())
    width = len(first) - len(first.lstrip())
    return re.sub(rf"^[ \t]{{0,{width}}}", "", code, flags=re.M)


def code_of_prompt(prompt: str) -> tuple[str, bool]:
    """Return the Python code of a prompt: its last fenced block that is not blank, or what follows its sentences if it
    has no block; and True if the prompt ends within a block, so that a completion goes on there."""
    if found := blocks(prompt):
        return next((block.code for block in reversed(found) if block.code.strip()), ""), not found[-1].closed
    lines = prompt.split("\n")
    if not begins_code(prompt):
        for i in itertools.islice((i for i, line in enumerate(lines) if CODE.match(line)), TRIES):
            if begins_code(rest := "\n".join(lines[i:])):
                return rest, False
    return prompt, False


def begins_code(text):
    """True if a text parses as Python, perhaps without the body of its last function."""
    return any(parse(text + more)[1] for more in ("", "\n    pass", "\n        pass"))


def between_sentences(text: str) -> str:
    """Return the imports, definitions and assignments at the top level of a text without fences."""
    parts, found, i = re.split(r"\n(?=\S)", answer(text)), [], 0
    while i < len(parts):
        for j in range(i + 1, min(i + TRIES, len(parts)) + 1 if CODE.match(parts[i]) else i):
            tree = parse("\n".join(parts[i:j]))[1]
            if tree and all(isinstance(node, PARTS) for node in tree.body):
                found += parts[i:j]
                i = j - 1
                break
        i += 1
    return "\n".join(found)
