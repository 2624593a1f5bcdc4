"""
Whether a run is the one that a folder already holds: which of its keys have changed, and which of them may.
"""
import json
import types
from collections.abc import Iterable
from typing import Any

import config
import data
from config import Config
from system import sections

# Keys that may change on resume, and when a base run is trained no further: they do not affect what is computed, or
# only for how long. Changing another key would make it another run.
FREE = ("use model.use out_dir resume eval_only init_from open_as base log_interval eval_interval save_interval "
        "keep_checkpoints log_samples wandb_log wandb_project wandb_run_name wandb_entity "
        "reward_timeout reward_workers sandbox_unsafe rollout_chunk logp_chunk ref_offload mesh coordinator "
        "processes process_id model.dtype model.remat").split()  # fmt: skip
LENGTH = ["max_iters", "num_epochs", "stop_at"]
# Keys of variants as they are in a run that does not use the variant. (Older runs recorded them.)
OFF: dict[str, Any] = {
    "lora_rank": None,
    "paired": False,
    "nll_coef": 0.0,
    "entropy_coef": 0.0,
    "ref_mode": "static",
    "ref_sync_interval": 64,
    "ref_sync_mix": 1.0,
    "difficulty": [],
    "curriculum": [],
    "factor": 1.0,
    "budget": 0.1,
    "repetition_penalty": 1.0,
    "p_mask_prompt": 0.0,
    "cispo_cap": 5.0,
    "reward_clip": None,
    "model.block_causal": None,
    "model.rope_scaling": None,
    "model.gemma": False,
}
# Keys that runs had once, with their defaults: a run with another value cannot go on.
GONE = {
    "step_baseline": 0.0,
    "entropy_steps": None,
    "draft_coef": 0.0,
    "kl_in_reward": False,
    "rollout_weight": "none",
    "diversity_bonus": 0.0,
    "logp_scale": 1.0,
    "clip_cap": None,
    "mask_truncated": False,
    "top_entropy_quantile": 1.0,
    "min_p": None,
    "random_masking": True,
    "dynamic_sampling": 0,
    "hint_ratio": 0.0,
    "on_collapse": "warn",
    "causal_weight": 0.0,
    "model.causal_text": False,
    "model.noise": "mask",
}
GONE_FROM_USE = {"dynamic_sampling", "collapse", "joint"}  # names that `use` had for them
# Keys that only runs of grpo read.
OF_GRPO = ("logp_est logp_views group_size rollout_steps early_end updates_per_rollout keep_completions "
           "minibatch_size score_after_end adv_baseline adv_norm adv_eps adv_negative reward_norm ratio_level "
           "loss_type aggregation clip_low clip_high kl_est").split()  # fmt: skip


def changed_keys(cfg: Config, was: dict[str, Any], free: list[str]) -> str:
    """Describe the keys of cfg that differ from `was`, the config in a run.json; "" if none does.

    free: keys that may differ. A key of the model counts only where cfg sets it.
    """
    now, default = (as_json(config.flatten(c)) for c in (cfg, Config()))
    for key in ("judge_from", "ref_from"):
        if (now[key] or "").endswith(".py"):
            now[key] = config.read_file(now[key]).out_dir
    if cfg.num_epochs:
        free = [*free, "max_iters"]  # it was computed from num_epochs, and will be
    names = {*now["use"]} ^ {*was.get("use", now["use"])}
    declared = config.declared_keys()
    known = {of.variant for key, of in declared.items() if key in OFF or key in FREE or is_outside_variants(of)}
    if unlike := sorted(names - known - GONE_FROM_USE):
        return f"use of {', '.join(unlike)}"
    if cfg.objective != "grpo":
        free = [*free, *OF_GRPO]
    off = settings_off(now | was) | OFF
    now, was = off | now, off | was
    keys = [k for k in now if k in was and now[k] != was[k] and k not in free]
    keys = [k for k in keys if not (k.startswith("model.") and now[k] == (off | default).get(k))]
    return ", ".join(f"{k}={now[k]!r} (it was {was[k]!r})" for k in keys)


def recorded(was: dict[str, Any]) -> types.SimpleNamespace:
    """Return the config in a run.json {key: value}, also one with keys that are gone, to be read as a Config."""
    values = {name: config.to_tuples(value) for name, value in was.items()}
    own = {name: values[name] for name, of in config.declared_keys().items() if of.kind == "Keys" and name in values}
    return types.SimpleNamespace(**vars(Config()) | values | {"use": sections.with_values((), own)})


def as_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as a run.json has them."""
    return json.loads(json.dumps(values))


def settings_off(keys: Iterable[str]) -> dict[str, Any]:
    """Return the defaults of those keys that a file outside variants/ declares, as JSON has them."""
    declared = config.declared_keys()
    found = [key for key in keys if key in declared and is_outside_variants(declared[key])]
    return as_json({key: sections.section_of(key).__dataclass_fields__[key].default for key in found})


def is_outside_variants(declared: sections.Declared) -> bool:
    """True if a key belongs to no variant, so that every run has it."""
    return not declared.module.startswith("variants.")


def check_base(path: str, base: Config, was: dict[str, Any]) -> None:
    """Refuse to start from a base that was trained with other keys than its config file, at path, has now; was: the
    config in its run.json."""
    if other := changed_keys(base, was, FREE):
        raise ValueError(f"{base.out_dir} was trained with other keys than {path} has now: {other}. Move it away to "
                         f"train it anew; to take it as it is, name {base.out_dir} in place of {path}")  # fmt: skip


def check(cfg: Config, was: dict[str, Any], folder: str) -> None:
    """Refuse to resume a run if a key that must stay has changed; was: the config in its run.json."""
    if data.IN_MEMORY in was["dataset"] and cfg.dataset not in data.MEMORY:
        raise ValueError(f"{cfg.out_dir} was trained from Python, on {was['dataset']}: they are in no file, so go on "
                         "from there, with train(Config(..., resume=True), rows=THE SAME ROWS)")  # fmt: skip
    if gone := [f"{key}={was[key]!r}" for key, default in GONE.items() if was.get(key, default) != default]:
        opens = "" if any(key.startswith("model.") for key in gone) else "; its model opens as init_from"
        raise ValueError(f"{cfg.out_dir} was run with {', '.join(gone)}, which is not there any more: docs/tried.md "
                         f"has the commit that can continue it{opens}")  # fmt: skip
    if other := changed_keys(cfg, was, FREE + LENGTH):
        raise ValueError(f"--resume=True continues the run in {cfg.out_dir}, and this would be another: {other}. Leave "
                         f"these as they were, or start anew: --init_from={folder} --out_dir=ANOTHER")  # fmt: skip
