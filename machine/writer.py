"""
What `python sample.py` does: a model's folder and texts, or rows of a file, in; the same texts filled out.
"""
import argparse
import dataclasses
import inspect
import itertools
import json
import math
import os
import re
import sys
import time
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import disk
import sample
from machine import mesh, terminal
from sample import Plan

LONG = 4096  # tokens of a text before which a word is said
TRAINED = {"diffusion_steps": "steps"} | {name: name for name in sample.SHARED}  # config key: field
HOLES = {"mask": r"<\|mask\|>", "auto": r"<\|mask\|>|(?<![^\W\d])(?<!\\)_+(?![^\W\d])",  # [^\W\d]: a letter or a _
         "none": r"(?!)"}  # what never matches


def encode(text, tok, mask_id, holes, n_new):
    """Text -> ids with masks for its holes, and 0. Text without -> ids, n_new masks, and where these begin."""
    plain = lambda part: tok.encode(part.replace("\\_", "_") if holes == "auto" else part, True, mask=False)
    ids = []
    for n, part in enumerate(re.split(f"({HOLES[holes]})", text)):  # every other part is a hole
        ids += [mask_id] * (1 if part[0] == "<" else len(part)) if n % 2 else plain(part)
    ids = tok.begin(ids)
    return (ids, 0) if mask_id in ids else (ids + [mask_id] * n_new, len(ids))


