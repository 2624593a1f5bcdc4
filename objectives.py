"""
The objectives: where a batch comes from, and what the loss is. All the rest is the loop's (train.py).

    pretrain   rows -> noise -> the negative ELBO
    judge      pairs of a better and a worse text -> Bradley-Terry
    grpo       prompts -> completions -> rewards -> advantages, and views of the completions -> the loss of grpo.py
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import time
import zlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import config
import data
import diffusion
import disk
import grpo
import model
import rewards
import sample
from judges import learned, rules
from machine import mesh

SAMPLES = 16  # completions that an evaluation writes to samples.jsonl


class Task(NamedTuple):
    init: Callable  # key -> params
    batches: Callable  # state, key -> minibatches of one iteration: dicts of arrays (B, ...), and numbers to be logged
    loss: Callable  # params, minibatch -> scalar, metrics; the only thing that is differentiated
    evaluate: Callable  # state, key -> metrics, samples
    rows: int  # how many there are to learn from, which is an epoch
    passes: str | None  # the metric that decides which checkpoint is best and when stop_at is reached; None: val/nelbo


class Text(NamedTuple):
    """A split of a data set, as rows and as arrays of one length."""

    rows: list  # one for each row of the arrays
    arrays: dict  # tokens, hole (N, T) and valid, None where no row is padded

    def part(self, index):
        return Text([self.rows[i] for i in index], {k: None if v is None else v[index] for k, v in self.arrays.items()})

    def take(self, index):
        return {k: None if v is None else jnp.asarray(v[index]) for k, v in self.arrays.items()}


# ---- rows in, texts out ----------------------------------------------------------------------------------------------


def read_rows(cfg, split):
    """The rows of a split, of the difficulties that this run is about; unrated rows always are."""
    names = {name: getattr(cfg, f"{name}_key") for name in ("prompt", "completion", "answer")}
    rows = data.load(cfg.dataset, split, {ours: theirs for ours, theirs in names.items() if theirs})
    if cfg.difficulty:
        low, high = cfg.difficulty
        rows = [row for row in rows if low <= row.get("difficulty", low) <= high]
        if not rows:
            raise ValueError(f"{cfg.dataset}/{split}: no row has difficulty={cfg.difficulty}")
    if cfg.limit and split == "train":
        n = max(1, round(cfg.limit * len(rows) if cfg.limit < 1 else cfg.limit))
        rows = [rows[i] for i in sorted(np.random.default_rng(0).permutation(len(rows))[:n])]  # of all parts of a file
    return rows


def read_text(cfg, tok, split, learnt=True):
    """A split as Text. What does not fit is counted and said; completions have to only where they are to be learnt."""
    rows = read_rows(cfg, split)
    template = data.chat(cfg.chat_template, cfg.system_prompt, tok, cfg.instruction)
    taken = rows if learnt else [{"prompt": row["prompt"]} for row in rows]
    arrays, notes = data.encode(taken, tok, cfg.max_prompt_len, cfg.max_new_tokens, template)
    for note, count in notes.items():
        tqdm.write(f"{cfg.dataset}/{split}: {count} {note}")
    if not len(arrays["tokens"]):
        raise ValueError(f"{cfg.dataset}/{split}: no row fits max_prompt_len={cfg.max_prompt_len} and "
                         f"max_new_tokens={cfg.max_new_tokens}")  # fmt: skip
    rows = [rows[i] for i in arrays.pop("row")]
    return Text(rows, arrays | {"valid": None if arrays["valid"].all() else arrays["valid"]})


def few(text, cfg):
    """The eval_size rows of a Text that evaluations look at, the same every time."""
    return text.part(np.random.default_rng(0).permutation(len(text.rows))[: cfg.eval_size])


def stages(cfg, rows):
    """-> index(step): the rows that the curriculum allows at this step."""
    allowed = {step: data.curriculum(rows, cfg.curriculum, step) for step, _ in cfg.curriculum}
    latest = lambda step: max((s for s in allowed if s <= step), default=min(allowed))
    return lambda step: allowed[latest(step)] if allowed else np.arange(len(rows))


def plan(cfg, temperature, steps=None, early_end=True):
    same = {name: getattr(cfg, name) for name in [*sample.SHARED, "top_k", "top_p", "repetition_penalty"]}
    same["block_len"] = cfg.block_len or cfg.max_new_tokens  # one block of all holes: no logits of the prompt
    return sample.Plan(**same, steps=steps or cfg.diffusion_steps, temperature=temperature, early_end=early_end)


def fill(params, keys, arrays, cfg, plan, group=1):
    """arrays of Text, a key or one for each row -> tokens (B, T) whose holes are filled, the trace. group: so many
    rows in a row have one prompt."""
    z = jnp.where(arrays["hole"], cfg.model.mask_id, arrays["tokens"])
    return sample.generate(params, keys, z, cfg.model, plan, arrays["valid"], group)


def in_chunks(fn, size, *trees):
    """fn of trees of arrays (B, ...) -> a tree of (B, ...), `size` rows at a time, the last row again where they do not
    divide, so that there is one shape to compile. Of numbers (), the mean over the chunks."""
    n, out = len(jax.tree.leaves(trees)[0]), []
    size = mesh.up(min(size, n))  # all devices have as many
    if size == n:
        return fn(*trees)
    for first in range(0, n, size):
        at = np.arange(first, first + size).clip(max=n - 1)
        out.append(fn(*jax.tree.map(lambda a, at=at: a[at], trees)))
    return jax.tree.map(lambda *x: jnp.concatenate(x)[:n] if x[0].ndim else sum(x) / len(x), *out)


def up_to_its_end(text, tok):
    """Text -> Text that asks for completions up to their first end of text: a causal model stops there."""
    ends = text.arrays["hole"] & (text.arrays["tokens"] == tok.eos_id)
    return Text(text.rows, text.arrays | {"hole": text.arrays["hole"] & (ends.cumsum(1) - ends == 0)})


def written(tokens, tok, cfg):
    """tokens (B, T) -> the ids of the completions, up to their first end of text."""
    completions = mesh.fetched(tokens)[:, cfg.max_prompt_len :].tolist()
    return [row[: row.index(tok.eos_id)] if tok.eos_id in row else row for row in completions]


def punch(text, cfg, tok, seed):
    """Text -> Text for a fill-in task: a share of the tokens of every completion (not its end) are its only holes."""
    rng, tokens = np.random.default_rng(seed), text.arrays["tokens"]
    written = text.arrays["hole"] & (tokens != tok.eos_id)
    ratio = rng.uniform(cfg.mask_ratio_min, cfg.mask_ratio_max, (len(tokens), 1))
    noise = np.where(written, rng.random(tokens.shape), 2)
    count = np.maximum(np.rint(ratio * written.sum(1, keepdims=True)), 1)
    return Text(text.rows, text.arrays | {"hole": written & (noise.argsort(1).argsort(1) < count)})


def holes_of_rows(text, cfg, tok):
    """Text whose rows have a column `masked`, their completion with <|mask|> for some of its tokens -> Text with those
    holes; None where the rows leave the choice to `punch`."""
    if not all("masked" in row for row in text.rows):
        return None
    tokens, first = text.arrays["tokens"].copy(), cfg.max_prompt_len
    tokens[:, first:] = tok.eos_id
    for i, row in enumerate(text.rows):
        ids = tok.encode(row["masked"], specials=True)
        if tok.mask_id not in ids or len(ids) > cfg.max_new_tokens:
            raise ValueError(
                f"{cfg.dataset}: masked={row['masked'][:80]!r} has {ids.count(tok.mask_id)} <|mask|> among {len(ids)} "
                f"tokens; there should be at least one, and no more tokens than max_new_tokens={cfg.max_new_tokens}"
            )
        tokens[i, first : first + len(ids)] = ids
    return Text(text.rows, text.arrays | {"tokens": tokens, "hole": tokens == tok.mask_id})


# ---- rewards ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_memory(cfg, rows, fns):
    """Rows (a list, or {"train": list, "val"?: list}) and reward functions {name: fn} of a Python program, either None
    -> the Config that names them, by names that mean them as long as this lasts."""
    known = {name: rewards.checked(f"reward {name!r}:", name, fn) for name, fn in (fns or {}).items()}
    rewards_before = dict(rewards.REWARDS)
    if rows is not None:
        splits = rows if isinstance(rows, dict) else {"train": list(rows)}
        if "val" not in splits:
            splits = {split: data.part(splits["train"], split, "the list of rows") for split in ("train", "val")}
        number = zlib.crc32(json.dumps(splits, default=repr).encode())  # other rows are another run
        name = f"{len(splits['train']) + len(splits['val'])} {data.IN_MEMORY}, {number:08x}"
        cfg, data.MEMORY[name] = dataclasses.replace(cfg, dataset=name), splits
    try:
        rewards.REWARDS.update(known)
        yield dataclasses.replace(cfg, rewards=cfg.rewards or tuple(known))
    finally:
        rewards.REWARDS.clear()
        rewards.REWARDS.update(rewards_before)
        if rows is not None:
            del data.MEMORY[name]


def named_rewards(cfg, rows, **made):
    """-> {name: fn} of cfg.rewards, and of cfg.eval_rewards; `made` are those from models. Stops if one of them needs a
    column that no row has."""
    fns, more = rewards.resolve(cfg.rewards, **made), rewards.resolve(cfg.eval_rewards, **made)
    if twice := fns.keys() & more.keys():
        raise ValueError(f"{', '.join(twice)} in rewards and in eval_rewards: what is trained is evaluated anyway")
    columns = rewards.columns(rows) | {"groups": [], "token_ids": [], "max_length": []}
    for name, fn in (fns | more).items():
        rewards.arguments(name, fn, columns)
    return fns, more


def check_early(cfg):
    """What can be said of the rewards before a base or a judge is trained for them: that they and their columns are
    there."""
    if not cfg.rewards:
        raise ValueError("objective='grpo' needs rewards, for example rewards=('exact',); python rewards.py --help "
                         "lists them")  # fmt: skip
    later = lambda prompts, completions: []
    for split in ("train", "val"):
        rows = read_rows(cfg, split)
        named_rewards(cfg, rows, judge=later, coherence=later)
        bare, marked = [row for row in rows if not row.get("completion")], sum("masked" in row for row in rows)
        if cfg.fill_in and 0 < marked < len(rows):
            raise ValueError(f"{cfg.dataset}/{split}: {marked} of {len(rows)} rows say in `masked` which tokens to "
                             "fill: all rows of a split should, or none")  # fmt: skip
        if cfg.fill_in and bare and not all("masked" in row for row in rows):
            raise ValueError(f"fill_in=True makes holes in completions, and {len(bare)} rows of {cfg.dataset}/{split} "
                             f"have none: {str(bare[0])[:80]}")  # fmt: skip


def reward_functions(cfg, tok, rows):
    """-> {name: fn} of cfg.rewards, and of cfg.eval_rewards, all checked against the columns of rows."""
    names = cfg.rewards + cfg.eval_rewards
    made = learned.load(cfg.judge_from, cfg.model.dtype) if cfg.judge_from else {}
    if cfg.judge_from and not set(made) & set(names):
        raise ValueError(
            f"judge_from={cfg.judge_from!r} makes the reward {'judge' if 'judge' in made else 'coherence'!r}"
            + (", and is not a judge: its head has not width 1" if "judge" not in made else "")
            + f", but rewards are {', '.join(names) or 'none'}"
        )
    if "coherence" in names and "coherence" not in made and cfg.init_from:
        made["coherence"] = learned.coherence(disk.load(cfg.init_from, cfg.model.dtype)[0], cfg.model, tok)
    fns, more = named_rewards(cfg, rows, **made)
    if {"tests", "tests_all", "tests_fenced", "performance"} & set(fns | more):  # refuse a machine without walls now
        box = rewards.sandbox(timeout=cfg.reward_timeout, workers=cfg.reward_workers, unsafe=cfg.sandbox_unsafe)
        try:
            box.run([("", ["assert True"], "")])
            strange = rewards.programs.check(rows)
        except (RuntimeError, ValueError) as e:
            raise ValueError(f"{cfg.dataset}: {e}") from None
        for language, count in strange.items():
            tqdm.write(f"{cfg.dataset}: no opinion on {count} rows in {language!r}, which tests are not run in")
    return fns, more


def score(fns, more, cfg, tok, rows, ids, each):
    """The ids of `each` completions of every row -> these as text, their total reward (B,), {name: (B,)}; what is in
    `more` is not in the total. Of several processes each scores its rows; models, which are split over all, all."""
    weights = (cfg.reward_weights or (1.0,) * len(fns)) + (0.0,) * len(more)
    many = [row for row in rows for _ in range(each)]
    columns = {"groups": np.repeat(np.arange(len(rows)), each).tolist(), "token_ids": ids,
               "max_length": [cfg.max_new_tokens] * len(many)}  # fmt: skip
    columns = rewards.columns(many) | columns
    prompts, completions = [row["prompt"] for row in many], [tok.decode(row) for row in ids]
    part = mesh.share(len(rows))
    part, fns = slice(part.start * each, part.stop * each), fns | more
    for name in fns.keys() & {"judge", "coherence"}:
        said = rewards.call(name, fns[name], prompts, completions, columns)[part]
        fns |= {name: lambda completions, said=said: said}
    own = {name: column[part] for name, column in columns.items()}
    found = mesh.everyone(lambda: rewards.combine(fns, weights, prompts[part], completions[part], own, cfg.reward_clip))
    names = dict.fromkeys(name for _, parts in found for name in parts)  # nobody may have noted it of some rows
    joint = {k: np.concatenate([p[k] if k in p else np.zeros(len(total)) for total, p in found]) for k in names}
    return completions, np.concatenate([total for total, _ in found]), joint


def opinions(parts, cfg, fns):
    """{name: (B,)} -> (R, B) of the rewards `fns` that are trained; what weighs nothing has no opinion."""
    weights = cfg.reward_weights or (1.0,) * len(fns)
    return np.stack([np.where(w, parts[name], np.nan) for w, name in zip(weights, fns, strict=True)])


def distinct(completions, n=3):
    """The share of the n-grams of words in all completions that are different: near 0 when they are all alike."""
    grams = [gram for text in completions for gram in rules.ngrams(text, n)]
    return len(set(grams)) / max(len(grams), 1)


def decisive(fns, more):
    """The reward that decides what passes: the first of eval_rewards, or else of rewards."""
    return next(iter(more or fns), None)


def meaning(cfg, fns, more):
    """What val/greedy and val/sampled are, in words."""
    name = decisive(fns, more)
    if cfg.pass_at is None:
        return f"val/greedy, val/sampled: the mean of {name}; with pass_at=1.0 the share of completions that earn 1"
    return f"val/greedy, val/sampled: the share of completions that earn {cfg.pass_at:g} or more from {name}"


def passing(each, cfg):
    """What a reward said, nan for no opinion -> the same, or with pass_at whether that passes."""
    if cfg.pass_at is None:
        return each
    return np.where(np.isnan(each), np.nan, each >= min(cfg.pass_at, cfg.reward_clip or math.inf))


def film(x, trace, length, cfg, tok):
    """Tokens (B, T), their trace -> [token, step, probability] of the first row, of so many tokens and its end."""
    parts = (np.asarray(a[0, cfg.max_prompt_len :]) for a in (x, trace["step"], trace["logp"]))
    shown = [[tok.decode([int(i)]) or "∎", int(at), round(math.exp(p), 4)] for i, at, p in zip(*parts, strict=True)]
    return shown[: length + 1]


def pass_rates(cfg, tok, fns, more, params, key, text):
    """Fills the holes of a Text: once greedily, and eval_samples times at the run's temperature -> metrics, samples.

    Rates are means, over prompts, of what the decisive reward says; of 0 and 1 that is how many pass. With pass_at it
    says 1 from there on (or from what reward_clip leaves of it), else 0. What it has no opinion on is left out."""
    out, arrays, judge_of_all, n_rows = {}, text.take(slice(None)), decisive(fns, more), len(text.rows)
    k = cfg.eval_samples or (4 if cfg.objective == "grpo" else 1)

    def answers(key, temperature):  # the tokens of every row, and how they came about
        some = lambda keys, arrays: fill(params, keys, arrays, cfg, plan(cfg, temperature))
        return in_chunks(some, cfg.rollout_chunk or n_rows, sample.row_keys(key, n_rows), arrays)

    samples = [{"prompt": row["prompt"]} for row in text.rows]
    for name, temperature, n in (("greedy", 0.0, 1), ("sampled", cfg.temperature, k)):
        made = [answers(jax.random.fold_in(key, i), temperature) for i in range(n)]
        each = [written(x, tok, cfg) for x, _ in made]
        if name == "greedy":
            samples[0]["film"] = film(*made[0], len(each[0][0]), cfg, tok)
        ids = [row for group in zip(*each, strict=True) for row in group]  # those of one prompt in a row
        completions, total, parts = score(fns, more, cfg, tok, text.rows, ids, n)
        for i, s in enumerate(samples):
            s[name] = completions[i] if n == 1 else completions[i * n : (i + 1) * n]
        if not judge_of_all:
            continue
        each = passing(parts[judge_of_all].reshape(-1, n), cfg)
        each = each[~np.isnan(each).all(1)]
        of_prompts = np.nanmean(each, 1) if len(each) else np.array([np.nan])
        out[f"val/{name}"] = float(of_prompts.mean())
        if len(each) > 1:
            out[f"val/{name}_se"] = float(of_prompts.std(ddof=1) / len(each) ** 0.5)  # the standard error
        if fns:
            out[f"val/{name}_reward"] = rewards.mean(total)
        if len(fns | more) > 1:
            out |= {f"val/{name}/{part}": rewards.mean(parts[part]) for part in fns | more}
        if n > 1 and fns:
            adv = np.asarray(advantages(opinions(parts, cfg, fns).reshape(len(fns), -1, n), cfg))
            for s, r, a in zip(samples, total.reshape(-1, n).tolist(), adv.tolist(), strict=True):
                s |= {"rewards": r, "advantages": [round(x, 4) for x in a]}
        if n > 1:
            out[f"val/pass@{n}"] = float(np.nanmax(each, 1).mean()) if len(each) else math.nan
            out["val/distinct_3"] = distinct(completions)
        if not len(each):
            tqdm.write(f"{cfg.dataset}/val: {judge_of_all} has no opinion on any of the {len(ids)} {name} completions")
    for s, row in zip(samples, text.rows, strict=True):  # what rewards.py needs to score them
        reference = {name: row["completion"] for name in ("reference", "answer") if "completion" in row}
        s["columns"] = reference | {k: v for k, v in row.items() if k not in ("prompt", "completion")}
    return out, samples


# ---- pretrain --------------------------------------------------------------------------------------------------------


def pretrain(cfg, tok, start):
    """Masked diffusion on the completions of the rows (a causal model: the next token): pre-training when prompts are
    empty, fine-tuning when not."""
    train, shown = read_text(cfg, tok, "train"), few(read_text(cfg, tok, "val"), cfg)
    asked = few(read_text(cfg, tok, "val", learnt=False), cfg) if cfg.max_prompt_len else shown  # what is to be filled
    fns, more = reward_functions(cfg, tok, asked.rows)
    if not fns and cfg.max_prompt_len:  # what can be said of any answer: is it the one in the data?
        fns = {"exact": rewards.REWARDS["exact"]}
    if fns or more:
        tqdm.write(meaning(cfg, fns, more))
    if lacking := sum("completion" not in row for row in train.rows):
        raise ValueError(f"{cfg.dataset}/train: {lacking} of {len(train.rows)} rows have no completion to learn from")
    noise = jax.jit(functools.partial(diffusion.noise, cfg=cfg.model, norm=cfg.loss_norm, paired=cfg.paired))
    logp = jax.jit(functools.partial(diffusion.likelihood, cfg=cfg.model, start=cfg.max_prompt_len))
    allowed = stages(cfg, train.rows)
    known = shown.part([i for i, row in enumerate(shown.rows) if "completion" in row])  # others have no likelihood
    learnt, held_out = ((up_to_its_end(t, tok) if cfg.model.causal else t) for t in (train, known))

    def batches(state, key):
        size, rows = cfg.batch_size // (2 if cfg.paired else 1), allowed(state.step)
        yield noise(key, learnt.take(rows[data.batch_indices(len(rows), size, state.step, cfg.seed)])), {}

    def evaluate(state, key):
        out = {"val/nelbo": math.nan}
        if n := len(held_out.rows):
            keys = sample.row_keys(jax.random.key(0), n)  # the same masks every time
            some = functools.partial(logp, state.weights)
            bound = np.asarray(in_chunks(some, config.eval_rows(cfg), held_out.take(slice(None)), keys), float)
            out = {"val/nelbo": -float(bound.sum() / held_out.arrays["hole"].sum())}
        if n and not cfg.max_prompt_len:
            size = np.mean([len(tok.spell(row)) for row in held_out.arrays["tokens"]])
            out["val/bits_per_byte"] = -float(bound.mean()) / size / np.log(2)
        scored = asked if fns or more else asked.part(np.arange(min(SAMPLES, len(asked.rows))))  # only to be looked at
        rates, samples = pass_rates(cfg, tok, fns, more, state.weights, key, scored)
        return out | rates, samples

    loss = functools.partial(diffusion.loss, cfg=cfg.model, start=cfg.max_prompt_len)
    passes = "val/sampled" if cfg.rewards or cfg.eval_rewards else None
    n = len(train.rows) * (2 if cfg.paired else 1)  # paired, a batch has half as many rows
    return Task(lambda key: start or model.init(key, cfg.model), batches, loss, evaluate, n, passes)


# ---- judge -----------------------------------------------------------------------------------------------------------


def judge_texts(cfg, tok, start):
    """A judge of texts, from pairs of a better and a worse one; its trunk starts from the denoiser in init_from."""
    generator = start
    if start and model.width(start):  # a resumed run makes its pairs again with what it began from
        generator = disk.load(cfg.init_from)[0] if cfg.init_from else None
        generator = None if generator and model.width(generator) else generator

    def refill(rows, seed):
        """Holes in the completions of rows, all windows of a document, filled by the generator at one temperature after
        the other; without a kind what does not fit."""
        rng = np.random.default_rng(seed)
        arrays, _ = data.encode(rows, tok, cfg.max_prompt_len, cfg.max_new_tokens)
        text = arrays["hole"] & (arrays["tokens"] != tok.eos_id)
        arrays["hole"] = text & (rng.random(text.shape) < rng.uniform(0.2, 1.0, (len(text), 1)))
        windows, ids, kinds = [[]] * len(text), [[] for _ in rows], [""] * len(rows)
        size = min(cfg.eval_size, -(-len(text) // len(cfg.judge_temperatures)))  # every temperature has its turn
        for n, first in enumerate(range(0, len(text), max(size, 1))):
            index = np.arange(first, first + size) % len(text)  # all chunks of one shape
            heat = cfg.judge_temperatures[n % len(cfg.judge_temperatures)]
            chunk = {k: jnp.asarray(arrays[k][index]) for k in ("tokens", "hole", "valid")}
            filled = fill(generator, jax.random.key(seed + n), chunk, cfg, plan(cfg, heat))[0]
            for i, window in zip(index, written(filled, tok, cfg), strict=True):
                windows[i], kinds[arrays["row"][i]] = window, f"filled at {heat:g}"
        for row, window in zip(arrays["row"], windows, strict=True):
            ids[row] += window
        return [tok.decode(row) for row in ids], kinds

    made = [
        learned.pairs(read_rows(cfg, split)[:n], cfg.seed + i, generator and refill)
        for i, (split, n) in enumerate((("train", cfg.judge_rows), ("val", cfg.eval_size)))
    ]
    train, val = (learned.arrays(p, tok, cfg.max_prompt_len + cfg.max_new_tokens + 1) for p in made)
    read = jax.jit(functools.partial(model.score, cfg=cfg.model))

    def batches(state, key):
        index = data.batch_indices(len(train["better"]), cfg.batch_size, state.step, cfg.seed)
        yield {k: None if v is None else jnp.asarray(v[index]) for k, v in train.items()}, {}

    def loss(params, batch):  # a mean over rows, of which every micro-batch has its share
        return jax.tree.map(lambda x: x / cfg.gradient_accumulation_steps, learned.loss(params, batch, cfg.model))

    def evaluate(state, key):
        some = lambda tokens, valid: read(state.weights, tokens, valid=valid)
        of = lambda side: np.asarray(in_chunks(some, config.eval_rows(cfg), val[side], val[side + "_valid"]))
        b, w = of("better"), of("worse")
        columns = ("prompt", "better", "worse", "kind", "score_better", "score_worse")
        shown = zip(*made[1][:4], b.tolist(), w.tolist(), strict=True)
        return learned.report(b, w, made[1]), [dict(zip(columns, row, strict=True)) for row in shown]

    init = lambda key: model.init(key, cfg.model, n_out=1) | {
        k: v for k, v in (start or {}).items() if k != "head" or model.width(start)}  # fmt: skip
    passes = "val/pair_acc" if train["score"] is None else "val/correlation"
    return Task(init, batches, loss, evaluate, len(train["better"]), passes)


# ---- grpo ------------------------------------------------------------------------------------------------------------


class Rollout(NamedTuple):
    """N prompts with G completions each, those of one prompt in a row; B = N * G."""

    x: jax.Array  # (B, T) tokens
    valid: jax.Array | None  # (B, T) False at left padding
    hole: jax.Array  # (B, T) what the policy was asked to fill
    mask: jax.Array  # (B, T) of these, what counts: up to and with the first end of text
    step: jax.Array  # (B, T) the step at which it was filled; -1 elsewhere
    logp: jax.Array  # (B, T) its log-prob under the distribution it was drawn from
    n_steps: jax.Array  # () forward passes of a chunk, on average


class Scored(NamedTuple):
    """N prompts, their completions, and what the rewards think of these."""

    rows: list  # N
    rollout: Rollout
    completions: list  # B texts
    rewards: np.ndarray  # (R, N, G), behind the rewards the diversity bonus and the KL
    parts: dict  # name: (B,) of every reward, what it notes, and the bonus


def weights_of(each, cfg):
    """each (R, N, G) of cfg.rewards and maybe of the diversity bonus and the KL behind them -> their weights (R,)."""
    bonus = [cfg.diversity_bonus] * bool(cfg.diversity_bonus) + [-cfg.kl_beta] * cfg.kl_in_reward
    return np.array([*(cfg.reward_weights or (1.0,) * len(cfg.rewards)), *bonus][: len(each)])


def advantages(each, cfg):
    """each (R, N, G) as above -> (N, G)."""
    return grpo.advantages(jnp.asarray(each, jnp.float32), weights_of(each, cfg), cfg.adv_baseline, cfg.adv_norm,
                           cfg.adv_eps, cfg.reward_norm)  # fmt: skip


def spread(scored, cfg):
    """-> (N,): has a group anything to teach, the diversity bonus apart? Groups that agree have no advantages."""
    return np.asarray(advantages(scored.rewards[: len(cfg.rewards)], cfg) != 0).any(1)


def refill(old, new, cfg):
    """Scored, Scored -> Scored: groups of `old` that agree with themselves give way to groups of `new` that do not."""
    _, N, G = old.rewards.shape
    out, into = np.flatnonzero(~spread(old, cfg)), np.flatnonzero(spread(new, cfg))
    pick = np.arange(N)
    pick[out[: len(into)]] = N + into[: len(out)]
    flat = (pick[:, None] * G + np.arange(G)).reshape(-1)
    take = lambda a, b: jnp.concatenate([a, b])[flat] if a.ndim else a + b  # or the forward passes of both
    return Scored(
        rows=[(old.rows + new.rows)[i] for i in pick],
        rollout=jax.tree.map(take, old.rollout, new.rollout),
        completions=[(old.completions + new.completions)[i] for i in flat],
        rewards=np.concatenate([old.rewards, new.rewards], 1)[:, pick],
        parts={k: np.concatenate([old.parts[k], new.parts[k]])[flat] for k in old.parts},
    )


def objective(cfg):
    """The loss's share of a config."""
    return grpo.Objective(loss=cfg.loss_type, ratio=cfg.ratio_level, clip_low=cfg.clip_low, clip_high=cfg.clip_high,
                          clip_cap=cfg.clip_cap, cispo_cap=cfg.cispo_cap, kl_est=cfg.kl_est,
                          kl_beta=0.0 if cfg.kl_in_reward else cfg.kl_beta, entropy_coef=cfg.entropy_coef)  # fmt: skip


