"""
What a run does before its first step: it finds what it starts from, trained first if need be, refuses what cannot work,
and says what it will do; or with --plan only what it would take.
"""
import dataclasses
import os

import jax
import jax.numpy as jnp

import config
import data
import disk
import model
import runs
import sample
from data import texts
from judges import scores
from machine import cost, mesh


def trained(path, train, base=None):
    """init_from or judge_from -> a folder. A config file (or `base`, a Config made of it) stands for its out_dir and
    is run first, by `train`, if it was never finished."""
    if not path.endswith(".py"):
        return data.fetched(data.prepare(path))  # a model that a folder in data/ makes, or one of huggingface.co
    base = base or config.read_file(path)
    steps = disk.steps(base.out_dir)
    run = disk.read_run(disk.find(base.out_dir)) if steps else {}
    if not run.get("finished"):
        print(f"this run starts from {path}, which has not been run to its end: that first, into {base.out_dir}")
        train(dataclasses.replace(base, resume=bool(steps)))
    elif other := runs.changed_keys(base, run["config"], runs.FREE):
        raise ValueError(f"{base.out_dir} was trained with other keys than {path} has now: {other}. Move it away to "
                         f"train it anew; to take it as it is, name {base.out_dir} in place of {path}")  # fmt: skip
    return base.out_dir


def continued(cfg):
    """-> cfg, and the checkpoint that it continues or measures, if any. Another run than the one there is refused."""
    if cfg.resume and not disk.steps(cfg.out_dir):
        if not os.path.exists(os.path.join(cfg.out_dir, disk.LOGS[0])):
            raise ValueError(f"--resume=True: there is no run in {cfg.out_dir!r}; without it, one begins there")
        print(f"the run in {cfg.out_dir} had saved no checkpoint: it begins anew")
        cfg = dataclasses.replace(cfg, resume=False)
    if not (cfg.resume or cfg.eval_only) or not disk.steps(cfg.out_dir):
        return cfg, None
    folder = disk.find(cfg.out_dir)
    was = disk.read_run(folder).get("config")
    if was is None:  # somebody else's model: it can be measured, and `restore` says that it cannot be resumed
        return cfg, folder
    if cfg.resume and data.IN_MEMORY in was["dataset"] and cfg.dataset not in data.MEMORY:
        raise ValueError(f"{cfg.out_dir} was trained from Python, on {was['dataset']}: they are in no file, so go on "
                         "from there, with train(Config(..., resume=True), rows=THE SAME ROWS)")  # fmt: skip
    if cfg.resume and (other := runs.changed_keys(cfg, was, runs.FREE + runs.LENGTH)):
        raise ValueError(f"--resume=True continues the run in {cfg.out_dir}, and this would be another: {other}. Leave "
                         f"these as they were, or start anew: --init_from={folder} --out_dir=ANOTHER")  # fmt: skip
    start = base.out_dir if (base := config.base_run(cfg)) else cfg.init_from
    if start and not config.is_inside(was["init_from"] or "", start):
        print(f"{cfg.out_dir} began from {was['init_from']}: init_from={cfg.init_from} is not looked at")
    start = disk.read_adapters(folder)[0] if cfg.resume and cfg.lora_rank else was["init_from"]
    return dataclasses.replace(cfg, init_from=start, base=()), folder


def check(cfg):
    """What can be said of a run before anything is trained for it."""
    sample.plan(cfg, cfg.temperature)  # what is wrong with it is said now, not at the first evaluation
    if cfg.wandb_log:
        try:
            import wandb  # noqa: F401
        except ImportError:
            raise ValueError("wandb_log=True needs the package wandb: pip install wandb") from None
    if cfg.objective == "grpo":
        scores.check_early(cfg)
    first = config.base_runs(cfg)[-1]
    if first is not cfg and not first.init_from:  # a base that is made from scratch: its shape is known before it is
        cost.check_fits(cfg, first.model)


