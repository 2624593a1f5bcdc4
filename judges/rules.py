"""
Rules: score one text, by the answer it gives or by its form.

The functions of the last section take a completion and, by parameter name, columns of its row. They return a number, or
None for no opinion. rewards.py makes rewards of them, which have no opinion if a column without a default is empty, and
give 0.0 to blank text. Text of a model is never evaluated: arithmetic is parsed and computed with exact fractions. All
costs are bounded by the length of the text. Only the standard library is used.
"""

import ast
import contextlib
import functools
import itertools
import json
import math
import operator
import re
import signal
import subprocess
import sys
import threading
from fractions import Fraction
from typing import Any
from xml.parsers import expat

# The last is a social security number. A block list knows words, not meanings: it finds only the plainest cases.
UNSAFE = (
    r"\b(?:kill (?:yourself|himself|herself|themselves)|commit suicide|(?:make|build) an? (?:pipe )?bomb|"
    r"(?:cook|make) meth(?:amphetamine)?|child porn\w*|rm -rf /|\d{3}-\d{2}-\d{4})(?!\w)"
)
# A number, but not the 2 of x^2 or x2. A sign is part of it unless it may be a minus between two terms. The bound {1,6}
# keeps the search linear in texts like ",111,111,...".
NUMBER = re.compile(
    r"(?<![\w^])(?:(?<![.)\]}])[-+])?(?:(?:\d{1,3}(?:,\d{3}){1,6}(?!,?\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:/\d+)?",
    re.ASCII,
)
# A number and perhaps a unit: 3 1/2 cups, 1.5e3, 2 \times 10^3 m/s^2. Not 5x, 5!, 5 or 6, 5 million, 12:30.
UNITS = (
    r"[kcmn]?m|k?g|mg|lbs?|oz|m?[lL]|m?s|min|hr?s?|ft|in|yd|mi|mph|kmh?|[km]?[WVAJN]|kWh|[kM]?Hz|[kM]?Pa|[KCF]|"
    r"mol|cents?|dollars?|st|nd|rd|th"
)
NO_UNITS = r"or|and|to|plus|minus|times|over|by|half|hundred|thousand|million|billion|trillion|dozen|pi|sqrt|factorial"
POWER = r"(?:\^\{?-?[1-9]\}?|[²³])?"
WORDS = rf"(?!(?:{NO_UNITS})\b)[A-Za-z]{{2,}}{POWER}(?:[ '/.,-]{{1,3}}[A-Za-z]+{POWER})*"
QUANTITY = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<number>(?P<whole>\d{1,40})\s+(?P<part>\d{1,40}/\d{1,40})|"
    r"(?:\d{1,3}(?:,\d{3}){1,13}|\d{1,50})(?:\.\d{1,50})?(?:/\d{1,40})?|\.\d{1,50})"
    r"(?:[eE](?P<e>[-+]?\d{1,2})|\s*(?:\\times|\\cdot|×|\*)\s*10\^\{?(?P<ten>-?\d{1,2})\}?)?"
    rf"(?:\s*(?:\^\{{?\\circ\}}?|°))?(?:\s*(?:{UNITS}){POWER}(?:/(?:{UNITS}){POWER})?|\s+{WORDS})?",
    re.ASCII,
)
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


# ---- answers in texts ------------------------------------------------------------------------------------------------


def fenced_blocks(text: str) -> list[str]:
    """List the contents of the ``` blocks of a text; the last one may be cut off."""
    return re.findall(r"^ {0,3}```[^\n`]*\n(.*?)(?:```|\Z)", text, re.M | re.S)


def tagged_answer(text):
    """Return the content of the last <answer>, which may be cut off, or the whole text if there is no such tag."""
    return text.rsplit("<answer>", 1)[-1].split("</answer>")[0].strip()


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


def without_latex(text):
    """Remove LaTeX, currency, % and a full stop from a number: "\\frac{3}{4}." -> "3/4", "-\\$1{,}200" -> "-1,200"."""
    part = r"(?:\{(-?\d{1,40})\}|(\d))"
    text = re.sub(
        rf"(\d?)\s{{0,9}}\\[dt]?frac\s{{0,9}}{part}\s{{0,9}}{part}",
        lambda m: (m[1] and m[1] + " ") + (f"{m[2] or m[3]}/{m[4] or m[5]}"),
        text,
    )  # 3\frac12 is 3 1/2
    text = re.sub(r"\\(?:text|mathrm|mbox|textbf|mathbf)\{([^{}]{0,80})\}", r"\1", text)
    text = text.replace("{,}", ",").replace("−", "-")
    text = re.sub(r"\\?[$€£%]|\\[!,;:() \[\]]|\\left|\\right|(?<!\\)\\$", "", text)
    return text.strip().rstrip(".").strip()


