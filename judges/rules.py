"""
Rules: score one text, by the answer it gives or by its form.

The functions of the last section take a completion and, by parameter name, columns of its row. They return a number, or
None for no opinion. rewards.py makes rewards of them, which have no opinion if a column without a default is empty, and
give 0.0 to blank text. More rules are in formats.py, which loads when one of them is asked for.
"""

import functools
import inspect
import itertools
import math
import re
from typing import Any

# ---- answers in texts ------------------------------------------------------------------------------------------------


def tagged_answer(text):
    """Return the content of the last <answer>, which may be cut off, or the whole text if there is no such tag."""
    return text.rsplit("<answer>", 1)[-1].split("</answer>")[0].strip()


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    """List the n-grams of words and punctuation of a text, or shorter ones if it has fewer than n words."""
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    n = min(n, len(words))
    if n == 0:
        return []
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def read_cells(text):
    """List the cells of a sudoku, row by row, as whole numbers; an empty cell, written 0, "." or "_", is 0."""
    written = re.findall(r"[0-9._]", text)
    return [int(c) if c in "123456789" else 0 for c in written]


def written_cells(text, size):
    """List the cells of the last whole grid of a completion, or else of its longest part: of <answer>, if there is one.

    A label may stand before a row ("Row 1:"), and other lines with letters are no part of a grid, except its end."""
    parts = [[]]
    for line in tagged_answer(text).splitlines():
        words = re.match(r"(?:.*[A-Za-z])?", line)[0]
        cells = read_cells(line[len(words) :].rpartition(":")[2])
        if cells and ":" in line or not words:
            parts[-1].extend(cells)
        else:
            parts.append(cells if len(cells) >= size else [])
    whole = [cells for cells in parts if len(cells) >= size]
    return whole[-1] if whole else max(parts, key=len)


def puzzle_cells(prompt, puzzle):
    """Read a 4x4 or 9x9 puzzle from the column `puzzle`, or else from the prompt -> its cells, as `read_cells`."""
    cells = read_cells(puzzle or prompt)
    if len(cells) not in (16, 81):
        raise ValueError(f"16 or 81 cells make a sudoku, {puzzle or prompt!r} has {len(cells)}; name them in `puzzle`")
    return cells