def pack(rows, tok, cfg):
    """[(ids, begin)] -> z, valid (B, T), padded on the left to a multiple of 16, so that few lengths are compiled."""
    T = -(-max(len(ids) for ids, _ in rows) // 16) * 16
    pad_id = next(i for i in (tok.pad_id, 0, 1) if i != cfg.mask_id and i < cfg.vocab_size)
    z = np.array([[pad_id] * (T - len(ids)) + ids for ids, _ in rows], np.int32)
    return z, np.arange(T) >= T - np.array([[len(ids)] for ids, _ in rows])


def fill(params, cfg, tok, plan, rows, seed, batch_size, alike=1, done=0):
    """[(ids, begin)], of which so many in a row are alike -> yields a text for each but the first `done`, in batches;
    but for rounding, batch_size changes no text."""
    for first in range(done // batch_size * batch_size, len(rows), batch_size):
        batch = [rows[min(i, len(rows) - 1)] for i in range(first, first + batch_size)]  # one shape, one compilation
        z, valid = pack(batch, tok, cfg)
        keys, group = sample.row_keys(jax.random.key(seed), batch_size, first), math.gcd(alike, batch_size)
        filled = np.asarray(sample.generate(params, keys, z, cfg, plan, valid, group)[0])
        for (ids, begin), x in list(zip(rows[first:first + batch_size], filled, strict=False))[max(done - first, 0):]:
            x = x[len(x) - len(ids):]
            ends = [j for j, i in enumerate(ids) if i == cfg.mask_id and x[j] == tok.eos_id]
            yield tok.decode(x[begin:min(ends, default=len(ids))])


def steps(params, key, z, cfg, plan, valid=None):
    """The tokens of `generate` as they come: yields z (B, T), new (B, T) after every step."""
    keys, s = sample.begin(params, key, jnp.asarray(z), cfg, plan, valid)
    while np.any(np.asarray(s.z) == cfg.mask_id):
        s = sample.denoise(params, keys, s, cfg, plan, valid)
        yield np.asarray(s.z), np.asarray(s.step == s.n - 1)


def play(params, cfg, tok, plan, rows, seed):
    """Shows the steps as they come: on a terminal as a film, new tokens in green, else a line for each row and step."""
    z, valid = pack(rows, tok, cfg)
    styles = {"hole": "\x1b[2m{}\x1b[0m", "new": "\x1b[1;32m{}\x1b[0m"} if sys.stdout.isatty() else {}
    for n, (now, new) in enumerate(steps(params, jax.random.key(seed), z, cfg, plan, valid), 1):
        kinds, texts = np.where(now == cfg.mask_id, "hole", np.where(new, "new", "old")), [""] * len(rows)
        for b in range(len(rows)):
            for kind, at in itertools.groupby(np.flatnonzero(valid[b]), kinds[b].__getitem__):
                ids = now[b, list(at)]  # decoded together: a character may be several tokens
                text = "_" * len(ids) if kind == "hole" else terminal.visible(tok.decode(ids))
                texts[b] += styles.get(kind, "{}").format(text)
        film = ["\x1b[H\x1b[2J" + "\n\n".join(texts), "", f"step {n}, {(now == cfg.mask_id).sum()} holes"]
        lines = [f"step {n:3d}  {text}".replace("\n", "⏎") for text in texts]
        print(*(film if styles else lines), sep="\n", flush=True)
        time.sleep(0.1 if styles else 0)


def parser():
    p = argparse.ArgumentParser(
        description=sample.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        usage="python sample.py OUT_DIR [--prompt=TEXT | --data=FILE.jsonl] [--flag=value ...]   (--help lists them)")
    p.add_argument("folder", nargs="?", metavar="OUT_DIR", help="out_dir of a run, for its best checkpoint, or a "
                   "step-... in it, or a Hugging Face folder with its tokenizer")
    p.add_argument("--prompt", help="text to complete, or text with holes (see --holes), which then are filled instead")
    p.add_argument("--n", type=int, default=1, help="completions of each prompt; with more than 1, temperature is 1")
    p.add_argument("--show", action="store_true", help="play the denoising, step by step")
    p.add_argument("--data", help="rows to fill: .jsonl, .json, .txt with a prompt on each line (all also .gz), or the "
                   "name of a data set (its val rows)")
    p.add_argument("--out", help="write the rows with their completions here, as .jsonl")
    p.add_argument("--rewards", help="score the completions of --data: names or path/to/file.py:function, with commas")
    p.add_argument("--export", metavar="FOLDER", help="fill nothing: write the model, with adapters (LoRA) merged into "
                   "its weights, and its tokenizer here, as a Hugging Face folder")
    p.add_argument("--holes", choices=HOLES, help=r"a hole, of one token, is <|mask|>, with auto also a _ touching no "
                   r"letter: 3_1_ has two, is_prime none; \_ is an underscore. none with a chat template, auto for "
                   "--prompt, mask for --data")
    p.add_argument("--chat_template", help="chatml, llada, llama3, gemma, own (of its files); else as in training")
    p.add_argument("--system_prompt", help="what the template begins with; else as in training, or what is usual there")
    p.add_argument("--instruction", help="said before a prompt, or around {prompt}; else as in training, or nothing")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--max_new_tokens", type=int, help="holes after a prompt without holes; else as in training, or 128")
    p.add_argument("--batch_size", type=int, default=32)
    meaning = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(Plan), re.M))
    for f in dataclasses.fields(Plan):
        names = [f"--{name}" for name in dict.fromkeys([f.name, *(n for n, ours in TRAINED.items() if ours == f.name)])]
        p.add_argument(*names, metavar="X", help=f"{meaning[f.name]} ({f.default})".replace("%", "%%"))
    return p


