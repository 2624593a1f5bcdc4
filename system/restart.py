"""
How a run that shows a sign of collapse ends, and from where another one goes on.
"""
import dataclasses
from typing import Any

import config
from config import Config
from system import checkpoint, collapse, fit, hosts

RESTARTS = 3  # most times that on_collapse=restart begins anew


def leave(run: Any, state: Any, best: dict | None, signs: list[collapse.Collapse]) -> tuple[str, Config | None]:
    """Save a run that collapses -> what to say about it, and the Config of a run that goes on from the best checkpoint;
    None if none is to."""
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
    said = "; ".join(map(collapse.message, signs))
    text = f"step {state.step}: {said}. Saved {cfg.out_dir}/step-{state.step:06d}. "
    text += f"To go on from the best checkpoint: {fit.flags(keys)}"
    too_often = cfg.out_dir.endswith(RESTARTS * "_again")
    if collapse.Keys.of(cfg).on_collapse == "stop" or too_often or hosts.processes().size > 1:
        return text, None
    left = cfg.max_iters - step  # also with num_epochs, which would count the epochs anew
    return text, dataclasses.replace(cfg, max_iters=left, num_epochs=None, resume=False, **keys)