def final_answer(text):
    """Find the final answer of a text.

    It is what follows the last ####, else the content of the last <answer>, else of the last \\boxed, else what follows
    the last "answer is", else the last number, if it stands alone. If that is an equation, only its right side counts.
    """
    if "####" in text:
        part = text.rsplit("####", 1)[1].strip().split("\n")[0]
    elif "<answer>" in text or "\\boxed" in text:
        part = tagged_answer(text)
    elif marks := [m.end() for m in re.finditer(r"\banswer\s{1,9}is\b:?", text, re.I)]:
        part = re.split(r"\.\s|\n|[,;]\s|\s(?:because|since|as|so)\s", text[marks[-1] :].lstrip()[:200])[0]
    else:
        return last_number(without_latex(text))
    if "\\boxed" in part:
        part = part.rsplit("\\boxed", 1)[1].strip()
        depth = 0
        for i, c in enumerate(part):  # to the brace that closes the first: "{\frac{1}{2}} apples" -> "\frac{1}{2}"
            depth += (c == "{") - (c == "}")
            if depth <= 0:
                part = part[1:i] if i else part.split()[0]
                break
    return without_latex(part.split("=")[-1])


def last_number(text):
    """Find the last number of a text, with its unit; "" if there is none, or it is part of 5x, 5^2, 5! or 12:30."""
    last = None
    for found in NUMBER.finditer(text):
        last = found
    if not last or re.search(r"[{_:\\]$", text[: last.start()][-1:]):
        return ""
    whole = re.search(r"(?<![\w.,/])\d{1,40} $", text[: last.start()][-42:]) if "/" in last[0] else None
    number = (whole[0] if whole else "") + last[0]
    unit = re.match(rf"(?:e[-+]?\d{{1,2}}\b|(?:{UNITS}){POWER})(?![\w^])", text[last.end() :])
    after = text[last.end() + (unit.end() if unit else 0) :][:2]
    return "" if re.match(r"[\w^!\\{(°]|:\d", after) else number + (unit[0] if unit else "")


def as_fraction(text):
    """Read a number with perhaps a unit as an exact fraction, or return None if the text is anything else."""
    found = QUANTITY.fullmatch(text.strip()) if len(text) < 300 else None
    if not found:
        return None
    whole, number = (found["whole"], found["part"]) if found["whole"] else (0, found["number"].replace(",", ""))
    over, _, under = number.partition("/")
    if not Fraction(under or 1):
        return None
    power = int(found["e"] or found["ten"] or 0)
    value = (Fraction(whole) + Fraction(over) / Fraction(under or 1)) * Fraction(10) ** power
    return -value if found["sign"] == "-" else value


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


# ---- searches with a time limit --------------------------------------------------------------------------------------

# The matcher of `re` cannot be interrupted, and (a+)+$ takes twice as long for every additional a. So patterns from a
# data set run in another process, which the kernel ends after SEARCH_SECONDS of CPU time. (CPU time, not wall time, so
# that no search fails because the machine is busy.)
SEARCH_SECONDS = 2.0
SEARCHER = """
import json, re, signal, sys
for line in sys.stdin:
    pattern, text, flags, seconds = json.loads(line)
    compiled = re.compile(pattern, flags)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    found = compiled.search(text)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    print(int(bool(found)), flush=True)
"""
searchers: list[subprocess.Popen] = []  # the running process, if any
one_search = threading.Lock()


def search(pattern: str, text: str, flags: int = 0, seconds: float = SEARCH_SECONDS) -> bool:
    """True if a pattern from a data set is found in the text; a ValueError if that takes `seconds` of CPU time."""
    re.compile(pattern, flags)  # raises if the pattern is wrong
    with one_search:
        if not searchers:
            command = [sys.executable, "-I", "-S", "-c", SEARCHER]
            searchers.append(subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        process: Any = searchers[0]
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([pattern, text, flags, seconds]), file=process.stdin, flush=True)
        if line := process.stdout.readline():
            return line == "1\n"
        searchers.clear()
        with contextlib.suppress(BrokenPipeError):
            process.communicate()
    if process.returncode != -signal.SIGVTALRM:
        raise RuntimeError(f"the process that searches for {pattern!r} ended with {process.returncode}: out of memory?")
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


def math_answer(text: str, answer: object) -> float:
    """1.0 if the final answer (see `final_answer`) of the completion is that of the column `answer`, else 0.0. If the
    column is a number they are compared as exact numbers, which may have a sign, decimals, thousands, a fraction (3
    1/2), an exponent (1e3), $, % and a unit; else as strings."""
    answer = str(answer)
    given = final_answer(text)
    wanted = final_answer(answer) if re.search(r"####|<answer>|\\boxed", answer) else without_latex(answer)
    if (number := as_fraction(wanted)) is not None or NUMBER.fullmatch(wanted):  # 1/0 is a number that nothing equals
        return float(number is not None and as_fraction(given) == number)
    return float(bool(wanted) and re.sub(r"\s", "", given).lower() == re.sub(r"\s", "", wanted).lower())


def countdown(text: str, numbers: list, target: Any) -> float:
    """1.0 if it is solved, by steps "44-15=29,79-29=50" or one expression: each number is used exactly once, every
    equation is true, and only the target is left. 0.1 if it is wrong, or <answer> has no arithmetic. 0.0 if <answer> is
    empty, or there is neither it nor arithmetic. (d1's evaluates the text, which may be 9**9**9, and accepts any value
    within 0.00001 of the target.)"""
    answered = 0.1 if "<answer>" in text and tagged_answer(text) else 0.0
    text = tagged_answer(text).rstrip(".").replace("×", "*").replace("÷", "/")
    if len(text) > 400 or not re.fullmatch(r"[0-9+\-*/()=,;\s]+", text):
        return answered
    steps = [step.partition("=") for step in re.split(r"[,;\n]", text) if step.strip()]
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
