"""
Sums and differences, the plainest task there is to compare two models on:

    {"prompt": "317+58=", "completion": "375", "answer": "375", "difficulty": 2}

difficulty = the digits of the larger number, 1 to 4; no result is below 0. A carry runs from right to left, so whoever
writes from left to right has to know the end before the beginning, and whoever may choose can begin with the units.
The split is by the two numbers: a twentieth of all pairs (`held_out`) never occurs in train, in either order or with
either sign. 20,000 train and 400 val rows of each difficulty (of 1 there are only 146 and 9), made in 1 second.

    python data/arith/prepare.py
"""
import itertools
import random
import sys
import zlib
from pathlib import Path

ROWS, VAL_ROWS = 20_000, 400  # of each difficulty


def held_out(a, b):
    """Is a pair of numbers kept for val? A twentieth are."""
    return zlib.crc32(f"{min(a, b)} {max(a, b)}".encode()) % 20 == 0


def pairs(rng, digits):
    """Yields pairs of numbers of at most that many digits: all there are of few, else as they come."""
    n = 10**digits
    if digits < 3:
        yield from rng.sample(list(itertools.product(range(n), repeat=2)), n * n)
    while digits > 2:
        yield rng.randrange(n), rng.randrange(n)


def build(seed=0):
    """Seed -> {"train": rows, "val": rows}, no two with the same prompt."""
    rng, splits = random.Random(seed), {"train": [], "val": []}
    for digits in (1, 2, 3, 4):
        wanted, seen = {"train": ROWS, "val": VAL_ROWS}, set()
        for a, b in pairs(rng, digits):
            split = "val" if held_out(a, b) else "train"
            for sign, result in (("+", a + b), ("-", a - b)):
                prompt, long = f"{a}{sign}{b}=", len(str(max(a, b))) == digits
                if long and result >= 0 and wanted[split] and prompt not in seen:
                    seen.add(prompt)
                    wanted[split] -= 1
                    splits[split].append({"prompt": prompt, "completion": str(result), "answer": str(result),
                                          "difficulty": digits})  # fmt: skip
            if not any(wanted.values()):
                break
    return splits


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import data
    data.save(Path(__file__).parent, build())
