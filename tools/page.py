"""
Write one HTML file in which a model runs: `python sample.py out/sudoku_base out/sudoku_grpo --page=play.html`.

The file holds the weights (float16, base64), held-out rows, a transformer and a sampler in plain JavaScript (page.js)
and what one sees (page.html). It fetches nothing, so it works from a mail attachment. docs/sampling.md shows it.

Below, `one` is a complete.Model, and `pack_` functions return what becomes JSON in the page.
"""

if __name__ == "__main__":
    raise SystemExit("error: type python sample.py OUT_DIR --page=play.html")


import base64
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import data
from checkpoints import checkpoint
from data import texts
from loop import report, same_run
from sample import RULES as ALL_RULES
from sample import Plan
from system import disk, sections
from system.tokens import bpe

LARGEST = 5_000_000  # parameters
HELD_OUT = 100  # rows
# What page.js knows; a test compares both with sample.py.
ORDERS = "confidence", "margin", "entropy", "left", "random", "sampled"
RULES = "quota", "threshold", "static", "dynamic"
PLAN = set("order rule steps block_len early_end threshold temperature cache".split())  # it does without the cache
SWITCHES = set("vocab_size n_layer n_head n_kv_head d_model d_head d_ff causal shift".split())
SWITCHES |= set("qkv_bias qk_norm tie_embeddings rope_theta norm_eps mask_id eos_id pad_id bos_id".split())
SWITCHES |= set("mask read rotary blocks.block rope.scaling".split())
SWITCHES |= {"dtype", "remat", "max_positions"}  # which change no result but by rounding
EXACT = "exact", "sudoku", "sudoku_all"  # rewards that only the answer of a row satisfies


class Setting(NamedTuple):
    """What the page begins with."""

    plan: Plan
    n_new: int  # masks behind a prompt without holes
    seed: int


def write(path: str, loaded: list[Any], setting: Setting, rows: list[dict] | None) -> None:
    """Write the page of one model, or of two side by side.

    loaded [complete.Model]. rows: to choose from; None: those that the run's evaluations score.
    """
    first = loaded[0]
    for one in loaded:
        check_model(one)
        if files_of(one.tok) != files_of(first.tok):
            raise ValueError(f"{first.folder} and {one.folder} have two tokenizers, so they cannot fill the same text")
    check_plan(setting.plan)
    names = names_of([one.folder for one in loaded])
    content = {
        "models": [{"name": name} | pack_model(one) for name, one in zip(names, loaded, strict=True)],
        **pack_tokens(first),
        **pack_rows(loaded[-1], rows),
        "plan": {name: value for name, value in vars(setting.plan).items() if name != "use"},
        "block": max(one.cfg.block or 1 for one in loaded),
        "orders": ORDERS,
        "rules": RULES,
        "n_new": setting.n_new,
        "seed": setting.seed,
    }
    folder = Path(__file__).parent
    network = (folder / "page.js").read_text(encoding="utf-8")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with disk.replacing(path) as f:
        f.write(report.fill_template(folder / "page.html", " and ".join(names), content, model=network))


# ---- what a page can run ---------------------------------------------------------------------------------------------


def check_model(one):
    """Raise an error that says why a page cannot run a model."""
    checkpoint.refuse_judge(one.folder, one.params)
    cfg, size = one.cfg, sum(leaf.size for leaf in jax.tree.leaves(one.params))
    lacking, ours = differing(cfg, SWITCHES), data.Tokenizer.from_ranks(one.tok.vocab)
    lacking |= {name: one.trained.get(name) for name in ("texts.chat_template", "texts.instruction")}
    for wrong, what in (
        (size > LARGEST, f"{size:,} parameters, and a page takes at most {LARGEST:,}; use --prompt and --show"),
        *((value, f"{name}={value}, which the page lacks") for name, value in lacking.items()),
        (cfg.block and cfg.shift, f"blocks.block={cfg.block} and shift=True, which the page cannot sample"),
        (cfg.mask_id is None, "no mask token, so nothing can be masked"),
        (files_of(ours) != files_of(one.tok), "a tokenizer from elsewhere: the page has bytes or BPE"),
    ):
        if wrong:
            raise ValueError(f"{one.folder} has {what}")


def files_of(tok):
    """Make the content of the two files of a tokenizer, by which it is known."""
    return tok.content(), tok.settings()


def differing(values, known):
    """Collect the fields of settings, and keys of what they use, that are not in `known` and not what plain settings
    have -> {name: value}."""
    plain, there = sections.flat(type(values)()), sections.flat(values)
    return {name: value for name, value in there.items() if name not in known and value != plain.get(name)}


