"""
Score the completions of a run: reward functions of a config, advantages, metrics and samples for the log.
"""

import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import math
import operator
import os
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import checkpoint
import config
import data
import diffusion
import grpo
import rewards
import sample
from data import texts
from judges import model_judge, rules
from system import hosts, sharding

# ---- which rewards ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_memory(cfg: Any, rows: Any, fns: Any) -> Iterator[Any]:
    """Give rows and reward functions of a Python program names, and yield the Config that uses these names.

    rows: a list, {"train": list, "val"?: list} or None. fns: a function, a list, {name: fn} or None; the run trains on
    all of them unless cfg.rewards names some. The names last as long as the context.
    """
    known = {name: rewards.as_reward(f"reward {name!r}:", name, fn) for name, fn in by_name(fns).items()}
    for module in {rewards.ELSEWHERE[name] for name in known.keys() & rewards.ELSEWHERE.keys()}:
        importlib.import_module(module)  # imported later, its functions would replace the user's
    before = {name: rewards.REWARDS[name] for name in known.keys() & rewards.REWARDS.keys()}
    if rows is not None:
        splits = as_splits(rows)
        number = zlib.crc32(json.dumps(splits, default=repr).encode())  # so that no run is resumed on other rows
        name = f"{len(splits['train']) + len(splits['val'])} {data.IN_MEMORY}, {number:08x}"
        cfg, data.MEMORY[name] = dataclasses.replace(cfg, dataset=name), splits
    try:
        rewards.REWARDS.update(known)
        yield dataclasses.replace(cfg, rewards=cfg.rewards or tuple(known))
    finally:
        for reward in known:
            del rewards.REWARDS[reward]
        rewards.REWARDS.update(before)
        if rows is not None:
            del data.MEMORY[name]


def as_splits(rows):
    """Turn the rows that a Python program gives into {"train": list, "val": list}.

    rows: an iterable, or {split: iterable}. Without val, the last 5% of train are val."""
    if isinstance(rows, (str, os.PathLike)):
        name = str(rows)
        raise ValueError(f"rows={name!r}: a file or a data set is named in the config, Config(dataset={name!r})")
    given = rows if isinstance(rows, dict) else {"train": rows}
    try:
        splits = {
            split: list(next((given[name] for name in names if name in given), ()))
            for split, names in data.SPLITS.items()
        }
    except TypeError:
        splits = {"train": []}
    if not splits["train"] or given.keys() - set(itertools.chain(*data.SPLITS.values())):
        raise ValueError(
            f"rows={data.quote(rows)}: expected a list of rows, at least one, or {{'train': rows, 'val': rows}}"
        )
    if not splits["val"] and len(splits["train"]) == 1:
        raise ValueError(f"rows: a single row, {data.quote(splits['train'][0])}, leaves none to evaluate: give "
                         "two or more, or {'train': rows, 'val': rows}, which may be the same")  # fmt: skip
    if not splits["val"]:
        splits = {split: data.held_out_part(splits["train"], split, "the list of rows") for split in splits}
    return splits


def by_name(fns):
    """Turn the reward functions of a Python program, one, a list or {name: fn}, into {name: fn}."""
    if isinstance(fns, dict):
        return fns
    fns = fns if isinstance(fns, (list, tuple)) else [fns] if fns is not None else []
    if strange := [fn for fn in fns if not callable(fn)]:
        raise ValueError(
            f"rewards: {strange[0]!r} is no function; what has a name already is named in the config, "
            "Config(rewards=('exact',))"
        )
    named = {getattr(fn, "__name__", type(fn).__name__): fn for fn in fns}
    if len(named) < len(fns):
        raise ValueError("rewards: two functions have one name; give them as {name: function}")
    return named


class RewardFunctions(NamedTuple):
    """The rewards of a config by name."""

    trained: dict  # of cfg.rewards
    eval_only: dict  # of cfg.eval_rewards: not in the total