ALGORITHM = {  # what a run of grpo does, in a line each: the keys that say it
    "rollouts": "batch_size group_size diffusion_steps rollout_steps order rule block_len temperature top_k top_p "
                "repetition_penalty fill_in dynamic_sampling",
    "rewards": "rewards reward_weights reward_clip diversity_bonus", "estimator": "logp_est logp_views logp_scale",
    "advantages": "adv_baseline adv_norm adv_negative reward_norm keep_completions",
    "loss": "loss_type aggregation ratio_level clip_low clip_high clip_cap updates_per_rollout entropy_coef",
    "KL": "kl_beta kl_est kl_in_reward ref_mode ref_from",
    "validation": "eval_size eval_interval eval_samples eval_rewards pass_at"}  # fmt: skip


def algorithm(cfg):
    """The lines of ALGORITHM, with the keys as they are typed, but for those that are off."""
    value = lambda k: ",".join(map(str, v)) if isinstance(v := getattr(cfg, k), tuple) else v
    said = lambda keys: "  ".join(f"{k}={value(k)}" for k in keys.split() if value(k) not in (None, "", 0))
    off = {} if cfg.kl_beta else {"KL": "none"}
    return [f"    {name:11} {line}" for name, line in ({k: said(keys) for k, keys in ALGORITHM.items()} | off).items()]


