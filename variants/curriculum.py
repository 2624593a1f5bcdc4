"""
Learn from easy rows first, or only from rows of some difficulties, which the rows say in the column `difficulty`:

    python train.py config/x.py --curriculum.difficulty=1,2 --curriculum.schedule="((0, 1), (500, 2))"
"""
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

import config


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    difficulty: tuple[float, ...] = config.key((), "(lowest, highest): leave out rows of other difficulties")
    schedule: tuple[tuple[int, float], ...] = config.key((), "((step, highest difficulty from this step on), ...)")

    def rows(self, rows, split, cfg):
        """Choose the rows whose difficulty is within the bounds, and those without one."""
        if not self.difficulty:
            return rows
        low, high = self.difficulty
        rows = [row for row in rows if low <= row.get("difficulty", low) <= high]
        if not rows:
            raise ValueError(f"{cfg.dataset}/{split}: no row has curriculum.difficulty={self.difficulty}")
        return rows

    def rows_of_steps(self, rows, cfg):
        return curriculum(rows, self.schedule)

    def between_keys(self, c):
        bounds = self.difficulty
        yield (bounds and (len(bounds) != 2 or bounds[0] > bounds[1]),
               f"curriculum.difficulty={bounds}: two numbers, the lowest and the highest, as in 1,3")  # fmt: skip


def curriculum(rows: Sequence[dict], schedule: Sequence[tuple[int, float]]) -> Callable[[int], np.ndarray]:
    """Return a function of the step that gives the indices (M,) of the rows that a curriculum allows.

    schedule ((from step, highest difficulty), ...): before its first step, the first difficulty holds; empty: all rows.
    Rows without a difficulty are always allowed.
    """
    allowed = {}
    for step, highest in sorted(schedule):
        index = [i for i, row in enumerate(rows) if "difficulty" not in row or row["difficulty"] <= highest]
        if not index:
            raise ValueError(
                f"the curriculum allows difficulty {highest} at step {step}, "
                f"but the easiest row has {min(row['difficulty'] for row in rows)}"
            )
        allowed[step] = np.array(index)

    def allowed_at(step):
        if not allowed:
            return np.arange(len(rows))
        begun = [start for start in allowed if start <= step]
        return allowed[max(begun, default=min(allowed))]

    return allowed_at
