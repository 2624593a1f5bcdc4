"""
What do groups, signs and ratios add? Eight ways to learn from one base, at equal forward passes:

    python tests/controls.py            # all runs that are not in docs/results/controls.csv yet, one on each core
    python tests/controls.py --show     # only the tables
    python tests/controls.py --show --picture=assets/controls.png

The base of each seed is trained first. Seed 0 tries several settings of each method; the one with the best val/sampled
at its end is used for the other seeds. Stop it at any time; the same command goes on.
"""

import argparse
import csv
import datetime
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def rates(*tried):
    """Write learning rates as flags."""
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
    "better ones": Method("better ones only: the recipe", "",
                          {"sudoku": rates("1e-3"), "countdown": rates("5e-4")}),
    "rejection": Method("every right one alike: rejection sampling",
                        "--adv_baseline=none --adv_norm=none",
                        {"sudoku": rates("3e-4", "1e-3", "3e-3"), "countdown": rates("1.5e-4", "5e-4", "1.5e-3")}),
    "both signs": Method("both signs", "--adv_negative=1",
                         # Countdown has one update for each rollout: a ratio would be 1, as in GRPO without its KL.
                         {"sudoku": rates("3e-5", "1e-4", "3e-4", "1e-3")}),
    "paper": Method("both signs, token ratio, clip 0.2: GRPO without its KL",
                    "--adv_negative=1 --ratio_level=token",
                    {"sudoku": rates("3e-5", "1e-4", "3e-4", "1e-3"),
                     "countdown": rates("5e-5", "1.5e-4", "5e-4")}),
    "with KL": Method("the same with a KL of 0.04: GRPO",
                      "--adv_negative=1 --ratio_level=token --kl_beta=0.04",
                      {"sudoku": rates("1e-4", "3e-4", "1e-3"),
                       "countdown": rates("5e-5", "1.5e-4", "5e-4", "1.5e-3")}),
    "GDSD": Method("both signs, regression, GDSD's constants",
                   f"{REGRESSION} --adv_norm=none --regress.scale=1 --regress.clip=5e-5",
                   {"sudoku": rates("1e-4", "3e-4", "1e-3")}),
    "RSPO": Method("both signs, regression, a target in reach (RSPO)", REGRESSION,
                   {"sudoku": [f"--regress.scale={x} --learning_rate=3e-4" for x in ("0.03", "0.1", "0.3")]}),
    "supervised": Method("the rows' own answers: supervised",
                         "--objective=pretrain --evaluation.samples=4 --max_iters={n} --eval_interval={fifth}",
                         {"sudoku": rates("5e-4", "1e-3", "2e-3"), "countdown": rates("1e-3")}),
}  # fmt: skip
RECORD = Path("docs/results/controls.csv")
NUMBERS = "greedy", "sampled", "pass@4", "distinct"
KEY = "task", "method", "setting", "seed"
COLUMNS = [*KEY, *(f"{name} {when}" for when in ("before", "after") for name in NUMBERS), "date", "commit", "machine"]


