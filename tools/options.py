"""
The options of `python sample.py`, read from the source of sample.py, so that --help need not import JAX.
"""

import argparse
import ast
import glob
import os
import re
from typing import NamedTuple


class Field(NamedTuple):
    """A field of sample.Plan."""

    name: str
    default: object
    meaning: str  # the comment beside it


def read_plan(text):
    """List the fields of Plan in the source of sample.py, but `use`."""
    (plan,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == "Plan")
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", ast.get_source_segment(text, plan) or "", re.M))
    fields = [node for node in plan.body if isinstance(node, ast.AnnAssign) and node.target.id not in ("use", "kind")]
    return [Field(f.target.id, ast.literal_eval(f.value), comments.get(f.target.id, "")) for f in fields]


def read_variants():
    """List the keys of the files of variants/ that add to the tables of sample.py, in their source."""
    found = []
    for path in sorted(glob.glob(os.path.join(ROOT, "variants", "*.py"))):
        with open(path) as file:
            text = file.read()
        if re.search(r"^(settings\.add\()?sample\.[A-Z]+[\[,]", text, re.M):
            kinds = [n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == "Keys"]
            calls = [(f.target.id, f.value.args) for kind in kinds for f in kind.body if isinstance(f, ast.AnnAssign)]
            file = os.path.basename(path)[:-3]
            found += [Field(f"{file}.{name}", *map(ast.literal_eval, args[:2])) for name, args in calls]
    return found


ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
with open(os.path.join(ROOT, "sample.py")) as file:
    TEXT = file.read()
SOURCE, PLAN = ast.parse(TEXT), read_plan(TEXT) + read_variants()
# TRAINED {config key: field of Plan}: settings taken from the config of the run. Those of its rollouts are not.
OF_ROLLOUTS = "temperature", "early_end", "top_k", "top_p", "repetition_penalty.penalty"
TRAINED = {"diffusion_steps": "steps"} | {f.name: f.name for f in PLAN if f.name not in OF_ROLLOUTS}
HOLES = {  # the parts of a text that are read as masks, as regular expressions
    "mask": r"<\|mask\|>",
    "auto": r"<\|mask\|>|(?<![^\W\d])(?<!\\)_+(?![^\W\d])",  # [^\W\d]: a letter or a _
    "none": r"(?!)",  # never matches
}


def path(text):
    """Read a name on the command line; argparse names this function in its error message."""
    if not text:
        raise ValueError
    return os.path.expanduser(text)  # a shell leaves the ~ of --out=~/x as it is


def count(text):
    """Read a whole number above 0 on the command line; argparse names this function in its error message."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def seed(text):
    """Read the seed of random numbers on the command line; argparse names this function in its error message."""
    if not 0 <= int(text) < 2**32:
        raise ValueError
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Build the parser; every field of Plan is a flag, explained by its comment in sample.py."""
    p = argparse.ArgumentParser(
        description=ast.get_docstring(SOURCE),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="python sample.py OUT_DIR [--prompt=TEXT | --data=FILE.jsonl] [--flag=value ...]   (--help lists them)",
    )
    add = p.add_argument
    prompt = (
        "text to complete, or with holes to fill: <|mask|> is a token, and so is a _ that touches no letter (3_1_ has "
        r"two, is_prime none; \_ is an underscore); with a chat template nothing is a hole"
    )
    folders = "out_dir of a run (its best checkpoint), a step-... in it, or a Hugging Face folder with a tokenizer"
    rows = "rows to complete: .jsonl, .json, .txt with one prompt per line (all also .gz), or a data set (its val rows)"
    export = "only write the model, adapters (LoRA) merged into its weights, and its tokenizer to a Hugging Face folder"
    family = "family of the model, if config.json says another, as in --checkpoint.open_as=Dream"
    bits = "matrices of the layers in 8 or 4 bits; default: as in training"
    add("folder", type=path, metavar="OUT_DIR", help=folders)
    add("beside", nargs="?", type=path, metavar="OUT_DIR_2", help="with --page: a second model, on the same texts")
    add("--prompt", help=prompt)
    add("--n", type=count, default=1, help="completions per prompt; above 1 the temperature is 1")
    add("--show", action="store_true", help="show the denoising step by step")
    add("--data", type=path, help=rows)
    add("--out", type=path, help="write the rows with their completions to this .jsonl file, which rewards.py scores")
    add("--export", type=path, metavar="FOLDER", help=export)
    add("--explain", action="store_true", help="only say how the folder is read and what that costs, and test it")
    add("--checkpoint.open_as", metavar="FAMILY", help=family)
    add("--dtype", choices=("float32", "bfloat16"), help="what weights are kept and multiplied in; default: as stored")
    add("--quantized.bits", type=int, choices=(8, 4), help=bits)
    add("--page", type=path, metavar="FILE", help="only write one HTML file in which the model runs in a browser")
    add("--as_published", action="store_true", help="sample as the authors of the model did for their numbers, where "
        "other flags do not say otherwise: see docs/checkpoints.md")  # fmt: skip
    add("--texts.chat_template", help="chatml, llada, llama3, gemma, own (from its files); default: as in training")
    add("--texts.system_prompt", help="how the template begins; default: as in training, or the template's own")
    add("--texts.instruction", help="text before a prompt, or around {prompt}; default: as in training, or none")
    add("--seed", type=seed, default=0)
    add("--max_new_tokens", type=count, help="masks after a prompt without holes; default: as in training, or 128")
    add("--batch_size", type=count, default=32)
    for field in PLAN:
        names = [field.name, *(name for name, ours in TRAINED.items() if ours == field.name)]
        flags = [f"--{name}" for name in dict.fromkeys(names)]
        add(*flags, metavar="X", help=f"{field.meaning} ({field.default})".replace("%", "%%"))
    return p
