"""
The README's moving picture: the same puzzles, filled before and after GRPO, as an animated SVG.

    python assets/film.py out/sudoku_base out/sudoku_grpo assets/film.svg

The first three of val, none chosen, at the runs' own settings, always the most probable token. A cell is as blue as the
model was sure of it when it wrote it; where the grid ends up wrong there is a red frame.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import jax
import numpy as np

import data
import disk
import sample
from assets.report import HOLD, STEP, appear
from judges import rules

CELL, GAP = 34, 28  # pixels
STYLE = """<style>text { font: 15px ui-sans-serif, sans-serif; text-anchor: middle; fill: #1f2328 }
.line { stroke: #8c959f; fill: none } .sure { fill: #2f81f7 } .given { font-weight: 700 } .wrong { stroke: #cf222e }
.right { stroke: #1a7f37 } .end { fill: none; stroke-width: 3 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .line { stroke: #6e7681 } }</style>"""


def filled(folder, rows):
    """A run's folder, N rows -> texts of the completions, the step of every cell and how sure it was, (N, T)."""
    found = disk.find(folder)
    params, cfg = disk.load(found)
    tok, run = data.Tokenizer.load(found, cfg.vocab_size), disk.read_run(found)["config"]
    n = run["max_new_tokens"]
    prompts = [tok.encode(row["prompt"]) for row in rows]
    z = np.array([ids + [cfg.mask_id] * n for ids in prompts], np.int32)
    plan = sample.Plan(order=run["order"], rule=run["rule"], steps=run["diffusion_steps"], block_len=n)
    x, trace = sample.generate(params, jax.random.key(0), z, cfg, plan)
    x, step, logp = (np.asarray(a)[:, -n:] for a in (x, trace["step"], trace["logp"]))
    return [tok.decode(row) for row in x], step, np.exp(logp)


def grid(row, text, step, sure, left, top, length, steps):
    """One puzzle while it is filled -> SVG."""
    given, n, out = row["prompt"].rstrip(":"), int(len(row["prompt"].rstrip(":")) ** 0.5), []
    for i, (a, b) in enumerate(zip(given, text.ljust(n * n), strict=False)):
        x, y = left + i % n * CELL, top + i // n * CELL
        digit = lambda kind, c: f'<text class="{kind}" x="{x + CELL / 2}" y="{y + CELL / 2 + 5}">{c}</text>'  # noqa: B023
        blue = f'<rect class="sure" x="{x}" y="{y}" width="{CELL}" height="{CELL}" opacity="{sure[i] * 0.75:.2f}"/>'
        out.append(digit("given", a) if a != "." else appear(STEP * (1 + step[i]), length, blue + digit("", b)))
    side = CELL * n
    box = f'x="{left}" y="{top}" width="{side}" height="{side}"'
    lines = "".join(f"M{left + k * CELL} {top}v{side}M{left} {top + k * CELL}h{side}" for k in range(n + 1))
    kind = "right" if rules.sudoku_all(text, row["prompt"]) == 1 else "wrong"
    frame = appear(STEP * (steps + 1), length, f'<rect class="end {kind}" {box}/>')
    out += [f'<path class="line" d="{lines}"/>', frame]
    return "".join(out)


def main(before, after, out):
    rows = [row for row in data.load("sudoku", "val") if row["difficulty"] == 12][:3]
    side, body = CELL * int(len(rows[0]["prompt"]) ** 0.5), []
    films = [(name, *filled(folder, rows)) for name, folder in (("before", before), ("after", after))]
    steps = 1 + max(int(step.max()) for _, _, step, _ in films)
    length = STEP * (steps + 1) + HOLD
    for at, (name, texts, step, sure) in enumerate(films):
        top = 30 + at * (side + 2 * GAP)
        body.append(f'<text x="{GAP + (3 * side + 2 * GAP) / 2}" y="{top - 10}">{name}</text>')
        for i, row in enumerate(rows):
            body.append(grid(row, texts[i], step[i], sure[i], GAP + i * (side + GAP), top, length, steps))
    wide, high = 3 * side + 4 * GAP, 30 + 2 * side + 2 * GAP + 20
    with open(out, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}">')
        f.write(STYLE + "".join(body) + "</svg>\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