@functools.partial(jax.jit, static_argnames=("eos_id", "cfg"))
def what_counts(x, hole, eos_id, cfg):
    """x, hole (B, T) -> (B, T): which tokens of a rollout are in the loss: those up to and with the first end of text,
    or all that were drawn."""
    ends = hole & (x == eos_id)
    mask = hole if cfg.score_after_end else hole & (jnp.cumsum(ends, 1) - ends == 0)
    return mask & ends.any(1, keepdims=True) if cfg.mask_truncated else mask


def draws(cfg, tok, text):
    """-> draw(step, n): Text of N rows of a Text, the n-th that this step asks, as the curriculum allows it."""
    allowed, given = stages(cfg, text.rows), cfg.fill_in and holes_of_rows(text, cfg, tok)

    def draw(step, n):
        index = allowed(step)
        chosen = index[data.batch_indices(len(index), cfg.batch_size, step * (1 + cfg.dynamic_sampling) + n, cfg.seed)]
        if cfg.fill_in and not given:
            return punch(text.part(chosen), cfg, tok, [cfg.seed, step, n])
        return (given or text).part(chosen)

    return draw


def roll_out(params, key, prompts, cfg, tok):
    """Text of N prompts -> Rollout of G completions each, in chunks of whole groups where rollout_chunk holds one."""
    arrays = jax.tree.map(lambda a: jnp.repeat(a, cfg.group_size, 0), prompts.take(slice(None)))
    hole, size = arrays["hole"], mesh.up(config.rollout_rows(cfg))
    how = plan(cfg, cfg.temperature, cfg.rollout_steps, cfg.early_end)
    some = lambda keys, arrays: fill(params, keys, arrays, cfg, how, math.gcd(size, cfg.group_size))
    x, trace = in_chunks(some, size, sample.row_keys(key, len(hole)), arrays)
    return Rollout(x, arrays["valid"], hole, what_counts(x, hole, tok.eos_id, cfg), **trace)


