"""
Write one iteration of GRPO as a page:  python train.py config/sudoku_grpo.py --anatomy=step.html

train.py and rl.py run the iteration; `recorded` notes what their functions are given and return. The page shows these
numbers in nine stations (anatomy.html). It is one file that fetches nothing. docs/how-it-works.md says how to read it.

Shapes: N prompts, G completions of each, B = N * G; K of them learn; V views; T columns, the prompt's first.
"""

if __name__ == "__main__":
    raise SystemExit("error: type python train.py config/NAME.py --anatomy=step.html")


import contextlib
import dataclasses
import functools
import inspect
import math
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import config
import diffusion
import grpo
import rewards
import rl
import sample
import train
from checkpoints import checkpoint
from data import texts
from loop import report, runs, same_run, setup
from system import files, hosts, settings, sharding, terminal

PROMPTS, UPDATES = 6, 4  # on the page: prompts, and updates of each completion
ROOT = Path(__file__).parent.parent
# Columns that have an entry per completion.
COLUMNS = "prompts", "completions", "groups", "token_ids", "max_length", "tokens_per_pass", "first_reward"
PATHS = "out_dir", "init_from", "judge_from", "ref_from"  # keys that name folders of this machine


# ---- record what a run computes --------------------------------------------------------------------------------------


class Call(NamedTuple):
    args: tuple
    result: Any


@contextlib.contextmanager
def recorded(module: Any, *names: str) -> Iterator[dict[str, list[Call]]]:
    """Record the calls of a module's functions while the context lasts -> {name: calls}."""
    calls: dict[str, list[Call]] = {name: [] for name in names}
    functions = {name: getattr(module, name) for name in names}

    def recorder(name):
        def call(*args, **more):
            calls[name].append(Call(args, functions[name](*args, **more)))
            return calls[name][-1].result

        return call

    for name in names:
        setattr(module, name, recorder(name))
    try:
        yield calls
    finally:
        for name in names:
            setattr(module, name, functions[name])


@functools.partial(jax.jit, static_argnames="cfg")
def inside_loss(params, b, cfg):
    """Compute rl.policy_loss of a minibatch of n rows -> {name: array or None} of what it computes on the way.

    view_logp (n, V, T) has all columns; the others (n, L) have those of the completion.
    """
    with recorded(diffusion, "view_logp") as seen, recorded(grpo, "loss", "ratios") as in_loss:
        rl.policy_loss(params, b, cfg)
    logp, batch, settings = in_loss["loss"][0].args
    ratio = in_loss["ratios"][0].result
    token_loss = grpo.LOSSES[settings.loss].token_loss(ratio, logp, batch.adv[:, None], settings)

    def pg_loss(logp):
        return grpo.loss(logp, batch, settings)[1]["pg_loss"]

    by_token = {
        "ratio": ratio,
        "token_loss": token_loss,
        "part": batch.weight * (batch.share * token_loss if token_loss.shape == logp.shape else token_loss),
        "push": -jax.grad(pg_loss)(logp),  # how the loss pulls at log p of a token; 0 where the ratio is clipped
        "token_weight": batch.weight,
        "share": batch.share,
        "counts": batch.mask,
    }
    found = {name: jnp.broadcast_to(values, logp.shape) for name, values in by_token.items()}
    old = batch.old_logp  # nan: the current policy's
    found |= {"logp": logp, "old_logp": old if old is None else jnp.where(jnp.isnan(old), logp, old)}
    found["ref_logp"] = batch.ref_logp
    return found | {"view_logp": seen["view_logp"][0].result[0]}


class Update(NamedTuple):
    """An optimizer step on n completions."""

    batch: rl.Minibatch
    inside: dict  # see `inside_loss`
    after: Any  # (n, L) log p under the updated policy, on the same views
    metrics: dict  # what the update returned


class Iteration(NamedTuple):
    """What was recorded of an iteration."""

    reward_fns: dict
    found: rewards.Scored
    advantages: np.ndarray  # (B,)
    chosen: np.ndarray  # (K,) which completions learn
    in_loss: np.ndarray  # (K,) their advantages in the loss
    updates: list[Update]
    notes: dict  # numbers that the run logs of an iteration


