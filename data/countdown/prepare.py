"""
Make the task countdown: reach the target from the numbers, with + - * /. The completion does it in steps: each takes
two of the numbers that are left and puts back the result, until only the target is left:

    {"prompt": "5,3,7=26:", "completion": "7*3=21,21+5=26", "numbers": [5, 3, 7], "target": 26, "difficulty": 2}

The rule is that of the reward `countdown`: every number is used exactly once, every equation is true, the last one has
the target.

    difficulty                 1*        2         3        4         5         6         7
    numbers              3 to 20    3 to 9   3 to 20  3 to 99    4 to 9   4 to 20   4 to 99
    train + val rows   28708+282   7305+80  5700+300 5700+301  5700+300  5700+300  5700+301
    longest, characters    12+17      9+14     12+19    12+19     11+24     15+30     15+30    prompt + completion

* needs only + and -; the others may need * and /.

Difficulties 1 and 2 have every set of numbers with every target from 1 to 99 that it can reach; the others are samples.
No puzzle has two difficulties. The split is by (sorted numbers, target). Train rows of difficulty 1 and 2 come in every
order of their numbers, all other rows in one. The completion for a set and a target is always the same, the plainest
solution, in which all results are whole, positive and below 1000: with fewer choices, a model of 1M parameters learns
to add sooner. The rows are made in 7 seconds.

    python data/countdown/prepare.py
    python data/countdown/prepare.py few             --dataset=data/countdown/few: 600 puzzles with answers
    python data/countdown/prepare.py asked           --dataset=data/countdown/asked: the others, without answers
    python data/countdown/prepare.py hundred         --dataset=data/countdown/hundred: 400,000 rows, in 80 seconds
    python data/countdown/prepare.py --numbers=3 --highest=100 --rows=100000 --out=FOLDER      for --dataset=FOLDER

`few` has the train rows of 600 of the 5,358 puzzles of difficulty 1 (3,251 rows, in every order of their numbers), and
`asked` those of the other puzzles without `completion`, for rewards alone. Both have the val rows of difficulty 1.

The last two commands make puzzles like those in papers: the numbers are drawn from 1 to --highest, the target from
10 to --target=100, among those that + - * and exact / can reach, however large the results in between
(`44,15,79=50:` -> `44-15=29,79-29=50`). The difficulty is 1 + the number of * and / in the plainest solution; 1000 rows
are val.
"""
import argparse
import functools
import itertools
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from data import making

# Numbers, their largest, the * and / allowed in the plainest solution; for difficulty 1, 2, ...
TIERS = (3, 20, 0), (3, 9, 2), (3, 20, 2), (3, 99, 2), (4, 9, 3), (4, 20, 3), (4, 99, 3)
COMPLETE = 2  # this many tiers are complete; the others have PAIRS pairs (set of numbers, target), PER_SET per set
PAIRS, PER_SET = 6000, 4
VAL, DRAWN_VAL = 0.05, 1000  # the share of a tier, and the puzzles of a drawn set, that are val
ANSWERED = 600  # puzzles of `few`
LARGE, FEW, ASKED = "hundred", "few", "asked"  # folders beside this file
TARGET, RESULT = 99, 999  # the largest: so rows are short


