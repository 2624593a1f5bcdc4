"""
Make 4x4 sudokus with 4 to 12 empty cells and one solution. The prompt has the cells row by row, with `.` for an empty
one; the completion is the grid:

    {"prompt": "1...42.12....12.:", "completion": "1342423124133124", "difficulty": 9}

The difficulty is the number of empty cells; with more than 12, no puzzle has one solution. There are 288 grids, and the
split is by grid: the puzzles of 240 grids are train (52,708 rows), those of the other 48 are val (1,728). Prompts have
17 characters, completions 16. The rows are made in 2 seconds.

    python data/sudoku/prepare.py         --dataset=sudoku
    python data/sudoku/prepare.py nine    --dataset=data/sudoku/nine: 9x9, 35,980 + 4,000 rows in 2 minutes

The 9x9 puzzles have 30 to 54 empty cells and a column `technique`, the simplest that solves them: "naked" (some cell
has one option left), "hidden" (some digit has one place left in a row, column or box) or "search". They are made by
emptying cells of random grids, which differ between train and val. Each comes in 10 symmetric copies.
"""
import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from data import making
from judges.rules import sudoku_lines
from judges.sudoku import options, solutions

LARGE = "nine"  # the folder of the 9x9 puzzles beside this file
TRAIN, PER_LEVEL, PER_LEVEL_VAL = 240, 25, 4  # grids; puzzles of each grid and number of empty cells
TRIES = 2000                                  # a third of the grids have only 12 puzzles with 12 empty cells
GRIDS, SYMMETRIES = (450, 50), 10             # 9x9: train and val grids; copies of each puzzle
EMPTY_9 = (30, 34, 38, 42, 46, 49, 52, 54)    # 9x9: empty cells of the puzzles of a grid, while one solution remains


def row(cells, grid, **columns):
    """Make a row of a puzzle (0 is empty) and its solution."""
    return {"prompt": "".join(".123456789"[d] for d in cells) + ":", "completion": "".join(map(str, grid)),
            "difficulty": cells.count(0), **columns}


def shuffled(items, rng):
    """List the items in random order."""
    return rng.sample(list(items), len(items))


def build():
    """Make {"train": rows, "val": rows} of 4x4 puzzles."""
    rng = random.Random(0)
    grids = shuffled(list(solutions([0] * 16)), rng)  # all 288
    # has[cell][digit] = the grids with this digit in this cell, one bit each. A puzzle has one solution if the AND over
    # its given cells leaves one bit: a thousand times faster than solving it.
    has = [[sum((grid[i] == d) << g for g, grid in enumerate(grids)) for d in range(5)] for i in range(16)]
    splits = {"train": [], "val": []}
    for g, grid in enumerate(grids):
        for empty in range(4, 13):
            found, wanted = set(), PER_LEVEL if g < TRAIN else PER_LEVEL_VAL
            for _ in range(TRIES):
                given, fits = tuple(sorted(rng.sample(range(16), 16 - empty))), -1
                for i in given:
                    fits &= has[i][grid[i]]
                if fits == 1 << g:
                    found.add(given)
                if len(found) == wanted:
                    break
            puzzles = ([d if i in given else 0 for i, d in enumerate(grid)] for given in sorted(found))
            splits["train" if g < TRAIN else "val"] += [row(cells, grid) for cells in puzzles]
    return {split: shuffled(rows, rng) for split, rows in splits.items()}


def build9(grids=GRIDS):
    """Make {"train": rows, "val": rows} of 9x9 puzzles. grids: the numbers of train and val grids."""
    rng, splits = random.Random(0), {}
    for split, n in zip(("train", "val"), grids, strict=True):
        rows = []
        for _ in range(n):
            grid = next(solutions([0] * 81, lambda digits: shuffled(digits, rng)))
            for cells in dig(grid, rng):
                used = technique(cells)
                for _ in range(SYMMETRIES):
                    turn = symmetry(rng)
                    rows.append(row(turn(cells), turn(grid), technique=used))
        splits[split] = shuffled(rows, rng)
    return splits


def dig(grid, rng):
    """Empty more and more cells of a 9x9 grid, and yield it whenever EMPTY_9 has the number of its empty cells.

    A cell without which there would be two solutions stays."""
    cells = list(grid)
    for i in shuffled(range(81), rng):
        cells[i] = 0
        others = options(cells)[i] - {grid[i]}
        if any(any(solutions([*cells[:i], d, *cells[i + 1:]])) for d in others):
            cells[i] = grid[i]
        elif cells.count(0) in EMPTY_9:
            yield list(cells)


def symmetry(rng):
    """Draw a function cells -> cells of 9x9 that keeps the rules: it renames digits, moves rows, columns and bands, and
    mirrors at the diagonal."""
    names = [0, *shuffled(range(1, 10), rng)]
    rows, columns = ([3 * band + i for band in shuffled(range(3), rng) for i in shuffled(range(3), rng)] for _ in "rc")
    places = [9 * r + c for r in rows for c in columns]
    if rng.random() < 0.5:
        places = [9 * (i % 9) + i // 9 for i in places]
    return lambda cells: [names[cells[i]] for i in places]


def technique(cells):
    """Find the simplest technique that solves a 9x9 puzzle: "naked", "hidden" or "search"."""
    cells, lines, used = list(cells), sudoku_lines(81), "naked"
    while left := options(cells):
        step = next(((i, digits) for i, digits in left.items() if len(digits) == 1), None)
        if step is None:
            used, places = "hidden", {}  # (line, digit): the cells that can have it
            for i, digits in left.items():
                for place in ((line, d) for line in lines[i] for d in digits):
                    places.setdefault(place, []).append(i)
            step = next(((cs[0], {d}) for (_, d), cs in places.items() if len(cs) == 1), None)
        if step is None:
            return "search"
        cells[step[0]] = min(step[1])
    return used


def main():
    parser = argparse.ArgumentParser(description=f"Makes data/sudoku, or data/sudoku/{LARGE}.")
    parser.add_argument("part", nargs="?", choices=[LARGE], help="9x9")
    part = parser.parse_args().part
    making.save(Path(__file__).parent / (part or ""), build9() if part else build())


if __name__ == "__main__":
    main()
