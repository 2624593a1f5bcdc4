"""
The command line of `python rewards.py`: score the completions in a file, or check the solutions of a data set.
"""

import argparse
import json
import math
import os
import sys

import numpy as np
from tqdm import tqdm

import data
import rewards
from judges import formats, model_judge  # noqa: F401 (--help lists all rewards)
from judges.programs import sandbox
from rewards import FROM_MODELS, REWARDS, arguments, as_columns, combine, mean, resolve
from system import terminal


def batches(rows, size=256):
    """Yield lists of about `size` row numbers. All rows of a prompt are in one list, as a group is judged together."""
    groups, batch = {}, []
    for i, row in enumerate(rows):
        groups.setdefault(row["prompt"], []).append(i)
    for group in groups.values():
        batch += group
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


def completed(rows, name):
    """Make one row per completion: a row of samples.jsonl has several completions, and the columns that rewards take.

    name: of the data set, for the error about rows without a completion."""
    out = []
    for i, row in enumerate(rows):
        samples = {how: row[how] for how in ("greedy", "sampled") if how in row}
        if "completion" in row:
            out.append(row)
            continue
        if not samples:
            raise ValueError(f"{name}: row {i} has no completion to score, only {', '.join(row)}")
        known = {key: row[key] for key in ("step", "prompt") if key in row} | row.get("columns", {})
        for how, texts in samples.items():
            for text in [texts] if isinstance(texts, str) else texts:
                out.append(known | {"how": how, "groups": f"{i} {how}", "completion": text})
    return out


def rounded(value):
    """Prepare a number for JSON, which has no nan."""
    return None if math.isnan(value) else round(float(value), 6)


def prepare(options):
    """Check the options of the command line, and start the sandbox -> reward functions {name: fn}, rows to score."""
    path = data.find(options.data)
    from_models = model_judge.load(options.judge_from) if options.judge_from else {}
    fns = resolve(options.rewards, **from_models)
    unsafe = tuple(options.sandbox_unsafe.split(",")) if options.sandbox_unsafe else ()
    sandbox(workers=options.reward_workers, timeout=options.reward_timeout, unsafe=unsafe)
    rows = data.read_rows(path) if path.is_file() else [*data.load(path, "train"), *data.load(path, "val")]
    rows = completed(rows, options.data)
    for name, fn in fns.items():
        arguments(name, fn, as_columns(rows))
    if options.out and os.path.isfile(options.out):
        raise ValueError(f"--out={options.out} is there already, and nothing is overwritten: name a new file")
    os.makedirs(os.path.dirname(options.out or "") or ".", exist_ok=True)
    return fns, rows


def score_rows(fns, rows, options):
    """Score rows batch by batch -> {name: (n,)} of every reward and the total, called "reward".

    Rows are written to options.out in their own order, as soon as all earlier ones are scored.
    """
    table = {name: np.full(len(rows), math.nan) for name in [*fns, "reward"]}
    scored, n_written = np.zeros(len(rows), bool), 0
    progress = tqdm(total=len(rows), unit="row", disable=None)  # disable=None: no bar without a terminal
    with progress, open(options.out or os.devnull, "w", encoding="utf-8") as file:
        for batch in batches(rows):
            chosen = [rows[i] for i in batch]
            columns = as_columns(chosen)
            texts = columns["completion"] if options.check else columns.pop("completion")
            scores = combine(fns, options.reward_weights, [row["prompt"] for row in chosen], texts, columns)
            for name, column in table.items():
                column[batch] = scores.total if name == "reward" else scores.parts[name]
            scored[batch] = True
            progress.update(len(batch))
            while n_written < len(rows) and scored[n_written]:
                values = {name: rounded(column[n_written]) for name, column in table.items()}
                reward = values.pop("reward")
                row = rows[n_written] | {"rewards": values, "reward": reward}
                file.write(json.dumps(row, default=data.plain) + "\n")
                n_written += 1
            file.flush()
    return table


def score_file(options):
    """Score the rows and print n and the means as a JSON object -> exit code, 1 if --check finds a wrong reference."""
    fns, rows = prepare(options)
    table = score_rows(fns, rows, options)
    exit_code = 0
    for i in range(len(rows)) if options.check else []:
        scores = {name: table[name][i] for name in fns}
        if any(score != 1.0 for score in scores.values()):
            values = ", ".join(f"{name} {rounded(score)}" for name, score in scores.items())
            print(f"row {i} is not 1.0: {values}; prompt {rows[i]['prompt'][:60]!r}")
            exit_code = 1
    means = {name: rounded(mean(column)) for name, column in table.items()}
    print(json.dumps({"n": len(rows)} | means))
    return exit_code


def numbers(text):
    """Parse "1,0.5"; argparse names this function in its error message."""
    found = [float(number) for number in text.split(",")]
    if not np.isfinite(found).all():
        raise ValueError  # which argparse answers
    return found


def parser():
    """Build the parser of the command line."""
    p = argparse.ArgumentParser(
        description=rewards.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="rewards: " + ", ".join(REWARDS | FROM_MODELS),
        allow_abbrev=False,
    )
    add = p.add_argument
    add("data", help='rows {"prompt", "completion", ...} (.jsonl or .json), samples.jsonl of a run, or a data set')
    add("--rewards", required=True, help="names or file.py:function, separated by commas; NAME(key=value) sets a key")
    add("--reward_weights", type=numbers, help="one number per reward, separated by commas (default: 1)")
    add("--reward_timeout", type=float, default=5.0, help="CPU seconds per completion (default: 5)")
    add("--reward_workers", type=int, help="programs run at the same time (default: six per core, at most 64)")
    add("--sandbox_unsafe", help="what need not be contained on this machine, for example: read,memory")
    add("--judge_from", help="folder of a judge (reward judge) or of a language model (coherence)")
    add("--out", help="write the rows with their rewards to this .jsonl file")
    add("--check", action="store_true", help="fail unless every completion, as a reference solution, scores 1.0")
    return p


def main():
    """Run the program -> exit code; a mistake of the user is one sentence and exit code 2."""
    try:
        return score_file(parser().parse_args(terminal.once(sys.argv[1:])))
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RuntimeError) as e:
        print(f"rewards.py: {terminal.explain(e)}", file=sys.stderr)
        return 2