def find_rewards(cfg, rows, **from_models):
    """Find the functions of cfg.rewards and cfg.eval_rewards; an error if one needs a column that no row has."""
    trained = rewards.resolve(cfg.rewards, **from_models)
    eval_only = rewards.resolve(cfg.eval_rewards, **from_models)
    if twice := trained.keys() & eval_only.keys():
        raise ValueError(f"{', '.join(twice)} in rewards and in eval_rewards: what is trained is evaluated anyway")
    if any(rewards.split_settings(names[0])[0] == "passes" for names in (cfg.rewards, cfg.eval_rewards) if names):
        raise ValueError("the reward 'passes' comes first, but the first of rewards and of eval_rewards decides which "
                         "checkpoint is best, and what is right: name the task's reward before it")  # fmt: skip
    columns = rewards.as_columns(rows) | {"groups": [], "token_ids": [], "max_length": [], "tokens_per_pass": []}
    for name, fn in (trained | eval_only).items():
        rewards.arguments(name, fn, columns)
    return RewardFunctions(trained, eval_only)


def not_made_yet(prompts, completions):
    """Stand for a reward from a model that is trained or loaded later."""
    return []


def check_early(cfg: Any) -> None:
    """Check before a base or a judge is trained that rewards and their columns exist, and that the rows of both splits
    have what fill_in and hint_ratio need; a ValueError says what is missing."""
    if not cfg.rewards:
        raise ValueError(
            "objective='grpo' needs rewards, for example rewards=('exact',); python rewards.py --help lists them"
        )
    for split in ("train", "val"):
        rows = texts.split_rows(cfg, split)
        found = find_rewards(cfg, rows, judge=not_made_yet, coherence=not_made_yet)
        if split == "val":
            try_rewards(cfg, found.trained | found.eval_only, rows)
        bare = [row for row in rows if not row.get("completion")]
        marked = sum("masked" in row for row in rows)
        if cfg.fill_in and 0 < marked < len(rows):
            raise ValueError(
                f"{cfg.dataset}/{split}: {marked} of {len(rows)} rows say in `masked` which tokens to fill: all rows "
                "of a split should, or none"
            )
        if getattr(cfg, "hint_ratio", 0) and bare and split == "train":
            raise ValueError(
                f"hint_ratio={cfg.hint_ratio} gives tokens of completions, and {len(bare)} rows of "
                f"{cfg.dataset}/{split} have none: {str(bare[0])[:80]}"
            )
        if cfg.fill_in and bare and marked < len(rows):
            raise ValueError(
                f"fill_in=True masks tokens of completions, and {len(bare)} rows of {cfg.dataset}/{split} have none: "
                f"{str(bare[0])[:80]}"
            )


SOLVED_BY_REFERENCE = {"exact", "contains", "math", "countdown", "sudoku", "sudoku_all", "xml_answer"}


def try_rewards(cfg, fns, rows):
    """Score the completion of the first row that has one with every reward that needs no model and no sandbox.

    A ValueError says which reward cannot read the row: the rows may be of another task. If the row's own completion
    earns nothing from a reward that knows the answer, that is printed."""
    row = next((row for row in rows if row.get("completion")), None)
    later = {*rewards.FROM_MODELS, *rewards.ELSEWHERE}
    given = {"groups": [0], "token_ids": [[0]], "max_length": [cfg.max_new_tokens], "tokens_per_pass": [1.0]}
    for name, fn in fns.items() if row else ():
        if name in later:
            continue
        columns = rewards.as_columns([row]) | given | {"first_reward": [0.0]}
        what = f"prompt {row['prompt'][:60]!r}, completion {row['completion'][:60]!r}"
        try:
            (earned,) = rewards.call_reward(name, fn, [row["prompt"]], [row["completion"]], columns)
        except ValueError as e:
            needs = (fn.__doc__ or "").split(". ")[0].split("\n\n")[0]
            meaning = f" ({' '.join(needs.split())})" if needs else ""
            if fn not in rewards.REWARDS.values():  # a user's function may look at the whole batch
                continue
            raise ValueError(
                f"{cfg.dataset}/val: the reward {name!r}{meaning} cannot score its first row, {what}: "
                f"{e.__cause__ or e}. If these rows are of another task than the recipe's, name rewards that fit them, "
                "for example --rewards=exact (python rewards.py --help lists them); else mend the row"
            ) from None
        if name in SOLVED_BY_REFERENCE and earned == 0:
            tqdm.write(f"{cfg.dataset}/val: the reward {name!r} gives the completion of the first row 0, so perhaps no "
                       f"answer can earn it: {what}")  # fmt: skip


