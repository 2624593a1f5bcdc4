"""
Lay the curves of several runs over each other: `python tools/compare.py out/a out/b ... [--out=compare.html]`.

Runs whose configs differ only in the seed (and in where they are stored) are one curve: the interquartile mean, which
leaves out the lowest and the highest quarter of the seeds, in a band that is its 95% interval over seeds drawn again
and again (bootstrap), as rliable does it (2108.13264).
"""

if __name__ == "__main__":  # as a script: imports come from the project's folder, not from this one
    import os
    import sys

    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from system import terminal

    terminal.begin()

import argparse
import os

import numpy as np

from checkpoints import checkpoint, older
from loop import report as pages
from loop import runs, same_run
from system import disk, terminal

# Keys that may differ between seeds of one recipe. (`use` names the files of settings that are recorded, too.)
APART = "seed", "out_dir", "init_from", "base", "use", "model.use"
DRAWS = 2000  # of the bootstrap


def main() -> None:
    """Read the command line and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="RUN", help="out_dir of a run")
    parser.add_argument("--out", default="compare.html", help="the page to write")
    asked = parser.parse_args()
    with terminal.errors_explained():
        by_place = {os.path.realpath(folder): os.path.normpath(folder) for folder in asked.folders}
        folders = list(by_place.values())
        text = compare(folders)
        with disk.writing(asked.out) as f:
            f.write(text)
    print(f"{asked.out} shows {len(folders)} run" + "s" * (len(folders) > 1))


def read(folder: str) -> tuple[dict, list[dict]]:
    """Read the config and the metrics of a run."""
    rows = runs.read_lines(os.path.join(folder, checkpoint.LOGS[0]))
    if not rows:
        raise ValueError(f"{folder!r} holds no run: there are no metrics in {os.path.join(folder, checkpoint.LOGS[0])}")
    run = checkpoint.read_run(folder)
    if "config" not in run:
        raise ValueError(f"{os.path.join(folder, 'run.json')} is missing or has no config, which tells recipes apart: "
                         "name the out_dir of a run, with all its files")  # fmt: skip
    return run["config"], rows


def compare(folders: list[str]) -> str:
    """Write the page of several runs -> HTML."""
    found = {folder: read(folder) for folder in folders}
    groups: dict = {}
    for folder, (cfg, _) in found.items():
        groups.setdefault(recipe_of(cfg), []).append(folder)
    seed_of = {folder: cfg.get("seed") for folder, (cfg, _) in found.items()}
    names = [name_of(group, seed_of) for group in groups.values()]
    logs = {}
    for name, group in zip(names, groups.values(), strict=True):
        where = f" in {os.path.dirname(group[0])}" if names.count(name) > 1 else ""
        where = f" from {group[0]} on" if name + where in logs else where  # two recipes in one folder
        logs[name + where] = [found[folder][1] for folder in group]
    panels = []
    for curves in runs.pictures([row for _, rows in found.values() for row in rows]):
        for metric in curves.names:
            bands = [band(name, of_seed, metric) for name, of_seed in logs.items()]
            lines = [line._replace(color=number) for number, line in enumerate(bands) if line]
            if lines:
                short = metric.removeprefix("val/")
                alone = curves.names == [metric] or short == curves.title
                title = curves.title if alone else f"{curves.title}: {short}"
                panels.append(pages.Panel(title, curves.unit, lines))
    about = ["A band is the 95% interval of the interquartile mean over seeds; of one run, its standard error."]
    return pages.page(" and ".join(logs), about, panels, several=True)


def recipe_of(cfg: dict) -> str:
    """Write down the keys that tell recipes apart. Older runs also recorded the keys of variants that they did not use,
    and keys that are gone since: these are left out where they have the value that changes nothing."""
    absent = older.OFF | same_run.GONE
    return str(sorted(item for item in cfg.items() if item[0] not in APART and item not in absent.items()))


def name_of(group: list[str], seed_of: dict) -> str:
    """Name the runs of one recipe after what their folders have in common; seed_of: {folder: seed}."""
    names = [os.path.basename(os.path.abspath(folder)) for folder in group]
    if len(names) == 1:
        return names[0]
    common = os.path.commonprefix(names).rstrip("_-.0123456789") or names[0]
    seeds = len({seed_of[folder] for folder in group})
    runs_of = "" if seeds == len(group) else f"{len(group)} runs of "
    return f"{common}, {runs_of}{seeds} seed" + "s" * (seeds > 1)


def band(name: str, logs: list[list[dict]], metric: str) -> pages.Line | None:
    """Draw one metric of the seeds of a recipe, at the steps that all of them have; None: there is none."""
    of_seed = [{row["step"]: row for row in rows if row.get(metric) is not None} for rows in logs]
    if len(logs) == 1:
        line = pages.line_of(logs[0], metric)
        return line and line._replace(name=name)
    steps = set.intersection(*map(set, of_seed))
    shared = pages.thinned(sorted(steps))
    if not shared:
        return None
    values = np.array([[rows[step][metric] for step in shared] for rows in of_seed])  # (seeds, steps)
    draws = np.random.default_rng(0).integers(len(logs), size=(DRAWS, len(logs)))
    means = [interquartile_mean(values[draw]) for draw in draws]
    low, high = np.percentile(means, (2.5, 97.5), axis=0)
    minutes = np.mean([[rows[step]["time"] / 60 for step in shared] for rows in of_seed], 0)
    arrays = minutes, interquartile_mean(values), low, high
    return pages.Line(name, shared, *(a.tolist() for a in arrays))


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Average over seeds without their lowest and highest quarter: (seeds, ...) -> (...). Of up to three: the mean."""
    cut = len(values) // 4
    return np.sort(values, 0)[cut : len(values) - cut].mean(0)


if __name__ == "__main__":
    terminal.run(main)