def check_plan(plan):
    """Raise an error that says which setting the page's sampler lacks."""
    for name, value, known in (("order", plan.order, ORDERS), ("rule", plan.rule, RULES)):
        if value not in known:
            raise ValueError(f"{name}={value!r}: the page has only {', '.join(known)}; give --{name}={known[0]}")
    plain = sections.flat(Plan())
    for name, value in differing(plan, PLAN).items():
        if name.partition(".")[0] not in ALL_RULES:  # the keys of a rule change nothing in another one
            advice = f"give --{name}={plain[name]}" if name in plain else "leave it out"
            raise ValueError(f"{name}={value}: the page has no such setting, {advice}")


# ---- what it holds ---------------------------------------------------------------------------------------------------


def tensors_of(params, cfg):
    """List the tensors [(name, array)] as page.js multiplies with them: of each layer, matrices transposed."""
    out = [(name, params[name].T if name == "head" else params[name]) for name in ("embed", "head", "norm")
           if name in params]  # fmt: skip
    for n, layer in enumerate(params["blocks"]):
        out += [(f"{n}.{name}", w.T) for name, w in layer.items()]
    return [(name, np.asarray(array, np.float32)) for name, array in out]


def pack_model(one):
    """Collect what page.js needs of a model: its shape, rotary frequencies, and weights in 16 bits."""
    cfg = one.cfg
    tensors = tensors_of(one.params, cfg)
    flat = np.concatenate([array.ravel() for _, array in tensors])
    if not (np.abs(flat) <= np.finfo(np.float16).max).all():
        raise ValueError(f"{one.folder} has weights that float16 cannot hold: not finite, or above 65,504")
    shape = {name: value for name, value in vars(cfg).items() if name != "use"} | {"block_causal": cfg.block}
    shape |= {"kv_heads": cfg.kv_heads, "head_dim": cfg.head_dim, "ff": cfg.ff}
    from variants import causal, rope  # a page has all kinds of models

    stretched = sections.find(cfg, "rope")
    frequencies = rope.frequencies(cfg.rope_theta, cfg.head_dim, stretched and stretched.scaling)
    return {
        "config": shape | {"start_id": causal.start_id(cfg)},
        "frequencies": np.asarray(frequencies, float).tolist(),
        "tensors": [(name, array.size) for name, array in tensors],
        "weights": base64.b64encode(flat.astype("<f2").tobytes()).decode(),
    }


def names_of(folders):
    """Return short names of models' folders: out/sudoku_grpo/step-000200 is sudoku_grpo, unless another is, too."""
    parts = [Path(os.path.abspath(folder)).parts for folder in folders]
    names = [last if not last.startswith("step-") else run for *_, run, last in parts]
    return names if len({*names}) == len(names) else ["/".join(part[-2:]) for part in parts]


def pack_tokens(one):
    """Collect the tokens: ordinary ones as strings with a character per byte, in the order of their ids."""
    by_id = sorted(one.tok.vocab, key=one.tok.vocab.__getitem__)
    return {
        "vocab": [token.decode("latin-1") for token in by_id],
        "specials": one.tok.specials,
        "pattern": bpe.OWN_PATTERN,
        "mask": one.cfg.mask_id,
        "eos": one.cfg.eos_id,
    }


def pack_rows(one, rows):
    """Collect up to HELD_OUT rows to pick in the page (None: those of the run's evaluations) -> {"rows", "exact": only
    their answers are right, "sudoku": the reward is one, "longest": tokens in training}."""
    run = same_run.recorded(one.trained)
    reward = [*run.eval_rewards, *run.rewards, ""][0] if one.trained else ""
    if rows is None:
        rows = held_out_rows(one, run) if one.trained else []
    packed = [pack_row(row) for row in rows if row.get("prompt") or "masked" in row][:HELD_OUT]
    return {
        "rows": packed,
        "exact": reward in EXACT and all(row["answer"] is not None for row in packed),
        "sudoku": reward in ("sudoku", "sudoku_all"),
        "longest": run.max_prompt_len + run.max_new_tokens if one.trained else None,
    }


def pack_row(row):
    """Collect a prompt, its right answer, and whether it has holes. In `masked`, <|mask|> becomes _ where that reads
    the same."""
    text, holes = row.get("masked", row["prompt"]), "masked" in row
    if holes and not re.search(r"[^\W\d]", text.replace("<|mask|>", "")):
        text = text.replace("<|mask|>", "_")
    answer = row.get("answer", row.get("completion"))
    return {"prompt": text, "answer": answer if answer is None else str(answer), "holes": holes}


def held_out_rows(one, run):
    """Read the rows that the run's evaluations score; say so if they are not here."""
    try:
        return texts.eval_texts(run, one.tok, with_completions=run.fill_in).rows
    except (OSError, ValueError) as e:
        print(f"{one.folder}: the page has no held-out rows, --data=FILE gives it some ({e})", file=sys.stderr)
        return []
