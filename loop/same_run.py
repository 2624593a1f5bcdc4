"""
Whether a run is the one that a folder already holds: which of its keys have changed, and which of them may.
"""
import dataclasses
import itertools
import json
import os
import types
from typing import Any

import config
import data
from checkpoints import checkpoint
from config import Config
from loop import runs
from system import index, sections
from system.index import file_of

# Keys that may change on resume, and when a base run is trained no further: they do not affect what is computed, or
# only for how long. Changing another key would make it another run.
FREE = ("out_dir resume eval_only init_from checkpoint.open_as base log_interval eval_interval save_interval "
        "checkpoint.keep wandb wandb.project wandb.run_name wandb.entity "
        "programs.timeout programs.workers programs.unsafe rollout_chunk memory.ref_offload mesh "
        "model.dtype model.remat").split()  # fmt: skip
LENGTH = ["max_iters", "num_epochs", "stop_at"]
EVERY_RUN = sections.ELSEWHERE.keys() - {"adapt"}  # files with keys that every run has
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
    "rollout_steps": None,
    "on_collapse": "warn",
    "texts.limit": None,
    "limit": None,
    "causal_weight": 0.0,
    "model.causal_text": False,
    "model.noise": "mask",
}


def changed_keys(cfg: Config, was: dict[str, Any], free: list[str]) -> str:
    """Describe the keys of cfg that differ from `was`, the config in a run.json; "" if none does.

    free: keys that may differ. A key of the model counts only where cfg sets it.
    """
    now, plain = (as_json(config.flatten(c)) for c in (cfg, Config()))
    for key in ("judge_from", "ref_from"):
        if (now[key] or "").endswith(".py"):
            now[key] = config.read_file(now[key]).out_dir
    if cfg.num_epochs:
        free = [*free, "max_iters"]  # it was computed from num_epochs, and will be
    if cfg.objective != "grpo":
        free = [*free, *config.OF_GRPO]
    changes = []
    for key in dict.fromkeys((*now, *was)):
        of_model = key.startswith("model.")
        if key in plain:
            counts = key in was and not (of_model and now[key] == plain[key])
        else:
            known = key in now or index.find_key(key) is not None
            counts = now.get(key) is not None if of_model else known  # None: what the folder of the model says
        here, there = setting(now, key), setting(was, key)
        if counts and key not in free and here != there:
            changes.append(f"{key}={here!r} (it was {there!r})")
    return ", ".join(changes)


def tables() -> list[str]:
    """List the keys that name an entry of a table, to which files of variants/ may add."""
    return [field.name for field in sections.fields_of(Config).values() if field.metadata.get("table")]


def setting(values: dict[str, Any], key: str) -> Any:
    """Look up a key in what `config.flatten` returns. If it is not there: its default, if every run has the file of
    this key, or another key names it; else None, as the variant is not used."""
    files = {*EVERY_RUN, *(values[name] for name in tables() if name in values)}
    return values.get(key, as_json(index.default_of(key)) if file_of(key) in files else None)


def recorded(was: dict[str, Any]) -> types.SimpleNamespace:
    """Return the config in a run.json {key: value}, also one with keys that are gone, to be read as a Config."""
    values = {name: config.to_tuples(value) for name, value in was.items()}
    found: dict[Any, dict[str, Any]] = {}
    for name, value in values.items():
        key = None if name in sections.fields_of(Config) or name.startswith("model.") else index.find_key(name)
        if key and key.kind == "Keys":
            found.setdefault(key.section, {}).update({key.field: value} if key.field else {})
    use = tuple(section(**own) for section, own in found.items())
    return types.SimpleNamespace(**vars(Config()) | values | {"use": use})


def as_json(values: Any) -> Any:
    """Return values as a run.json has them."""
    return json.loads(json.dumps(values))


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
    if cfg.lr_schedule == "cosine" and not cfg.num_epochs and cfg.max_iters != was.get("max_iters", cfg.max_iters):
        print(f"max_iters was {was['max_iters']} and is {cfg.max_iters}: the learning rate goes on as in a run of "
              f"{cfg.max_iters} iterations, so it may jump now")  # fmt: skip