def reward_functions(cfg: Any, tok: Any, rows: list[dict]) -> RewardFunctions:
    """Load the rewards of a config, including those from models, and start the sandbox if they run programs."""
    names = cfg.rewards + cfg.eval_rewards
    made = model_judge.load(cfg.judge_from, cfg.model.dtype) if cfg.judge_from else {}
    if cfg.judge_from and not set(made) & set(names):
        raise ValueError(
            f"judge_from={cfg.judge_from!r} makes the reward {'judge' if 'judge' in made else 'coherence'!r}"
            + (", and is not a judge: its head has not width 1" if "judge" not in made else "")
            + f", but rewards are {', '.join(names) or 'none'}"
        )
    if "coherence" in names and "coherence" not in made and cfg.init_from:
        params, _ = checkpoint.load(cfg.init_from, cfg.model.dtype, cfg.open_as)
        made["coherence"] = model_judge.coherence(params, cfg.model, tok)
    found = find_rewards(cfg, rows, **made)
    used = found.trained.keys() | found.eval_only.keys()
    tested = {"tests", "tests_all", "tests_fenced", "performance"} & used
    if tested or {"syntax", "fenced"} & used:
        from judges import programs

        box = programs.sandbox(timeout=cfg.reward_timeout, workers=cfg.reward_workers, unsafe=cfg.sandbox_unsafe)
        try:  # a machine without walls is refused before the run begins
            box.run([("", ["assert True"], "")] if tested else [])
            unknown = programs.check(rows) if tested else {}
        except (RuntimeError, ValueError) as e:
            raise ValueError(f"{cfg.dataset}: {e}") from None
        for language, count in unknown.items():
            tqdm.write(f"{cfg.dataset}: no opinion on {count} rows in {language!r}, which tests are not run in")
    return found


# ---- scores and advantages -------------------------------------------------------------------------------------------


class CompletionScores(NamedTuple):
    """B completions and their rewards; nan: no opinion."""

    texts: list[str]
    total: np.ndarray  # (B,) weighted sum of the trained rewards
    parts: dict[str, np.ndarray]  # each reward by name (B,), and everything it logged as NAME/NOTE (B,)


def already_scored(scores):
    """Make a reward that returns these scores."""

    def reward(completions):
        return scores

    return reward


def written(tokens, completion, ends):
    """Count the tokens that were written in each row (B,), up to and including the first end of text.

    tokens (B, T); completion (B, T), True where a token was to be written. ends: the ids that end a text."""
    completion = np.asarray(completion)
    ends = completion & np.isin(tokens, ends)
    to_end = ends.cumsum(1) - ends == 0
    return (completion & to_end).sum(1)


def written_per_pass(tokens, completion, passes, ends):
    """Divide what `written` counts in each row by its passes (B,) -> (B,)."""
    return written(tokens, completion, ends) / np.maximum(np.asarray(passes), 1)


def tokens_per_pass(rollout, cfg):
    """Divide the number of tokens of each completion of a rollout by its passes -> (B,)."""
    return written_per_pass(rollout.tokens, rollout.completion, rollout.passes, cfg.model.ends)