def record_iteration(run: Any, state: Any) -> Iteration:
    """Run the iteration that follows a State, and record it."""
    made: list[Update] = []

    def update(params, opt_state, average, step, batch, base=None):
        inside = jax.device_get(inside_loss(rl.whole(params, base, run.cfg), batch, run.cfg))
        rate = float(run.rate(int(opt_state[-1][0].count)))  # counted by the optimizer
        out = run.update(params, opt_state, average, step, batch, base)
        after = inside_loss(rl.whole(out[0], base, run.cfg), batch, run.cfg)["logp"]
        metrics = jax.device_get(out[-1]) | {"learning_rate": rate}
        made.append(Update(jax.device_get(batch), inside, np.asarray(after), metrics))
        return out

    with recorded(rl, "score_rollout", "select_completions") as calls:
        *_, notes = train.advance(run._replace(update=update), state)
    if not made:
        raise ValueError(f"no reward has an opinion on any completion of step {state.step + 1}: there is no update")
    found, adv, _ = calls["select_completions"][0].args
    chosen = calls["select_completions"][0].result
    found = found._replace(rollout=jax.device_get(found.rollout))
    reward_fns = calls["score_rollout"][0].args[2]
    learn = np.asarray(chosen.rollout.number), np.asarray(chosen.advantage)
    return Iteration(reward_fns, found, np.asarray(adv).reshape(-1), *learn, made, notes)


# ---- choose what the page shows --------------------------------------------------------------------------------------


def most_telling(one: Iteration, total: np.ndarray) -> list[int]:
    """Choose at most PROMPTS prompts -> their numbers: first those with completions that learn, then by how much their
    rewards differ."""
    learns = np.isin(np.arange(total.size), one.chosen[one.in_loss != 0]).reshape(total.shape).any(1)
    _, std, _ = grpo.moments(jnp.asarray(total), 1)
    spread = np.asarray(std[:, 0])
    return np.lexsort((-spread, ~learns))[:PROMPTS].tolist()


def describe_function(fn: Any) -> dict[str, str]:
    """Name the file and the function, and quote the first paragraph of its docstring."""
    fn = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    path = os.path.relpath(fn.__code__.co_filename, ROOT)
    file = os.path.basename(path) if path.startswith("..") else path
    return {"at": f"{file}: {fn.__name__}", "says": (inspect.getdoc(fn) or "").split("\n\n")[0]}


def rule_of(cfg):
    """Find the rule that says how many tokens a step fills, as a sampler does; None for a causal model."""
    if cfg.model.causal:
        return None
    name = "static" if cfg.model.block and cfg.rule == "quota" else cfg.rule
    settings.plugged(sample.RULES, name)
    return sample.RULES[name]


def describe_functions(cfg, reward_fns):
    """Describe the functions that the keys of a run choose."""
    loss, rule = grpo.LOSSES[cfg.loss_type], rule_of(cfg)
    return {
        "rule": describe_function(rule) if rule else None,
        "rewards": {name: describe_function(fn) for name, fn in reward_fns.items()},
        "estimator": describe_function(diffusion.ESTIMATORS[cfg.logp_est]),
        "token_loss": describe_function(loss.token_loss),
        "token_weights": describe_function(grpo.AGGREGATIONS.get(cfg.aggregation, loss.token_weights)),
    }


def show_tokens(ids, tok):
    """Return the texts of tokens; an end of text is ∎, bytes that are no text stand in hexadecimal."""
    names = {i: text for text, i in tok.specials.items()} | {tok.eos_id: "∎"}
    texts = [names.get(i) or tok.decode([i]) for i in ids]
    return [tok.decode_bytes([i]).hex(" ") if "\ufffd" in text else text for i, text in zip(ids, texts, strict=True)]


def columns_read(one, n):
    """List for each reward the columns that it takes {reward: {column: its value in the row of prompt n}}; None for
    columns with an entry per completion."""
    columns = rewards.as_columns(one.found.rows) | dict.fromkeys(COLUMNS)
    taken = {name: rewards.arguments(name, fn, columns) for name, fn in one.reward_fns.items()}
    return {
        name: {key: values and values[n] for key, values in of_reward.items()} for name, of_reward in taken.items()
    }


