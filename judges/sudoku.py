"""
Solve sudokus, and reward each cell that is filled as in the solution. Importing this file adds the reward to
rewards.REWARDS.
"""

import functools
import itertools
import math

import rewards
from judges.rules import per_text, puzzle_cells, read_cells, sudoku_lines, written_cells


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


rewards.REWARDS.add({"sudoku": per_text(sudoku)})