def divergence(state, key, r, cfg):
    """Rollout -> (B,), log p of each completion under the policy less that under the reference: k1, which a reward may
    hold (as a loss its gradient is 0 on average): there it is the gradient of KL(policy || reference)."""
    M, w, seen = look(key, r, cfg)
    b = {"x": r.x, "valid": r.valid, "hole": r.hole, "mask": r.mask, "M": M, "w": w, "adv": jnp.zeros(len(r.x))}
    of = lambda params: in_chunks(lambda b: logps(params, b, cfg), config.minibatch(cfg), b)
    return np.asarray((seen * (of(state.params) - of(mesh.aboard(state.reference)))).sum(1), float)


def judged(rollout, rows, fns, cfg, tok, kl=None):
    """Rollout of N rows -> Scored."""
    N, G = cfg.batch_size, cfg.group_size
    completions, total, parts = score(fns, {}, cfg, tok, rows, written(rollout.x, tok, cfg), G)
    each = opinions(parts, cfg, fns)
    if cfg.diversity_bonus:
        groups = np.repeat(np.arange(N), G).tolist()
        bonus = np.array(rewards.diversity(groups, completions, groups), float)
        parts["diversity_bonus"] = np.where(np.isnan(total), np.nan, bonus)  # what nobody judged stays left out
        each = np.stack([*each, parts["diversity_bonus"]])
    if kl is not None:
        parts["kl"] = np.where(np.isnan(total), np.nan, kl)
        each = np.stack([*each, parts["kl"]])
    return Scored(rows, rollout, completions, each.reshape(-1, N, G), parts)