def read_options(options):
    """Options of the command line, checked -> what they ask of the Plan, the rewards {name: fn}, the rows to fill."""
    import config
    import data
    import rewards
    for name in ("folder", "data", "out", "rewards", "export"):  # a shell leaves the ~ of --out=~/x as it is
        setattr(options, name, getattr(options, name) and os.path.expanduser(getattr(options, name)))
    given = {name: value for name, value in vars(options).items() if value is not None and value is not False}
    for wrong, message in (
        (min(given.get(name, 1) for name in ("n", "max_new_tokens", "batch_size")) < 1,
         "--n, --max_new_tokens and --batch_size must be at least 1"),
        (given.keys() & ({"prompt", "show"} if options.data else {"out", "rewards"}),
         "--out and --rewards go with --data; --prompt and --show go without it"),
        (options.data and not given.keys() & {"out", "rewards", "export"},
         "--data prints no rows: add --out=FILE.jsonl to write them, or --rewards to score them"),
        (options.out and os.path.isfile(options.out),
         f"--out={options.out} is there already, and nothing is overwritten: name a new file"),
        (options.export and os.path.exists(options.export),
         f"--export={options.export} is there already, and nothing is overwritten: name a new folder"),
        (options.export and given.keys() & {"prompt", "data", "show"},
         "--export fills nothing: it goes without --prompt, --data and --show"),
    ):  # fmt: skip
        if wrong:
            raise ValueError(message)
    asked = {f.name: config.parse(f.name, given[f.name], f.type) for f in dataclasses.fields(Plan) if f.name in given}
    fns = rewards.resolve(options.rewards) if options.rewards else {}
    rows = [{"prompt": options.prompt or ""}]
    if options.data:
        path = data.find(options.data)
        rows = data.read_rows(path) if path.is_file() else data.load(options.data, "val")
        if path.name.removesuffix(".gz").endswith(".txt"):  # elsewhere a text to learn: pages of whole lines
            rows = [{"prompt": line} for page in rows for line in page["completion"].splitlines() if line.strip()]
    for name, fn in fns.items():  # better now than after all rows are filled
        rewards.arguments(name, fn, rewards.as_columns(rows))
    return asked, fns, [row for row in rows for _ in range(options.n)]


def reopened(part):
    """The file of a run that was killed, or None -> its rows. A last one that was not written to its end is cut off."""
    if not (part and os.path.exists(part)):
        return []
    with open(part, "rb+") as file:
        whole = [line for line in file.read().splitlines(True) if line.endswith(b"\n")]
        file.truncate(sum(map(len, whole)))
    print(f"{part}: {len(whole)} rows of a run that was ended are there, and not done again", file=sys.stderr)
    return list(map(json.loads, whole))


def opened(folder, why):
    """What `disk.best` found -> the folder, when it was written, params, ModelConfig, tokenizer, the run's config."""
    import data
    if why != "asked for":
        print(f"{folder}: {why}", file=sys.stderr)
    params, cfg = disk.load(folder)
    tok = data.Tokenizer.load(folder, cfg.vocab_size)
    disk.same_mask(folder, cfg, tok)
    return folder, os.stat(folder).st_mtime_ns, params, cfg, tok, disk.read_run(folder).get("config", {})