def located(cfg, train):
    """-> cfg with the folders of what it starts from, trained first if need be; the checkpoint it continues, if any."""
    cfg, resumed = continued(cfg)
    for key in ("judge_from", "ref_from"):
        if path := getattr(cfg, key):
            cfg = dataclasses.replace(cfg, **{key: trained(path, train)})
    if cfg.init_from and not resumed:
        start = os.path.abspath(disk.find(trained(cfg.init_from, train, config.base_run(cfg))))  # from any folder
        cfg = dataclasses.replace(cfg, init_from=start, base=())
    if cfg.eval_only:  # of a run that is measured only the weights count
        cfg = dataclasses.replace(cfg, lora_rank=None, ema_decay=None)
    if cfg.eval_only and not (resumed or cfg.init_from):
        raise ValueError(f"eval_only=True: there is no checkpoint in {cfg.out_dir!r}, and no init_from")
    return cfg, resumed


def adapt(params, cfg, mask_id, block_causal=None):
    """A causal model -> params, ModelConfig of a denoiser, as Dream was made of Qwen2: it sees both sides, still
    predicts each token one place before it, and has a mask, at first the mean of all tokens, also where there is a row
    for it already (Qwen2 has 152,064, of which 151,665 mean something). Its family has biases. With block_causal it is
    what Fast-dLLM v2 made of Qwen2, or SDAR of Qwen3: that predicts each token in its place, and has no biases."""
    sdar = cfg.qk_norm and block_causal is not None
    size = max(cfg.vocab_size, mask_id + 1)
    more = size - cfg.vocab_size
    cfg = dataclasses.replace(cfg, causal=False, block_causal=block_causal, shift=not sdar, mask_id=mask_id,
                              vocab_size=size, qkv_bias=not sdar)  # fmt: skip
    fill = lambda rows, mean: jnp.concatenate([rows, jnp.repeat(mean[None], more, 0)]).at[mask_id].set(mean)
    grown = lambda rows: fill(rows, rows.mean(0))
    biases = {n: jnp.zeros(shape) for n, shape in model.shapes(cfg)["blocks"].items() if n.endswith("_bias")}
    head = {"head": grown(params["head"].T).T} if "head" in params else {}
    return params | head | {"embed": grown(params["embed"]), "blocks": biases | params["blocks"]}, cfg


def opened(cfg, folder, adapting):
    """A model's folder -> its params, tokenizer and shape, as this run computes with it."""
    if os.path.exists(os.path.join(folder, "config.json")):  # in a folder of adapters there is none
        cost.check_fits(cfg, disk.read_config(folder))
    params, shape = disk.load(folder, cfg.model.dtype if cfg.lora_rank else "float32")  # frozen: cast once, now
    with disk.named(folder):
        tok = data.Tokenizer.load(folder, shape.vocab_size)
    if adapting:
        if not shape.causal:
            raise ValueError(f"adapt=True makes a denoiser of a causal model, but {folder} is a denoiser already")
        params, shape = adapt(params, shape, tok.mask_id, cfg.model.block_causal)
    elif shape.block_causal:  # which is learnt with short blocks first (SDAR)
        shape = dataclasses.replace(shape, block_causal=cfg.model.block_causal or shape.block_causal)
    disk.same_mask(folder, shape, tok)
    config.check_model(cfg, shape, f"in {folder}")
    if shape.causal:  # of the ends that its config.json names, the one that the tokenizer's texts have
        shape = dataclasses.replace(shape, eos_id=tok.eos_id)
    return params, tok, config.with_model(cfg, shape).model


def with_ids(shape, tok):
    """The shape of a model that is made from scratch -> the same with the ids of its tokenizer."""
    return dataclasses.replace(shape, vocab_size=tok.vocab_size, mask_id=tok.mask_id, eos_id=tok.eos_id,
                               pad_id=tok.pad_id)  # fmt: skip


def prepare(cfg, train):
    """-> cfg with the model and ids of this run, its tokenizer, params to start from or None, a checkpoint or None."""
    if mesh.processes().size > 1:
        mesh.first_then_rest(f"the data of {cfg.out_dir}", lambda: texts.read_rows(cfg, "val"))
    check(cfg)
    return disk.steadily(lambda: located(cfg, train)[::-1], read)


def read(resumed, cfg):
    """What is located -> what `prepare` returns."""
    if folder := cfg.init_from if cfg.lora_rank else resumed or cfg.init_from:
        params, tok, shape = opened(cfg, folder, cfg.adapt and not resumed)
    else:
        params, tok = None, data.tokenizer(cfg.dataset)
        shape = with_ids(cfg.model, tok)
        config.check_model(dataclasses.replace(cfg, model=shape), shape, "of this run")
        cost.check_fits(cfg, shape)
    disk.family(shape)  # a model that no folder can hold should not be trained first
    return dataclasses.replace(cfg, model=shape), tok, params, resumed