def score(
    fns: dict, eval_only: dict, cfg: Any, tok: Any, rows: list[dict], ids: list, n_each: int, fast: Any = None
) -> CompletionScores:
    """Score `n_each` completions per row with every reward, fns and eval_only {name: fn}; eval_only weigh nothing.

    ids: the token ids of each completion, those of a row one after the other.
    fast (B,): the tokens per pass of each completion; None: not known, and an error if a reward asks for them.
    Each process scores its share of the rows. Rewards from models run on all of them, as the model is sharded.
    """
    weights = (cfg.reward_weights or (1.0,) * len(fns)) + (0.0,) * len(eval_only)
    repeated = [row for row in rows for _ in range(n_each)]
    columns = rewards.as_columns(repeated) | {
        "groups": np.repeat(np.arange(len(rows)), n_each).tolist(),
        "token_ids": ids,
        "max_length": [cfg.max_new_tokens] * len(repeated),
    }
    if fast is not None:
        columns["tokens_per_pass"] = fast.tolist()
    prompts, completions = [row["prompt"] for row in repeated], [tok.decode(row) for row in ids]
    mine = hosts.my_rows(len(rows))
    mine, fns = slice(mine.start * n_each, mine.stop * n_each), fns | eval_only
    for name in fns.keys() & {"judge", "coherence"}:
        fns |= {name: already_scored(rewards.call_reward(name, fns[name], prompts, completions, columns)[mine])}
    columns = {name: column[mine] for name, column in columns.items()}
    found = hosts.all_gather_objects(
        lambda: rewards.combine(fns, weights, prompts[mine], completions[mine], columns, cfg.reward_clip)
    )
    total = np.concatenate([one.total for one in found])
    parts = {}
    for name in dict.fromkeys(name for one in found for name in one.parts):
        # A reward may have logged a note in some processes only.
        pieces = [one.parts.get(name, np.zeros(len(one.total))) for one in found]
        parts[name] = np.concatenate(pieces)
    return CompletionScores(completions, total, parts)


def reward_table(parts: dict[str, np.ndarray], cfg: Any, fns: dict) -> np.ndarray:
    """Stack the trained rewards {name: (B,)} -> (R, B); one that weighs nothing has no opinion (nan)."""
    weights = cfg.reward_weights or (1.0,) * len(fns)
    rows = []
    for name, weight in zip(fns, weights, strict=True):
        rows.append(np.where(weight, parts[name], np.nan))
    return np.stack(rows)


def total_rewards(table, cfg) -> np.ndarray:
    """Add up the weighted rewards of a table (R, N, G) -> (N, G), nan where no reward has an opinion."""
    weights = np.array(cfg.reward_weights or (1.0,) * len(table))
    weighted = weights[:, None, None] * table
    return np.where(np.isnan(table).all(0), np.nan, np.nansum(weighted, 0))


def advantage_settings(table, cfg) -> dict[str, Any]:
    """Take the settings of `grpo.advantages` from a Config, for a table of rewards (R, N, G). A ValueError if they
    divide by the mean of a group and a reward is negative."""
    if cfg.adv_norm == "mean" and (lowest := np.nan_to_num(total_rewards(table, cfg)).min()) < 0:
        raise ValueError(f"adv_norm='mean' divides by the mean reward of a group, so rewards must not be negative, but "
                         f"one is {lowest:g}: take another reward, or adv_norm='group'")  # fmt: skip
    return {
        "weights": cfg.reward_weights or (1.0,) * len(table),
        "baseline": cfg.adv_baseline,
        "scale": cfg.adv_norm,
        "eps": cfg.adv_eps,
        "normalize": cfg.reward_norm,
    }


def has_signal(scored: Any, cfg: Any) -> np.ndarray:
    """True for each group (N,) whose rewards differ; others have no advantages."""
    adv = grpo.advantages(scored.rewards, **advantage_settings(scored.rewards, cfg))
    return np.asarray((adv != 0).any(1))


def right(scored: Any, adv: Any, cfg: Any) -> jax.Array:
    """Tell which completions are right (B,), for nll_coef: those whose first reward reaches pass_at, whatever their
    advantages (N, G); without pass_at, those with an advantage above 0."""
    if cfg.pass_at is None:
        return jnp.reshape(adv > 0, -1)
    first = next(iter(scored.parts.values()))
    return jnp.asarray(apply_pass_at(first, cfg) == 1)  # nan, no opinion, is not right


