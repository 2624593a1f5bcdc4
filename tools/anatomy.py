"""
Write the first iteration of GRPO as a page:  python train.py config/sudoku_grpo.py --anatomy=step.html

train.py and rl.py run the iteration; `recorded` notes what their functions are given and return, and anatomy.html shows
these numbers in six stations. The page is one file that fetches nothing.

Shapes: N prompts, G completions of each, B = N * G; n completions in an update; V views; T columns, L of them of the
completion.
"""

if __name__ == "__main__":
    raise SystemExit("error: type python train.py config/NAME.py --anatomy=step.html")


import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import config
import data
import diffusion
import grpo
import rewards
import rl
import train
from data import texts
from loop import report, runs, setup
from system import disk, sharding, terminal
from tools import flags

PROMPTS = 6  # on the page, at most
KEYS = ("fill_in batch_size group_size order rule temperature adv_baseline adv_norm adv_negative logp_est loss_type "
        "ratio_level clip_low clip_high").split()  # fmt: skip


# ---- record what a run computes --------------------------------------------------------------------------------------


@contextlib.contextmanager
def recorded(module: Any, name: str) -> Iterator[list[tuple]]:
    """Record the calls of a module's function while the context lasts -> [(arguments, result)]."""
    function, calls = getattr(module, name), []

    def record(*args, **more):
        calls.append((args, function(*args, **more)))
        return calls[-1][1]

    setattr(module, name, record)
    try:
        yield calls
    finally:
        setattr(module, name, function)


@functools.partial(jax.jit, static_argnames="cfg")
def inside_loss(params, b, cfg):
    """Compute rl.policy_loss of a minibatch -> {name: array} of what it computes on the way: view_logp (n, V, T), the
    others (n, L)."""
    with recorded(diffusion, "view_logp") as views, recorded(grpo, "loss") as loss, recorded(grpo, "ratios") as ratios:
        rl.policy_loss(params, b, cfg)
    logp, batch, settings = loss[0][0]
    ratio = ratios[0][1]
    token_loss = grpo.LOSSES[settings.loss].token_loss(ratio, logp, batch.adv[:, None], settings)

    def pg_loss(logp):
        return grpo.loss(logp, batch, settings)[1]["pg_loss"]

    by_token = {
        "logp": logp,
        "ratio": ratio,
        "part": batch.weight * (batch.share * token_loss if token_loss.shape == logp.shape else token_loss),
        "push": -jax.grad(pg_loss)(logp),  # how the loss pulls at log p of a token; 0 where the ratio is clipped
        "share": batch.share,
    }
    found = {name: jnp.broadcast_to(values, logp.shape) for name, values in by_token.items()}
    return found | {"view_logp": views[0][1][0]}


class Iteration(NamedTuple):
    """What was recorded of an iteration."""

    found: rewards.Scored
    advantages: np.ndarray  # (B,)
    in_loss: np.ndarray  # (B,) the advantages in the loss; nan: the completion does not learn
    updates: list[dict]  # batch, a rl.Minibatch; metrics; inside, see `inside_loss`, with logp after the update


def record_iteration(run: Any, state: Any) -> Iteration:
    """Run the iteration that follows a State, and record it."""
    updates = []

    def update(params, opt_state, average, step, batch, base=None):
        inside = jax.device_get(inside_loss(rl.whole(params, base, run.cfg), batch, run.cfg))
        out = run.update(params, opt_state, average, step, batch, base)
        inside["after"] = inside_loss(rl.whole(out[0], base, run.cfg), batch, run.cfg)["logp"]
        updates.append(jax.device_get({"batch": batch, "metrics": out[-1], "inside": inside}))
        return out

    with recorded(rl, "select_completions") as selected:
        train.advance(run._replace(update=update), state)
    if not updates:
        raise ValueError("no reward has an opinion on any completion of the first iteration: there is no update")
    (found, adv, _), chosen = selected[0]
    in_loss = np.full(adv.size, np.nan)
    in_loss[np.asarray(chosen.rollout.number)] = chosen.advantage
    found = found._replace(rollout=jax.device_get(found.rollout))
    return Iteration(found, np.asarray(adv).reshape(-1), in_loss, updates)


# ---- choose what the page shows --------------------------------------------------------------------------------------


def pack_prompt(run, one, n):
    """Collect prompt n and its completions."""
    G = run.cfg.group_size
    completions = [pack_completion(run, one, c) for c in range(n * G, n * G + G)]
    return {"text": texts.readable_prompt(one.found.rows[n]), "completions": completions}