def reference_dtype(cfg):
    """A reference that stays is only computed with; where one moves, 16 bits would lose its small steps."""
    return cfg.model.dtype if cfg.ref_mode == "static" else "float32"


def referred(cfg):
    """Is there a reference in the State? With LoRA it is the base."""
    return cfg.objective == "grpo" and cfg.kl_beta and not cfg.lora_rank and not cfg.eval_only


def other_reference(cfg):
    """-> the params of the model in ref_from, which must have the policy's shape."""
    params, shape = disk.load(disk.find(cfg.ref_from), reference_dtype(cfg))
    theirs, ours = vars(shape), vars(cfg.model)
    if other := [f"{k}={theirs[k]}, the policy {ours[k]}" for k in ours if ours[k] != theirs[k] and k not in
                 ("dtype", "remat")]:  # fmt: skip
        raise ValueError(f"ref_from={cfg.ref_from!r}: the model there has {other[0]}: the two must be of one shape and "
                         "vocabulary")
    return params


def count(params):
    return sum(x.size for x in jax.tree.leaves(params))


ALGORITHM = {  # what a run of grpo does, in a line each: the keys that say it
    "rollouts": "batch_size group_size diffusion_steps rollout_steps order rule block_len temperature top_k top_p "
                "repetition_penalty fill_in dynamic_sampling",
    "rewards": "rewards reward_weights reward_clip diversity_bonus", "estimator": "logp_est logp_views logp_scale",
    "advantages": "adv_baseline adv_norm adv_negative reward_norm keep_completions",
    "loss": "loss_type aggregation ratio_level clip_low clip_high clip_cap updates_per_rollout entropy_coef",
    "KL": "kl_beta kl_est kl_in_reward ref_mode ref_from",
    "validation": "eval_size eval_interval eval_samples eval_rewards pass_at"}  # fmt: skip


def algorithm(cfg):
    """The lines of ALGORITHM, with the keys as they are typed, but for those that are off."""
    value = lambda k: ",".join(map(str, v)) if isinstance(v := getattr(cfg, k), tuple) else v
    said = lambda keys: "  ".join(f"{k}={value(k)}" for k in keys.split() if value(k) not in (None, "", 0))
    off = {} if cfg.kl_beta else {"KL": "none"}
    return [f"    {name:11} {line}" for name, line in ({k: said(keys) for k, keys in ALGORITHM.items()} | off).items()]


def announce(cfg, state, base):
    """What a run says before its first step."""
    rows = f"{cfg.batch_size} x {cfg.group_size}" if cfg.objective == "grpo" else cfg.batch_size
    frozen = f" beside {count(base):,} frozen ones" if base else ""
    print(f"{cfg.objective} on {cfg.dataset}: {count(state.params):,} parameters{frozen}, {cfg.max_iters} steps of "
          f"{rows} x {cfg.max_prompt_len + cfg.max_new_tokens} tokens, into {cfg.out_dir}")  # fmt: skip
    if not cfg.eval_only:
        print(*(algorithm(cfg) if cfg.objective == "grpo" else []), *cost.describe(cfg), sep="\n")


def plan_ahead(argv, devices, outline):
    """Prints what a run would take on devices that need not be here, before anything is downloaded, made or trained."""
    cost.parse_devices(devices)
    jax.config.update("jax_platforms", "cpu")
    cfg = config.load(argv, for_plan=True)
    first = config.base_runs(cfg)[-1]
    folder = data.prepare(first.init_from or "")
    if os.path.exists(os.path.join(folder, "config.json")):
        shape = disk.read_config(folder)
    elif first.init_from and first.model.mask_id is None:
        raise ValueError(f"--plan needs the shape of the model in {first.init_from}, which is not there")
    else:
        shape = first.model if first.init_from else with_ids(first.model, data.tokenizer(first.dataset))
    with cost.traced_for(devices):
        for line in cost.plan(config.with_model(cfg, shape), devices, outline):
            print(line, flush=True)
