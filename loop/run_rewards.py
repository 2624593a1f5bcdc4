"""
The rewards that a config names: found, tried on the data before anything is trained, and loaded.
"""

from typing import Any

from tqdm import tqdm

import rewards
from data import texts

# Columns that a trainer adds to those of the rows, with values to try a reward with.
OF_A_RUN = {"groups": [0], "token_ids": [[0]], "max_length": [1], "tokens_per_pass": [1.0]}


def runs_programs(name):
    """True if a reward of this name may run programs."""
    return rewards.ELSEWHERE.get(name) == rewards.PROGRAMS


def find_rewards(cfg, rows, **from_models):
    """Find the functions of cfg.rewards and of cfg.eval_rewards -> two dicts {name: fn}; an error if one needs a column
    that no row has."""
    trained = rewards.resolve(cfg.rewards, **from_models)
    eval_only = rewards.resolve(cfg.eval_rewards, **from_models)
    if twice := trained.keys() & eval_only.keys():
        raise ValueError(f"{', '.join(twice)} in rewards and in eval_rewards: what is trained is evaluated anyway")
    if any(rewards.split_settings(names[0])[0] == "passes" for names in (cfg.rewards, cfg.eval_rewards) if names):
        raise ValueError("the reward 'passes' comes first, but the first of rewards and of eval_rewards decides which "
                         "checkpoint is best, and what is right: name the task's reward before it")  # fmt: skip
    columns = OF_A_RUN | rewards.as_columns(rows)
    for name, fn in (trained | eval_only).items():
        rewards.arguments(name, fn, columns)
    return trained, eval_only


def not_made_yet(prompts, completions):
    """Stand for a reward from a model that is trained or loaded later."""
    return []


def check_early(cfg: Any) -> None:
    """Check before a base or a judge is trained that rewards and their columns exist, and that the rows of both splits
    have what fill_in needs; a ValueError says what is missing."""
    if not cfg.rewards:
        raise ValueError(
            "objective='grpo' needs rewards, for example rewards=('exact',); python rewards.py --help lists them"
        )
    for split in ("train", "val"):
        rows = texts.split_rows(cfg, split)
        trained, eval_only = find_rewards(cfg, rows, judge=not_made_yet, coherence=not_made_yet)
        if split == "val":
            try_rewards(cfg, trained | eval_only, rows)
        bare = sum(not row.get("completion") for row in rows)
        marked = sum("masked" in row for row in rows)
        if marked and not cfg.fill_in:
            tqdm.write(f"{cfg.dataset}/{split}: only fill_in=True reads `masked`; here the whole completion is written")
        if cfg.fill_in and marked < len(rows) and (marked or bare):
            raise ValueError(
                f"{cfg.dataset}/{split}: fill_in=True needs a completion in all rows, of which it masks tokens, or "
                f"`masked` in all; of {len(rows)} rows {bare} have no completion, and {marked} have `masked`"
            )


SOLVED_BY_REFERENCE = {"exact", "contains", "math", "countdown", "sudoku", "sudoku_all"}


def try_rewards(cfg, fns, rows):
    """Score the completion of the first row that has one with every reward that needs no model and no sandbox.

    A ValueError says which reward cannot read the row: the rows may be of another task. If the row's own completion
    earns nothing from a reward that knows the answer, that is printed."""
    row = next((row for row in rows if row.get("completion")), None)
    for name, fn in fns.items() if row else ():
        if name in rewards.FROM_MODELS or runs_programs(name):
            continue
        columns = OF_A_RUN | {"max_length": [cfg.max_new_tokens], "first_reward": [0.0]} | rewards.as_columns([row])
        what = f"prompt {row['prompt'][:60]!r}, completion {row['completion'][:60]!r}"
        try:
            (earned,) = rewards.call_reward(name, fn, [row["prompt"]], [row["completion"]], columns)
        except ValueError as e:
            if not fn.__module__.startswith("judges."):  # a user's function may look at the whole batch
                continue
            from loop import failures

            raise failures.of_first_row(name, fn, e, cfg.dataset, what) from None
        if name in SOLVED_BY_REFERENCE and earned == 0:
            tqdm.write(f"{cfg.dataset}/val: the reward {name!r} gives the completion of the first row 0, so perhaps no "
                       f"answer can earn it: {what}")  # fmt: skip


def reward_functions(cfg: Any, tok: Any, rows: list[dict]) -> tuple[dict, dict]:
    """Load the rewards of a config as `find_rewards` does, with those from models, and start the sandbox if they run
    programs."""
    names = cfg.rewards + cfg.eval_rewards
    made = {}
    if cfg.judge_from or "coherence" in names:
        from judges import model_judge  # which other runs do not need

        made = model_judge.rewards_of(cfg, tok, names)
    found = find_rewards(cfg, rows, **made)
    used = {rewards.split_settings(name)[0] for name in names}  # a user's function is a path, whatever its name
    if any(map(runs_programs, used)):
        from judges import programs

        programs.prepare(cfg, rows, used)
    return found