def keep(found, adv, cfg):
    """Scored, its advantages (N, G) -> Rollout of K completions, what the loss weighs them with (K,): the largest."""
    if cfg.loss_type == "wd1":
        adv = grpo.wd1_weights(adv, ~np.isnan(found.rewards).all(0))
    adv, K = jnp.where(adv < 0, cfg.adv_negative * adv, adv).reshape(-1), config.kept(cfg)
    if K == adv.size:
        return found.rollout, adv
    best = jnp.argsort(-jnp.abs(adv))[:K]
    return jax.tree.map(lambda a: a[best] if a.ndim else a, found.rollout), adv[best]


@functools.partial(jax.jit, static_argnames="cfg")
def look(key, r, cfg):
    """Rollout of K -> M, w (K, V, T), seen (K, T): the masks of one pass over it, V views with the rows in front."""
    prompt = ~r.hole & (True if r.valid is None else r.valid)
    ratio = cfg.mask_ratio_min, cfg.mask_ratio_max
    block = diffusion.blocks(r.valid, r.x.shape[1], cfg.model)
    M, w, seen = diffusion.views(key, cfg.logp_est, r.hole, r.step, cfg.logp_views, ratio, cfg.p_mask_prompt, prompt,
                                 block)  # fmt: skip
    if cfg.loss_type == "spg":  # whose upper bound is the log of a weighted mean
        w, seen = w * seen, seen > 0
    return M.swapaxes(0, 1), (w * r.mask * cfg.logp_scale).swapaxes(0, 1), seen * r.mask


