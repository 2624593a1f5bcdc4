"""
Write report.html, the page of a run: curves, samples side by side, an animation of the denoising, all config keys.

One file without scripts that fetches nothing; runs.report writes it. Texts of a model are escaped.
"""

import html
import re
from collections.abc import Iterable, Sequence

SECONDS, PAUSE, MAX_SECONDS = 1.0, 4.0, 12.0  # of an animation: per step, at the end, for all steps at most
WIDTH = 64  # characters in a line of an animation
EVALUATIONS = 8  # shown side by side, at most, the first and the last among them
COLORS = "#2f81f7", "#d29922", "#3fb950", "#a371f7", "#f85149", "#8c959f"
STYLE = """:root { color-scheme: light dark } body { font: 14px ui-sans-serif, sans-serif; margin: 2em }
svg text { font-size: 11px; fill: currentColor } polyline { fill: none; stroke-width: 1.5 } td { vertical-align: top }
table { border-collapse: collapse } td, th { border: 1px solid #8c959f55; padding: 3px 8px; text-align: left }
pre, .film text { font: 12px ui-monospace, monospace; white-space: pre-wrap; margin: 0 0 4px; max-width: 36em }
.curves { display: flex; flex-wrap: wrap } figure { margin: 8px; width: 340px } .scroll { overflow-x: auto }
.film text { white-space: pre } .line { stroke: #8c959f; fill: none } .sure { fill: #2f81f7 } b { color: #2f81f7 }
#steps:checked ~ .minutes, #minutes:checked ~ .steps { display: none }"""


def escape(value: object) -> str:
    """Turn anything into text that HTML and XML read as text."""
    return html.escape(re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "·", str(value)))


def appear(second: float, length: float, body: str) -> str:
    """Hide an SVG element until this second of an animation of `length` seconds."""
    start, end = second / length, min(second + 0.25, length) / length
    return (
        f'<g opacity="0">{body}<animate attributeName="opacity" values="0;0;1;1" dur="{length}s" '
        f'keyTimes="0;{start:.4f};{end:.4f};1" repeatCount="indefinite"/></g>'
    )


def denoising_animation(tokens: Sequence) -> str:
    """Draw tokens [(text, step, probability)] as they were filled in -> SVG; bluer means more probable.

    The step of a token that was given is -1.
    """
    n_steps = 2 + max(step for _, step, _ in tokens)
    pace = min(SECONDS, MAX_SECONDS / n_steps)
    x, y, out = 0, 0, []
    for text, step, p in tokens:
        for n, part in enumerate(text.replace("\n", "⏎\n").split("\n")):
            if n or x + len(part) > WIDTH:
                x, y = 0, y + 1
            box = f'x="{x * 8}" y="{y * 20}" width="{len(part) * 8}" height="18"'
            word = f'<text x="{x * 8}" y="{y * 20 + 13}">{escape(part)}</text>'
            blue = f'<rect class="sure" {box} opacity="{p * 0.75:.2f}"><title>{p:.3f} at step {step}</title></rect>'
            if step >= 0:
                out.append(f'<rect class="line" {box}/>')
                word = appear(pace * (1 + step), pace * n_steps + PAUSE, blue + word)
            out.append(word)
            x += len(part)
    return f'<svg class="film" width="{WIDTH * 8}" height="{y * 20 + 20}">{"".join(out)}</svg>'


