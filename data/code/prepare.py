"""
Make small Python functions: the prompt is a signature and a line of English, the completion is the body.

    {"prompt": "def f(xs):\\n    \"\"\"Return the sum of the squares of the odd numbers in xs.\"\"\"\\n",
     "completion": "    return sum(x * x for x in xs if x % 2 == 1)", "entry": "f",
     "tests": ["assert f([]) == 0", "assert f([0]) == 0", "assert f([3]) == 9", ...], "difficulty": 18, "family": "sum"}

A function is a sentence and a body of families.py, with a choice for each of their gaps. Its difficulty is the number
of tokens in the body. The split is by composition: a fifth of the combinations of each family are val and never occur
in train, but their parts do.

Tests: all bodies are run on all inputs of `pools`, and a function that behaves like an earlier one is dropped. A row
has at least 10 tests: the three simplest inputs; inputs that tell the function from the others with its signature, and
from itself with a number or a comparison off by one; then further ones. So 0 of 1,954,492 (row, other body) pairs pass.

There are 2,894 train and 683 val rows from 89 families, 827 of them with several lines, made in 6 seconds. The BPE in
tokenizer.tiktoken has 512 ids. A row has 46 tokens on average; 37 + 37 (prompt + completion) hold 99% of the rows,
43 + 38 all.

    python data/code/prepare.py
"""
import collections
import functools
import itertools
import operator
import random
import re
import string
import sys
from pathlib import Path

PER_FAMILY, TESTS, VOCAB = 200, 10, 512  # functions at most; tests at least; ids of the tokenizer
HELD_OUT = 0.2
SHORT = 60  # characters at most of a test's arguments, and of its result
WORDS = "a as ant bees Cats dog dogs EEL Fox hens IBIS jays kiwis Lions moth panda rats Swan yak"


class Code(str):
    """An expression about x; f"{code:n}" is the same about n."""

    def __format__(self, variable):
        return re.sub(r"\bx\b", lambda _: variable or "x", self)


def functions(rng):
    """Yield (parameters, row without tests) for every family; for a large family, for a sample of its combinations."""
    from data.code.families import FAMILIES, SLOTS  # here, because a script sets its path only when it runs
    for family, parameters, sentence, body in FAMILIES:
        gaps = [name for _, name, _, _ in string.Formatter().parse(sentence) if name]
        choices = [c for c in itertools.product(*(SLOTS[gap.rstrip("2")] for gap in gaps)) if len(set(c)) == len(c)]
        for choice in rng.sample(choices, min(PER_FAMILY, len(choices))):
            phrase = {gap: phrase for gap, (phrase, _) in zip(gaps, choice, strict=True)}
            code = {gap: Code(code) for gap, (_, code) in zip(gaps, choice, strict=True)}
            lines = body.format(**code).split("\n")
            yield parameters, {
                "prompt": f'def f({parameters}):\n    """Return {sentence.format(**phrase)}."""\n',
                "completion": "\n".join("    " + line for line in lines), "entry": "f", "tests": [], "family": family}


def pools(rng):
    """Make {parameters: inputs [tuple of arguments]}, the simplest inputs and the boundaries of the slots first."""
    def some(draw, low, high, n):
        return [[draw() for _ in range(rng.randint(low, high))] for _ in range(n)]
    def number():
        return rng.randint(-9, 15)
    def word():
        return rng.choice(WORDS.split())
    char, name = lambda: rng.choice("aabemnoxAMZ 137-"), lambda: rng.choice("abcdefgh")
    lists = [[], [0], [3], [-1, 1], [4, 6, 5], [9, 10, 3, 3], [-5, 0, 5], *some(number, 1, 7, 70)]
    texts = ["", "a", "B", " ", "7", "noon", "aA", " mn ", "a1 b2", "Ada  Lovelace", "AEIOU", "zz-Top",
             *map(" ".join, some(word, 1, 4, 40)), *map("".join, some(char, 1, 8, 40))]
    return {
        "xs": [(xs,) for xs in lists],
        "xs, k": [(xs, k) for xs in lists for k in (rng.choice(xs or [1]), rng.randint(-2, 9))],
        "xs, ys": [(xs, ys) for xs in lists for ys in (rng.choice(lists), [x + rng.randint(-1, 1) for x in xs])],
        "x": [(x,) for x in (0, 1, -1, *range(2, 32), *range(-10, -1), -15, 45, 60, 100)],
        "n": [(n,) for n in (*range(40), 48, 55, 64, 81, 90, 99, 100, 112, 243, 975)],
        "a, b": [(a, b) for a in (0, 1, 2, -3, 5, 7, 8, 13, 26) for b in (0, 1, -2, 3, 4, 9, 14, 21)],
        "m, n": [(m, n) for m in (1, 2, 3, 4, 6, 9, 10, 12) for n in (1, 2, 3, 5, 6, 8, 9, 10, 15)],
        "s": [(s,) for s in texts],
        "words": [(words,) for words in [[], ["a"], ["Cats"], *some(word, 1, 5, 60)]],
        "d": [({name(): number() for _ in range(rng.randint(0, 5))},) for _ in range(70)],
        "rows": [([[number() for _ in range(width)] for _ in range(rng.randint(1, 3))],)
                 for width in range(1, 5) for _ in range(18)]}


