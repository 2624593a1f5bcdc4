"""
Write report.html, the page of a run: curves, samples, rollouts, all config keys.

One file that fetches nothing, written again while the run goes on (`runs.report`). This module collects what is to be
seen; report.html draws it. Texts of a model stay data: the page shows them as text.
"""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EVALUATIONS = 8  # shown side by side, at most, the first and the last among them
POINTS = 400  # of a curve, at most
TEMPLATE = Path(__file__).with_suffix(".html")


def fill_template(path: Path, title: str, content: object, **parts: str) -> str:
    """Put a title, content as JSON (where the template says %data%) and other parts by their names into a template."""
    parts |= {
        "title": html.escape(title.encode(errors="replace").decode()),
        "data": json.dumps(content).replace("<", "\\u003c"),  # no text ends the script that it stands in
    }
    words = re.split(f"%({'|'.join(parts)})%", path.read_text(encoding="utf-8"))
    words[1::2] = [parts[name] for name in words[1::2]]
    return "".join(words)


# ---- curves ----------------------------------------------------------------------------------------------------------


def thinned(points: Sequence) -> list:
    """Keep at most POINTS of some points, evenly spaced, and the last one."""
    stride = max(-(-len(points) // POINTS), 1)
    return [*points[:-1:stride], *points[-1:]]


def line_of(rows: list[dict], name: str) -> dict[str, Any]:
    """Make the curve of a metric from the rows of metrics.jsonl, with a band of its standard error if there is one;
    {} if no row has the metric."""
    known = thinned([row for row in rows if row.get(name) is not None])
    if not known:
        return {}
    errors = [row.get(f"{name}_se") for row in known]
    y = [row[name] for row in known]
    low, high = [], []
    if None not in errors:
        low = [value - error for value, error in zip(y, errors, strict=True)]
        high = [value + error for value, error in zip(y, errors, strict=True)]
    return {
        "name": name.removeprefix("val/"),
        "steps": [row["step"] for row in known],
        "minutes": [row.get("time", 0) / 60 for row in known],
        "y": y,
        "low": low,
        "high": high,
    }


# ---- samples ---------------------------------------------------------------------------------------------------------


def completions_of(row: dict) -> list[tuple[str, str]]:
    """List the completions in a row of samples.jsonl -> [(what it is and its reward, text)]."""
    out = []
    for name, texts in row.items():
        if name in ("step", "prompt", "columns", "rewards"):
            continue
        rewards = row.get("rewards") if name == "sampled" else None
        for i, text in enumerate(texts if isinstance(texts, list) else [texts]):
            reward = "" if rewards is None or rewards[i] is None else f" {rewards[i]:.3g}"
            out.append((name + reward, str(text)))
    return out


def telling_group(rollouts: list[dict]) -> dict | None:
    """Choose the last group whose rewards differ, or the last if there is none -> its row of rollouts.jsonl, with
    `differ`; None if there is no group."""
    if not rollouts:
        return None
    differing = [row for row in rollouts if any(len({*values}) > 1 for values in row["rewards"].values())]
    row = (differing or rollouts)[-1]
    prompt = (row.get("masked") or row["prompt"]).replace("<|mask|>", "_")
    return row | {"prompt": prompt, "differ": bool(differing)}


def evaluations(samples: list[dict]) -> dict:
    """Put the samples of at most EVALUATIONS evaluations side by side -> {steps, rows: for each prompt its completions
    at each of these steps}. samples: the rows of samples.jsonl."""
    known = sorted({row["step"] for row in samples})
    stride = max(-(-len(known) // (EVALUATIONS - 1)), 1)
    steps = list(dict.fromkeys(known[::stride] + known[-1:]))
    by_step = [[row for row in samples if row["step"] == step] for step in steps]
    rows = []
    for of_prompt in zip(*by_step, strict=False):
        rows.append({"prompt": of_prompt[0].get("prompt", ""), "cells": [completions_of(row) for row in of_prompt]})
    return {"steps": steps, "rows": rows}
