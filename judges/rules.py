"""
Rules: score one text, by the answer it gives or by its form.

The functions of the last section take a completion and, by parameter name, columns of its row. They return a number, or
None for no opinion. rewards.py makes rewards of them, which have no opinion if a column without a default is empty, and
give 0.0 to blank text. More rules are in formats.py, which loads when one of them is asked for.
"""

import functools
import inspect
import math
import re

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


# ---- rules ----------------------------------------------------------------------------------------------------------


def exact(text: str, answer: object) -> float:
    """1.0 if the completion is the answer, ignoring white space at both ends, else 0.0."""
    return float(text.strip() == str(answer).strip())


def sudoku_all(text: str, prompt: str, puzzle: str | None = None) -> float:
    """1.0 if it is a whole grid with the given digits, and every row, column and box is a permutation; else 0.0."""
    cells = puzzle_cells(prompt, puzzle)
    got = written_cells(text, len(cells))
    if len(got) != len(cells) or any(given not in (0, value) for given, value in zip(cells, got, strict=True)):
        return 0.0
    places = {(line, value) for lines, value in zip(sudoku_lines(len(got)), got, strict=True) for line in lines}
    digits = set(range(1, math.isqrt(len(got)) + 1))
    return float(set(got) == digits and len(places) == 3 * len(got))  # no digit twice in a line


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
    functools.update_wrapper(reward, rule).__signature__ = inspect.Signature([*first, *columns])
    reward.rule, reward.blank = rule, blank
    return reward
