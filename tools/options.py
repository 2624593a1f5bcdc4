"""
The options of `python sample.py`: the settings of a Plan, and what is only typed.
"""

import argparse
import dataclasses
import os
import typing
from typing import Any, NamedTuple

import sample
from loop import help
from sample import Plan
from system import index, sections


class Setting(NamedTuple):
    """A field of sample.Plan, or the key of a variant that sampling reads."""

    kind: Any  # its annotation
    default: Any
    meaning: str


def settings_of_plan() -> dict[str, Setting]:
    """List the settings of a Plan by name, after importing all files of variants/."""
    kinds, meanings = typing.get_type_hints(Plan), help.comments(Plan)
    fields = [field for field in dataclasses.fields(Plan) if field.name != "use"]
    found = {f.name: Setting(kinds[f.name], f.default, meanings.get(f.name, "")) for f in fields}
    keys = index.all_keys()
    for name, key in keys.items():
        if key.field and (index.file_of(name) in sample.RULES or key.section().in_sampling):
            field = sections.fields_of(key.section)[key.field]
            found[name] = Setting(key.type, field.default, help.meaning(field))
    return found


PLAN = settings_of_plan()
# TRAINED {config key: field of Plan}: settings taken from the config of the run. Those of its rollouts are not.
OF_ROLLOUTS = "temperature", "early_end", "top_k", "top_p", "repetition_penalty.penalty"
TRAINED = {"diffusion_steps": "steps"} | {name: name for name in PLAN if name not in OF_ROLLOUTS}
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
    """Build the parser; every setting of a Plan is a flag."""
    p = argparse.ArgumentParser(
        description=sample.__doc__,
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
    rows = "rows to complete: .jsonl, .json, .txt with one prompt per line, or a data set (its val rows)"
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
    add("--checkpoint.open_as", metavar="FAMILY", help=family)
    add("--dtype", choices=("float32", "bfloat16"), help="what weights are kept and multiplied in; default: as stored")
    add("--quantized.bits", type=int, choices=(8, 4), help=bits)
    add("--page", type=path, metavar="FILE", help="only write one HTML file in which the model runs in a browser")
    add("--texts.chat_template", help="chatml, llada, llama3, gemma; default: as in training")
    add("--texts.system_prompt", help="how the template begins; default: as in training, or the template's own")
    add("--texts.instruction", help="text before a prompt, or around {prompt}; default: as in training, or none")
    add("--seed", type=seed, default=0)
    add("--max_new_tokens", type=count, help="masks after a prompt without holes; default: as in training, or 128")
    add("--batch_size", type=count, default=32)
    for name, setting in PLAN.items():
        names = [name, *(theirs for theirs, ours in TRAINED.items() if ours == name)]
        flags = [f"--{one}" for one in dict.fromkeys(names)]
        add(*flags, metavar="X", help=f"{setting.meaning} ({setting.default})".replace("%", "%%"))
    return p