def job_of(task, method, setting, seed, folder):
    """Make the run of a method from the base of this seed."""
    import compare  # not for `python tests/tables.py`, which writes these tables

    name = "-".join([task, method, *(part.split("=")[1] for part in setting.split()), str(seed)]).replace(" ", "_")
    n = STEPS[task]
    flags = METHODS[method].flags.format(n=n, fifth=n // 5)
    base = base_of(task, seed, folder)
    command = f"config/{task}_grpo.py --init_from={base.out} --seed={seed} {flags} {setting}"
    return compare.Job(f"{folder}/{name}", command)


def base_of(task, seed, folder):
    """Make the run that trains the base of a seed."""
    import compare

    return compare.Job(f"{folder}/{task}-base-{seed}", f"config/{task}_base.py --seed={seed}")


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
    from loop import runs

    samples = [row["sampled"] for row in runs.read_lines(f"{folder}/samples.jsonl") if row["step"] == metrics["step"]]
    distinct = np.mean([len(set(texts)) / len(texts) for texts in samples])
    return [*(100 * metrics[f"val/{name}"] for name in NUMBERS[:3]), 100 * distinct]


def keep(key, folder, machine):
    """Add the result of a finished run to the file of results."""
    from loop import runs

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
    import compare

    for first in (True, False):
        results, wanted = kept(), []
        for task in options.tasks.split(","):
            for method, (_, _, tried) in METHODS.items():
                if method in GONE:
                    continue
                settings = tried.get(task, ()) if first else [*filter(None, [best_setting(results, task, method)])]
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
    """Write the mean over seeds, and each of them where the number is one of the two rates."""
    values = [float(row[f"{name} after"]) for row in rows]
    each = f" ({', '.join(f'{x:.1f}' for x in values)})" if len(values) > 1 and name in NUMBERS[:2] else ""
    return f"{np.mean(values):.1f}{each}"


def table(results, task):
    """Write the table of a task, in Markdown."""
    before = {row["seed"]: row for key, row in results.items() if key[0] == task and row["greedy before"]}.values()
    values = [f"{np.mean([float(row[f'{name} before']) for row in before]):.1f}" for name in NUMBERS]
    lines = [["what learns", "greedy", "sampled", "pass@4", "distinct", "settings that seed 0 tried, sampled"],
             ["---", "---", "---", "---:", "---:", "---"], ["the bases", *values, ""]]  # fmt: skip
    for method, (what, _, tried) in METHODS.items():
        if best := best_setting(results, task, method):
            said = [f"{s.replace('--learning_rate=', '').replace('--regress.', '')}: "
                    f"{results[task, method, s, '0']['sampled after']}" for s in tried[task]]  # fmt: skip
            rows = [row for key, row in results.items() if key[:3] == (task, method, best)]
            lines.append([what, *(mean_and_each(rows, name) for name in NUMBERS), ", ".join(said)])
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def picture(results, path):
    """Draw what the bases and each method reach, a dot for each seed: one panel for each task."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(STEPS), figsize=(5.5 * len(STEPS), 4), squeeze=False)
    for axis, task in zip(axes[0], STEPS, strict=True):
        best = {method: best_setting(results, task, method) for method in METHODS}
        rows = {"bases": [(row, "before") for key, row in results.items() if key[0] == task and row["greedy before"]]}
        rows |= {method: [(row, "after") for key, row in results.items() if key[:3] == (task, method, setting)]
                 for method, setting in best.items() if setting}  # fmt: skip
        for name, color, shift in (("greedy", "#e69f00", -0.12), ("sampled", "#0072b2", 0.12)):
            dots = [(float(row[f"{name} {when}"]), y + shift) for y, of in enumerate(rows.values()) for row, when in of]
            axis.plot(*zip(*dots, strict=True), "o", color=color, markersize=6, label=name)
        axis.set_yticks(range(len(rows)), list(rows))
        axis.invert_yaxis()
        axis.set_xlim(0, 101)
        axis.set_title(f"{task}: held-out puzzles that are right, %", fontsize=11)
        axis.grid(axis="x", color="#dddddd")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.08), ncols=2)
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
    if not STEPS.keys() >= {*options.tasks.split(",")}:
        raise SystemExit(f"error: --tasks={options.tasks}: expected some of {','.join(STEPS)}")
    if options.picture:
        import compare

        try:
            compare.require_matplotlib()
        except ValueError as error:
            raise SystemExit(f"error: {error}") from None
    if not options.show:
        begun = time.time()
        run_all(options)
        print(f"{(time.time() - begun) / 60:.0f} minutes")
    results = kept()
    for task in options.tasks.split(","):
        print(f"\n{task}\n\n{table(results, task)}")
    if options.picture:
        picture(results, options.picture)


if __name__ == "__main__":
    main()
