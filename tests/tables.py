"""
Write the tables of results into README.md and docs/:  python tests/tables.py

docs/results/runs.csv has a row for each metric of each measured run, recipes.csv says what a recipe does, machines.csv
where they ran. A new row gets the `code` that `python tests/tables.py sudoku_grpo` prints for its recipe: a hash of the
recipe, and of the numbers that tests/test_frozen.py checks. So code may be rewritten as long as these stay. Where a row
has another hash, or none, the tables say "older code".

docs/results/controls.csv is what tests/controls.py measured, and docs/results/gpu/CARD-DATE.json what
`python tests/bench.py gpu` measured on a card.
"""
import csv
import functools
import glob
import hashlib
import json
import re
import sys
import tokenize

import controls

PAGES = "README.md", "docs/results.md", "docs/hardware.md", "docs/estimators.md"
NUMBERS = "tests/fixtures/frozen.json"


def rows(name):
    """Read a file of docs/results/ -> [{column: value}]."""
    return [*csv.DictReader(open(f"docs/results/{name}.csv", encoding="utf-8", newline=""))]


@functools.cache
def bare(path):
    """Read a file of Python without its comments, docstrings and empty lines."""
    lines = ["", *open(path, encoding="utf-8").read().split("\n")]
    with open(path, "rb") as f:
        tokens = [t for t in tokenize.tokenize(f.readline) if t.type != tokenize.NL]
    before = tokenize.NEWLINE
    for t in tokens:
        row, column = t.start
        if t.type == tokenize.COMMENT:
            lines[row] = lines[row][:column]
        elif t.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            lines[row : t.end[0] + 1] = [""] * (t.end[0] + 1 - row)
        before = before if t.type in (tokenize.COMMENT, tokenize.ENCODING) else t.type
    return "\n".join(line.rstrip() for line in lines if line.strip())


def code(recipe):
    """Hash the config file of a recipe, those that it starts from, and the frozen numbers of these recipes (of all, if
    this one has none)."""
    found, left = {}, [recipe]
    while left:
        path = f"config/{left.pop()}.py"
        if path not in found:
            found[path] = bare(path)
            left += re.findall(r"config[./]([a-z]\w+)", found[path])
    record = json.load(open(NUMBERS, encoding="utf-8"))
    if f"steps {recipe}" in record:
        record = {name: numbers for name, numbers in record.items() if name.startswith("tokens")
                  or f"config/{name.split()[1]}.py" in found}  # fmt: skip
    return hashlib.sha1(repr(sorted((found | record).items())).encode()).hexdigest()[:10]


def mean(some, column):
    """Average values such as 48.4% -> text, percentages with one decimal; empty if there are none."""
    values = [row[column] for row in some if row[column]]
    total = sum(float(v.rstrip("%")) for v in values)
    return (f"{total / len(values):.1f}%" if "%" in values[0] else f"{total / len(values):.2f}") if values else ""


def cells(recipe, metrics):
    """Describe the runs of a recipe on one machine and day, {metric: their rows}, in a line of a table."""
    some = next(iter(metrics.values()))
    before = "; ".join(f"{name} {mean(found, 'before')}" for name, found in metrics.items() if mean(found, "before"))
    each = {name: ", ".join(mean([r], "after").rstrip("%") for r in found) for name, found in metrics.items()}
    after = (f"{name} {mean(found, 'after')}{f' ({each[name]})' * (len(found) > 1)}" for name, found in metrics.items())
    minutes = ", ".join({r[column]: 0 for column in ("minutes", "note") for r in some if r[column]})
    where = some[0]["machine"] + ", one core" * (some[0]["cores"] == "1")
    age = "older code" * any(not r["code"] or r["code"] != code(recipe["recipe"]) for r in some)
    return [f"`{recipe['recipe']}`", recipe["task"], before, "; ".join(after), minutes, where, some[0]["date"], age]


def seeds(metrics):
    """Count the runs of a batch {metric: rows}."""
    return len(next(iter(metrics.values())))


def table(short):
    """Make the table of the runs of all recipes or, for the README, of some: the runs that have the most seeds, of
    the code as it is if there are any, one metric. Older runs are left out if the last are of the code as it is, and
    have as many seeds."""
    lines = [["recipe", "task", "before", "after", "minutes", "machine", "date", ""], ["---"] * 8]
    for recipe in rows("recipes"):
        found = {}
        for r in rows("runs"):
            if r["recipe"] == recipe["recipe"]:
                found.setdefault((r["machine"], r["date"]), {}).setdefault(r["metric"], []).append(r)
        batches = [*found.values()]
        if short:
            first = [dict([next(iter(metrics.items()))]) for metrics in batches if recipe["readme"]]
            batches = sorted(first, key=lambda metrics: (not cells(recipe, metrics)[-1], seeds(metrics)))[-1:]
        if batches and not cells(recipe, batches[-1])[-1]:
            batches = [metrics for metrics in batches[:-1] if seeds(metrics) > seeds(batches[-1])] + batches[-1:]
        new = [cells(recipe, metrics) for metrics in batches]
        lines += [line if line is new[0] else ["", "", *line[2:]] for line in new]
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def shown(figure):
    """Format the value of a figure of tests/gpu.py."""
    value = figure["value"]
    text = f"{value:,.4g}" if isinstance(value, float) else str(value)
    return f"{text} {figure['unit']}".strip() + {False: ", WRONG", None: ""}.get(figure["holds"], ", as it should be")


def note_of(figure):
    """Format the note of a figure, with the spread of its seconds."""
    s = figure["seconds"]
    spread = f"best of {len(s)}, the slowest took {s[-1] / s[0] - 1:.0%} longer" if len(s) > 1 else ""
    return "; ".join(filter(None, (figure["note"], spread)))


def cards():
    """Make the table of what was measured on cards, the newest first."""
    lines, last = ["|measured|value|note|", "|---|---:|---|"], None
    for path in sorted(glob.glob("docs/results/gpu/*.json"), key=lambda path: path[-15:], reverse=True):
        for part in json.load(open(path, encoding="utf-8"))["parts"].values():
            about = ", ".join(part[fact] for fact in ("device", "versions", "date", "commit"))
            lines += [f"|**{about}**|||"] * (about != last)
            lines += [f"|{f['name']}|{shown(f)}|{note_of(f)}|" for f in part["figures"]]
            last = about
    return "\n".join(lines)


def written(path):
    """Read a page, and write its tables anew between their marks -> the page."""
    machines = "\n".join(f"* **{r['machine']}**: {r['description']}" for r in rows("machines"))
    new = {"six": table(True), "recipes": table(False), "machines": machines, "cards": cards()}
    new |= {task: controls.table(controls.kept(), task) for task in controls.STEPS}
    text = open(path, encoding="utf-8").read()
    return re.sub(r"(?s)(<!-- results: (\w+) -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{new[m[2]]}\n{m[3]}", text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, code(name))
    for page, text in [(page, written(page)) for page in PAGES * (not sys.argv[1:])]:
        open(page, "w", encoding="utf-8").write(text)