def policy(params, b, cfg):
    """Batch with x, hole, mask (B, T), M, w (B, V, T), valid, adv (B,) -> log-probs, entropy (B, T) under params."""
    M, w = b["M"].swapaxes(0, 1), b["w"].swapaxes(0, 1)
    chunk = cfg.logp_chunk and min(cfg.logp_chunk, M.shape[0] * M.shape[1])
    filtered = cfg.top_k or cfg.top_p or cfg.repetition_penalty != 1
    temper = functools.partial(sample.as_drawn, plan=plan(cfg, cfg.temperature)) if filtered else None
    logp, entropy = diffusion.view_logp(
        params, b["x"], M, cfg.model, b["valid"], cfg.max_prompt_len, chunk, cfg.temperature, w != 0,
        cfg.entropy_coef > 0, b["hole"], temper
    )  # fmt: skip
    entropy = (w * entropy).sum(0) / jnp.maximum(w.sum(0), 1e-6)
    if cfg.loss_type == "spg":
        return diffusion.sandwich(logp, w, b["adv"] > 0, cfg.spg_mix, cfg.spg_power) * b["mask"], entropy
    return (w * logp).sum(0), entropy


@functools.partial(jax.jit, static_argnames="cfg")
def logps(params, b, cfg):
    """Batch as above -> (B, T), micro-batch by micro-batch as in the gradient: in 16 bits a product of another shape is
    another number."""
    cut = lambda x: x.reshape(cfg.gradient_accumulation_steps, -1, *x.shape[1:])
    parts = jax.tree.map(cut, {k: b[k] for k in ("x", "valid", "hole", "mask", "M", "w", "adv")})
    return mesh.everywhere(jax.lax.map(lambda part: policy(params, part, cfg)[0], parts).reshape(b["x"].shape))


