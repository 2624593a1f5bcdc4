"""
Draw the animation of the README: the same puzzles, filled before and after GRPO, as an animated SVG. It is dark where
the system is, not where the page is, so it has a background of its own.

    python tools/film.py assets/sudoku_base assets/sudoku_grpo assets/film.svg

It shows the first three puzzles of val with 10 empty cells, none selected by hand, at the runs' own settings and
temperature 0. The bluer a cell, the more probable its digit was when it was filled in. A wrong grid gets a red frame.
"""

import os
import sys
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import jax
import numpy as np

import data
import sample
from checkpoints import checkpoint
from judges import rules
from loop.report import PAUSE, SECONDS, appear

CELL, GAP, TITLE = 34, 28, 30  # pixels
STYLE = """<style>text { font: 15px ui-sans-serif, sans-serif; text-anchor: middle; fill: #1f2328 }
.line { stroke: #8c959f; fill: none } .sure { fill: #2f81f7 } .given { font-weight: 700 } .wrong { stroke: #cf222e }
.right { stroke: #1a7f37 } .end { fill: none; stroke-width: 3 } .page { fill: #ffffff }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .line { stroke: #6e7681 }
  .page { fill: #0d1117 } }</style>"""


class Filled(NamedTuple):
    """What a run made of N puzzles of T cells."""

    texts: list[str]
    step: np.ndarray  # (N, T) at which a cell was filled in
    probability: np.ndarray  # (N, T) of the digit at that step


def fill_puzzles(folder, rows):
    """Fill the puzzles of rows with the model of a run -> Filled."""
    found = checkpoint.find(folder)
    params, cfg = checkpoint.load(found)
    tok, run = data.open_tokenizer(found, cfg.vocab_size), checkpoint.read_run(found)["config"]
    z = np.array([tok.encode(row["masked"], specials=True) for row in rows], np.int32)
    plan = sample.Plan(order=run["order"], rule=run["rule"], steps=run["diffusion_steps"])
    x, trace = sample.generate(params, jax.random.key(0), z, cfg, plan)
    step, logp = np.asarray(trace["step"]), np.asarray(trace["logp"])
    return Filled([tok.decode(row) for row in np.asarray(x)], step, np.exp(logp))


def digit(kind, x, y, text):
    """Write a digit in the middle of a cell."""
    return f'<text class="{kind}" x="{x + CELL / 2}" y="{y + CELL / 2 + 5}">{text}</text>'


def draw_grid(puzzle, filled, i, left, top, seconds):
    """Draw puzzle i of a Filled while it is filled in -> SVG."""
    text, out = filled.texts[i], []
    n = int(len(puzzle) ** 0.5)
    for cell, (known, new) in enumerate(zip(puzzle, text, strict=True)):
        x, y = left + cell % n * CELL, top + cell // n * CELL
        if known != ".":
            out.append(digit("given", x, y, known))
            continue
        opacity = filled.probability[i, cell] * 0.75
        blue = f'<rect class="sure" x="{x}" y="{y}" width="{CELL}" height="{CELL}" opacity="{opacity:.2f}"/>'
        out.append(appear(SECONDS * (1 + filled.step[i, cell]), seconds, blue + digit("", x, y, new)))
    side = CELL * n
    lines = "".join(f"M{left + k * CELL} {top}v{side}M{left} {top + k * CELL}h{side}" for k in range(n + 1))
    kind = "right" if rules.sudoku_all(text, puzzle) == 1 else "wrong"
    frame = f'<rect class="end {kind}" x="{left}" y="{top}" width="{side}" height="{side}"/>'
    return "".join(out) + f'<path class="line" d="{lines}"/>' + appear(seconds - PAUSE, seconds, frame)


def main(before, after, out):
    """Write the animation of three puzzles, filled by the runs in two folders."""
    rows = [row for row in data.load("sudoku_grid", "val") if row["difficulty"] == 10][:3]
    side, body = CELL * int(len(rows[0]["puzzle"]) ** 0.5), ['<rect class="page" width="100%" height="100%" rx="6"/>']
    runs = {"before": fill_puzzles(before, rows), "after": fill_puzzles(after, rows)}
    n_steps = 1 + max(int(filled.step.max()) for filled in runs.values())
    seconds = SECONDS * (n_steps + 1) + PAUSE
    for line, (name, filled) in enumerate(runs.items()):
        top = TITLE + line * (side + 2 * GAP)
        body.append(f'<text x="{GAP + (3 * side + 2 * GAP) / 2}" y="{top - 10}">{name}</text>')
        for i, row in enumerate(rows):
            body.append(draw_grid(row["puzzle"], filled, i, GAP + i * (side + GAP), top, seconds))
    width, height = 3 * side + 4 * GAP, TITLE + 2 * side + 2 * GAP + 20
    with open(out, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">')
        f.write(STYLE + "".join(body) + "</svg>\n")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit("error: type python tools/film.py OUT_DIR OUT_DIR_2 FILE.svg")
    main(*sys.argv[1:])