@functools.lru_cache
def sudoku_lines(size):
    """List (row, column, box) of each cell of a sudoku of `size` cells, with one numbering for all three kinds."""
    n = math.isqrt(size)
    side = math.isqrt(n)
    return [(r, n + c, 2 * n + r // side * side + c // side) for r in range(n) for c in range(n)]


def options(cells):
    """Find the digits that each empty cell (0) of a sudoku can still have -> {cell: digits}."""
    n = math.isqrt(len(cells))
    lines = sudoku_lines(len(cells))
    taken = [{0} for _ in range(3 * n)]
    for value, places in zip(cells, lines, strict=True):
        for line in places:
            taken[line].add(value)
    digits = set(range(1, n + 1))
    return {i: digits - taken[r] - taken[c] - taken[b] for i, (r, c, b) in enumerate(lines) if not cells[i]}


def solutions(cells, order=sorted):
    """Yield the solutions of a sudoku by backtracking, trying the cell with the fewest options first, its digits in
    this order."""
    left = options(cells)
    if not left:
        yield cells
        return
    i = min(left, key=lambda i: len(left[i]))
    for value in order(left[i]):
        yield from solutions([*cells[:i], value, *cells[i + 1 :]], order)


@functools.lru_cache(4096)
def only_solution(cells):
    """Solve a sudoku, the tuple of its cells by rows (0: empty) -> all its cells; None unless there is exactly one
    solution."""
    found = list(itertools.islice(solutions(cells), 2))
    return found[0] if len(found) == 1 else None


# ---- rules ----------------------------------------------------------------------------------------------------------


def exact(text: str, answer: object) -> float:
    """1.0 if the completion is the answer, ignoring white space at both ends, else 0.0."""
    return float(text.strip() == str(answer).strip())


def contains(text: str, answer: object) -> float:
    """1.0 if the answer occurs in the completion, else 0.0."""
    return float(str(answer).strip() in text)


def keywords(text: str, keywords: list[str]) -> float:
    """Fraction of the row's list `keywords` that occur as whole words, ignoring case."""
    if isinstance(keywords, str):
        raise TypeError(f"the column keywords is a list of words, not the text {keywords!r}")
    found = [word for word in keywords if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.I)]
    return len(found) / len(keywords)


def sudoku(text: str, prompt: str, puzzle: str | None = None, answer: str | None = None) -> float | None:
    """Fraction of the empty cells filled as in `answer`, or else as in the only solution; None if neither exists. 0.0
    if a given digit is another one (d1's pays that)."""
    cells = puzzle_cells(prompt, puzzle)
    got = written_cells(text, len(cells))
    wanted = read_cells(answer) if answer else only_solution(tuple(cells))
    if wanted and len(wanted) != len(cells):
        raise ValueError(f"the puzzle has {len(cells)} cells, its answer {answer!r} has {len(wanted)}")
    empty = [i for i, value in enumerate(cells) if not value]
    if not (empty and wanted):
        return None
    if any(given not in (0, value) for given, value in zip(cells, got, strict=False)):
        return 0.0
    right = [i for i in empty if i < len(got) and got[i] == wanted[i]]
    return len(right) / len(empty)


def sudoku_all(text: str, prompt: str, puzzle: str | None = None) -> float:
    """1.0 if it is a whole grid with the given digits, and every row, column and box is a permutation; else 0.0."""
    cells = puzzle_cells(prompt, puzzle)
    got = written_cells(text, len(cells))
    if len(got) != len(cells) or any(given not in (0, value) for given, value in zip(cells, got, strict=True)):
        return 0.0
    places = {(line, value) for lines, value in zip(sudoku_lines(len(got)), got, strict=True) for line in lines}
    digits = set(range(1, math.isqrt(len(got)) + 1))
    return float(set(got) == digits and len(places) == 3 * len(got))  # no digit twice in a line


def length(text: str, target_length: float = 100, token_ids: Any = None) -> float:
    """1 - |length - target_length| / target_length, at least 0; in tokens if there is a column token_ids, else in
    characters."""
    size = len(text if token_ids is None else token_ids)
    return max(0.0, 1 - abs(size - target_length) / target_length)


def reasoning(text: str) -> float:
    """0.8 if it contains "step 1" and "therefore", ignoring case, else 0.3."""
    text = text.lower()
    return 0.8 if "step 1" in text and "therefore" in text else 0.3


# ---- rules -> rewards ------------------------------------------------------------------------------------------------


def is_empty(value):
    """True for None, blank text or an empty list: a row without a value in a column. Zero is a value."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or isinstance(value, list) and not value


def per_text(rule, blank=0.0):
    """Make a reward of a rule that scores one text: rule(text, **columns of its row) -> float or None.

    The reward has no opinion on rows where a column without a default is empty. Blank text scores `blank`; None: the
    rule scores it.
    """
    _, *wanted = inspect.signature(rule).parameters.values()
    needed = [p.name for p in wanted if p.default is p.empty]

    def reward(prompts, completions, **columns):
        columns["prompt"] = prompts
        scores = []
        for i, text in enumerate(completions):
            row = {p.name: columns[p.name][i] for p in wanted if p.name in columns or p.name in needed}
            if any(is_empty(row[name]) for name in needed if name != "prompt"):
                scores.append(None)
            elif blank is not None and not text.strip():
                scores.append(blank)
            else:
                known = {name: value for name, value in row.items() if value is not None}
                scores.append(rule(text, **known))
        return scores

    first = list(inspect.signature(reward).parameters.values())[:2]
    columns = [p for p in wanted if p.name != "prompt"]
    reward.__signature__ = inspect.Signature([*first, *columns])
    reward.__name__ = getattr(rule, "__name__", "reward")
    reward.__doc__ = rule.__doc__
    reward.__wrapped__ = reward.rule = rule
    reward.blank = blank
    return reward