def passes(state, key, k_order, r, cfg):
    """Rollout of K completions -> all minibatches but their advantages: each pass has its own order and masks, and on
    them the log-probs of the policy that wrote the completions and of the reference. In the first minibatch that policy
    is the one whose gradient is taken: nan, for its own forward pass will do."""
    out, K, size = [], len(r.x), config.minibatch(cfg)
    compared = cfg.ratio_level != "none" and (cfg.updates_per_rollout > 1 or size < K)  # are there updates after one?
    for n in range(cfg.updates_per_rollout):
        M, w, seen = look(jax.random.fold_in(key, n if cfg.random_masking else 0), r, cfg)
        whole = {"x": r.x, "valid": r.valid, "hole": r.hole, "mask": r.mask, "drawn": r.logp, "M": M, "w": w}
        whole |= {"seen": seen, "row": jnp.arange(K), "adv": jnp.zeros(K)}  # not known yet
        order = jax.random.permutation(jax.random.fold_in(k_order, n), K)
        for i in range(0, K, size):
            b = whole if size == K else jax.tree.map(lambda v, at=order[i : i + size]: v[at], whole)
            first = jnp.full(b["x"].shape, jnp.nan)
            b |= {"old": (logps(state.params, b, cfg) if out else first) if compared else None,
                  "ref": logps(mesh.aboard(state.reference), b, cfg) if cfg.kl_beta and not cfg.kl_in_reward else None,
                  "weight": grpo.weights(cfg.loss_type, b["mask"], cfg.max_new_tokens, cfg.gradient_accumulation_steps,
                                         cfg.aggregation),
                  "share": b["seen"] / jnp.maximum(b["seen"].sum(), 1e-6)}  # fmt: skip
            out.append(b)
    return out


def policy_loss(params, b, cfg):
    """A minibatch of `passes`, or a part of it -> scalar, metrics."""
    logp, entropy = policy(params, b, cfg)
    of_tokens = logp, b["old"], b["ref"], b["mask"], b["weight"], b["share"], entropy, b["seen"], b["drawn"]
    of_tokens = (x if x is None else x[:, cfg.max_prompt_len :] for x in of_tokens)
    logp, old, ref, mask, weight, share, entropy, seen, drawn = of_tokens
    if old is not None:
        old = jnp.where(jnp.isnan(old), logp, old)
    total, metrics = grpo.loss(logp, old, ref, b["adv"], mask, weight, share, objective(cfg), entropy, seen)
    # How far what is trained is from what was sampled: of `trace`, 0 before the first update, of any of its steps.
    return total, metrics | {"behaviour_gap": jnp.sum(share * jnp.abs(logp - drawn))}


