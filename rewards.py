"""
Rewards: score completions by running them, by rules, by comparing their group, or by a model (judges/).

A reward is a plain function. A new one is a line in the dict REWARDS, or a function in a file of your own:

    fn(prompts, completions, **columns) -> list[float | None]      one entry per completion; None: no opinion

It takes what it needs by parameter name, as lists with one entry per completion. So fn(completions, **kwargs), as TRL
has rewards, is one as well, and so is fn(completion, **columns), which is called for each text with the columns of its
row. A parameter without a default is a column that has to be there. `reference` and `solution` are the completion in
the data set; a trainer adds token_ids, which TRL calls completion_ids, max_length, groups and tokens_per_pass, unless
the data set has columns of these names. To all rewards but the first, `first_reward` says what the first one returned.
Prompts and completions are texts: where TRL passes chats, write completion in place of completion[0]["content"]. What
else a reward measures is logged if it returns Scores.

At the end are the numbers of a run: `score` judges its completions, and others make tables and rates of that.

    python rewards.py out/code_grpo/samples.jsonl --rewards=tests,syntax --reward_weights=1,0.5 --out=scored.jsonl
    python rewards.py samples.jsonl --rewards="my_rewards.py:politeness,length(target=40)"
    python rewards.py code --rewards=tests --check      do the reference solutions of a data set score 1.0?
"""

from system import terminal

if __name__ == "__main__":
    terminal.launch("tools.score")

import importlib.util
import inspect
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from judges import rules

SLOW = 60  # seconds until a line says which reward a run waits for
Reward = Callable[..., Any]  # prompts, completions, **columns -> one float or None per completion


class Scores(list):
    """A reward's scores, and further numbers to log as rewards/FN/NAME: notes {name: [one per completion]}."""

    def __init__(self, scores: list, **notes: list):
        super().__init__(scores)
        self.notes = notes


# ---- the rewards (those from models are in judges/model_judge.py) ----------------------------------------------------


RULES: dict[str, Callable] = {"exact": rules.exact, "sudoku_all": rules.sudoku_all}
# Rewards that another file adds to REWARDS when it is imported.
PROGRAMS = "judges.programs"
FILES = {
    PROGRAMS: "syntax tests tests_all tests_fenced performance quality format fenced",
    "judges.formats": "contains regex json xml xml_tags xml_soft xml_strict xml_int xml_answer math countdown safety "
                      "keywords length reasoning",
    "judges.batches": "diversity passes",
    "judges.sudoku": "sudoku",
}  # fmt: skip
ELSEWHERE = {name: file for file, names in FILES.items() for name in names.split()}


class Rewards(dict[str, Reward]):
    """Rewards by name. The file that adds one is imported when it is asked for."""

    def __missing__(self, name):
        if name in ELSEWHERE:
            importlib.import_module(ELSEWHERE[name])
        return dict(self)[name]

    def __contains__(self, name):
        return super().__contains__(name) or name in ELSEWHERE

    def add(self, found: dict[str, Reward]) -> None:
        """Add the rewards of a file. A name that a user has given to a reward of their own stays theirs."""
        for name, reward in found.items():
            self.setdefault(name, reward)


REWARDS = Rewards({name: rules.per_text(rule) for name, rule in RULES.items()})
# Rewards that model_judge.rewards_of makes, and of what.
FROM_MODELS = {"coherence": "the model in init_from", "judge": "a judge: set judge_from to its folder"}


# ---- from names to functions -----------------------------------------------------------------------------------------


def split_settings(text):
    """Split "length(target=40)" into the name and the settings, which are None without parentheses."""
    return re.fullmatch(r"(.*?)(?:\((\s*\w+\s*=.*)\))?", text, re.S).groups()


def resolve(names: str | Iterable[str], **from_models: Reward) -> dict[str, Reward]:
    """Find reward functions by name: "tests,my.py:fn" or ("tests", "length(target=40)") -> {name: fn}.

    from_models: rewards that model_judge.rewards_of made, by name.
    """
    fns: dict[str, Reward] = {}
    for spec in terminal.parts(names) if isinstance(names, str) else map(str.strip, names):
        name, settings = split_settings(spec)
        found = {name: REWARDS[name]} if name in REWARDS else {}  # which loads its file
        known: dict[str, Any] = ELSEWHERE | FROM_MODELS | from_models | REWARDS | found
        fn = known.get(name)
        if settings or not callable(fn):
            from judges import own  # a recipe of ours names rewards of ours

            name, fn = own.find(spec, name, settings, known)
        if name in fns:
            raise ValueError(f"two rewards are called {name!r} in {names!r}")
        fns[name] = fn
    return fns


# ---- from rows to arguments ------------------------------------------------------------------------------------------


