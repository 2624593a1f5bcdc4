"""
Evaluate a policy: sample completions of held-out prompts and score them, bound the likelihood of held-out texts, and
log what is found.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import config
import data
import diffusion
import rewards
import rl
import sample
from data import texts
from judges import rules
from loop import run_rewards, runs
from system import sections, sharding


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    samples: int | None = sections.key(None, "samples per val row at the run's temperature; None: 1, grpo 4",
                                       sections.POSITIVE_INT)  # fmt: skip


def distinct_ngrams(completions):
    """Return the fraction of 3-grams of words in all completions that are different: near 0 if all are alike."""
    grams = [gram for text in completions for gram in rules.ngrams(text, 3)]
    return len(set(grams)) / max(len(grams), 1)


def main_reward(fns, eval_only):
    """Name the reward behind val/greedy and pass_at: the first of eval_rewards, else of rewards, else None."""
    return next(iter(eval_only or fns), None)


def reward_functions(cfg: Any, tok: Any, rows: list, otherwise: dict | None = None) -> tuple[dict, dict]:
    """Make the rewards of a run, those to train on and those for evaluations only, and say which one decides.
    otherwise: the rewards of a run that names none to train on."""
    fns, more = run_rewards.reward_functions(cfg, tok, rows)
    fns = fns or otherwise or {}
    if name := main_reward(fns, more):
        what = f"the mean reward {name}"
        if cfg.pass_at is not None:
            what = f"the share of completions that earn {cfg.pass_at:g} or more from the reward {name}"
        tqdm.write(f"val/greedy, val/sampled: {what} on held-out rows, by the likeliest tokens and by drawn ones")
    return fns, more


def rewards_of_pretraining(cfg: Any, tok: Any, shown: data.Batch) -> tuple[dict, dict, data.Batch]:
    """Make the rewards of a run of pretraining as `reward_functions` does, and the texts whose completions they score:
    those of `shown`, without their completions if they have prompts."""
    asked = shown
    if cfg.max_prompt_len and not cfg.fill_in:
        asked = texts.eval_texts(cfg, tok, with_completions=False)
    exact = {"exact": rewards.REWARDS["exact"]} if cfg.max_prompt_len else {}  # without rewards: equal to the data
    fns, more = reward_functions(cfg, tok, asked.rows, exact)
    if not fns and not more:
        asked = asked.part(np.arange(min(runs.SAMPLES, len(asked.rows))))  # a few to show
    return fns, more, asked


def rate_metrics(name, scored, fns, eval_only, cfg):
    """Average the main reward of the completions of each prompt as val/`name`, with other metrics -> {metric: value}.

    name: greedy or sampled. Prompts on which the main reward has no opinion are left out."""
    names, main = [*fns, *eval_only], main_reward(fns, eval_only)
    n = scored.rewards.shape[2]
    each = rewards.apply_pass_at(scored.parts[main].reshape(-1, n), cfg)
    has_opinion = ~np.isnan(each).all(1)
    each = each[has_opinion]
    of_prompts = np.nanmean(each, 1) if len(each) else np.array([np.nan])
    metrics = {f"val/{name}": float(of_prompts.mean())}
    if len(each) > 1:
        standard_error = of_prompts.std(ddof=1) / len(each) ** 0.5
        metrics[f"val/{name}_se"] = float(standard_error)
    if fns:
        metrics[f"val/{name}_reward"] = rewards.mean(rewards.total_rewards(scored.rewards, cfg))
    if len(names) > 1:
        metrics |= {f"val/{name}/{part}": rewards.mean(scored.parts[part]) for part in names}
    if n > 1:
        best = np.nanmax(each, 1) if len(each) else each
        metrics[f"val/pass@{n}"] = rewards.mean(best)
        metrics["val/distinct_3"] = distinct_ngrams(scored.completions)
    if not len(each):
        n_texts = len(scored.completions)
        tqdm.write(f"{cfg.dataset}/val: {main} has no opinion on any of the {n_texts} {name} completions")
    return metrics


def pass_rates(
    cfg: Any, tok: Any, fns: dict, eval_only: dict, params: Any, key: Any, text: data.Batch
) -> tuple[dict[str, float], list[dict]]:
    """Complete the rows of `text`, a data.Batch, and score them -> metrics, samples.

    Once greedily, and as often as Keys.samples says at the run's temperature. val/greedy and val/sampled are means over
    prompts of the main reward, or with pass_at of whether it passes. A sample is a dict for samples.jsonl, one per row.
    """
    n_samples = Keys.of(cfg).samples or (4 if cfg.objective == "grpo" else 1)
    metrics: dict[str, float] = {}
    samples: list[dict] = [{"prompt": texts.readable_prompt(row)} for row in text.rows]
    for name, temperature, n in (("greedy", 0.0, 1), ("sampled", cfg.temperature, n_samples)):
        filled = complete(params, key, text, cfg, temperature, n)
        ids = [texts.completion_ids(x, tok, cfg) for x, _ in filled]
        ends = cfg.model.ends
        per_pass = [rewards.written_per_pass(x, text.maskable, trace["passes"], ends) for x, trace in filled]
        fast = np.stack(per_pass, 1)
        by_row = [row for completions in zip(*ids, strict=True) for row in completions]
        scored = rewards.score(fns, eval_only, cfg, tok, text.rows, by_row, n, fast.reshape(-1))
        for i, sample_of_row in enumerate(samples):
            completions = scored.completions[i * n : (i + 1) * n]
            sample_of_row[name] = completions[0] if n == 1 else completions
        if fns or eval_only:
            metrics |= rate_metrics(name, scored, fns, eval_only, cfg)
        metrics[f"val/{name}/tokens_per_pass"] = float(np.mean(fast))
        if n > 1 and fns:
            totals = rewards.total_rewards(scored.rewards, cfg).tolist()
            for sample_of_row, total in zip(samples, totals, strict=True):
                sample_of_row["rewards"] = total
    for sample_of_row, row in zip(samples, text.rows, strict=True):
        sample_of_row["columns"] = scoring_columns(row)
    return metrics, samples


def complete(params, key, text, cfg, temperature, n):
    """Complete every row of a data.Batch n times -> [(tokens (N, T), trace)], each with random numbers of its own."""
    arrays, n_rows = text.arrays(), len(text.rows)
    plan = sample.plan(cfg, temperature)
    keys = [sample.row_keys(jax.random.fold_in(key, i), n_rows) for i in range(n)]
    return [sample.fill_rows(params, row_keys, arrays, cfg, plan, cfg.rollout_chunk or n_rows) for row_keys in keys]


def scoring_columns(row):
    """Choose the columns with which rewards.py can score the samples of a row again."""
    columns = {name: value for name, value in row.items() if name not in ("prompt", "completion")}
    if "completion" not in row:
        return columns
    return {"reference": row["completion"], "answer": row["completion"]} | columns


likelihood = jax.jit(diffusion.likelihood, static_argnames=("cfg", "start"))


def likelihoods(params: Any, held_out: data.Batch, cfg: Any):
    """Bound the log-likelihood of N held-out texts -> (N,) in nats.

    The masks of row i depend only on i, so models and texts are compared under the same ones."""

    def some(batch, keys):
        return likelihood(params, batch, keys, cfg.model, start=cfg.max_prompt_len)

    keys = sample.row_keys(jax.random.key(0), len(held_out.rows))
    arrays = held_out.arrays()
    return np.asarray(sharding.in_chunks(some, config.eval_rows(cfg), arrays, keys), float)


def bounds(params: Any, shown: data.Batch, cfg: Any, tok: Any) -> dict[str, float]:
    """Bound the loss of held-out texts, in nats per token -> {metric: value}; nan if none has a completion."""
    known = shown.part([i for i, row in enumerate(shown.rows) if "completion" in row])
    if not len(known.rows):
        return {"val/nelbo": math.nan}
    held_out = texts.end_at_eos(known, tok) if cfg.model.causal else known
    bound = likelihoods(params, held_out, cfg)
    per_token = bound.sum() / held_out.maskable.sum()
    out = {"val/nelbo": -float(per_token)}
    if not (cfg.max_prompt_len or cfg.fill_in):
        size = np.mean([len(tok.decode_bytes(row)) for row in held_out.tokens])
        per_byte = float(bound.mean()) / size
        out["val/bits_per_byte"] = -per_byte / np.log(2)
    return out


# ---- in the loop -----------------------------------------------------------------------------------------------------


def evaluate_and_log(run, state, best):
    """Evaluate, log and show a State -> metrics, and the better of `best` and this evaluation, {step, score, ...}."""
    key = rl.step_key(run.key, rl.EVALUATIONS, state.step)
    try:
        values, samples = run.task.evaluate(rl.merged(state, run.base, run.cfg), key)
    except ValueError as e:
        from loop import failures

        raise failures.save_and_explain(run, state, best, f"evaluation at step {state.step}", e) from e
    runs.show(run, state.step, values, samples)
    metric = run.task.best_metric
    new = {
        "step": state.step,
        "score": values[metric] if metric else -values["val/nelbo"],
        "measure": metric or "val/nelbo",
    }
    if f"{metric}_se" in values:
        new["se"] = values[f"{metric}_se"]
    better = new["score"] >= (best["score"] if best else -np.inf)  # nan never is; equal ones: the later
    return values, new if better else best


def reaches_stop(run, values):
    """True if the metrics of an evaluation are better than stop_at, so that the run ends."""
    return run.cfg.stop_at is not None and values[run.task.best_metric] > run.cfg.stop_at


def evaluate_if_lacking(run, state, best, done):
    """Evaluate before the first step, and after resuming at a step whose evaluation failed or was not due before -> the
    best evaluation, and whether the run is at its end."""
    at_start = run.cfg.objective == "grpo"  # it is evaluated before its first step, too
    due = done or state.step % run.cfg.eval_interval == 0 and (state.step > 0 or at_start)
    if due and not run.log.evaluated:
        values, best = evaluate_and_log(run, state, best)
        if state.step:
            from checkpoints import resume  # a run that begins has no checkpoint yet

            done = done or reaches_stop(run, values)
            resume.update_run(run.cfg, state.step, best=best, finished=done)
    return best, done
