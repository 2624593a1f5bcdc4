"""
Rules: score one text, by the answer it gives or by its form.

The functions of the last section take a completion and, by parameter name, columns of its row. They return a number, or
None for no opinion. rewards.py makes rewards of them, which have no opinion if a column without a default is empty, and
give 0.0 to blank text. Text of a model is never evaluated: arithmetic is parsed and computed with exact fractions. All
costs are bounded by the length of the text, or by a limit of time.
"""

import ast
import functools
import itertools
import json
import math
import operator
import re
from fractions import Fraction
from typing import Any
from xml.parsers import expat

from judges import helper
from judges.answers import (
    NUMBER,
    as_fraction,
    boxed,
    math_answer,  # noqa: F401
    tagged_answer,
    without_latex,
)

# The last is a social security number. A block list knows words, not meanings: it finds only the plainest cases.
UNSAFE = (
    r"\b(?:kill (?:yourself|himself|herself|themselves)|commit suicide|(?:make|build) an? (?:pipe )?bomb|"
    r"(?:cook|make) meth(?:amphetamine)?|child porn\w*|rm -rf /|\d{3}-\d{2}-\d{4})(?!\w)"
)
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


# ---- answers in texts ------------------------------------------------------------------------------------------------


def fenced_blocks(text: str) -> list[str]:
    """List the contents of the ``` blocks of a text; the last one may be cut off."""
    return re.findall(r"^ {0,3}```[^\n`]*\n(.*?)(?:```|\Z)", text, re.M | re.S)


def parse_json(text: str) -> dict | list | None:
    """Parse a JSON object or array, or return None; a bare number does not count, and NaN is not JSON."""

    def refuse(constant):
        raise ValueError(constant)

    try:  # numbers stay text: int() of a million digits takes seconds
        value = json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    """List the n-grams of words and punctuation of a text, or shorter ones if it has fewer than n words."""
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    n = min(n, len(words))
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)] if n else []


def evaluate(node, pool):
    """Compute a syntax tree of + - * / exactly, removing every whole number in it from the list `pool`.

    A ValueError if a number is not in the pool, or for any other syntax.
    """
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](evaluate(node.left, pool), evaluate(node.right, pool))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if isinstance(node.operand, ast.Constant) and -node.operand.value in pool:  # the result of an earlier step
            pool.remove(-node.operand.value)
            return Fraction(-node.operand.value)
        return -evaluate(node.operand, pool)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        pool.remove(node.value)  # ValueError: not given, or used before
        return Fraction(node.value)
    raise ValueError("only + - * / and whole numbers")


def read_cells(text):
    """List the cells of a sudoku, row by row, as whole numbers; an empty cell, written 0, "." or "_", is 0."""
    return [int(c) if c in "123456789" else 0 for c in re.findall(r"[0-9._]", text)]


def puzzle_cells(prompt, puzzle):
    """Read a 4x4 or 9x9 puzzle from the column `puzzle`, or else from the prompt -> its cells, as `read_cells`."""
    cells = read_cells(puzzle or prompt)
    if len(cells) not in (16, 81):
        raise ValueError(f"16 or 81 cells make a sudoku, {puzzle or prompt!r} has {len(cells)}; name them in `puzzle`")
    return cells


@functools.lru_cache
def sudoku_units(size):
    """List the rows, columns and boxes of a sudoku of 16 or 81 cells, each as a list of cell indices."""
    n = math.isqrt(size)
    side = math.isqrt(n)
    rows = [[row * n + column for column in range(n)] for row in range(n)]
    columns = [[row * n + column for row in range(n)] for column in range(n)]
    starts = [row * n + column for row in range(0, n, side) for column in range(0, n, side)]
    boxes = [[start + row * n + column for row in range(side) for column in range(side)] for start in starts]
    return rows + columns + boxes


def solutions(cells):
    """Yield the solutions of a sudoku by backtracking, trying the cell with the fewest options first."""
    empty = [i for i, value in enumerate(cells) if not value]
    if not empty:
        yield cells
        return
    taken = {i: {cells[j] for unit in sudoku_units(len(cells)) if i in unit for j in unit} for i in empty}
    i = max(empty, key=lambda i: len(taken[i]))
    for value in sorted(set(range(1, math.isqrt(len(cells)) + 1)) - taken[i]):
        yield from solutions(cells[:i] + [value] + cells[i + 1 :])


@functools.lru_cache(4096)
def only_solution(cells):
    """Solve a sudoku, the tuple of its cells by rows (0: empty) -> the list of all cells; None unless there is exactly
    one solution."""
    found = list(itertools.islice(solutions(list(cells)), 2))
    return found[0] if len(found) == 1 else None


SEARCH_SECONDS = 2.0