# ---- where a run goes on ---------------------------------------------------------------------------------------------


def find_checkpoint(cfg):
    """Return cfg, with the init_from that its run began with, and the checkpoint that it resumes or evaluates, or None;
    refuse to resume another run."""
    if cfg.resume and not checkpoint.steps(cfg.out_dir):
        log = os.path.join(cfg.out_dir, checkpoint.LOGS[0])
        if not os.path.exists(log):
            raise ValueError(f"--resume=True: there is no run in {cfg.out_dir!r}; without it, one begins there")
        last = max((row["step"] for row in runs.read_lines(log)), default=0)
        if last > cfg.save_interval:
            raise ValueError(f"--resume=True: {log} goes to step {last}, but the checkpoints are gone: bring back a "
                             f"{cfg.out_dir}/step-..., or leave --resume out to begin anew")  # fmt: skip
        print(f"the run in {cfg.out_dir}, logged to step {last}, has no checkpoint: it begins anew")
        cfg = dataclasses.replace(cfg, resume=False)
    if not checkpoint.steps(cfg.out_dir):
        return cfg, None
    folder = checkpoint.find(cfg.out_dir)
    run = checkpoint.read_run(folder)
    was = run.get("config")
    if was is None:  # somebody else's model: it can be evaluated, and `restore` refuses to resume it
        return cfg, folder
    if cfg.resume:
        check(cfg, was, folder)
    base = config.base_run(cfg)
    start = base.out_dir if base else cfg.init_from
    if start and not config.is_inside(was["init_from"] or "", start):
        print(f"{cfg.out_dir} began from {was['init_from']}: init_from={cfg.init_from} is not looked at")
    start = was["init_from"]
    if cfg.resume and config.has_frozen_base(cfg):
        from checkpoints import adapters

        start = adapters.read_adapters(folder)[0]
        adapters.check_base(folder, start, run.get("base_checksum"))
    family = {name: was[name] for name in ["checkpoint.open_as"] if was.get(name)}
    return config.changed(cfg, {"init_from": start, "base": ()} | family), folder


def move_aside(out_dir: str) -> bool:
    """Rename the folder of an earlier run to out_dir.1 (or .2, ...); return True if there was one."""
    if not checkpoint.steps(out_dir) and not runs.read_lines(os.path.join(out_dir, checkpoint.LOGS[0])):
        return False
    out_dir = out_dir.rstrip("/")
    aside = next(path for n in itertools.count(1) if not os.path.exists(path := f"{out_dir}.{n}"))
    os.rename(out_dir, aside)
    goes_on = " (--resume=True would continue it)" if checkpoint.steps(aside) else ""
    print(f"{out_dir} held an earlier run: moved to {aside}{goes_on}")
    return True


def to_evaluate(cfg: Config, folder: str | None) -> Config:
    """Return cfg for an evaluation of a folder, of which only the weights count. A line is printed if keys of variants
    differ from those of the run that wrote it."""
    if not folder:
        raise ValueError(f"eval_only=True: there is no checkpoint in {cfg.out_dir!r}, and no init_from")
    was, now = checkpoint.read_run(folder).get("config", {}), config.flatten(cfg)
    # Left out: keys of the core, of the model, and of what only training uses; LoRA and bits, read from the folder.
    of_training = cfg.loss_type, cfg.logp_est, was.get("loss_type"), was.get("logp_est")
    free = [key for key in {*was, *now} if "." not in key or key.startswith("model.") or file_of(key) in of_training]
    free += [key for key in was if key not in now and file_of(key) in ("lora", "quantized")]
    if was.get("objective") == cfg.objective and (other := changed_keys(cfg, was, FREE + free)):
        print(f"{folder} is evaluated with other keys than it was trained with: {other}")
    return dataclasses.replace(cfg, use=tuple(s for s in cfg.use if not s.freezes), ema_decay=None)