def as_columns(rows: Sequence[dict]) -> dict[str, list]:
    """Turn rows of a data set into columns {name: list}, without the prompt; None where a row has no such entry."""
    names = dict.fromkeys(name for row in rows for name in row if name != "prompt")
    return {name: [row.get(name) for row in rows] for name in names}


TEXTS = "prompts", "completions"  # arguments that are no columns
# Other names of columns, unless a data set has columns of these names.
ALSO = {"reference": "completion", "answer": "completion", "solution": "reference", "completion_ids": "token_ids"}


def arguments(name: str, fn: Reward, columns: dict) -> dict:
    """Choose the columns that a reward takes by its parameter names; a missing one without a default is an error.

    A reward with **kwargs takes all. The column `completion` of a data set is also called reference, solution and, if
    there is no other, answer; token_ids is also called completion_ids.
    """
    for also, column in ALSO.items():
        if column in columns:
            columns = {also: columns[column]} | columns
    taken = {}
    for p in inspect.signature(fn).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            return columns
        if p.kind is p.VAR_POSITIONAL:
            continue
        if p.name in columns:
            taken[p.name] = columns[p.name]
        elif p.default is p.empty and p.name not in TEXTS:
            from judges import own  # most rewards find theirs

            raise own.lacks_column(name, p.name, [column for column in columns if column not in TEXTS], p.name in ALSO)
    return taken


# ---- from completions to numbers -------------------------------------------------------------------------------------


def call_reward(name: str, fn: Reward, prompts: list[str], completions: list[str], columns: dict) -> Any:
    """Call one reward on a batch -> one finite number or None per completion.

    A ValueError names the row if the reward raises, or returns anything else."""
    texts = {"prompts": prompts, "completions": completions}
    taken = arguments(name, fn, {**columns, **texts})

    def call_rows(rows):
        return fn(**{key: column[rows] for key, column in taken.items()})

    waiting = f"reward {name!r} takes more than {SLOW} s for {len(completions)} completions"
    slow = threading.Timer(SLOW, print, [waiting])
    slow.daemon = True
    slow.start()
    try:
        scores = call_rows(slice(None))
    except (Exception, SystemExit) as e:
        from judges import own  # most rewards do not fail

        raise ValueError(f"reward {name!r}{own.why_it_failed(fn, e, call_rows, prompts, completions)}") from e
    finally:
        slow.cancel()
    check_scores(name, scores, prompts, completions)
    return scores


def check_scores(name, scores, prompts, completions):
    """Raise a ValueError unless `scores`, a list or array, has one finite number or None per completion."""
    ordered = hasattr(scores, "__len__") and getattr(scores, "ndim", 1) > 0
    ordered = ordered and not isinstance(scores, (str, bytes, Mapping, Set))
    size = len(scores) if ordered else f"a {type(scores).__name__}"
    if size != len(completions):
        raise ValueError(f"reward {name!r} returned {size}, not one entry for each of {len(completions)} completions")
    for i, value in enumerate(scores):
        try:
            good = value is None or math.isfinite(value) and not getattr(value, "ndim", 0)  # tensor([1.0]) is finite
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            from judges import own

            row = own.row_text(i, prompts, completions)
            raise ValueError(f"reward {name!r} returned {value!r} for {row}: a finite number or None is needed")