def search(pattern: str, text: str, flags: int = 0, seconds: float = SEARCH_SECONDS) -> bool:
    """True if a pattern from a data set is found in the text; a ValueError if that takes `seconds` of CPU time."""
    re.compile(pattern, flags)  # raises if the pattern is wrong
    if (found := helper.ask(helper.SEARCH, pattern, text, flags, seconds=seconds)) is not None:
        return found
    raise ValueError(
        f"the pattern {pattern!r} takes more than {seconds:g} s on a text of {len(text)} characters: "
        "write it so that a text matches in one way only, as a+ instead of (a+)+, or bound it, as a{1,9}"
    )


# ---- rules ----------------------------------------------------------------------------------------------------------


def exact(text: str, answer: object) -> float:
    """1.0 if the completion is the answer, ignoring white space at both ends, else 0.0."""
    return float(text.strip() == str(answer).strip())


def contains(text: str, answer: object) -> float:
    """1.0 if the answer occurs in the completion, else 0.0."""
    return float(str(answer).strip() in text)


def regex(text: str, pattern: str) -> float:
    """1.0 if the row's `pattern` is found in the completion (re.search), else 0.0; an error if that takes 2 s."""
    return float(search(pattern, text))


def keywords(text: str, keywords: list[str]) -> float:
    """Fraction of the row's list `keywords` that occur as whole words, ignoring case."""
    if isinstance(keywords, str):
        raise TypeError(f"the column keywords is a list of words, not the text {keywords!r}")
    return sum(bool(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.I)) for word in keywords) / len(keywords)


def valid_json(text: str) -> float:
    """1.0 if the completion, or its first ``` block, is a JSON object or array, else 0.0."""
    return float(parse_json((fenced_blocks(text) or [text])[0]) is not None)


def valid_xml(text: str) -> float:
    """1.0 if the completion is well-formed XML with at least one element and no document type, else 0.0."""
    parser, elements = expat.ParserCreate(), []
    parser.StartElementHandler = lambda name, attributes: elements.append(name)
    body = re.sub(r"^<\?xml[^>]*>", "", text.strip())
    try:  # within our root element a DOCTYPE is an error, so there is no entity bomb
        parser.Parse(f"<all>{body}</all>".encode("utf-8", "replace"), True)
    except expat.ExpatError:
        return 0.0
    return float(len(elements) > 1)


