"""
What do groups, signs and ratios add? Seven ways to learn from one base, at equal forward passes:

    python tests/controls.py            # all runs that are not in docs/results/controls.csv yet, one on each core
    python tests/controls.py --show     # only the tables
    python tests/controls.py --show --picture=assets/controls.png

The base of each seed is trained first. Seed 0 tries several settings of each method; the one with the best val/sampled
at its end is used for the other seeds. Stop it at any time; the same command goes on.
"""

import argparse
import csv
import datetime
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import compare
import numpy as np
from compare import Job

from loop import runs


def rates(*tried):
    return [f"--learning_rate={rate}" for rate in tried]


REGRESSION = "--adv_negative=1 --loss_type=regress --ratio_level=sequence"  # commit 38552f0 has its code
GONE = "GDSD", "RSPO"  # what today's code does not run: their results stay


class Method(NamedTuple):
    """A way to learn: its flags, and for each task that it is run on, the settings that seed 0 tries."""

    what: str
    flags: str
    tried: dict


# An iteration of sudoku has 512 completions * 4 passes and 4 updates * 96 completions * 2 views * 3, as a gradient
# counts as three passes. Supervised training has 128 rows * 3 a step, and so 11.3 steps for each such iteration.
STEPS = {"sudoku": 2267, "countdown": 3360}
METHODS = {
    "better ones": Method("the recipe: only completions that beat their group, no ratio", "",
                          {"sudoku": rates("1e-3"), "countdown": rates("5e-4")}),
    "rejection": Method("rejection sampling: every right completion counts the same",
                        "--adv_baseline=none --adv_norm=none",
                        {"sudoku": rates("3e-4", "1e-3", "3e-3"), "countdown": rates("1.5e-4", "5e-4", "1.5e-3")}),
    "both signs": Method("both signs, no ratio", "--adv_negative=1",
                         {"sudoku": rates("3e-5", "1e-4", "3e-4", "1e-3")}),
    "paper": Method("GRPO's paper without its KL: both signs, token ratio, clip 0.2",
                    "--adv_negative=1 --ratio_level=token",
                    {"sudoku": rates("3e-5", "1e-4", "3e-4", "1e-3"), "countdown": rates("5e-5", "1.5e-4")}),
    "GDSD": Method("regression on a target out of reach, with a hard clip: the constants of GDSD's code",
                   f"{REGRESSION} --adv_norm=none --regress.scale=1 --regress.clip=5e-5",
                   {"sudoku": rates("1e-4", "3e-4", "1e-3")}),
    "RSPO": Method("regression on a target within reach, as in RSPO", REGRESSION,
                   {"sudoku": [f"--regress.scale={x} --learning_rate=3e-4" for x in ("0.03", "0.1", "0.3")]}),
    "supervised": Method("the rows' own answers, no rewards",
                         "--objective=pretrain --evaluation.samples=4 --max_iters={n} --eval_interval={fifth}",
                         {"sudoku": rates("5e-4", "1e-3", "2e-3"), "countdown": rates("1e-3")}),
}  # fmt: skip
RECORD = Path("docs/results/controls.csv")
NUMBERS = "greedy", "sampled", "pass@4", "distinct"
KEY = "task", "method", "setting", "seed"
COLUMNS = [*KEY, *(f"{name} {when}" for when in ("before", "after") for name in NUMBERS), "date", "commit", "machine"]


def job_of(task, method, setting, seed, folder):
    """Make the run of a method from the base of this seed."""
    name = "-".join([task, method, *(part.split("=")[1] for part in setting.split()), str(seed)]).replace(" ", "_")
    n = STEPS[task]
    flags = METHODS[method].flags.format(n=n, fifth=n // 5)
    base = base_of(task, seed, folder)
    return Job(f"{folder}/{name}", f"config/{task}_grpo.py --init_from={base.out} --seed={seed} {flags} {setting}")


def base_of(task, seed, folder):
    return Job(f"{folder}/{task}-base-{seed}", f"config/{task}_base.py --seed={seed}")


# ---- results ---------------------------------------------------------------------------------------------------------


def kept():
    """Read the results that are kept -> {(task, method, setting, seed): row}."""
    if not RECORD.exists():
        return {}
    with RECORD.open(encoding="utf-8", newline="") as f:
        return {tuple(row[name] for name in KEY): row for row in csv.DictReader(f)}


def numbers_of(folder, metrics):
    """Take the NUMBERS of an evaluation, in percent, from a row of metrics.jsonl and the samples of its step. distinct:
    how many of a prompt's four samples differ."""
    samples = [row["sampled"] for row in runs.read_lines(f"{folder}/samples.jsonl") if row["step"] == metrics["step"]]
    distinct = np.mean([len(set(texts)) / len(texts) for texts in samples])
    return [*(100 * metrics[f"val/{name}"] for name in NUMBERS[:3]), 100 * distinct]


def keep(key, folder, machine):
    """Add the result of a finished run to the file of results."""
    found = [row for row in runs.read_lines(f"{folder}/metrics.jsonl") if "val/pass@4" in row]
    before = numbers_of(folder, found[0]) if found[0]["step"] == 0 else [""] * len(NUMBERS)
    after = numbers_of(folder, found[-1])
    commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True).stdout.strip()
    values = [f"{x:.1f}" if x != "" else "" for x in (*before, *after)]
    row = [*key, *values, datetime.date.today().isoformat(), commit, machine]
    new = not RECORD.exists()
    with RECORD.open("a", encoding="utf-8", newline="") as f:
        csv.writer(f, lineterminator="\n").writerows([COLUMNS] * new + [row])


