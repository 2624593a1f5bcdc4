"""
The command line of `python sample.py`: complete prompts, or fill masks in texts, with the model in a folder.
"""

if __name__ == "__main__":
    raise SystemExit("error: type python sample.py OUT_DIR --prompt=TEXT")


import argparse
import dataclasses
import functools
import itertools
import json
import math
import os
import re
import sys
import time
import typing
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

import config
import data
import rewards
import sample
from sample import Plan
from system import checkpoint, huggingface, kernels, runs, sections, sharding, terminal, unknown
from tools.options import HOLES, PLAN, TRAINED, parser

LONG = 4096  # tokens of a text above which there is a warning

# ---- texts and tokens ------------------------------------------------------------------------------------------------


def encode(text: str, tok: Any, mask_id: int, holes: str, n_new: int) -> tuple[list[int], int]:
    """Encode a prompt -> ids with masks, index of the first token to print.

    A text with holes gets a mask for each and is printed as a whole. Otherwise n_new masks follow, and only they are
    printed. holes: a key of HOLES.
    """
    ids = []
    for n, part in enumerate(re.split(f"({HOLES[holes]})", text)):
        if n % 2:  # every other part is a hole
            ids += [mask_id] * (1 if part[0] == "<" else len(part))
        else:
            plain = part.replace("\\_", "_") if holes == "auto" else part
            ids += tok.encode(plain, True, mask=False)
    ids = tok.add_bos(ids)
    return (ids, 0) if mask_id in ids else (ids + [mask_id] * n_new, len(ids))


