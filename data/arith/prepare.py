"""
Make sums and differences, the plainest task to compare two models on:

    {"prompt": "317+58=", "completion": "375", "answer": "375", "difficulty": 2}

The difficulty is the number of digits of the larger number, 1 to 4. No result is below 0. A carry runs from right to
left, so a model that writes from left to right has to know the last digit before it writes the first; a model that
chooses its order can begin with the units. The split is by the two numbers: a twentieth of all pairs (`held_out`) never
occurs in train, in either order or with either sign. Each difficulty has 20,000 train and 400 val rows (difficulty 1
only 146 and 9). They are made in 1 second.

    python data/arith/prepare.py           # -> data/arith
    python data/arith/prepare.py totals    # -> data/arith/totals

The totals are long but easy: 25 groups of 4 bits, and the running totals of each group, modulo 2. A bit depends on the
bits before it in its group; groups do not depend on each other. Prompts have 125 characters, completions 124:

    {"prompt": "1011 0110 ... 0001=", "completion": "1101 0100 ... 0001", "answer": "1101 0100 ... 0001"}
"""
import argparse
import itertools
import random
import sys
import zlib
from pathlib import Path

ROWS, VAL_ROWS = 20_000, 400  # of each difficulty, and of totals
GROUPS, DIGITS, MODULO = 25, 4, 2  # of totals; modulo 10, or with 7 bits, 600 steps teach a small model to copy


def held_out(a, b):
    """True if a pair of numbers, in either order, is for val: a twentieth are."""
    return zlib.crc32(f"{min(a, b)} {max(a, b)}".encode()) % 20 == 0


def pairs(rng, digits):
    """Yield pairs of numbers with at most this many digits: all pairs if they are few, otherwise random ones."""
    n = 10**digits
    if digits < 3:
        yield from rng.sample(list(itertools.product(range(n), repeat=2)), n * n)
    while digits > 2:
        yield rng.randrange(n), rng.randrange(n)


def build():
    """Make {"train": rows, "val": rows}, no two with the same prompt."""
    rng, splits = random.Random(0), {"train": [], "val": []}
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


def totals(rng, n):
    """Yield n rows of running totals."""
    def say(groups):
        return " ".join("".join(str(n % MODULO) for n in group) for group in groups)
    for _ in range(n):
        groups = [[rng.randrange(MODULO) for _ in range(DIGITS)] for _ in range(GROUPS)]
        answer = say(itertools.accumulate(group) for group in groups)
        yield {"prompt": say(groups) + "=", "completion": answer, "answer": answer}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from data import making
    parser = argparse.ArgumentParser(description="Makes data/arith, or with a name a folder in it.")
    parser.add_argument("part", nargs="?", choices=["totals"])
    here, rng = Path(__file__).parent, random.Random(0)
    if part := parser.parse_args().part:
        making.save(here / part, {split: [*totals(rng, n)] for split, n in (("val", VAL_ROWS), ("train", ROWS))})
    else:
        making.save(here, build())