def combine(
    fns: dict[str, Reward],
    weights: Sequence[float] | None,
    prompts: list[str],
    completions: list[str],
    columns: dict[str, list],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Score n completions with every reward, and add up -> their weighted sum (n,), and parts: each reward by name
    (n,), and everything it logged as NAME/NOTE (n,).

    A value is nan without an opinion, the sum if no reward with a weight other than 0 has one.
    weights None or empty: all 1. columns {name: one entry per completion}.
    """
    weights = weights or [1.0] * len(fns)
    total, judged = np.zeros(len(completions)), np.zeros(len(completions), bool)
    parts = {}
    for weight, (name, fn) in zip(weights, fns.items(), strict=True):
        scores = call_reward(name, fn, prompts, completions, columns)
        parts[name] = part = np.array([math.nan if score is None else float(score) for score in scores])
        columns = {"first_reward": part.tolist()} | columns  # later rewards do not replace it
        notes = scores.notes if isinstance(scores, Scores) else {}
        parts |= {f"{name}/{note}": np.array(values, float) for note, values in notes.items()}
        total += np.nan_to_num(weight * part)
        judged |= ~np.isnan(part) & (weight != 0)
    return np.where(judged, total, math.nan), parts


# ---- the completions of a run ----------------------------------------------------------------------------------------


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


class Scored(NamedTuple):
    """G completions of each of N rows, B = N * G, and the rewards that are trained; nan: no opinion."""

    rows: list[dict]  # N
    completions: list[str]  # B, those of a row one after the other
    rewards: np.ndarray  # (R, N, G) as variants change them; one that weighs nothing has no opinion
    parts: dict[str, np.ndarray]  # as `combine` returns: each reward before variants change it, as by reward_clip
    rollout: Any = None  # the rl.Rollout that wrote them; None in evaluations


def changed(values, cfg):
    """Change the values of a reward (n,) as the variants of a run do."""
    for section in cfg.use:
        values = section.reward(values, cfg)
    return values


def weights_of(cfg: Any, fns: Any) -> tuple[float, ...]:
    """Return the weights of a run's rewards, of which there are as many as in `fns`."""
    return cfg.reward_weights or (1.0,) * len(fns)


def score(
    fns: dict, eval_only: dict, cfg: Any, tok: Any, rows: list[dict], ids: list, n_each: int, fast: Any
) -> Scored:
    """Score `n_each` completions per row with every reward, fns and eval_only {name: fn}; eval_only weigh nothing.

    ids: the token ids of each completion, those of a row one after the other.
    fast (B,): the tokens per pass of each completion.
    """
    repeated = [row for row in rows for _ in range(n_each)]
    of_a_run = {
        "groups": np.repeat(np.arange(len(rows)), n_each).tolist(),
        "token_ids": ids,
        "max_length": [cfg.max_new_tokens] * len(repeated),
        "tokens_per_pass": fast.tolist(),
    }
    columns = of_a_run | as_columns(repeated)
    prompts, completions = [row["prompt"] for row in repeated], [tok.decode(row) for row in ids]
    _, parts = combine(fns | eval_only, None, prompts, completions, columns)
    weighted = zip(fns, weights_of(cfg, fns), strict=True)
    table = [np.where(weight, changed(parts[name], cfg), np.nan) for name, weight in weighted]
    return Scored(rows, completions, np.reshape(table, (len(fns), len(rows), n_each)), parts)


def total_rewards(table, cfg) -> np.ndarray:
    """Add up the weighted rewards of a table (R, N, G) -> (N, G), nan where no reward has an opinion."""
    weighted = np.reshape(weights_of(cfg, table), (-1, 1, 1)) * table
    return np.where(np.isnan(table).all(0), np.nan, np.nansum(weighted, 0))


def advantage_settings(table, cfg) -> dict[str, Any]:
    """Take the settings of `grpo.advantages` from a Config, for a table of rewards (R, N, G). A ValueError if they
    divide by the mean of a group and a reward is negative."""
    if cfg.adv_norm == "mean" and (lowest := np.nan_to_num(total_rewards(table, cfg)).min()) < 0:
        raise ValueError(f"adv_norm='mean' divides by the mean reward of a group, so rewards must not be negative, but "
                         f"one is {lowest:g}: take another reward, or adv_norm='group'")  # fmt: skip
    return {
        "weights": weights_of(cfg, table),
        "baseline": cfg.adv_baseline,
        "scale": cfg.adv_norm,
        "eps": cfg.adv_eps,
        "normalize": cfg.reward_norm,
    }


def apply_pass_at(values, cfg):
    """Turn rewards into 1 (pass) or 0 if cfg.pass_at is set; nan, which is no opinion, stays."""
    if cfg.pass_at is None:
        return values
    return np.where(np.isnan(values), np.nan, values >= cfg.pass_at)


# ---- from numbers to metrics -----------------------------------------------------------------------------------------


def mean(values: np.ndarray) -> float:
    """Average the values that are not nan; nan if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def stats(values: np.ndarray, metric: str, *names: str) -> dict[str, float]:
    """Compute the statistics `names`, of mean, std, min and max -> {metric: float}, nan if there are no values.

    metric: the key of each in the result, as in "{}_length", where {} becomes the statistic's name"""
    found = {}
    for name in names:
        value = getattr(values, name)() if len(values) else math.nan
        found[metric.format(name)] = float(value)
    return found


def summary(parts: dict[str, np.ndarray]) -> dict[str, float]:
    """Summarize each reward as rewards/NAME/mean, /std, /min, /max, /none_frac, and each of its notes as a mean.

    parts: as `combine` returns. A reward without any opinion has only /none_frac."""
    metrics = {}
    for name, part in parts.items():
        if "/" in name:  # a note, as in tests/timeout_frac
            metrics[f"rewards/{name}"] = mean(part)
            continue
        known = part[~np.isnan(part)]
        metrics[f"rewards/{name}/none_frac"] = 1.0 - len(known) / max(1, len(part))
        if len(known):
            metrics |= stats(known, f"rewards/{name}/{{}}", "mean", "std", "min", "max")
    return metrics