def best_setting(results, task, method):
    """Choose the setting with the best sampled rate of seed 0; None: not all of them have been tried."""
    tried = {setting: results.get((task, method, setting, "0")) for setting in METHODS[method].tried.get(task, ())}
    if not tried or None in tried.values():
        return None
    return max(tried, key=lambda setting: float(tried[setting]["sampled after"]))


def run_all(options):
    """Run what is not kept yet: first what seed 0 tries, then the other seeds with the best of it."""
    for first in (True, False):
        results, wanted = kept(), []
        for task in options.tasks.split(","):
            for method, (_, _, tried) in METHODS.items():
                if method in GONE:
                    continue
                settings = tried.get(task, ()) if first else filter(None, [best_setting(results, task, method)])
                for seed in [0] if first else range(1, options.seeds):
                    wanted += [(task, method, setting, str(seed)) for setting in settings]
        wanted = [key for key in wanted if key not in results]
        like = SimpleNamespace(toy=False, show=False, fresh=True, out=options.out)
        compare.run_all([base_of(*base, options.out) for base in sorted({(key[0], key[3]) for key in wanted})], like)
        jobs = {key: job_of(*key, options.out) for key in wanted}
        compare.run_all(list(jobs.values()), like)
        for key, job in jobs.items():
            keep(key, job.out, options.machine)


# ---- what is shown ---------------------------------------------------------------------------------------------------


def mean_and_each(rows, name):
    values = [float(row[f"{name} after"]) for row in rows]
    each = f" ({', '.join(f'{x:.1f}' for x in values)})" if len(values) > 1 and name in ("greedy", "sampled") else ""
    return f"{np.mean(values):.1f}{each}"


def lines_of(results, task):
    """Write the table of a task, in Markdown."""
    before = [row for key, row in results.items() if key[0] == task and row["greedy before"]]
    bases = {row["seed"]: row for row in before}.values()
    yield "| method | tried by seed 0, sampled after | greedy | sampled | pass@4 | distinct of 4 |"
    yield "|---|---|---|---|---:|---:|"
    values = (f"{np.mean([float(row[f'{name} before']) for row in bases]):.1f}" for name in NUMBERS)
    yield f"| before | | {' | '.join(values)} |"
    for method, (what, _, tried) in METHODS.items():
        best = best_setting(results, task, method)
        if best is None:
            continue
        said = [f"{s.replace('--learning_rate=', '').replace('--regress.', '')}: "
                f"{results[task, method, s, '0']['sampled after']}" for s in tried[task]]  # fmt: skip
        rows = [row for key, row in results.items() if key[:3] == (task, method, best)]
        numbers = " | ".join(mean_and_each(rows, name) for name in NUMBERS)
        yield f"| {what} | {', '.join(said) if len(said) > 1 else ''} | {numbers} |"


def picture(results, path):
    """Draw what each method reaches, a dot for each seed: greedy and sampled, one panel for each task."""
    from matplotlib import pyplot

    tasks = [task for task in STEPS if any(key[0] == task for key in results)]
    figure, axes = pyplot.subplots(1, len(tasks), figsize=(5.5 * len(tasks), 3.6), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        best = {method: best_setting(results, task, method) for method in METHODS}
        names = [method for method, setting in best.items() if setting]
        for y, method in enumerate(names):
            rows = [row for key, row in results.items() if key[:3] == (task, method, best[method])]
            for name, color in (("greedy", "#e69f00"), ("sampled", "#0072b2")):
                values = [float(row[f"{name} after"]) for row in rows]
                axis.plot(values, [y] * len(values), "o", color=color, markersize=6, label=name if not y else None)
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.set_title(f"{task}: held-out puzzles that are right, %")
        axis.grid(axis="x", color="#dddddd")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="sudoku,countdown")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--machine", default="", help="a letter of docs/results/machines.csv")
    parser.add_argument("--out", default="out/controls")
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--picture", help="draw a picture into this file")
    options = parser.parse_args()
    if not options.show:
        begun = time.time()
        run_all(options)
        print(f"{(time.time() - begun) / 60:.0f} minutes")
    results = kept()
    for task in options.tasks.split(","):
        print(f"\n{task}\n", *lines_of(results, task), sep="\n")
    if options.picture:
        picture(results, options.picture)


if __name__ == "__main__":
    main()
