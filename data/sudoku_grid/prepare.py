"""
Make the puzzles of data/sudoku as grids to be filled in place: `masked` has a <|mask|> for each empty cell,
`completion` is the grid, and the rewards read `puzzle`:

    {"prompt": "", "masked": "1<|mask|><|mask|><|mask|>42...", "completion": "1342423124133124",
     "puzzle": "1...42.12....12.", "difficulty": 9}

A text is the 16 cells, or 81, and nothing else. The rows, and which are train and val, are those of data/sudoku.

    python data/sudoku_grid/prepare.py         --dataset=sudoku_grid
    python data/sudoku_grid/prepare.py nine    --dataset=data/sudoku_grid/nine: 9x9, made with data/sudoku/nine
"""
import sys
from pathlib import Path


def in_place(row):
    """Make the row of a grid from one of data/sudoku."""
    puzzle = row["prompt"].rstrip(":")
    masked = puzzle.replace(".", "<|mask|>")
    return {"prompt": "", "masked": masked, "completion": row["completion"], "puzzle": puzzle,
            "difficulty": row["difficulty"]}


def main():
    parts = sys.argv[1:]
    if parts not in ([], ["nine"]):
        raise SystemExit(f"{' '.join(parts)}: expected nothing, for 4x4 grids, or nine, for 9x9")
    source = str(data.ROOT / "/".join(["sudoku", *parts]))
    rows = {split: [*map(in_place, data.load(source, split))] for split in ("train", "val")}
    making.save(Path(__file__).parent.joinpath(*parts), rows)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import data
    from data import making
    main()
