"""
What to do about a collapse that system/collapse.py has noticed: which key to change, and how the run ends and begins
again.
"""
import dataclasses
from typing import Any

import config
from config import Config
from system import checkpoint, hosts

# ---- what to change --------------------------------------------------------------------------------------------------


def lower_rate(cfg: Any) -> dict:
    """Propose smaller steps -> {key: value}."""
    return {"learning_rate": cfg.learning_rate / 3}


def more_variety(cfg: Any) -> dict:
    """Propose to draw completions that differ more -> {key: value}."""
    return {"temperature": round(cfg.temperature + 0.3, 2) if cfg.temperature else 1.0}


def fewer_updates(cfg: Any) -> dict:
    """Propose to use each completion for half as many updates; if it is one, smaller steps -> {key: value}."""
    return {"updates_per_rollout": cfg.updates_per_rollout // 2} if cfg.updates_per_rollout > 1 else lower_rate(cfg)


def stay_closer(cfg: Any) -> dict:
    """Propose to stay closer to the reference -> {key: value}."""
    return {"kl_beta": 3 * cfg.kl_beta or 0.02}


# ---- how it ends -----------------------------------------------------------------------------------------------------


RESTARTS = 3  # most times that on_collapse=restart begins anew


def leave(run: Any, state: Any, best: dict | None, signs: list, said: str, stops: bool) -> tuple[str, Config | None]:
    """Save a run that collapses -> what to tell about it, and the Config of a run that goes on from the best
    checkpoint, or None if none is to.

    signs: a list of collapse.Collapse, and `said` their messages. stops: on_collapse="stop"."""
    cfg = run.cfg
    checkpoint.save_run(cfg, state, run.tok, best, finished=False)
    step = best["step"] if best else 0
    start = checkpoint.checkpoint_folder(cfg.out_dir, step) if step else cfg.init_from
    change = signs[0].change if signs else {}  # only the first process knows it
    keys = {"init_from": start, "out_dir": f"{cfg.out_dir}_again"} | change
    # The KL keeps its reference, the policy this run began with. (With lora_rank that is the base of the adapters.)
    stays = config.reference_stays(cfg) and not config.has_frozen_base(cfg)
    if keys.get("kl_beta", cfg.kl_beta) and stays:
        keys["ref_from"] = cfg.ref_from or cfg.init_from
    typed = " ".join(f"--{key}={config.as_typed(value)}" for key, value in keys.items())
    text = f"step {state.step}: {said}. Saved {cfg.out_dir}/step-{state.step:06d}. "
    text += f"To go on from the best checkpoint: {typed}"
    too_often = cfg.out_dir.endswith(RESTARTS * "_again")
    if stops or too_often or hosts.processes().size > 1:
        return text, None
    left = cfg.max_iters - step  # also with num_epochs, which would count the epochs anew
    return text, dataclasses.replace(cfg, max_iters=left, num_epochs=None, resume=False, **keys)
