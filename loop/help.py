"""
What --help prints: the keys of a run, each with its default and its meaning.
"""
import dataclasses
import inspect
import itertools
import re
import sys

import config
from model import ModelConfig
from system import index, sections, unknown

# Keys that a first run may change; --help lists them, --help=all lists every key.
FIRST = ("objective out_dir init_from resume seed max_iters eval_interval eval_size dataset max_prompt_len "
         "max_new_tokens batch_size learning_rate diffusion_steps temperature rewards group_size kl_beta "
         "n_layer d_model").split()  # fmt: skip


def comments(cls: type) -> dict[str, str]:
    """Read the comments beside the fields of a dataclass, each on one line, from its source; {} if there is none."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):
        return {}
    return dict(re.findall(r"^    (\w+): .*?  # (.*)$", source, re.M))


def meaning(field: dataclasses.Field) -> str:
    """Return what a key means, and its values if they are a dict's; a tuple of them is in the meaning."""
    offered = field.metadata["choices"]
    listed = f": {', '.join(map(str, offered))}" if isinstance(offered, dict) else ""
    return field.metadata["meaning"] + listed


def help_text(everything: bool = False) -> str:
    """Return the keys of FIRST, or every key, each with its default and its meaning, in sections."""
    found: list[list[str]] = []
    if everything:
        unknown.load_variants()  # a file that cannot be loaded is named below, if it has keys
    for field in dataclasses.fields(config.Config):
        if field.name in ("model", "use", "typed"):
            continue
        if field.metadata["section"]:
            found.append([field.metadata["section"]])
        if everything or field.name in FIRST:
            found[-1].append(help_line(field.name, field.default, meaning(field)))
    found.append(["model (a model key needs no prefix)"])
    meanings = comments(ModelConfig)
    for field in dataclasses.fields(ModelConfig):
        if field.name != "use" and (everything or field.name in FIRST):
            found[-1].append(help_line(f"model.{field.name}", field.default, meanings.get(field.name, "")))
    for name, kind in itertools.product(index.names(), sections.KINDS) if everything else ():
        try:
            section = sections.section_class(name, kind)
        except ValueError as e:
            found += [["files that cannot be loaded", f"  {e}"]] * (kind == sections.KINDS[0])
            continue
        if section:
            said = comments(section) | {f.name: meaning(f) for f in dataclasses.fields(section) if f.metadata}
            keys = [help_line(f"{name}.{f.name}", f.default, said[f.name]) for f in dataclasses.fields(section)]
            path = f"{section.__module__.replace('.', '/')}.py"
            found.append([f"{path}, by --{name}=True or any of these keys", *keys])
    lines = [
        "usage: python train.py config/NAME.py [--key=value ...]",
        "--model=tiny tries a recipe for a downloaded model on a random one, --model=small on one trained in minutes",
        "--plan=8xH100 says what a run would take on such devices, which need not be there",
        "--anatomy=step.html writes the first iteration of GRPO from init_from, with its numbers, as a page",
    ]
    for title, *keys in found:
        lines += ["", title, *keys] if keys else []
    if not everything:
        lines += ["", f"these are the {len(FIRST)} keys of a first run; --help=all prints them all"]
    return "\n".join(lines)


def main() -> None:
    """Print the help that the command line asks for: of some keys, of all, or of those with a word in their names."""
    found = re.findall(r"(?:--help|-h)[= ]([\w.]+)(?!\S)", " ".join(sys.argv))
    name = found[-1] if found else ""
    text = help_text(bool(name))
    if name not in ("", "all"):
        lines = [line for line in text.splitlines() if name in line.partition("=")[0] and line.startswith("  --")]
        text = "\n".join(lines) or unknown.key(name, config.flatten(config.Config()), index.all_keys())
    print(text)


def help_line(name, default, meaning):
    """Format one line of help."""
    return f"  --{name}={config.as_typed(default)}".ljust(42) + f"  {meaning}"
