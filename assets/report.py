"""
A page a run: report.html in its folder, with its curves, what it wrote at each evaluation, a film of a filling, and its
keys. One file without scripts, nothing to fetch; runs.report writes it. What a model wrote is escaped text in it.
"""
import html
import re

STEP, HOLD, MOST = 1.0, 4.0, 12.0  # of a film: seconds a step, seconds at the end, for all steps at most
WIDE, FEW = 64, 8  # characters in a line of a film; evaluations beside each other, the first and the last among them
COLORS = "#2f81f7", "#d29922", "#3fb950", "#a371f7", "#f85149", "#8c959f"
STYLE = """:root { color-scheme: light dark } body { font: 14px ui-sans-serif, sans-serif; margin: 2em }
svg text { font-size: 11px; fill: currentColor } polyline { fill: none; stroke-width: 1.5 } td { vertical-align: top }
table { border-collapse: collapse } td, th { border: 1px solid #8c959f55; padding: 3px 8px; text-align: left }
pre, .film text { font: 12px ui-monospace, monospace; white-space: pre-wrap; margin: 0 0 4px; max-width: 36em }
.curves { display: flex; flex-wrap: wrap } figure { margin: 8px; width: 340px } .scroll { overflow-x: auto }
.film text { white-space: pre } .line { stroke: #8c959f; fill: none } .sure { fill: #2f81f7 } b { color: #2f81f7 }
#steps:checked ~ .minutes, #minutes:checked ~ .steps { display: none }"""


def safe(x):
    """Anything -> text that HTML and XML take as text."""
    return html.escape(re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "·", str(x)))


def appear(at, length, body):
    """Something that is not there before second `at` of a film of that length."""
    return (f'<g opacity="0">{body}<animate attributeName="opacity" values="0;0;1;1" dur="{length}s" '
            f'keyTimes="0;{at / length:.4f};{min(at + 0.25, length) / length:.4f};1" repeatCount="indefinite"/></g>')


def film(tokens):
    """[(text, step that wrote it or -1, how sure the model was)] -> SVG; a token is as blue as the model was sure."""
    steps, x, y, out = 2 + max(step for _, step, _ in tokens), 0, 0, []
    pace = min(STEP, MOST / steps)
    for text, step, p in tokens:
        for n, part in enumerate(text.replace("\n", "⏎\n").split("\n")):
            x, y = (0, y + 1) if n or x + len(part) > WIDE else (x, y)
            box = f'x="{x * 8}" y="{y * 20}" width="{len(part) * 8}" height="18"'
            word = f'<text x="{x * 8}" y="{y * 20 + 13}">{safe(part)}</text>'
            blue = f'<rect class="sure" {box} opacity="{p * 0.75:.2f}"><title>{p:.3f} at step {step}</title></rect>'
            hole = f'<rect class="line" {box}/>'
            out += [word] if step < 0 else [hole, appear(pace * (1 + step), pace * steps + HOLD, blue + word)]
            x += len(part)
    return f'<svg class="film" width="{WIDE * 8}" height="{y * 20 + 20}">{"".join(out)}</svg>'