def pack_completion(run, one, c):
    """Collect completion c, and its updates."""
    r, start = one.found.rollout, run.cfg.max_prompt_len
    by_token = {name: getattr(r, name)[c, start:] for name in ("tokens", "completion", "counts", "step", "logp")}
    specials = {i: text for text, i in run.tok.specials.items()} | {run.tok.eos_id: "∎"}
    updates = [
        {"number": number} | pack_update(update, row, start)
        for number, update in enumerate(one.updates)
        for row in np.flatnonzero(update["batch"].rollout.number == c)
    ]
    return by_token | {
        "text": one.found.completions[c],
        "texts": [specials.get(i) or run.tok.decode([i]) for i in by_token["tokens"].tolist()],
        "rewards": {name: part[c] for name, part in one.found.parts.items()},
        "total": rewards.total_rewards(one.found.rewards, run.cfg).reshape(-1)[c],
        "advantage": one.advantages[c],
        "in_loss": one.in_loss[c],
        "updates": updates,
    }


def pack_update(update, row, start):
    """Collect what an update computes for one of its rows."""
    inside, views = update["inside"], update["batch"].views
    by_view = {"masked": views.masked, "weight": views.weight, "view_logp": inside["view_logp"]}
    by_token = {name: values[row] for name, values in inside.items()}
    return by_token | {name: values[row, :, start:] for name, values in by_view.items()}


def pack(run: Any, one: Iteration) -> dict[str, Any]:
    """Collect everything that the page shows, with the prompts from which most is learnt."""
    cfg = run.cfg
    learnt = np.abs(np.nan_to_num(one.in_loss)).reshape(-1, cfg.group_size).sum(1)
    content = {
        "start": "/".join(Path(cfg.init_from).parts[-2:]),  # not all of the path: pages are passed on
        "causal": cfg.model.causal,
        "block": cfg.model.block,
        "keys": {key: getattr(cfg, key) for key in KEYS},
        "weights": dict(zip(cfg.rewards, rewards.weights_of(cfg, cfg.rewards), strict=True)),
        "learning": np.isfinite(one.in_loss).sum(),
        "updates": [update["metrics"] for update in one.updates],
        "prompts": [pack_prompt(run, one, n) for n in np.argsort(-learnt, kind="stable")[:PROMPTS]],
    }
    return json.loads(json.dumps(content, default=data.plain), parse_constant=lambda nan: None)


# ---- write it --------------------------------------------------------------------------------------------------------


def check(path: str, cfg: config.Config) -> None:
    """Refuse what cannot work, before a base is trained for minutes."""
    if not path or os.path.exists(path):
        raise ValueError(f"--anatomy={path} must name a new file, as in --anatomy=step.html: nothing is overwritten")
    if cfg.objective != "grpo":
        raise ValueError(f"--anatomy={path} shows an iteration of objective='grpo', and this config has "
                         f"{cfg.objective!r}: take one of GRPO, such as config/sudoku_grpo.py")  # fmt: skip
    if cfg.resume or cfg.eval_only:
        raise ValueError(f"--anatomy={path} shows the first iteration from init_from, without resume and eval_only: to "
                         "see the one after a checkpoint, type --init_from=out/run/step-000050")  # fmt: skip
    open(path, "x").close()  # an error now, if it cannot be written
    os.remove(path)


def main() -> None:
    """Read the command line of train.py, and write the page."""
    with terminal.errors_explained():
        path, others = flags.value_and_others("--anatomy")
        write(others, path)


def write(argv: list[str], path: str) -> None:
    """Run the first iteration of the config in argv, and write its page. Nothing is written into its out_dir."""
    others = [word for word in argv if not word.startswith("--out_dir=")]
    with contextlib.ExitStack() as claims, tempfile.TemporaryDirectory() as place:
        cfg = config.resolve_paths(config.load([*others, f"--out_dir={place}"]))
        check(path, cfg)
        runs.prepare_process()
        with sharding.use(cfg.mesh):
            run, state, *_ = setup.setup(cfg, claims, train.train)
            print(f"the first iteration from {run.cfg.init_from}: 10 to 60 s, as it is compiled")
            content = pack(run, record_iteration(run, state))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with disk.replacing(path) as f:
        f.write(report.fill_template(Path(__file__).with_suffix(".html"), Path(argv[0]).stem, content))
    print(f"{path} shows it: open it in a browser")