def describe(found, adv, cfg, tok):
    """What an iteration logs beside the loss: of the rewards, the advantages (N, G), and the completions."""
    r, each, G = found.rollout, found.rewards, cfg.group_size
    total = np.where(np.isnan(each).all(0), np.nan, np.nansum(weights_of(each, cfg)[:, None, None] * each, 0))
    known, (_, inside, n) = total[~np.isnan(total)], grpo.moments(total, 1)
    ends, drawn = (np.asarray(a) for a in (r.hole & (r.x == tok.eos_id), r.hole))
    length = (drawn & (ends.cumsum(1) - ends == 0)).sum(1)
    ends = cfg.fill_in | ends.any(1)  # holes in a text: its end is given
    groups = [found.completions[i : i + G] for i in range(0, len(length), G)]
    return {
        "reward": rewards.mean(total), "reward_std": rewards.mean(np.where(n > 1, inside, np.nan)),  # of one: no spread
        **{f"reward/{how}": float(getattr(known, how)()) if len(known) else math.nan for how in ("std", "min", "max")},
        "frac_reward_zero_std": float(np.mean(~spread(found, cfg))),
        "pass_rate": rewards.mean(passing(next(iter(found.parts.values())), cfg)),
        "adv/mean": float(adv.mean()), "adv/std": float(adv.std()),
        "unique_completions": float(np.mean([len(set(g)) / G for g in groups])),
        "completions/terminated_frac": float(ends.mean()), "completions/clipped_ratio": float(1 - ends.mean()),
        "steps_per_token": float(r.n_steps) / max(length.mean(), 1), "skipped": float(not len(known)),
    } | {
        f"completions/{stat}_{kind}length": float(getattr(some, stat)()) for stat in ("mean", "min", "max")
        for kind, some in (("", length), ("terminated_", length[ends])) if len(some)
    } | rewards.summary(found.parts)  # fmt: skip


def first_group(found, adv, cfg, tok):
    """Scored, its advantages (N, G) -> the first prompt and all that was made of it, for rollouts.jsonl."""
    G, row, r = cfg.group_size, {"prompt": found.rows[0]["prompt"]}, found.rollout
    if cfg.fill_in:  # the text with its holes
        ids, asked = written(r.x[:1], tok, cfg)[0], np.asarray(r.hole[0, cfg.max_prompt_len :]).tolist()
        parts = itertools.groupby(zip(ids, asked, strict=False), lambda pair: pair[1])
        row["masked"] = "".join("<|mask|>" * len([*some]) if hole else tok.decode([i for i, _ in some])
                                for hole, some in parts)  # fmt: skip
    scores = {name: part[:G].tolist() for name, part in found.parts.items() if "/" not in name}
    return row | {"completions": found.completions[:G], "rewards": scores, "advantages": adv[0].tolist()}


@contextlib.contextmanager
def timed(notes, name):
    """The seconds that this takes are added to notes[name]."""
    begun = time.perf_counter()
    yield
    notes[name] += time.perf_counter() - begun


def iteration(state, key, draw, fns, cfg, tok):
    """GRPO: the policy completes prompts, rewards judge, and what beats its group becomes likelier. -> minibatches for
    `policy_loss` and numbers to be logged."""
    k_roll, k_order = jax.random.split(key)
    tries, found, notes = 1 + cfg.dynamic_sampling, None, collections.defaultdict(float)
    minibatches = lambda r: passes(state, jax.random.fold_in(k_roll, tries), k_order, r, cfg)
    for n in range(tries):
        with timed(notes, "time/rollout"):
            prompts = draw(state.step, n)
            r = jax.block_until_ready(roll_out(state.params, jax.random.fold_in(k_roll, n), prompts, cfg, tok))
        # The device goes on with what needs no rewards while the host scores; but it is not known then which
        # completions stay, when groups may be drawn again or only the best are kept.
        ready = minibatches(r) if tries == 1 and config.kept(cfg) == len(r.x) else None
        with timed(notes, "time/old_ref"):
            kl = divergence(state, jax.random.fold_in(k_roll, tries + 1 + n), r, cfg) if cfg.kl_in_reward else None
        with timed(notes, "time/reward"):
            new = judged(r, prompts.rows, fns, cfg, tok, kl)
        found = refill(found, new, cfg) if found else new  # groups that agree with themselves are drawn again
        if n + 1 < tries and spread(found, cfg).all():
            break
    adv = advantages(found.rewards, cfg)
    notes |= describe(found, adv, cfg, tok) | {"rollouts": n + 1, "group": first_group(found, adv, cfg, tok)}
    if notes["skipped"]:
        tqdm.write(f"step {state.step + 1}: no reward ({', '.join(fns)}) has an opinion on any of the {adv.size} "
                   "completions, so there is no update")  # fmt: skip
        yield None, notes
        return
    with timed(notes, "time/old_ref"):
        r, adv = keep(found, adv, cfg)
        ready = jax.block_until_ready(ready or minibatches(r))
    for b in ready:
        yield b | {"adv": adv[b.pop("row")]}, notes
        notes = {}


def tune(cfg, tok, start):
    """GRPO on the prompts of the rows, or on holes in their completions."""
    if start is None:
        raise ValueError("objective='grpo' tunes a model that can already do a little: set init_from to a folder or to "
                         "the config file that trains one")  # fmt: skip
    train, shown = read_text(cfg, tok, "train", cfg.fill_in), few(read_text(cfg, tok, "val", cfg.fill_in), cfg)
    fns, more = reward_functions(cfg, tok, train.rows + shown.rows)
    tqdm.write(meaning(cfg, fns, more))
    draw = draws(cfg, tok, train)
    if cfg.fill_in:
        shown = holes_of_rows(shown, cfg, tok) or punch(shown, cfg, tok, 0)
    return Task(
        init=lambda key: start,
        batches=lambda state, key: iteration(state, key, draw, fns, cfg, tok),
        loss=lambda params, batch: policy_loss(params, batch, cfg),
        evaluate=lambda state, key: pass_rates(cfg, tok, fns, more, state.weights, key, shown),
        rows=len(train.rows),
        passes="val/sampled",
    )


OBJECTIVES = {"pretrain": pretrain, "judge": judge_texts, "grpo": tune}