def run(options):
    """Options of the command line -> what they ask for, printed or written."""
    import config
    import data
    import runs
    asked, fns, rows = read_options(options)
    runs.prepare_process()
    mesh.use()
    path = data.fetched(data.prepare(options.folder))
    folder, written, params, cfg, tok, trained = disk.steadily(lambda: disk.best(path), opened)
    if options.export:
        disk.save(options.export, params, cfg)
        return tok.save(options.export)
    chat = {key: trained.get(key) if (said := getattr(options, key)) is None else config.parse(key, said, str | None)
            for key in ("chat_template", "system_prompt", "instruction")}
    template = data.chat(chat["chat_template"], chat["system_prompt"], tok, chat["instruction"])
    n_new, holes = options.max_new_tokens or trained.get("max_new_tokens", 128), options.holes
    holes = holes or ("none" if chat["chat_template"] else "mask" if options.data or template else "auto")
    said = (data.asked(row, template) for row in rows)
    encoded = [encode(text, tok, cfg.mask_id, holes, n_new) for text in said]
    if cfg.block_causal:  # where a text is continued, its last block is a whole one
        encoded = [(ids + [cfg.mask_id] * (-len(ids) % cfg.block_causal if begin else 0), begin)
                   for ids, begin in encoded]  # fmt: skip
    plan = {"steps": max(ids.count(cfg.mask_id) for ids, _ in encoded), "temperature": float(options.n > 1),
            "early_end": True}  # fmt: skip
    plan |= {"order": "left"} if cfg.causal else {"cache": "prefix"} if cfg.block_causal else {}
    plan |= {ours: trained[name] for name, ours in TRAINED.items() if name in trained} | asked
    one = not cfg.block_causal and plan.get("block_len") is None  # whose logits are all that is needed
    if one and all(begin for _, begin in encoded):
        plan["block_len"] = max(len(ids) - begin for ids, begin in encoded)
    todo = (params, cfg, tok, Plan(**plan), encoded, options.seed)
    if (longest := max(len(ids) for ids, _ in encoded)) > LONG:
        print(f"the longest of these texts has {longest:,} tokens, so that in each step the attention of a layer is "
              f"{4 * cfg.n_head * longest**2 / 1e9:.1f} GB of numbers a text: this takes long", file=sys.stderr)
    if options.show:
        return play(*todo)
    size = min(options.batch_size, len(rows))
    if not options.data:
        return print(*map(terminal.visible, fill(*todo, size)), sep="\n---\n")
    what = repr((folder, written, todo[3:]))  # of other weights, rows or flags: another file
    done = reopened(part := options.out and f"{options.out}.{zlib.crc32(what.encode()):08x}.part")
    texts = tqdm(fill(*todo, size, options.n, len(done)), total=len(rows), initial=len(done), unit="row",
                 disable=None)  # without a terminal
    completions = [row["completion"] for row in done]
    os.makedirs(os.path.dirname(part or "") or ".", exist_ok=True)
    with open(part or os.devnull, "a", encoding="utf-8") as file:
        for row, text in zip(rows[len(done):], texts, strict=True):
            completions.append(text)  # and the reference moves to where rewards.py looks for it
            kept = {"answer": row["completion"], "reference": row["completion"]} if "completion" in row else {}
            print(json.dumps({**kept, **row, "completion": text}, ensure_ascii=False), file=file, flush=True)
    if part:
        os.replace(part, options.out)
    if fns:
        print(json.dumps({"n": len(rows)} | scores(fns, rows, completions, options.n)))


def scores(fns, rows, completions, n):
    """Rewards, rows with n in a row of one prompt, a text for each -> {name: mean}, {pass@k: chance of one in k}."""
    import rewards
    total, parts = rewards.combine(fns, None, [row["prompt"] for row in rows], completions, rewards.as_columns(rows))
    passed = parts[next(iter(fns))].reshape(-1, n)
    passed = np.where(np.isnan(passed), np.nan, passed >= 1)
    chances = {f"pass@{k}": rewards.pass_at(passed, k) for k in sorted({1, 10, 100, n}) if k <= n}
    means = {name: rewards.mean(x) for name, x in {**parts, "reward": total}.items()} | chances
    return {name: None if np.isnan(x) else round(x, 6) for name, x in means.items()}


ALSO = {"start": "prompt", "num_samples": "n", "group_size": "n"}  # of nanoGPT's sample.py, of train.py: our flag


def unknown_flag(name, flags):
    """Say in one sentence that a flag does not exist, and which one means the same here or in train.py."""
    import config
    of_train = {key.split(".")[-1] for key in config.flatten(config.Config())} | {"model"}
    said = config.unknown(name, flags)
    if said.endswith("--help=all"):
        said = config.unknown(name, of_train).replace("=all", "")
    meant = re.search(r"(?:here it is |did you mean ')(\w+)", said)
    ours = name if name in of_train else meant[1] if meant else name
    if ours in ALSO:
        return f"unknown flag {name!r}: here it is {ALSO[ours]}"
    if ours in of_train and ours not in flags:
        return f"unknown flag {name!r}: only train.py has such a key, {ours}"
    return said.replace("config key", "flag")


def main(arguments=None):
    """Arguments of the command line -> exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    words = ["--help" if word == "--help=all" else word for word in words]
    try:
        options, unknown = parser().parse_known_args(terminal.once(words))
        if unknown:
            raise ValueError(unknown_flag(unknown[0].lstrip("-").partition("=")[0], vars(options) | TRAINED))
        if not options.folder:
            raise ValueError("which model? python sample.py OUT_DIR, the folder of a run or a model; see --help")
        run(options)
        return 0
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as e:
        print(f"sample.py: {e}", file=sys.stderr)
        return 2
