"""
Make word problems of 1 to 3 steps. The completion has the steps, and ends as GSM8K's solutions do:

    {"prompt": "Ivy has 6 keys. Ivy finds 5 more. Ivy wins until there are 2 times as many. How many keys? ",
     "completion": "6+5=11 11*2=22 #### 22", "answer": "22", "difficulty": 2}

The difficulty is the number of steps. The split is by triples of a sentence and its two numbers: a tenth of them
(`held_out`) never occur in train, and every step of a val problem is one of these. So a model has to know what "sells"
does to new numbers, though it may have seen 12 - 5 with "loses". Each difficulty has 8,000 train and 400 val rows, made
in 1 second. The BPE in tokenizer.tiktoken has 600 ids, one for each word and number. The longest rows have

    difficulty            1       2       3
    tokens            23+11   35+19   46+27    prompt + completion

    python data/words/prepare.py
"""
import random
import sys
import zlib
from pathlib import Path

NAMES = "Anna Ben Clara David Emma Felix Grace Henry Ivy Jack Lena Max Nora Oscar Rosa Tom".split()
THINGS = "apples balls books cards coins eggs flowers keys marbles pens shells stamps stars stones toys trees".split()
STEPS = {  # what happens to {a}, who has some -> what it does to their number
    "{a} finds {n} more.": "+",
    "{a} buys {n} more.": "+",
    "{b} gives {a} {n} more.": "+",
    "{a} loses {n} of them.": "-",
    "{a} sells {n} of them.": "-",
    "{a} gives {b} {n} of them.": "-",
    "A day later {a} has {n} times as many.": "*",
    "{a} wins until there are {n} times as many.": "*",
    "{a} puts them into {n} equal bags and keeps one bag.": "/",
    "{n} children, {a} is one, share them equally.": "/",
}
LARGEST = 99  # of all numbers: two digits
ROWS, VAL_ROWS = 8000, 400  # of each number of steps
VOCAB = 600


def held_out(event, n, m):
    """True if a sentence about n things, with the number m in it, is for val: a tenth are."""
    return zlib.crc32(f"{event} {n} {m}".encode()) % 10 == 0


def operands(sign, a):
    """List the numbers that can follow a sign, so that the result is whole and from 1 to LARGEST."""
    return {"+": range(2, min(20, LARGEST - a) + 1), "-": range(2, min(20, a - 1) + 1),
            "*": range(2, min(9, LARGEST // a) + 1), "/": [n for n in range(2, 10) if a % n == 0]}[sign]


def problem(rng, steps):
    """Make a problem of this many steps -> a row, and for each step whether it is held out."""
    a, b = rng.sample(NAMES, 2)
    thing, n = rng.choice(THINGS), rng.randint(2, 20)
    text, work, unseen = [f"{a} has {n} {thing}."], [], []
    while len(work) < steps:
        happens, sign = rng.choice(list(STEPS.items()))
        if numbers := operands(sign, n):
            m = rng.choice(numbers)
            result = {"+": n + m, "-": n - m, "*": n * m, "/": n // m}[sign]
            text.append(happens.format(a=a, b=b, n=m))
            work.append(f"{n}{sign}{m}={result}")
            unseen.append(held_out(happens, n, m))
            n = result
    prompt = " ".join([*text, f"How many {thing}? "])
    return {"prompt": prompt, "completion": f"{' '.join(work)} #### {n}", "answer": str(n), "difficulty": steps}, unseen


def build():
    """Make {"train": rows, "val": rows}, no two with the same prompt."""
    rng, splits, seen = random.Random(0), {"train": [], "val": []}, set()
    for steps in (1, 2, 3):
        wanted = {"train": ROWS, "val": VAL_ROWS}
        while any(wanted.values()):
            row, unseen = problem(rng, steps)
            split = "val" if all(unseen) else "train" if not any(unseen) else None
            if split and wanted[split] and row["prompt"] not in seen:
                seen.add(row["prompt"])
                splits[split].append(row)
                wanted[split] -= 1
    for rows in splits.values():
        rng.shuffle(rows)
    return splits


def main():
    splits = build()
    tokenizer = learn.tokenizer((row["prompt"] + row["completion"] for row in splits["train"]), VOCAB)
    making.save(Path(__file__).parent, splits, tokenizer.vocab)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from data import learn, making
    main()