# ---- evaluation ------------------------------------------------------------------------------------------------------


def distinct_ngrams(completions, n=3):
    """Return the fraction of n-grams of words in all completions that are different: near 0 if all are alike."""
    grams = [gram for text in completions for gram in rules.ngrams(text, n)]
    return len(set(grams)) / max(len(grams), 1)


def main_reward(fns, eval_only):
    """Name the reward behind val/greedy and pass_at: the first of eval_rewards, else of rewards, else None."""
    return next(iter(eval_only or fns), None)


def describe_metric(cfg: Any, fns: dict, eval_only: dict) -> str:
    """Explain the metrics val/greedy and val/sampled in one line."""
    name = main_reward(fns, eval_only)
    if cfg.pass_at is None:
        return f"val/greedy, val/sampled: the mean of {name}; with pass_at=1.0 the share of completions that earn 1"
    return f"val/greedy, val/sampled: the share of completions that earn {cfg.pass_at:g} or more from {name}"


def apply_pass_at(values, cfg):
    """Turn rewards into 1 (pass) or 0 if cfg.pass_at is set; nan, which is no opinion, stays."""
    if cfg.pass_at is None:
        return values
    threshold = min(cfg.pass_at, cfg.reward_clip or math.inf)
    return np.where(np.isnan(values), np.nan, values >= threshold)


def denoising_animation(x, trace, length, cfg, tok):
    """List [text of a token, step, probability] for the first row of tokens x (B, T), up to and including its end.

    trace: step and logp (B, T) of the same; length: tokens of the completion before its end."""
    first = (0, slice(cfg.max_prompt_len, cfg.max_prompt_len + length + 1))
    ids, steps, logp = np.asarray(x[first]), np.asarray(trace["step"][first]), np.asarray(trace["logp"][first])
    tokens = []
    for i, step, p in zip(ids.tolist(), steps.tolist(), logp, strict=True):
        tokens.append([tok.decode([i]) or "∎", step, round(math.exp(p), 4)])
    return tokens


def rate_metrics(name, scored, n, rewards_found, cfg):
    """Average the main reward of n completions per prompt as val/`name`, with other metrics -> {metric: value}.

    name: greedy or sampled. Prompts on which the main reward has no opinion are left out."""
    names = [*rewards_found.trained, *rewards_found.eval_only]
    each = apply_pass_at(scored.parts[main_reward(*rewards_found)].reshape(-1, n), cfg)
    each = each[~np.isnan(each).all(1)]
    of_prompts = np.nanmean(each, 1) if len(each) else np.array([np.nan])
    metrics = {f"val/{name}": float(of_prompts.mean())}
    if len(each) > 1:
        metrics[f"val/{name}_se"] = float(of_prompts.std(ddof=1) / len(each) ** 0.5)  # the standard error
    if rewards_found.trained:
        metrics[f"val/{name}_reward"] = rewards.mean(scored.total)
    if len(names) > 1:
        metrics |= {f"val/{name}/{part}": rewards.mean(scored.parts[part]) for part in names}
    if n > 1:
        metrics[f"val/pass@{n}"] = float(np.nanmax(each, 1).mean()) if len(each) else math.nan
        metrics["val/distinct_3"] = distinct_ngrams(scored.texts)
    if not len(each):
        main = main_reward(*rewards_found)
        tqdm.write(f"{cfg.dataset}/val: {main} has no opinion on any of the {len(scored.texts)} {name} completions")
    return metrics