def xml_tags(text: str) -> float:
    """0.125 for each tag of "<reasoning>\\n..\\n</reasoning>\\n<answer>\\n..\\n</answer>" that occurs exactly once with
    these line ends, minus 0.001 per character after the last tag and its line end; at least 0.0. (d1's subtracts 0.001
    twice, and for the whole text if no line end follows the last tag: a right text loses by its length.)"""
    tags = sum(text.count(tag) == 1 for tag in ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>"))
    _, closed, after = text.rpartition("\n</answer>")
    return max(0.0, round(0.125 * tags - 0.001 * len(after.removeprefix("\n")) * bool(closed), 6))


def xml_soft(text: str) -> float:
    """1.0 if it begins with <reasoning>..</reasoning><answer>..</answer>, with any white space between, else 0.0.
    (d1's regex, worth 0.5, lacks DOTALL: reasoning of two lines never matches.)"""
    head, _, rest = text.lstrip().partition("</reasoning>")
    return float(head.startswith("<reasoning>") and rest.lstrip().startswith("<answer>") and "</answer>" in rest)


def xml_strict(text: str) -> float:
    """1.0 if it is "<reasoning>\\n..\\n</reasoning>\\n<answer>\\n..\\n</answer>", each tag once, else 0.0. (d1's regex,
    worth 0.5, lacks DOTALL and wants one more line end, which a text that ends with its answer does not have.)"""
    parts = re.split(r"(</?(?:reasoning|answer)>)", text.removesuffix("\n"))
    lines = len(parts) == 9 and all(len(part) > 1 and part[0] == part[-1] == "\n" for part in (parts[2], parts[6]))
    tags = ["<reasoning>", "</reasoning>", "<answer>", "</answer>"]
    return float(lines and parts[1::2] == tags and parts[::4] == ["", "\n", ""])


def xml_int(text: str) -> float:
    """1.0 if the content of <answer> (or the text without one) is a whole number, such as -5 or 1,200, else 0.0.
    (d1's, worth 0.5, uses str.isdigit, which rejects both and accepts a superscript two.)"""
    return float(bool(re.fullmatch(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)", tagged_answer(text), re.ASCII)))


def xml_answer(text: str, answer: object) -> float:
    """1.0 if the content of <answer> (or the text without one) is the answer and nothing else, else 0.0. Numbers are
    compared exactly, everything else as strings. (d1's, worth 2.0, compares only strings: 1,200 is not 1200.)"""
    found, wanted = without_latex(tagged_answer(text)), without_latex(str(answer))
    if NUMBER.fullmatch(found) and NUMBER.fullmatch(wanted) and as_fraction(found) is not None:
        return float(as_fraction(wanted) is not None and as_fraction(found) == as_fraction(wanted))
    return float(bool(wanted) and found == wanted)


def countdown(text: str, numbers: list, target: Any) -> float:
    """1.0 if it is solved, by steps "44-15=29,79-29=50" or one expression: each number is used exactly once, every
    equation is true, and only the target is left. 0.1 if it is wrong, or <answer> has no arithmetic. 0.0 if <answer> is
    empty, or there is neither it nor arithmetic. (d1's evaluates the text, which may be 9**9**9, and accepts any value
    within 0.00001 of the target.)"""
    answered = 0.1 if "<answer>" in text and tagged_answer(text) else 0.0
    text = tagged_answer(text)
    text = boxed(text) if "\\boxed" in text else text
    signs = {
        "×": "*",
        "÷": "/",
        "−": "-",
        "\\times": "*",
        "\\cdot": "*",
        "\\div": "/",
    }
    for spelling, sign in signs.items():
        text = text.replace(spelling, sign)
    text = re.sub(r"\$|\\[()\[\]]", "", text).strip().rstrip(".")
    if len(text) > 400 or not re.fullmatch(r"[0-9+\-*/()=,;\s]+", text):
        return answered
    steps = [step.partition("=") for step in re.split(r"[,;\n]", text) if step.strip()]
    steps = [step[::-1] if step[0].strip().isdigit() and step[2].strip() else step for step in steps]  # 50=79-29
    try:
        trees = [ast.parse(left.strip(), mode="eval").body for left, _, _ in steps]
    except (SyntaxError, RecursionError, MemoryError):
        return answered
    pool = [Fraction(number) for number in numbers]
    try:
        for tree, (_, equals, right) in zip(trees, steps, strict=True):
            pool.append(evaluate(tree, pool))
            if equals and pool[-1] != Fraction(right.strip()):
                return 0.1
    except (ValueError, ZeroDivisionError, RecursionError):
        return 0.1
    return 1.0 if pool == [Fraction(target)] else 0.1 if steps else 0.0


def sudoku(text: str, prompt: str, puzzle: str | None = None, answer: str | None = None) -> float | None:
    """Fraction of the empty cells filled as in `answer`, or else as in the only solution; None if neither exists."""
    cells, got = puzzle_cells(prompt, puzzle), read_cells(tagged_answer(text))
    wanted = read_cells(answer) if answer else only_solution(tuple(cells))
    if wanted and len(wanted) != len(cells):
        raise ValueError(f"the puzzle has {len(cells)} cells, its answer {answer!r} has {len(wanted)}")
    empty = [i for i, value in enumerate(cells) if not value]
    return sum(i < len(got) and got[i] == wanted[i] for i in empty) / len(empty) if empty and wanted else None


def sudoku_all(text: str, prompt: str, puzzle: str | None = None) -> float:
    """1.0 if it is a whole grid with the given digits, and every row, column and box is a permutation; else 0.0."""
    cells, got = puzzle_cells(prompt, puzzle), read_cells(tagged_answer(text))
    if len(got) != len(cells) or any(given not in (0, value) for given, value in zip(cells, got, strict=True)):
        return 0.0
    return float(all(sorted(got[i] for i in unit) == [*range(1, len(unit) + 1)] for unit in sudoku_units(len(got))))


def length(text: str, target_length: float = 100, token_ids: Any = None) -> float:
    """1 - |length - target_length| / target_length, at least 0; in tokens if there is a column token_ids, else in
    characters."""
    size = len(text if token_ids is None else token_ids)
    return max(0.0, 1 - abs(size - target_length) / target_length)


def overlong(text: str, max_length: float, soft_length: float | None = None, token_ids: Any = None) -> float:
    """0.0 up to max_length - soft_length, falling to -1.0 at max_length and beyond (DAPO, 2503.14476, Eq. 13), measured
    as in `length`. soft_length None: a fifth of max_length, as in the paper (4096 of 20480)."""
    soft = soft_length or max_length / 5
    size = len(text if token_ids is None else token_ids)
    return -min(1.0, max(0.0, (size - (max_length - soft)) / soft))


def repetition(text: str) -> float:
    """-(1 - distinct / all 3-grams of words and punctuation): 0.0 if none is repeated, near -1.0 if all are equal."""
    grams = ngrams(text, 3)
    return len(set(grams)) / len(grams) - 1 if grams else 0.0


def reasoning(text: str) -> float:
    """0.8 if it contains "step 1" and "therefore", ignoring case, else 0.3."""
    return 0.8 if "step 1" in text.lower() and "therefore" in text.lower() else 0.3


def safety(text: str, blocked: str = UNSAFE) -> float:
    """0.0 if `blocked`, a regular expression, is found in the text, ignoring case, else 1.0. Ours finds orders to kill
    or to build bombs, drugs, child abuse, `rm -rf /` and social security numbers; a column `blocked` replaces it."""
    return float(not (re.search if blocked == UNSAFE else search)(blocked, text, re.I))