def chart(title, series, unit):
    """{name: [(x, y)]} -> a figure; of a long curve every so many-th point, and the last."""
    (x0, x1), (y0, y1) = ((min(v), max(v)) for v in zip(*(p for s in series.values() for p in s), strict=True))
    at = lambda x, y: (45 + 280 * (x - x0) / ((x1 - x0) or 1), 150 - 130 * (y - y0) / ((y1 - y0) or 1))
    number, lines, legend = "{:.3g}".format, [], []
    for color, (name, points) in zip(COLORS * len(series), series.items(), strict=False):
        points = points[:: len(points) // 400 + 1] + points[-1:]
        path = " ".join("{:.1f},{:.1f}".format(*at(*p)) for p in points)
        dots = ('<circle cx="{:.1f}" cy="{:.1f}" r="2.5" fill="{}"><title>{} {:g}: {:.4g}</title></circle>'.format(
            *at(*p), color, unit, *p) for p in points[: len(points) if len(points) < 40 else 0])  # fmt: skip
        lines.append(f'<polyline points="{path}" stroke="{color}"/>' + "".join(dots))
        legend.append(f'<span style="color: {color}">{safe(name)} {points[-1][1]:.4g}</span>')
    marks = (0, 24, number(y1)), (0, 165, number(y0)), (45, 170, number(x0)), (295, 170, number(x1)), (160, 170, unit)
    text = "".join(f'<text x="{x}" y="{y}">{said}</text>' for x, y, said in marks)
    return (f'<figure><figcaption>{title}: {", ".join(legend)}</figcaption><svg width="340" height="180">'
            f'<path class="line" d="M45 20V150H325"/>{"".join(lines)}{text}</svg></figure>')


def curves(rows, panels, unit):
    """Rows of metrics.jsonl, {title: names} -> figures over steps or minutes."""
    x = lambda r: r["step"] if unit == "steps" else r["time"] / 60
    of = {title: {k: s for k in names if (s := [(x(r), r[k]) for r in rows if k in r and r[k] is not None])}
          for title, names in panels.items()}  # fmt: skip
    return f'<div class="curves {unit}">' + "".join(chart(t, s, unit) for t, s in of.items() if s) + "</div>"


def sample(s):
    """A row of samples.jsonl -> what was written, with what it earned."""
    out = []
    for name, said in s.items():
        if name not in ("step", "prompt", "columns", "film", "rewards", "advantages"):
            earned = s["rewards"] if name == "sampled" and "rewards" in s else None
            for i, text in enumerate(said if isinstance(said, list) else [said]):
                head = name if earned is None or earned[i] is None else f"{name} {earned[i]:.3g}"
                out.append(f"<pre><b>{safe(head)}</b> {safe(text)}</pre>")
    return "".join(out)


def page(name, cfg, default, rows, panels, samples):
    """The folder's name, {key: value} of its run and of Config(), the rows of its logs, {title: metrics} -> HTML."""
    known = sorted({s["step"] for s in samples})
    steps = dict.fromkeys(known[:: max(-(-len(known) // (FEW - 1)), 1)] + known[-1:])
    by_step = [[s for s in samples if s["step"] == step] for step in steps]
    tag = lambda kind, inside: f"<{kind}>{''.join(inside)}</{kind}>"
    table = lambda lines: tag("table", (tag("tr", (tag("td", cell) for cell in line)) for line in lines))
    prompt = lambda s: f"<pre>{safe(s['prompt'] if 'prompt' in s else '')}</pre>"
    beside = [["", *(f"step {step}" for step in steps)]]
    beside += [[prompt(some[0]), *map(sample, some)] for some in zip(*by_step, strict=False)]
    films = [f"step {some[0]['step']}:{prompt(some[0])}{film(some[0]['film'])}"
             for some in by_step[:1] + by_step[1:][-1:] if "film" in some[0] and some[0]["film"]]  # fmt: skip
    keys = lambda some: table([["key", "here", "default"], *(map(safe, (k, cfg[k], default[k])) for k in some)])
    axis = "".join(f'<input type="radio" name="axis" id="{u}"{more}/><label for="{u}">{u}</label>'
                   for u, more in (("steps", ' checked=""'), ("minutes", "")))  # fmt: skip
    return f"""<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml"><head><meta charset="utf-8"/><title>{safe(name)}</title>
<style>{STYLE}</style></head><body><h1>{safe(name)}</h1><p>{safe(cfg["objective"])} on {safe(cfg["dataset"])}, step
{rows[-1]["step"]} of {cfg["max_iters"]} after {rows[-1]["time"] / 60:.1f} minutes</p><div>over {axis}
{curves(rows, panels, "steps")}{curves(rows, panels, "minutes")}</div>
<h2>A filling, always the likeliest token, as blue as the model was sure</h2>{"<br/>".join(films)}
<h2>What was written at each evaluation</h2><div class="scroll">{table(beside)}</div>
<h2>Keys that differ from their defaults</h2>{keys(k for k in cfg if cfg[k] != default[k])}
<details><summary>all keys</summary>{keys(cfg)}</details></body></html>
"""