def pack_prompt(run, one, n, total):
    """Collect prompt n and its completions; total: the rewards (N, G)."""
    start, r = run.cfg.max_prompt_len, one.found.rollout
    first, G = n * run.cfg.group_size, run.cfg.group_size
    given = np.ones(start, bool) if r.valid is None else r.valid[first, :start]
    mean, std, _ = grpo.moments(jnp.asarray(total[n]), 0)
    return {
        "text": texts.readable_prompt(one.found.rows[n]),
        "tokens": show_tokens(r.tokens[first, :start][given].tolist(), run.tok),
        "reads": columns_read(one, n),
        "mean": mean[0],
        "std": std[0],
        "completions": [pack_completion(run, one, first + i) | {"total": total[n, i]} for i in range(G)],
    }


def pack_completion(run, one, c):
    """Collect completion c, and its updates."""
    r, start = one.found.rollout, run.cfg.max_prompt_len
    block = None
    if run.cfg.model.block:
        from variants import blocks  # other models have none

        valid = None if r.valid is None else jnp.asarray(r.valid[[c]])
        block = blocks.number(valid, r.tokens.shape[1], run.cfg.model)[0, start:]
    place = np.flatnonzero(one.chosen == c)
    updates = [
        {"number": number} | pack_update(update, row, start)
        for number, update in enumerate(one.updates)
        for row in np.flatnonzero(update.batch.rollout.number == c)
    ]
    return {
        "text": one.found.completions[c],
        "tokens": show_tokens(r.tokens[c, start:].tolist(), run.tok),
        "ids": r.tokens[c, start:],
        "masked": r.completion[c, start:],
        "counts": r.counts[c, start:],
        "step": r.step[c, start:],
        "logp": r.logp[c, start:],
        "block": block,
        "rewards": {name: part[c] for name, part in one.found.parts.items()},
        "advantage": one.advantages[c],
        "in_loss": one.in_loss[place[0]] if len(place) else None,
        "updates": updates[:UPDATES],
    }


def pack_update(update, row, start):
    """Collect what an update computes for one of its rows; of its views those that score a token."""
    views = []
    masked, weight = update.batch.views.masked[row], update.batch.views.weight[row]
    for m, w, logp in zip(masked, weight, update.inside["view_logp"][row], strict=True):
        scored = np.flatnonzero(w[start:]) + start
        if len(scored):
            view = {"masked": m[start:], "in_prompt": m[:start].sum(), "scored": scored - start}
            views.append(view | {"weight": w[scored], "logp": logp[scored]})
    by_token = {name: values[row] for name, values in update.inside.items() if values is not None}
    return by_token | {"view_logp": None, "views": views, "after": update.after[row]}


def kind_of(cfg):
    """Name how the policy writes: causal, block or denoiser."""
    if cfg.model.causal:
        return "causal"
    return "block" if cfg.model.block else "denoiser"


def pack(run: Any, state: Any, one: Iteration, name: str) -> dict[str, Any]:
    """Collect everything that the page shows; name: of the run."""
    cfg, total = run.cfg, rewards.total_rewards(one.found.rewards, run.cfg)
    return {
        "name": name,
        "iteration": state.step + 1,
        "kind": kind_of(cfg),
        "keys": {key: value for key, value in config.flatten(cfg).items() if key not in PATHS},
        "functions": describe_functions(cfg, one.reward_fns),
        "reward_weights": rewards.weights_of(cfg, cfg.rewards),
        "columns": one.found.rollout.tokens.shape[1],
        "passes": one.found.rollout.passes.mean(),
        "advantages": one.advantages,
        "in_loss": one.in_loss,
        "notes": {key: value for key, value in one.notes.items() if isinstance(value, float)},
        "updates": [update.metrics | {"completions": len(update.after)} for update in one.updates],
        "prompts": [pack_prompt(run, one, n, total) for n in most_telling(one, total)],
    }


