"""
The command line of `python sample.py`: complete prompts, or fill masks in texts, with the model in a folder.
"""

if __name__ == "__main__":
    raise SystemExit("error: type python sample.py OUT_DIR --prompt=TEXT")


import argparse
import json
import os
import re
import sys
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

import config
import data
import sample
from checkpoints import adapters, checkpoint, huggingface
from checkpoints.best import best_checkpoint
from data import hub
from data.texts import Keys
from loop import runs
from sample import Plan
from system import sections, sharding, unknown
from tools import flags
from tools.options import HOLES, PLAN, TRAINED, parser

# ---- the model -------------------------------------------------------------------------------------------------------


class Model(NamedTuple):
    """A checkpoint, its tokenizer and the config it was trained with."""

    folder: Any
    params: Any
    cfg: Any  # ModelConfig
    tok: Any
    trained: dict  # the config of the run that trained it


def visible(text: str) -> str:
    """Spell out the control characters of a model's text, whose escape sequences could rewrite the screen."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda c: repr(c[0])[1:-1], text)


def best_in(folder):
    """Choose the best checkpoint in a folder, which is downloaded or made first if need be."""
    return best_checkpoint(hub.local_copy(data.prepare(folder)))


def find_model(folder, open_as=None, dtype=None, bits=None, packed=True):
    """Open the checkpoint that `best_in` chooses -> Model, and say why unless it was asked for by name.

    bits: see variants/quantized.py; None: as in training. packed False: make numbers of a base in few bits"""
    folder, why = best_in(folder)
    if why != "asked for":
        print(f"{folder}: {why}", file=sys.stderr)
    trained = checkpoint.read_run(folder).get("config", {})
    pack = adapters.pack_as_trained(trained, bits) if packed else None
    params, cfg = checkpoint.load(folder, dtype, open_as, pack)
    tok = data.open_tokenizer(folder, cfg.vocab_size)
    return Model(folder, params, huggingface.fit_tokenizer(folder, cfg, tok), tok, trained)


# ---- from rows to tokens ---------------------------------------------------------------------------------------------


def read_rows(options):
    """Read the rows to complete, each as often as --n says: of a file, a data set, or the prompt that was typed."""
    rows = [{"prompt": options.prompt or ""}]
    if options.data:
        path = data.find(options.data)
        rows = data.read_rows(path) if path.is_file() else data.load(options.data, "val")
        if path.suffix == ".txt":  # for training such a file is pages of whole lines
            lines = "".join(page["completion"] for page in rows).splitlines()
            rows = [{"prompt": line} for line in lines if line.strip()]
    return [row for row in rows for _ in range(options.n)]


def encode(text, tok, mask_id, holes, n_new):
    """Encode a prompt -> ids with masks, index of the first token to print.

    A text with holes gets a mask for each and is printed from its beginning. Otherwise n_new masks follow, and only
    they are printed. holes: a key of HOLES.
    """
    ids = []
    for n, part in enumerate(re.split(f"({HOLES[holes]})", text)):
        if n % 2:  # every other part is a hole
            ids += [mask_id] * (1 if part[0] == "<" else len(part))
        else:
            ids += tok.encode(part.replace("\\_", "_") if holes == "auto" else part, True, mask=False)
    if mask_id in ids:
        return ids, 0
    ids = tok.add_bos(ids) if ids else ids  # as in training, where a text without a prompt has no first token
    return ids + [mask_id] * n_new, len(ids)


def encode_rows(options, rows, loaded):
    """Put the prompts of rows into the chat template and encode them -> [(ids, start)]."""
    cfg, tok, chat = loaded.cfg, loaded.tok, []
    for key in ("texts.chat_template", "texts.system_prompt", "texts.instruction"):
        typed = vars(options)[key]
        chat.append(loaded.trained.get(key) if typed is None else config.parse(key, typed, str | None))
    name, system, instruction = chat
    if vars(options)["texts.system_prompt"]:
        sections.check(options, Keys(chat_template=name, system_prompt=system).between_keys)
    template = data.chat(name, system, tok, instruction)
    holes = "none" if name else "mask" if options.data or template else "auto"
    prompts = []
    for row in rows:
        if row["prompt"] and row.get("masked"):
            raise ValueError("a row has a prompt before a text with masks: put both into masked, or evaluate with "
                             "train.py --eval_only=True")  # fmt: skip
        text = row.get("masked") or data.prompt_text(row, template)
        ids, start = encode(text, tok, cfg.mask_id, holes, options.max_new_tokens)
        if start and loaded.trained.get("fill_in"):
            raise ValueError(f"{loaded.folder} fills in texts in place: write a _ for each token that is missing")
        if start:  # a model of blocks fills the last one whole
            ids += [cfg.mask_id] * (-len(ids) % (cfg.block or 1))
        prompts.append((ids, start))
    return prompts


def pad_prompts(prompts, cfg):
    """Pad prompts [(ids, start)] on the left -> z, valid (B, T), with T a multiple of 16 to compile few shapes."""
    lengths = [len(ids) for ids, _ in prompts]
    T = -(-max(lengths) // 16) * 16
    padding = int(cfg.mask_id == 0)  # any id but that of the mask: no model sees it
    z = np.array([[padding] * (T - len(ids)) + ids for ids, _ in prompts], np.int32)
    return z, np.arange(T) >= T - np.array(lengths)[:, None]


# ---- from tokens to texts --------------------------------------------------------------------------------------------


def make_plan(given, loaded, n_masks, n, block_len=None):
    """Choose each setting of generation from `given`, else from training, else by the kind of model -> Plan.

    n: completions of each prompt; n_masks: at most in a text; block_len: for a model without blocks of its own"""
    cfg, trained = loaded.cfg, loaded.trained
    plan = {"steps": n_masks, "temperature": float(n > 1), "early_end": True}
    if cfg.causal:
        plan["order"] = "left"
    elif cfg.block:
        plan["cache"] = "prefix"
    plan |= {ours: trained[name] for name, ours in TRAINED.items() if name in trained} | given
    if plan.get("block_len") is None and not cfg.block:
        plan["block_len"] = block_len
    return sections.changed(Plan(), plan)


def complete_texts(loaded, plan, prompts, seed, batch_size):
    """Fill the masks of prompts [(ids, start)] batch by batch, and yield the text of each, up to the first end of text
    that is written behind all given tokens.

    Except for rounding, batch_size does not change a text."""
    cfg = loaded.cfg
    for first in range(0, len(prompts), batch_size):
        batch = prompts[first : first + batch_size]
        z, valid = pad_prompts(batch, cfg)
        keys = sample.row_keys(jax.random.key(seed), len(batch), first)
        filled = np.asarray(sample.generate(loaded.params, keys, z, cfg, plan, valid)[0])
        for (ids, start), row in zip(batch, filled, strict=True):
            tokens = row[-len(ids) :]
            given_behind = np.cumsum(np.array(ids)[::-1] != cfg.mask_id)[::-1]
            ended = np.isin(tokens, cfg.ends) & (given_behind == 0)
            end = ended.argmax() if ended.any() else len(ids)
            yield loaded.tok.decode(tokens[start:end])


def show_denoising(loaded, plan, prompts, seed):
    """Print the texts after every denoising step, a _ for each mask. A token that was taken back later is not shown."""
    z, valid = pad_prompts(prompts, loaded.cfg)
    x, trace = sample.generate(loaded.params, jax.random.key(seed), z, loaded.cfg, plan, valid)
    steps, gap = np.asarray(trace["step"]), loaded.tok.encode("_")[-1]
    for n in range(int(trace["n_steps"])):
        for row, shown in zip(np.where(steps > n, gap, x), valid, strict=True):
            text = visible(loaded.tok.decode(row[shown]))
            print(f"step {n + 1:3d}  {text}".replace("\n", "⏎"), flush=True)


def write_completions(rows, texts, out):
    """Write each row [{"prompt", ...}] with its completion to the file `out` as soon as there is one."""
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    with open(out, "x", encoding="utf-8") as file:
        for row, text in zip(rows, tqdm(texts, total=len(rows), unit="row", disable=None), strict=True):
            # The completion that came with the row moves to where rewards.py looks for it.
            given = {name: row["completion"] for name in ("answer", "reference") if "completion" in row}
            line = json.dumps({**given, **row, "completion": text}, ensure_ascii=False, default=data.plain)
            print(line, file=file, flush=True)


# ---- the program -----------------------------------------------------------------------------------------------------


WITHOUT = {  # flags, and those that mean nothing beside them
    "prompt": "data",
    "show": "data out export page",
    "export": "prompt data out page quantized.bits",
    "page": "prompt out quantized.bits texts.chat_template texts.system_prompt texts.instruction",
}


def check_options(options):
    """Raise an error for flags that do not go together, and for a file that is there already."""
    given = {name for name, value in vars(options).items() if value not in (None, False)}
    for name in given & WITHOUT.keys():
        if wrong := given & {*WITHOUT[name].split()}:
            raise ValueError(f"--{name} and --{min(wrong)} do not go together")
    if options.beside and not options.page:
        raise ValueError("only --page=FILE.html takes a second folder, to show two models side by side")
    for path in (options.out, options.export, options.page):
        if path and os.path.exists(path):
            raise ValueError(f"{path} is there already, and nothing is overwritten: name another")


def typed_plan(options):
    """Parse the flags that are fields of Plan, or keys of a variant that adds to it -> {name: value}."""
    typed = {name: value for name, value in vars(options).items() if name in PLAN and value is not None}
    return {name: config.parse(name, value, PLAN[name].kind) for name, value in typed.items()}


def write_page(options, given, rows, loaded):
    """Write the page that --page asks for."""
    from tools import page

    models = [loaded, find_model(options.beside, packed=False)] if options.beside else [loaded]
    plan = make_plan(given, models[-1], options.max_new_tokens, 1)
    setting = page.Setting(plan, options.max_new_tokens, options.seed)
    page.write(options.page, models, setting, rows if options.data else None)
    print(f"{options.page}: open it in a browser")


def export(folder, loaded):
    """Write a model and its tokenizer to a Hugging Face folder."""
    huggingface.save(folder, loaded.params, loaded.cfg)
    loaded.tok.save(folder)
    kind = huggingface.family_of(loaded.cfg)
    family = huggingface.FAMILIES[kind]
    if family.code:
        print(
            f"{folder}: transformers has no {family.architecture}: elsewhere this folder (model_type {kind!r}) needs "
            f"the code of {family.code}, its *.py files and the auto_map of its config.json",
            file=sys.stderr,
        )


def fill(options, given, rows, loaded):
    """Complete rows, and print or write the texts."""
    prompts = encode_rows(options, rows, loaded)
    # If one block is all that is new, no logits of the prompts are needed.
    block_len = options.max_new_tokens if all(start for _, start in prompts) else None
    n_masks = max(ids.count(loaded.cfg.mask_id) for ids, _ in prompts)
    plan = make_plan(given, loaded, n_masks, options.n, block_len)
    if options.show:
        return show_denoising(loaded, plan, prompts, options.seed)
    texts = complete_texts(loaded, plan, prompts, options.seed, options.batch_size)
    if options.out:
        return write_completions(rows, texts, options.out)
    for n, text in enumerate(texts):
        print("---\n" * (n > 0) + visible(text), flush=True)


def run(options: argparse.Namespace) -> None:
    """Export the model, show it on a page, or complete prompts or rows, as the options say."""
    check_options(options)
    given, rows, open_as = typed_plan(options), read_rows(options), vars(options)["checkpoint.open_as"]
    runs.prepare_process()
    sharding.use()
    if open_as and checkpoint.family_to_open(folder := best_in(options.folder).folder, open_as) != open_as:
        raise ValueError(f"--checkpoint.open_as={open_as}: the run that wrote {folder} says which family it has")
    packed = not (options.export or options.page)
    loaded = find_model(options.folder, open_as, options.dtype, vars(options)["quantized.bits"], packed)
    if options.export:
        return export(options.export, loaded)
    checkpoint.refuse_judge(loaded.folder, loaded.params)
    options.max_new_tokens = options.max_new_tokens or loaded.trained.get("max_new_tokens", 128)
    if options.page:
        write_page(options, given, rows, loaded)
    else:
        fill(options, given, rows, loaded)


def main(arguments: list[str] | None = None) -> int:
    """Run the program with these arguments (None: those of the process) -> exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options, others = parser().parse_known_args(flags.once(words))
        if others:
            known = vars(options) | TRAINED
            dotted = [name for name in known if "." in name]
            message = unknown.key(others[0].lstrip("-").partition("=")[0], known, dotted)
            raise ValueError(message.replace("config key", "flag").replace("--help=all", "--help"))
        run(options)
        return 0
    except (ValueError, OSError) as e:
        print(f"error: {unknown.explain(e)}", file=sys.stderr)
        return 2
