"""
The command line of `python rewards.py`: score the completions in a file, or check the solutions of a data set.
"""

import argparse
import json
import math
import os
import sys

import numpy as np

import config
import data
import rewards
from judges import programs
from system import unknown
from tools import flags


def completed(rows):
    """Make one row per completion: a row of samples.jsonl has several completions, and the columns of rewards."""
    out = []
    for i, row in enumerate(rows):
        known = {"prompt": row["prompt"]} | row.get("columns", {})
        for how in ("greedy", "sampled"):
            texts = np.atleast_1d(row.get(how, [])).tolist()
            out += [known | {"how": how, "groups": f"{i} {how}", "completion": text} for text in texts]
        if "completion" in row:
            out.append(row)
        elif not row.keys() & {"greedy", "sampled"}:
            raise ValueError(f"row {i} has no completion to score")
    return out


def rounded(value):
    """Prepare a number for JSON, which has no nan."""
    return None if math.isnan(value) else round(float(value), 6)


def score_file(options):
    """Score the rows and print n and the means as a JSON object -> exit code, 1 if --check finds a wrong reference."""
    if options.out and os.path.exists(options.out):
        raise ValueError(f"--out={options.out} is there already, and nothing is overwritten: name a new file")
    os.makedirs(os.path.dirname(options.out or "") or ".", exist_ok=True)
    programs.choose(timeout=options.timeout, unsafe=tuple(filter(None, options.unsafe.split(","))))
    weights = options.reward_weights and config.parse("reward_weights", options.reward_weights, tuple[float, ...])
    fns, path = rewards.resolve(options.rewards), data.find(options.data)
    if weights and len(weights) != len(fns):
        raise ValueError(f"{len(fns)} rewards ({', '.join(fns)}) but {len(weights)} reward_weights {weights}")
    rows = completed(data.read_rows(path) if path.is_file() else data.load(path, "train") + data.load(path, "val"))
    columns = rewards.as_columns(rows)
    texts = columns["completion"] if options.check else columns.pop("completion")
    total, parts = rewards.combine(fns, weights, [row["prompt"] for row in rows], texts, columns)
    n_wrong = 0
    with open(options.out or os.devnull, "w", encoding="utf-8") as file:
        for i, row in enumerate(rows):
            scores = {name: rounded(parts[name][i]) for name in fns}
            scored = row | {"rewards": scores, "reward": rounded(total[i])}
            print(json.dumps(scored, default=data.plain), file=file)
            if options.check and {*scores.values()} != {1}:
                print(f"row {i} is not 1.0: {scores}")
                n_wrong += 1
    means = {name: rounded(rewards.mean(parts[name])) for name in fns}
    print(json.dumps({"n": len(rows)} | means | {"reward": rounded(rewards.mean(total))}))
    return min(n_wrong, 1)


def parser():
    """Build the parser of the command line."""
    p = argparse.ArgumentParser(
        description=rewards.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="rewards: " + ", ".join(rewards.REWARDS | rewards.ELSEWHERE),
        allow_abbrev=False,
    )
    add = p.add_argument
    add("data", help='rows {"prompt", "completion", ...} (.jsonl or .json), samples.jsonl of a run, or a data set')
    add("--rewards", required=True, help="names or file.py:function, separated by commas; NAME(key=value) sets a key")
    add("--reward_weights", help="one number per reward, separated by commas (default: 1)")
    add("--timeout", type=float, default=5.0, help="CPU seconds per completion (default: 5)")
    add("--unsafe", "--programs.unsafe", default="", help="what need not be contained here, such as read,memory")
    add("--out", help="write the rows with their rewards to this .jsonl file")
    add("--check", action="store_true", help="fail unless every completion, as a reference solution, scores 1.0")
    return p


def main():
    """Run the program -> exit code; a mistake of the user is one sentence and exit code 2."""
    try:
        return score_file(parser().parse_args(flags.once(sys.argv[1:])))
    except (ValueError, OSError, RuntimeError) as e:
        print(f"error: {unknown.explain(e)}", file=sys.stderr)
        return 2