def pad_prompts(prompts, tok, cfg):
    """Pad prompts [(ids, start)] on the left -> z, valid (B, T), with T a multiple of 16 to compile few shapes."""
    T = -(-max(len(ids) for ids, _ in prompts) // 16) * 16
    pad_id = next(i for i in (tok.pad_id, 0, 1) if i != cfg.mask_id and i < cfg.vocab_size)
    z = np.array([[pad_id] * (T - len(ids)) + ids for ids, _ in prompts], np.int32)
    return z, np.arange(T) >= T - np.array([[len(ids)] for ids, _ in prompts])


def complete_texts(
    params: Any,
    cfg: Any,
    tok: Any,
    plan: Plan,
    prompts: list[tuple[list[int], int]],
    seed: int,
    batch_size: int,
    group: int = 1,
    done: int = 0,
) -> Iterator[str]:
    """Fill the masks of prompts [(ids, start)] batch by batch, and yield the text of each but the first `done`.

    group: how many consecutive prompts are identical. Except for rounding, batch_size does not change a text.
    """
    for first in range(done // batch_size * batch_size, len(prompts), batch_size):
        # The last batch repeats the last prompt: batches of one shape are compiled once.
        batch = [prompts[min(i, len(prompts) - 1)] for i in range(first, first + batch_size)]
        z, valid = pad_prompts(batch, tok, cfg)
        keys = sample.row_keys(jax.random.key(seed), batch_size, first)
        filled = np.asarray(sample.generate(params, keys, z, cfg, plan, valid, math.gcd(group, batch_size))[0])
        for i in range(max(first, done), min(first + batch_size, len(prompts))):
            ids, start = prompts[i]
            tokens = filled[i - first][-len(ids) :]
            ended = np.isin(tokens, (tok.eos_id, *cfg.ends))
            ends = [at for at, token in enumerate(ids) if token == cfg.mask_id and ended[at]]
            yield tok.decode(tokens[start : min(ends, default=len(ids))])


# ---- --show ----------------------------------------------------------------------------------------------------------


def denoising_steps(
    params: Any, key: jax.Array, z: Any, cfg: Any, plan: Plan, valid: Any = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Generate, and yield the tokens z (B, T) after each step and new (B, T), True where this step filled one. Tokens
    that were taken back later are not shown."""
    x, trace = sample.generate(params, key, z, cfg, plan, valid)
    x, step = np.asarray(x), np.asarray(trace["step"])
    for n in range(int(trace["n_steps"])):
        yield np.where(step > n, cfg.mask_id, x), step == n


def styled_text(tokens, masked, new, tok, styles):
    """Decode the tokens (T,) of a row, masked ones as _, in the styles {"masked", "new"} of a terminal."""
    text = ""
    kinds = np.where(masked, "masked", np.where(new, "new", "old"))
    # Neighbours are decoded together: a character may be several tokens.
    for kind, columns in itertools.groupby(range(len(tokens)), kinds.__getitem__):
        ids = tokens[list(columns)]
        piece = "_" * len(ids) if kind == "masked" else terminal.visible(tok.decode(ids))
        text += styles.get(kind, "{}").format(piece)
    return text


def show_denoising(params: Any, cfg: Any, tok: Any, plan: Plan, prompts: list, seed: int) -> None:
    """Print every denoising step: as an animation on a terminal, new tokens in green, else as one line per text."""
    z, valid = pad_prompts(prompts, tok, cfg)
    on_terminal = sys.stdout.isatty()
    styles = {"masked": "\x1b[2m{}\x1b[0m", "new": "\x1b[1;32m{}\x1b[0m"} if on_terminal else {}
    for n, (now, new) in enumerate(denoising_steps(params, jax.random.key(seed), z, cfg, plan, valid), 1):
        masked = now == cfg.mask_id
        rows = [(now[b][row], masked[b][row], new[b][row]) for b, row in enumerate(valid)]
        texts = [styled_text(*row, tok, styles) for row in rows]
        if on_terminal:
            print("\x1b[H\x1b[2J" + "\n\n".join(texts), "", f"step {n}, {masked.sum()} holes", sep="\n", flush=True)
            time.sleep(0.1)
        else:
            print(*(f"step {n:3d}  {text}".replace("\n", "⏎") for text in texts), sep="\n", flush=True)


# ---- the options of the command line ---------------------------------------------------------------------------------


FILL_NOTHING = {  # flags, and those that they go without
    "explain": {"prompt", "data", "show", "export"},
    "export": {"prompt", "data", "show"},
    "page": {"prompt", "show", "out", "rewards", "export", "explain", "holes", "chat_template", "system_prompt"},
}


def check_options(options):
    """Raise an error for flags that do not go together."""
    given = {name for name, value in vars(options).items() if value is not None and value is not False}
    counts = options.n, options.max_new_tokens, options.batch_size
    if any(count is not None and count < 1 for count in counts):
        raise ValueError("--n, --max_new_tokens and --batch_size must be at least 1")
    if not 0 <= options.seed < 2**32:
        raise ValueError(f"--seed={options.seed}: expected at least 0 and below 2**32")
    if given & ({"prompt", "show"} if options.data else {"out", "rewards"}):
        raise ValueError("--out and --rewards go with --data; --prompt and --show go without it")
    if options.data and not given & {"out", "rewards", "export", "page"}:
        raise ValueError("--data prints no rows: add --out=FILE.jsonl to write them, or --rewards to score them")
    named = given & {"data", "out", "rewards", "export", "page"}
    if empty := {name for name in named if not getattr(options, name)}:
        raise ValueError(f"--{min(empty)}= names nothing: write a name behind the =, or leave it out")
    for name in ("out", "export", "page"):
        path = getattr(options, name)
        if path and os.path.exists(path):
            raise ValueError(f"--{name}={path} is there already, and nothing is overwritten: name another")
    for name, others in FILL_NOTHING.items():
        if name in given and (wrong := given & others):
            raise ValueError(f"--{name} fills nothing: it goes without --{min(wrong)}")
    if options.base_bits and given & {"export", "explain", "page"}:
        raise ValueError(f"--base_bits={options.base_bits} is for sampling: an export and a page have numbers of 16 or "
                         "32 bits; leave it out")  # fmt: skip
    if options.beside and not options.page:
        raise ValueError(f"{options.beside!r} is a second folder: only --page=FILE.html shows two models side by side")


class Request(NamedTuple):
    """What the options of the command line ask for."""

    plan: dict  # fields of Plan that were given
    fns: dict  # reward functions by name
    rows: list  # to complete, each as often as --n says


def kind_of(name):
    """Return the type of a field of Plan, or of the key of a variant that adds to it."""
    own = name in Plan.__dataclass_fields__
    owner = Plan if own else sections.section_of(name)
    return typing.get_type_hints(owner)[name]


def read_options(options):
    """Check the options of the command line and read the rows -> Request."""
    # A shell leaves the ~ of --out=~/x as it is.
    for name in ("folder", "beside", "data", "out", "rewards", "export", "page"):
        setattr(options, name, getattr(options, name) and os.path.expanduser(getattr(options, name)))
    check_options(options)
    typed = [f.name for f in PLAN if getattr(options, f.name) is not None]
    plan = {name: config.parse(name, getattr(options, name), kind_of(name)) for name in typed}
    fns = rewards.resolve(options.rewards) if options.rewards else {}
    rows = [{"prompt": options.prompt or ""}]
    if options.data:
        path = data.find(options.data)
        rows = data.read_rows(path) if path.is_file() else data.load(options.data, "val")
        if path.name.removesuffix(".gz").endswith(".txt"):  # for training such a file is pages of whole lines
            lines = itertools.chain(*(page["completion"].splitlines() for page in rows))
            rows = [{"prompt": line} for line in lines if line.strip()]
    for name, fn in fns.items():  # a missing column is an error now, not after all rows are completed
        rewards.arguments(name, fn, rewards.as_columns(rows))
    return Request(plan, fns, [row for row in rows for _ in range(options.n)])


SAME_FLAG = {"start": "prompt", "num_samples": "n", "group_size": "n"}  # in nanoGPT's sample.py or train.py: here


def unknown_flag(name: str, flags: Any) -> str:
    """Say in one sentence that a flag does not exist, and which one means the same here or in train.py."""
    of_train = {key.split(".")[-1] for key in config.flatten(config.Config())} | {"model", *config.declared_keys()}
    message = unknown.key(name, [*flags, *config.declared_keys()])
    if message.endswith("--help=all"):
        message = unknown.key(name, of_train).replace("=all", "")
    meant = re.search(r"(?:here it is |did you mean ')(\w+)", message)
    ours = name if name in of_train else meant[1] if meant else name
    if ours in SAME_FLAG:
        return f"unknown flag {name!r}: here it is {SAME_FLAG[ours]}"
    if ours in of_train and ours not in flags:
        return f"unknown flag {name!r}: only train.py has such a key, {ours}"
    return message.replace("config key", "flag")


# ---- from a folder to completions ------------------------------------------------------------------------------------


class Model(NamedTuple):
    """A checkpoint, its tokenizer and the config it was trained with."""

    folder: Any
    written: int  # when, in nanoseconds
    params: Any
    cfg: Any  # ModelConfig
    tok: Any
    trained: dict  # the config of the run that trained it


def open_model(folder: Any, why: str, open_as: str | None, dtype: str | None, base_bits: int | None) -> Model:
    """Load the checkpoint that `checkpoint.best` chose; `why` is printed unless the folder was asked for by name.

    base_bits: see variants/quantized.py; None: as in training"""
    if why != "asked for":
        print(f"{folder}: {why}", file=sys.stderr)
    trained = checkpoint.read_run(folder).get("config", {})
    bits = base_bits or trained.get("base_bits")
    pack = sections.section_of("base_bits")(bits).pack if bits else None
    params, cfg = checkpoint.load(folder, dtype, open_as, pack)
    tok = data.Tokenizer.load(folder, cfg.vocab_size)
    cfg = huggingface.fit_tokenizer(folder, cfg, tok)
    return Model(folder, os.stat(folder).st_mtime_ns, params, cfg, tok, trained)


def best_in(folder: str) -> checkpoint.Found:
    """Choose the best checkpoint in a folder, which is downloaded or made first if need be."""
    return checkpoint.best(data.local_copy(data.prepare(folder)))


def check_open_as(folder: str, open_as: str) -> None:
    """Raise an error if a run wrote the folder: it recorded the family of its model, so open_as is not used."""
    found = best_in(folder).folder
    known = checkpoint.family_to_open(found, open_as)
    if known != open_as:
        raise ValueError(f"--open_as={open_as}: the run that wrote {found} says of which family its model is"
                         f"{f', {known}' if known else ''}: leave --open_as out")  # fmt: skip


def find_model(
    folder: str, open_as: str | None = None, dtype: str | None = None, base_bits: int | None = None
) -> Model:
    """Open the checkpoint that `best_in` chooses."""
    open_it = functools.partial(open_model, open_as=open_as, dtype=dtype, base_bits=base_bits)
    return checkpoint.retry_if_deleted(functools.partial(best_in, folder), open_it)


def as_numbers(one):
    """Make numbers of the matrices of a Model that was trained in few bits, with its adapters merged in."""
    if not any(map(kernels.is_packed, one.params["blocks"].values())):
        return one
    from variants import quantized

    return one._replace(params=quantized.merged(one.params, one.cfg.dtype))


def write_page(options, asked, loaded):
    """Write the page that --page asks for."""
    from tools import page

    models = [loaded] + ([as_numbers(find_model(options.beside))] if options.beside else [])
    trained = models[-1].trained
    n_new = options.max_new_tokens or trained.get("max_new_tokens", 128)
    plan = make_plan(asked.plan, 1, [([loaded.cfg.mask_id] * n_new, 1)], models[-1])
    block_len = asked.plan.get("block_len", trained.get("block_len"))  # None: the page makes one block of what it has
    plan = dataclasses.replace(plan, block_len=block_len)
    page.write(options.page, models, page.Setting(plan, n_new, options.seed), asked.rows if options.data else None)
    print(f"{options.page}, {os.path.getsize(options.page) / 1e6:.1f} MB: open it in a browser")


def as_published(options, asked, loaded):
    """Add to a Request, and to the options, what the authors of the model set and the options do not."""
    from tools import published

    found = published.plan_of(loaded.folder, options.open_as)
    options.max_new_tokens = options.max_new_tokens or found.max_new_tokens
    plan = found.plan | asked.plan
    flags = " ".join(f"--{name}={value}" for name, value in {**plan, "max_new_tokens": options.max_new_tokens}.items())
    print(f"as published ({found.source}): {flags}", file=sys.stderr)
    return asked._replace(plan=plan)


def encode_rows(options, asked, loaded):
    """Put the prompts of the rows of a Request into the chat template and encode them -> [(ids, start)]."""
    cfg, tok, chat = loaded.cfg, loaded.tok, {}
    for key in ("chat_template", "system_prompt", "instruction"):
        typed = getattr(options, key)
        chat[key] = loaded.trained.get(key) if typed is None else config.parse(key, typed, str | None)
    template = data.chat(chat["chat_template"], chat["system_prompt"], tok, chat["instruction"])
    n_new = options.max_new_tokens or loaded.trained.get("max_new_tokens", 128)
    default = "none" if chat["chat_template"] else "mask" if options.data or template else "auto"
    if both := next((row for row in asked.rows if row["prompt"] and row.get("masked")), None):
        raise ValueError(f"a row has the prompt {both['prompt'][:60]!r} before a text with masks, and only that "
                         "would be read: put both into masked, or evaluate with train.py --eval_only=True")  # fmt: skip
    texts = [row.get("masked") or data.prompt_text(row, template) for row in asked.rows]
    prompts = [encode(text, tok, cfg.mask_id, options.holes or default, n_new) for text in texts]
    for text, (_, start) in zip(texts, prompts, strict=True):
        if start and loaded.trained.get("fill_in"):
            raise ValueError(f"{loaded.folder} fills in texts in place, and {text[:80]!r} has nothing to fill in: "
                             "write a _ for each token that is missing")  # fmt: skip
    if not hasattr(cfg, "block_causal"):
        return prompts
    # Masks up to the end of the last block.
    return [(ids + [cfg.mask_id] * (-len(ids) % cfg.block_causal if start else 0), start) for ids, start in prompts]


def make_plan(asked, n, prompts, loaded):
    """Choose each setting of generation from the flags, else from training, else by the kind of model -> Plan."""
    cfg = loaded.cfg
    plan = {
        "steps": max(ids.count(cfg.mask_id) for ids, _ in prompts),
        "temperature": float(n > 1),
        "early_end": True,
    }
    plan |= {"order": "left"} if cfg.causal else {"cache": "prefix"} if hasattr(cfg, "block_causal") else {}
    plan |= {ours: loaded.trained[name] for name, ours in TRAINED.items() if name in loaded.trained} | asked
    is_one_block = not hasattr(cfg, "block_causal") and plan.get("block_len") is None
    if is_one_block and all(start for _, start in prompts):
        plan["block_len"] = max(len(ids) - start for ids, start in prompts)  # no logits of the prompt are needed
    return Plan(**plan)


def read_part(path):
    """Read the rows that a killed run has written to its .part file, and cut off a last line that is not whole."""
    if not (path and os.path.exists(path)):
        return []
    with open(path, "rb+") as file:
        whole = [line for line in file.read().splitlines(True) if line.endswith(b"\n")]
        file.truncate(sum(map(len, whole)))
    print(f"{path}: {len(whole)} rows of a run that was ended are there, and not done again", file=sys.stderr)
    return list(map(json.loads, whole))


def complete_rows(options, rows, todo, part):
    """Complete rows, appending each to the file `part` at once -> completions, those of a killed run included.

    todo: the arguments of complete_texts before batch_size; part: a path, or None to write no file"""
    done = read_part(part)
    completions = [row["completion"] for row in done]
    size = min(options.batch_size, len(rows))
    texts = complete_texts(*todo, size, options.n, len(done))
    texts = tqdm(texts, total=len(rows), initial=len(done), unit="row", disable=None)  # None: only on a terminal
    os.makedirs(os.path.dirname(part or "") or ".", exist_ok=True)
    with open(part or os.devnull, "a", encoding="utf-8") as file:
        for row, text in zip(rows[len(done) :], texts, strict=True):
            completions.append(text)
            # The completion that came with the row moves to where rewards.py looks for it.
            given = {name: row["completion"] for name in ("answer", "reference") if "completion" in row}
            line = json.dumps({**given, **row, "completion": text}, ensure_ascii=False, default=data.plain)
            print(line, file=file, flush=True)
    return completions


def mean_scores(fns, rows, completions, n):
    """Score completions, n consecutive ones per prompt -> {reward: mean} and {pass@k: probability of one pass in k}.

    A completion passes if the first of the rewards is at least 1. None: there was no opinion."""
    total, parts = rewards.combine(fns, None, [row["prompt"] for row in rows], completions, rewards.as_columns(rows))
    first = parts[next(iter(fns))].reshape(-1, n)
    passed = np.where(np.isnan(first), np.nan, first >= 1)
    means = {name: rewards.mean(part) for name, part in parts.items()} | {"reward": rewards.mean(total)}
    means |= {f"pass@{k}": rewards.pass_at(passed, k) for k in sorted({1, 10, 100, n}) if k <= n}
    return {name: None if np.isnan(value) else round(value, 6) for name, value in means.items()}


def fill(options, asked, loaded):
    """Complete prompts or rows, and print or write them."""
    prompts = encode_rows(options, asked, loaded)
    plan = make_plan(asked.plan, options.n, prompts, loaded)
    todo = loaded.params, loaded.cfg, loaded.tok, plan, prompts, options.seed
    if (longest := max(len(ids) for ids, _ in prompts)) > LONG:
        size = 4 * loaded.cfg.n_head * longest**2 / 1e9
        print(
            f"the longest of these texts has {longest:,} tokens, so that in each step the attention of a layer is "
            f"{size:.1f} GB of numbers a text: this takes long",
            file=sys.stderr,
        )
    if options.show:
        show_denoising(*todo)
    elif not options.data:
        texts = complete_texts(*todo, min(options.batch_size, len(prompts)))
        print(*map(terminal.visible, texts), sep="\n---\n")
    else:
        # Other weights, rows or flags make another file.
        identity = repr((loaded.folder, loaded.written, (plan, prompts, options.seed, options.base_bits)))
        part = options.out and f"{options.out}.{zlib.crc32(identity.encode()):08x}.part"
        completions = complete_rows(options, asked.rows, todo, part)
        if part:
            os.replace(part, options.out)
        if asked.fns:
            print(json.dumps({"n": len(asked.rows)} | mean_scores(asked.fns, asked.rows, completions, options.n)))


def run(options: argparse.Namespace) -> int:
    """Export, explain or show the model on a page, or complete prompts or rows, as the options say -> exit code."""
    asked = read_options(options)
    runs.prepare_process()
    sharding.use()
    if options.open_as:
        check_open_as(options.folder, options.open_as)
    if options.explain:
        from tools import doctor

        return doctor.explain(best_in(options.folder).folder, options.open_as, options.dtype)
    loaded = find_model(options.folder, options.open_as, options.dtype, options.base_bits)
    if not options.export:
        checkpoint.refuse_judge(loaded.folder, loaded.params)
    if options.page or options.export:
        loaded = as_numbers(loaded)
    if options.as_published:
        asked = as_published(options, asked, loaded)
    if options.page:
        write_page(options, asked, loaded)
    elif options.export:
        huggingface.save(options.export, loaded.params, loaded.cfg)
        loaded.tok.save(options.export)
        if needed := huggingface.code_elsewhere(loaded.cfg):
            print(f"{options.export}: {needed}", file=sys.stderr)
    else:
        fill(options, asked, loaded)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the program with these arguments (None: those of the process) -> exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    words = ["--help" if word == "--help=all" else word for word in words]
    try:
        options, unknown = parser().parse_known_args(terminal.once(words))
        if unknown:
            raise ValueError(unknown_flag(unknown[0].lstrip("-").partition("=")[0], vars(options) | TRAINED))
        if not options.folder:
            raise ValueError("which model? python sample.py OUT_DIR, the folder of a run or a model; see --help")
        return run(options)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as e:
        print(f"sample.py: {terminal.explain(e)}", file=sys.stderr)
        return 2