def chart(title: str, series: dict[str, list[tuple]], unit: str) -> str:
    """Draw curves {name: [(x, y)]} -> a figure; long curves are thinned to 400 points."""
    xs, ys = zip(*(point for points in series.values() for point in points), strict=True)
    left, right, bottom, top = min(xs), max(xs), min(ys), max(ys)

    def position(x, y):
        return 45 + 280 * (x - left) / ((right - left) or 1), 150 - 130 * (y - bottom) / ((top - bottom) or 1)

    lines, legend = [], []
    for color, (name, points) in zip(COLORS * len(series), series.items(), strict=False):
        points = points[:: len(points) // 400 + 1] + points[-1:]
        places = [position(*point) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        lines.append(f'<polyline points="{path}" stroke="{color}"/>')
        if len(points) < 40:
            for (x, y), point in zip(places, points, strict=True):
                label = f"<title>{unit} {point[0]:g}: {point[1]:.4g}</title>"
                lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}">{label}</circle>')
        legend.append(f'<span style="color: {color}">{escape(name)} {points[-1][1]:.4g}</span>')
    marks = [(0, 24, f"{top:.3g}"), (0, 165, f"{bottom:.3g}")]
    marks += [(45, 170, f"{left:.3g}"), (295, 170, f"{right:.3g}"), (160, 170, unit)]
    labels = "".join(f'<text x="{x}" y="{y}">{text}</text>' for x, y, text in marks)
    return (
        f'<figure><figcaption>{title}: {", ".join(legend)}</figcaption><svg width="340" height="180">'
        f'<path class="line" d="M45 20V150H325"/>{"".join(lines)}{labels}</svg></figure>'
    )


def curves(rows: list[dict], panels: dict[str, list[str]], unit: str) -> str:
    """Draw panels {title: metric names} from the rows of metrics.jsonl, over "steps" or "minutes"."""
    figures = []
    for title, names in panels.items():
        series = {}
        for name in names:
            known = [row for row in rows if row.get(name) is not None]
            if known:
                series[name] = [(row["step"] if unit == "steps" else row["time"] / 60, row[name]) for row in known]
        if series:
            figures.append(chart(title, series, unit))
    return f'<div class="curves {unit}">{"".join(figures)}</div>'


def samples_of_row(row: dict) -> str:
    """Show the completions in a row of samples.jsonl with their rewards."""
    out = []
    for name, texts in row.items():
        if name in ("step", "prompt", "columns", "film", "rewards", "advantages"):
            continue
        rewards = row.get("rewards") if name == "sampled" else None
        for i, text in enumerate(texts if isinstance(texts, list) else [texts]):
            head = name if rewards is None or rewards[i] is None else f"{name} {rewards[i]:.3g}"
            out.append(f"<pre><b>{escape(head)}</b> {escape(text)}</pre>")
    return "".join(out)


def table(rows: Iterable[Iterable[str]]) -> str:
    """Make a table of cells that are HTML."""
    lines = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def prompt_of(row):
    """Show the prompt in a row of samples.jsonl."""
    return f"<pre>{escape(row.get('prompt', ''))}</pre>"


def page(name: str, cfg: dict, default: dict, rows: list[dict], panels: dict[str, list[str]], samples: list) -> str:
    """Write the page of a run -> HTML.

    name: of its folder. cfg, default {key: value}: its config, and Config(). rows, samples: of metrics.jsonl and
    samples.jsonl. panels {title: metric names}: the curves.
    """
    known = sorted({row["step"] for row in samples})
    stride = max(-(-len(known) // (EVALUATIONS - 1)), 1)
    steps = list(dict.fromkeys(known[::stride] + known[-1:]))
    by_step = [[row for row in samples if row["step"] == step] for step in steps]
    side_by_side = [["", *(f"step {step}" for step in steps)]]
    for same_prompt in zip(*by_step, strict=False):
        side_by_side.append([prompt_of(same_prompt[0]), *map(samples_of_row, same_prompt)])
    animations = [
        f"step {row['step']}:{prompt_of(row)}{denoising_animation(row['film'])}"
        for row, *_ in by_step[:1] + by_step[1:][-1:]
        if row.get("film")
    ]

    def keys(names):
        values = (map(escape, (name, cfg[name], default[name])) for name in names)
        return table([["key", "here", "default"], *values])

    axis = "".join(
        f'<input type="radio" name="axis" id="{unit}"{checked}/><label for="{unit}">{unit}</label>'
        for unit, checked in (("steps", ' checked=""'), ("minutes", ""))
    )
    return f"""<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml"><head><meta charset="utf-8"/><title>{escape(name)}</title>
<style>{STYLE}</style></head><body><h1>{escape(name)}</h1><p>{escape(cfg["objective"])} on {escape(cfg["dataset"])},
step {rows[-1]["step"]} of {cfg["max_iters"]} after {rows[-1]["time"] / 60:.1f} minutes</p><div>over {axis}
{curves(rows, panels, "steps")}{curves(rows, panels, "minutes")}</div>
<h2>Denoising at temperature 0: the bluer a token, the more probable it was</h2>{"<br/>".join(animations)}
<h2>Samples at each evaluation</h2><div class="scroll">{table(side_by_side)}</div>
<h2>Keys that differ from their defaults</h2>{keys(key for key in cfg if cfg[key] != default[key])}
<details><summary>all keys</summary>{keys(cfg)}</details></body></html>
"""
