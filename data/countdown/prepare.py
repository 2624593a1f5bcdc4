"""
Countdown: make the target from the numbers, with + - * /. The completion does it in steps, each from two numbers that
are still there, until only the target is left:

    {"prompt": "5,3,7=26:", "completion": "7*3=21,21+5=26", "numbers": [5, 3, 7], "target": 26, "difficulty": 1}

The rule is strict (`check`): every number is used exactly once, every equation is true, the last one has the target.

    difficulty                1        2         3        4         5         6
    numbers               3 to 9  3 to 20   3 to 99   4 to 9   4 to 20   4 to 99
    train + val rows    9731+108 5701+301  5700+300 5700+300  5700+300  5702+301
    longest, characters     9+14    12+19     12+19    11+24     15+30     15+30    prompt + completion

Difficulty 1 has every set of numbers with every target from 1 to 99 that it can make, the others are samples. The split
is by (sorted numbers, target). Train rows of difficulty 1 come in every order of their numbers, all others in one. The
completion of a set and a target is always the same, its plainest solution, all results whole, positive and below 1000:
the less there is to choose, the sooner a model of 1M parameters learns to add. Made in 3 seconds.

    python data/countdown/prepare.py
"""
import functools
import itertools
import random
import re
import sys
from pathlib import Path

TIERS = ((3, 9), (3, 20), (3, 99), (4, 9), (4, 20), (4, 99))  # how many numbers, up to what; difficulty 1, 2, ...
PAIRS, PER_SET = 6000, 4  # (set of numbers, target) of each tier but the first; with the same numbers, at most
VAL = 0.05
TARGET, RESULT = 99, 999  # the largest: so rows are short
NUMBER = r"(-?(?:0|[1-9][0-9]{0,8}))"  # 9 digits at most: their product costs nothing
STEP = re.compile(rf"{NUMBER}([+\-*/]){NUMBER}={NUMBER}")


def check(prompt, completion, numbers, target, **_):
    """Does the completion make the target by the strict rule? It is read, never evaluated."""
    left, steps = list(numbers), completion.split(",")
    if len(steps) != len(left) - 1:
        return False
    for step in map(STEP.fullmatch, steps):
        if step is None:
            return False
        a, b, c = (int(step[i]) for i in (1, 3, 4))
        for n in (a, b):
            if n not in left:
                return False
            left.remove(n)
        left.append(c)
        if not {"+": a + b == c, "-": a - b == c, "*": a * b == c, "/": b != 0 and a == b * c}[step[2]]:
            return False
    return left == [target]


@functools.lru_cache(maxsize=200_000)
def plainest(numbers):
    """Sorted numbers -> {target: (how many * and /, largest result, steps) of its plainest solution}."""
    if len(numbers) == 1:
        return {numbers[0]: (0, 0, ())}
    best = {}
    for i, j in itertools.combinations(range(len(numbers)), 2):
        b, a = numbers[i], numbers[j]  # b <= a: the larger comes first in every step
        rest = numbers[:i] + numbers[i + 1:j] + numbers[j + 1:]
        for op, c in (("+", a + b), ("-", a - b), ("*", a * b), ("/", a // b if a % b == 0 else 0)):
            if 0 < c <= RESULT:
                for target, (hard, largest, steps) in plainest(tuple(sorted((*rest, c)))).items():
                    candidate = (hard + (op in "*/"), max(largest, c), (f"{a}{op}{b}={c}", *steps))
                    best[target] = min(best.get(target, candidate), candidate)
    return best


def pairs(rng, n, lowest, highest):
    """n numbers, the largest in lowest + 1 to highest -> [(numbers, target)]: all if lowest is None, else PAIRS."""
    goals = lambda numbers: sorted(t for t in plainest(numbers) if t <= TARGET)
    if lowest is None:
        return [(ns, t) for ns in itertools.combinations_with_replacement(range(1, highest + 1), n) for t in goals(ns)]
    found = {}
    while len(found) < PAIRS:
        numbers = tuple(sorted(rng.randint(1, highest) for _ in range(n)))
        if numbers[-1] > lowest:
            found |= dict.fromkeys((numbers, t) for t in rng.sample(goals(numbers), min(PER_SET, len(goals(numbers)))))
    return list(found)


def row(numbers, target, difficulty):
    """Numbers in the order they are shown, target -> the row."""
    completion = ",".join(plainest(tuple(sorted(numbers)))[target][-1])
    return {"prompt": f"{','.join(map(str, numbers))}={target}:", "completion": completion,
            "numbers": list(numbers), "target": target, "difficulty": difficulty}


def build(seed=0):
    """Seed -> {"train": rows, "val": rows}."""
    rng, splits = random.Random(seed), {"train": [], "val": []}
    for difficulty, (n, highest) in enumerate(TIERS, 1):
        below = max((h for m, h in TIERS[:difficulty - 1] if m == n), default=None if difficulty == 1 else 0)
        found = pairs(rng, n, below, highest)
        rng.shuffle(found)
        for k, (numbers, target) in enumerate(found):
            held_out = k < VAL * len(found)
            orders = sorted(set(itertools.permutations(numbers)))
            if held_out or difficulty > 1:
                orders = [rng.choice(orders)]
            splits["val" if held_out else "train"] += [row(order, target, difficulty) for order in orders]
    for rows in splits.values():
        rng.shuffle(rows)
    return splits


def main():
    ranks = {bytes([b]): b for b in range(256)} | {str(n).encode(): 246 + n for n in range(10, 100)}
    data.save(Path(__file__).parent, build(), ranks)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import data
    main()