@functools.lru_cache(maxsize=200_000)
def plainest(numbers, most=RESULT):
    """Find the plainest solution for each target of sorted numbers -> {target: (number of * and /, largest, steps)}.

    Results are from 1 to `most`; largest: of them, or 0 if there is one number."""
    if len(numbers) == 1:
        return {numbers[0]: (0, 0, ())}
    best = {}
    for i, j in itertools.combinations(range(len(numbers)), 2):
        b, a = numbers[i], numbers[j]  # b <= a: every step names the larger first
        rest = numbers[:i] + numbers[i + 1:j] + numbers[j + 1:]
        for op, c in (("+", a + b), ("-", a - b), ("*", a * b), ("/", a // b if a % b == 0 else 0)):
            if 0 < c <= most:
                for target, (hard, largest, steps) in plainest(tuple(sorted((*rest, c))), most).items():
                    candidate = (hard + (op in "*/"), max(largest, c), (f"{a}{op}{b}={c}", *steps))
                    best[target] = min(best.get(target, candidate), candidate)
    return best


def pairs(rng, tier, known):
    """List the (sorted numbers, target) of a tier (index into TIERS) that are not in `known`: all, or PAIRS of them."""
    n, highest, hardest = TIERS[tier]
    def goals(numbers):
        return sorted(t for t, (hard, *_) in plainest(numbers).items()
                                       if t <= TARGET and hard <= hardest and (numbers, t) not in known)  # fmt: skip
    if tier < COMPLETE:
        return [(ns, t) for ns in itertools.combinations_with_replacement(range(1, highest + 1), n) for t in goals(ns)]
    found = {}
    while len(found) < PAIRS:
        numbers = tuple(sorted(rng.randint(1, highest) for _ in range(n)))
        targets = goals(numbers)
        found |= dict.fromkeys((numbers, t) for t in rng.sample(targets, min(PER_SET, len(targets))))
    return list(found)


def row(numbers, target, difficulty, most=RESULT):
    """Make the row of a puzzle: its prompt shows the numbers in the order given, its completion is the plainest
    solution. most: the largest result on the way to it."""
    completion = ",".join(plainest(tuple(sorted(numbers)), most)[target][-1])
    return {"prompt": f"{','.join(map(str, numbers))}={target}:", "completion": completion,
            "numbers": list(numbers), "target": target, "difficulty": difficulty}


def puzzle(of_row):
    """Name a row's puzzle, the same for every order of its numbers."""
    return tuple(sorted(of_row["numbers"])), of_row["target"]


def split_by_answers(splits):
    """Divide the train rows of difficulty 1 -> {"few": splits with answers, "asked": splits without}."""
    train, val = ([r for r in splits[name] if r["difficulty"] == 1] for name in ("train", "val"))
    answered = set(random.Random(0).sample(sorted(set(map(puzzle, train))), ANSWERED))
    asked = [{key: r[key] for key in r if key != "completion"} for r in train if puzzle(r) not in answered]
    few = [r for r in train if puzzle(r) in answered]
    return {FEW: {"train": few, "val": val}, ASKED: {"train": asked, "val": val}}


def build():
    """Make {"train": rows, "val": rows}."""
    rng, splits, known = random.Random(0), {"train": [], "val": []}, set()
    for tier in range(len(TIERS)):
        found = pairs(rng, tier, known)
        known |= set(found)
        rng.shuffle(found)
        for k, (numbers, target) in enumerate(found):
            held_out = k < VAL * len(found)
            orders = sorted(set(itertools.permutations(numbers)))
            if held_out or tier >= COMPLETE:
                orders = [rng.choice(orders)]
            splits["val" if held_out else "train"] += [row(order, target, tier + 1) for order in orders]
    for rows in splits.values():
        rng.shuffle(rows)
    return splits


def drawn(n, highest, target, rows):
    """Draw puzzles of n numbers up to `highest` -> {"train": rows, "val": rows}.

    target: the largest; rows: how many to train on"""
    rng, found, most = random.Random(0), {}, highest**n
    wanted = rows + DRAWN_VAL
    for _ in range(20 * wanted):
        shown = [rng.randint(1, highest) for _ in range(n)]
        numbers = tuple(sorted(shown))
        for goal, (hard, *_) in plainest(numbers, most).items():  # a few per set, so that all sets have as many
            if 10 <= goal <= target and rng.random() < 0.5 and (numbers, goal) not in found:
                found[numbers, goal] = row(rng.sample(shown, n), goal, 1 + hard, most)
        if len(found) >= wanted:
            break
    else:
        raise SystemExit(f"only {len(found)} of {wanted} were found: fewer --rows, or a larger --highest")
    made = list(found.values())
    rng.shuffle(made)
    return {"train": made[DRAWN_VAL:wanted], "val": made[:DRAWN_VAL]}


def main():
    parser = argparse.ArgumentParser(description="Makes data/countdown, or with --out a set of another kind.")
    for name, default in (("numbers", 3), ("highest", 100), ("target", 100), ("rows", 100_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path)
    parser.add_argument("part", nargs="?", choices=[LARGE, FEW, ASKED],
                        help=f"{LARGE}: 400,000 rows of the defaults; {FEW}: few puzzles, with answers; "
                             f"{ASKED}: the others, without")
    asked, here = parser.parse_args(), Path(__file__).parent
    if asked.part == LARGE:
        asked.rows, asked.out = 400_000, here / LARGE
    made = drawn(asked.numbers, asked.highest, asked.target, asked.rows) if asked.out else build()
    if asked.part in (FEW, ASKED):
        made, asked.out = split_by_answers(made)[asked.part], here / asked.part
    ranks = {bytes([b]): b for b in range(256)} | {str(n).encode(): 246 + n for n in range(10, 100)}
    making.save(asked.out or here, made, ranks)


if __name__ == "__main__":
    main()