def pass_rates(
    cfg: Any, tok: Any, fns: dict, eval_only: dict, params: Any, key: Any, text: Any
) -> tuple[dict[str, float], list[dict]]:
    """Complete the rows of `text` (EncodedRows) and score them -> metrics, samples.

    Once greedily, and eval_samples times at the run's temperature. val/greedy and val/sampled are means over prompts of
    the main reward, or with pass_at of whether it passes. A sample is a dict for samples.jsonl, one per row.
    """
    arrays, n_rows = text.take(slice(None)), len(text.rows)
    size = cfg.rollout_chunk or n_rows
    n_samples = cfg.eval_samples or (4 if cfg.objective == "grpo" else 1)
    metrics: dict[str, float] = {}
    samples: list[dict] = [{"prompt": texts.readable_prompt(row)} for row in text.rows]
    for name, temperature, n in (("greedy", 0.0, 1), ("sampled", cfg.temperature, n_samples)):
        plan = sample.plan(cfg, temperature)
        keys = [sample.row_keys(jax.random.fold_in(key, i), n_rows) for i in range(n)]
        filled = [sample.fill_rows(params, row_keys, arrays, cfg, plan, size) for row_keys in keys]
        columns = [texts.completion_ids(x, tok, cfg) for x, _ in filled]
        if name == "greedy":
            x, trace = filled[0]
            samples[0]["film"] = denoising_animation(x, trace, len(columns[0][0]), cfg, tok)
        ids = [row for completions in zip(*columns, strict=True) for row in completions]
        fast = [written_per_pass(x, arrays.maskable, trace["passes"], cfg.model.ends) for x, trace in filled]
        scored = score(fns, eval_only, cfg, tok, text.rows, ids, n, np.stack(fast, 1).reshape(-1))
        for i, shown in enumerate(samples):
            texts_of_row = scored.texts[i * n : (i + 1) * n]
            shown[name] = texts_of_row[0] if n == 1 else texts_of_row
        if fns or eval_only:
            metrics |= rate_metrics(name, scored, n, RewardFunctions(fns, eval_only), cfg)
        metrics[f"val/{name}/tokens_per_pass"] = float(np.mean(fast))
        if n > 1 and fns:
            table = reward_table(scored.parts, cfg, fns).reshape(len(fns), -1, n)
            adv = np.asarray(grpo.advantages(table, **advantage_settings(table, cfg))).tolist()
            totals = scored.total.reshape(-1, n).tolist()
            for i, shown in enumerate(samples):
                shown["rewards"] = totals[i]
                shown["advantages"] = [round(value, 4) for value in adv[i]]
    for shown, row in zip(samples, text.rows, strict=True):
        shown["columns"] = scoring_columns(row)
    return metrics, samples


def scoring_columns(row):
    """Choose the columns with which rewards.py can score the samples of a row again."""
    reference = {name: row["completion"] for name in ("reference", "answer") if "completion" in row}
    return reference | {name: value for name, value in row.items() if name not in ("prompt", "completion")}


@functools.partial(jax.jit, static_argnames=("cfg", "start"))
def likelihood(params, batch, key, cfg, start):
    """Compute `diffusion.likelihood`, compiled."""
    return diffusion.likelihood(params, batch, key, cfg, start=start)


def likelihoods(params: Any, held_out: texts.EncodedRows, shape: Any, cfg: Any):
    """Bound the log-likelihood of N held-out texts under a model of this shape, a ModelConfig -> (N,) in nats.

    The masks of row i depend only on i, so models and texts are compared under the same ones."""

    def some(batch, keys):
        return likelihood(params, batch, keys, shape, cfg.max_prompt_len)

    keys = sample.row_keys(jax.random.key(0), len(held_out.rows))
    return np.asarray(sharding.in_chunks(some, config.eval_rows(cfg), held_out.take(slice(None)), keys), float)


# ---- the log of an iteration -----------------------------------------------------------------------------------------


def stats(values, *names):
    """Compute the statistics `names`, of mean, std, min and max -> {name: float}, nan if there are no values."""
    return {name: float(getattr(values, name)()) if len(values) else math.nan for name in names}