def plain(value: Any) -> Any:
    """Turn a value into what JSON knows: arrays become lists, numbers have 7 digits, nan is None, the rest is text."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.7g}") + 0.0 if math.isfinite(value) else None  # and -0.0 becomes 0.0
    return value if value is None or isinstance(value, (str, int)) else str(value)


# ---- write it --------------------------------------------------------------------------------------------------------


def check(path: str, cfg: config.Config) -> None:
    """Refuse what cannot work, before a base is trained for minutes."""
    if not path:
        raise ValueError("--anatomy= names no file: write --anatomy=step.html")
    if os.path.exists(path):
        raise ValueError(f"--anatomy={path} is there already, and nothing is overwritten: name a new file")
    if cfg.objective != "grpo":
        raise ValueError(
            f"--anatomy={path} shows an iteration of objective='grpo', and this config has {cfg.objective!r}: take one "
            "of GRPO, such as config/sudoku_grpo.py"
        )
    processes = hosts.Keys.of(cfg).processes or 1
    if processes > 1:
        raise ValueError(f"--anatomy={path} works in one process, and this config has hosts.processes={processes}")
    folder = Path(path).absolute().parent
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ValueError(f"--anatomy={path}: the folder {folder} cannot be written to; name a file in another one")


def model_name(folder: str) -> str:
    """Name a model's folder, or a run's checkpoint, without where it lies on this machine: pages are passed on."""
    return os.path.join(*Path(folder).absolute().parts[-2 if checkpoint.step_in_name(folder) else -1 :])


def linked(cfg: config.Config, place: str) -> config.Config:
    """Return the config of a run that goes on in the folder `place`, so that nothing is written into its own folder.

    If out_dir is a checkpoint or has some, a link to it or to the newest is made there. If the run is finished, no link
    is made: its first iteration is more telling than one that would follow its end."""
    cfg, out_dir = dataclasses.replace(cfg, out_dir=place, resume=False, eval_only=False), cfg.out_dir
    is_checkpoint = re.fullmatch(r"step-\d+", os.path.basename(out_dir))
    if not (is_checkpoint or checkpoint.steps(out_dir)):
        return cfg
    found = checkpoint.find(out_dir)
    run = checkpoint.read_run(found)
    was = run.get("config", {})
    if other := same_run.changed_keys(cfg, was, same_run.FREE + same_run.LENGTH):
        raise ValueError(f"--anatomy shows an iteration of the run in {out_dir}, and this would be another: {other}. "
                         "Leave these as they were, or name another --out_dir")  # fmt: skip
    start = was.get("init_from", cfg.init_from)
    if is_checkpoint or not run.get("finished"):
        os.symlink(os.path.abspath(found), os.path.join(place, os.path.basename(found)))
        return dataclasses.replace(cfg, resume=True, init_from=start, base=())
    another = f"--out_dir={checkpoint.checkpoint_folder(out_dir, checkpoint.steps(out_dir)[0])}"
    if not os.path.isdir(start):
        raise ValueError(f"{out_dir} is finished, and began from {start}, which is not there: to see the iteration "
                         f"after a checkpoint, name it: {another}")  # fmt: skip
    print(f"{out_dir} is finished, so this is its first iteration; for one after a checkpoint: {another}")
    return dataclasses.replace(cfg, init_from=start, base=())


def main() -> None:
    """Read the command line of train.py, and write the page."""
    with terminal.errors_explained(hosts.wait_for_watch):
        path, others = terminal.value_and_others("--anatomy")
        write(others, path)


def write(argv: list[str], path: str) -> None:
    """Run one iteration of the config in argv, and write its page."""
    cfg = config.resolve_paths(config.load(argv))
    check(path, cfg)
    runs.prepare_process(cfg)
    name = model_name(cfg.out_dir).split("/")[0]
    with sharding.use(cfg.mesh), contextlib.ExitStack() as claims, tempfile.TemporaryDirectory() as place:
        try:
            run, state, *_ = setup.setup(linked(cfg, place), claims, train.train)
        except ValueError as e:
            raise ValueError(str(e).replace(place, cfg.out_dir)) from None
        start = f"its checkpoint step-{state.step:06d}" if state.step else model_name(run.cfg.init_from)
        print(f"iteration {state.step + 1} of {name}, from {start}: 10 to 60 s, as it is compiled")
        content = plain(pack(run, state, record_iteration(run, state), name) | {"start": start})
    files.write_whole(path, report.fill_template(Path(__file__).with_suffix(".html"), name, content))
    print(f"{path} shows it: open it in a browser")
