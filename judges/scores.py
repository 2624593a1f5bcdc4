"""
Score the completions of a run: reward functions of a config, advantages, and metrics for the log.
"""

import itertools
import math
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import grpo
import rewards
from data import texts
from system import hosts

# ---- which rewards ---------------------------------------------------------------------------------------------------


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
    programs = {name for name, module in rewards.ELSEWHERE.items() if module == rewards.PROGRAMS}
    later = {*rewards.FROM_MODELS, *programs}
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
    made = {}
    if cfg.judge_from or "coherence" in names:
        from judges import model_judge  # which other runs do not need

        made = model_judge.rewards_of(cfg, tok, names)
    found = find_rewards(cfg, rows, **made)
    used = found.trained.keys() | found.eval_only.keys()
    tested = {"tests", "tests_all", "tests_fenced", "performance"} & used
    if tested or {"syntax", "fenced"} & used:
        from judges import programs

        box = programs.sandbox(**programs.Keys.of(cfg).settings)
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


def apply_pass_at(values, cfg):
    """Turn rewards into 1 (pass) or 0 if cfg.pass_at is set; nan, which is no opinion, stays."""
    if cfg.pass_at is None:
        return values
    threshold = min(cfg.pass_at, cfg.reward_clip or math.inf)
    return np.where(np.isnan(values), np.nan, values >= threshold)


def right(scored: Any, adv: Any, cfg: Any) -> jax.Array:
    """Tell which completions are right (B,), for nll_coef: those whose first reward reaches pass_at, whatever their
    advantages (N, G); without pass_at, those with an advantage above 0."""
    if cfg.pass_at is None:
        return jnp.reshape(adv > 0, -1)
    first = next(iter(scored.parts.values()))
    return jnp.asarray(apply_pass_at(first, cfg) == 1)  # nan, no opinion, is not right


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