def run(row, inputs):
    """Run the body of a row on every input -> [(result,)]; None in place of one that fails: no test can expect that."""
    results, scope = [], {}
    exec(row["prompt"] + row["completion"], scope)
    for arguments in inputs:
        try:
            results.append((scope["f"](*arguments),))
        except (ValueError, IndexError, ZeroDivisionError):  # the smallest of nothing, the digits of -1
            results.append(None)
    return results


def frozen(value):
    """Make a hashable value of a result, equal exactly if the results are equal (1 == True, but [1] != (1,))."""
    if isinstance(value, list | tuple):
        return (type(value), *map(frozen, value))
    return ("dict", frozenset((k, frozen(v)) for k, v in value.items())) if isinstance(value, dict) else value


def with_tests(rows, inputs):
    """Add tests to the rows of one signature -> (rows that behave unlike all earlier ones and have TESTS tests or more,
    the number of pairs (row, body of another row) in which the body passes all tests of the row)."""
    behaviours = {}
    for row in rows:
        results = run(row, inputs)
        behaviours.setdefault(tuple(map(frozen, results)), (row, results))
    # agree[i][result] = the functions that return this result for input i, one bit each
    agree = [collections.Counter() for _ in inputs]
    for bit, behaviour in enumerate(behaviours):
        for i, result in enumerate(behaviour):
            agree[i][result] += 1 << bit
    passing = 0
    for bit, (behaviour, (row, results)) in enumerate(behaviours.items()):
        same = [agree[i][result] for i, result in enumerate(behaviour)]
        for m, mutant in enumerate(mutants(row), len(behaviours)):
            for i, result in enumerate(map(frozen, run(mutant, inputs))):
                same[i] |= (result == behaviour[i]) << m
        def short(i):
            return max(len(repr(inputs[i])), len(repr(results[i]))) <= SHORT  # noqa: B023
        spare = [i for i in range(len(inputs)) if results[i] and short(i)]
        alike, seen, chosen = functools.reduce(operator.or_, same) & ~(1 << bit), collections.Counter(), []
        while spare:
            # the three simplest inputs, then those that rule out most other functions, then rare results
            left = {i: (alike & same[i]).bit_count() for i in spare}
            best = min(spare, key=lambda i: (left[i], seen[behaviour[i]]))  # noqa: B023
            if len(chosen) >= TESTS and left[best] == alike.bit_count():
                break
            i = spare[0] if len(chosen) < 3 else best
            spare.remove(i)
            chosen.append(i)
            alike &= same[i]
            seen[behaviour[i]] += 1
        passing += (alike & (1 << len(behaviours)) - 1).bit_count()
        row["tests"] = [f"assert f({', '.join(map(repr, inputs[i]))}) == {results[i][0]!r}" for i in chosen]
    return [row for row, _ in behaviours.values() if len(row["tests"]) >= TESTS], passing


def mutants(row):
    """Yield rows with one number off by one, or with < for <= or <= for <, so that boundaries are tested."""
    body = row["completion"]
    if "while" in body:  # could run forever
        return
    for found in re.finditer(r"\b\d+\b|[<>]=?", body):
        old = found[0]
        for new in [str(int(old) + 1), str(int(old) - 1)] if old.isdigit() else [old[0] if old[1:] else old + "="]:
            yield row | {"completion": body[:found.start()] + new + body[found.end():]}


def build():
    """Make {"train": rows, "val": rows}, and print how well the tests tell the functions apart."""
    rng, splits = random.Random(0), {"train": [], "val": []}
    by_signature = collections.defaultdict(list)
    for parameters, row in functions(rng):
        by_signature[parameters].append(row)
    dropped = pairs = passing = 0
    for parameters, pool in pools(rng).items():
        inputs = list({repr(arguments): arguments for arguments in pool}.values())  # each once
        rows, wrong = with_tests(by_signature[parameters], inputs)
        pairs, passing = pairs + len(rows) * (len(rows) - 1), passing + wrong
        dropped += len(by_signature[parameters]) - len(rows)
        for family in dict.fromkeys(row["family"] for row in rows):
            members = [row for row in rows if row["family"] == family]
            held_out = set(rng.sample(range(len(members)), int(HELD_OUT * len(members))))
            for i, row in enumerate(members):
                splits["val" if i in held_out else "train"].append(row)
    print(f"{dropped} functions dropped; {passing} of {pairs} (row, other body) pairs pass", file=sys.stderr)
    for rows in splits.values():
        rng.shuffle(rows)
    tok = tokenizer(splits)
    for row in [*splits["train"], *splits["val"]]:
        row["difficulty"] = len(tok.encode(row["completion"]))
    return splits


def tokenizer(splits):
    """Train a BPE on the training rows."""
    from data import learn
    return learn.tokenizer((row["prompt"] + row["completion"] for row in splits["train"]), VOCAB)


def main():
    splits = build()
    making.save(Path(__file__).parent, splits, tokenizer(splits).vocab)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from data import making
    main()