def repetition(tokens, counts):
    """Return the share of 3-grams of tokens that occurred earlier in the same completion: tokens (B, T), counts (B, T)
    True on the tokens of the completion."""
    ids = tokens.astype(np.int64)
    three = (ids[:, :-2] << 40) + (ids[:, 1:-1] << 20) + ids[:, 2:]
    inside = counts[:, :-2] & counts[:, 1:-1] & counts[:, 2:]
    three = np.sort(np.where(inside, three, -1 - np.arange(three.shape[1])), 1)  # others equal nothing
    again = (three[:, 1:] == three[:, :-1]).sum()
    return float(again / max(inside.sum(), 1))


def length_metrics(rollout, cfg):
    """Measure the lengths of completions, and how many end in an end of text."""
    length = written(rollout.tokens, rollout.completion, cfg.model.ends)
    ends = (np.asarray(rollout.completion) & np.isin(rollout.tokens, cfg.model.ends)).any(1)
    ends = cfg.fill_in | ends  # with fill_in the end of a text is given
    lengths = {f"{how}_length": value for how, value in stats(length, "mean", "min", "max").items()}
    if ends.any():
        finished = stats(length[ends], "mean", "min", "max")
        lengths |= {f"{how}_terminated_length": value for how, value in finished.items()}
    lengths |= {"terminated_frac": float(ends.mean()), "clipped_ratio": float(1 - ends.mean())}
    lengths["repetition"] = repetition(np.asarray(rollout.tokens), np.asarray(rollout.counts))
    metrics = {f"completions/{name}": value for name, value in lengths.items()}
    metrics["tokens_per_pass"] = float(tokens_per_pass(rollout, cfg).mean())
    return metrics | {"steps_per_token": float(rollout.passes.mean()) / max(length.mean(), 1)}


def rollout_metrics(scored: Any, adv: Any, cfg: Any, tok: Any) -> dict[str, float]:
    """Summarize the rewards, advantages (N, G) and completions of an iteration for the log."""
    total, size = total_rewards(scored.rewards, cfg), cfg.group_size
    known, within = total[~np.isnan(total)], grpo.moments(jnp.asarray(total), 1)
    groups = [scored.completions[i : i + size] for i in range(0, len(scored.completions), size)]
    metrics = {
        "reward": rewards.mean(total),
        "reward_std": rewards.mean(np.where(within.n > 1, within.std, np.nan)),  # one completion has no spread
        **{f"reward/{how}": value for how, value in stats(known, "std", "min", "max").items()},
        "frac_reward_zero_std": float(np.mean(~has_signal(scored, cfg))),
        "adv/mean": float(adv.mean()),
        "adv/std": float(adv.std()),
        "unique_completions": float(np.mean([len(set(group)) / size for group in groups])),
        "skipped": float(not len(known)),
    }
    first = next(iter(scored.parts.values()))
    if cfg.pass_at is not None or not ((first < 0) | (first > 1)).any():  # otherwise the mean is no rate
        metrics["pass_rate"] = rewards.mean(apply_pass_at(first, cfg))
    return metrics | length_metrics(scored.rollout, cfg) | rewards.summary(scored.parts)


def first_group(scored: Any, adv: Any, cfg: Any, tok: Any) -> dict[str, Any]:
    """Show the first prompt, its completions, rewards and advantages, for rollouts.jsonl."""
    size, rollout = cfg.group_size, scored.rollout
    group = {"prompt": scored.rows[0]["prompt"]}
    if cfg.fill_in:
        ids = texts.completion_ids(rollout.tokens[:1], tok, cfg)[0]
        masked = np.asarray(rollout.completion[0, cfg.max_prompt_len :]).tolist()
        group["masked"] = ""
        for is_masked, pairs in itertools.groupby(zip(ids, masked, strict=False), operator.itemgetter(1)):
            run = [token for token, _ in pairs]
            group["masked"] += "<|mask|>" * len(run) if is_masked else tok.decode(run)
    group["completions"] = scored.completions[:size]
    group["rewards"] = {name: part[:size].tolist() for name, part in scored.parts.items() if "/" not in name}
    group["advantages"] = adv[0].tolist()
    return group
