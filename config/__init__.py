"""
The schema of a run, and the loader:  python train.py config/sudoku.py --learning_rate=1e-3 --n_layer=2

A config file is ordinary Python that defines `config = Config(...)`. What the command line adds comes after it. Both
are checked by name, type and sense before anything compiles. `python train.py --help=all` prints this file's comments.

A recipe for somebody else's model defines up to four dicts besides: `downloads`, from where what these keys name comes;
`shape`, that of the model, so that --plan needs no download; and the keys that are changed to try it without: `tiny`
(--model=tiny) on a random model (data/tiny), does it run; `small` (--model=small) on one that our own pretraining makes
in minutes, does it learn.
"""
import ast
import contextlib
import dataclasses
import difflib
import fnmatch
import functools
import inspect
import math
import os
import re
import runpy
import sys
import traceback
import types
import typing
import warnings

import data
import diffusion
import grpo
from machine import terminal
from model import ModelConfig


@dataclasses.dataclass(frozen=True)
class Config:
    # run
    objective: str = "pretrain"  # what to optimize: pretrain (a prompt in a row makes it fine-tuning), judge or grpo
    out_dir: str = "out/run"  # checkpoints, metrics.jsonl, samples.jsonl, rollouts.jsonl, curves.png, report.html
    init_from: str | None = None  # a model (folder or ORG/NAME), an out_dir, a config file (trained first if need be)
    base: tuple[str, ...] = ()  # keys for the config file in init_from, as in seed=1,max_iters=50; or --base.seed=1
    adapt: bool = False  # of pretrain: make a denoiser of the causal model in init_from (Dream; SDAR: block_causal=4)
    resume: bool = False  # continue the run in out_dir, as the same run; else an earlier one there is moved aside
    seed: int = 0  # of everything random: the same seed on the same machine gives the same run
    max_iters: int = 1000  # optimizer steps; of grpo, rollouts with all their updates
    stop_at: float | None = None  # end early when val/sampled (of a judge, val/pair_acc) first exceeds this
    eval_only: bool = False  # evaluate the newest checkpoint (or init_from) and leave
    log_interval: int = 10  # steps between lines of metrics.jsonl; of grpo also of rollouts.jsonl, the first group
    eval_interval: int = 100  # steps between evaluations on val
    eval_size: int = 256  # val rows that an evaluation fills and scores
    eval_samples: int | None = None  # of each also so many at the run's temperature; None: 1, and 4 for grpo
    eval_rewards: tuple[str, ...] = ()  # rewards that are measured at evaluations, the first decides, never trained on
    pass_at: float | None = None  # what passes earns this from the reward that decides; None: rates are its mean
    save_interval: int = 500  # steps between checkpoints
    keep_checkpoints: int = 2  # the newest that many are kept, and the best one
    log_samples: int = 3  # completions shown on screen at an evaluation (samples.jsonl gets 16), of a group
    wandb_log: bool = False  # also log to Weights & Biases
    wandb_project: str = "unmask"  # under which project
    wandb_run_name: str | None = None  # None: the name of out_dir
    wandb_entity: str | None = None  # under which account; None: your own
    # many devices
    mesh: tuple[int, int, int] | None = None  # devices on data (whole models), fsdp and tensor; None: all on fsdp
    coordinator: str | None = None  # HOST:PORT of process 0, of several processes; None: as SLURM or MPI says, or alone
    processes: int | None = None  # how many there are
    process_id: int | None = None  # which of them this is, from 0
    # data
    dataset: str = "sudoku"  # a folder in data/, your own folder or file (JSONL, JSON, txt, Parquet), or ORG/NAME
    prompt_key: str | None = None  # which column of its rows is the prompt; None: it is known by its name
    completion_key: str | None = None  # the completion
    answer_key: str | None = None  # the answer that rewards compare with
    tests_key: str | None = None  # the tests that a program has to pass
    language_key: str | None = None  # the language that it is written in
    difficulty_key: str | None = None  # how hard the row is, for difficulty and curriculum
    limit: float | None = None  # train on so many rows at most, below 1 on this share of them; None: on all
    num_epochs: float | None = None  # go over the train rows so many times, in place of max_iters
    max_prompt_len: int = 20  # tokens; prompts are padded on the left to this
    max_new_tokens: int = 20  # tokens; completions are filled with end-of-text to this
    chat_template: str | None = None  # what prompts are put into; chatml is that of Dream and Qwen, own the tokenizer's
    system_prompt: str | None = None  # what the template begins with; None: what is usual there
    instruction: str | None = None  # said before every prompt, in the same turn; or around it, as in "{prompt} Think."
    difficulty: tuple[float, ...] = ()  # (lowest, highest): rows of other difficulties are left out
    curriculum: tuple[tuple[int, float], ...] = ()  # ((step, hardest difficulty allowed from then on), ...)
    # optimizer
    batch_size: int = 32  # rows a step; of grpo, prompts a rollout
    gradient_accumulation_steps: int = 1  # micro-batches that a batch is cut into
    learning_rate: float = 1e-3  # the highest, at the end of the warm-up
    lr_schedule: str = "cosine"  # cosine or constant, after the warm-up
    warmup_iters: int = 20  # steps in which the rate climbs to learning_rate
    lr_end: float = 0.1  # where the cosine ends, as a share of learning_rate
    beta1: float = 0.9  # Adam's memory of the gradient
    beta2: float = 0.99  # Adam's memory of its square
    adam_eps: float = 1e-8  # keeps Adam's quotient finite
    weight_decay: float = 0.1  # not on norms, biases and embeddings
    grad_clip: float | None = 1.0  # global norm; None: no clipping
    ema_decay: float | None = None  # average the weights; evaluation and the saved model then use the average
    # LoRA: a frozen base, which is also the reference of grpo, and small matrices beside its own that are trained
    lora_rank: int | None = None  # the width of these; None: no LoRA, everything is trained
    lora_alpha: float = 16.0  # what they add counts alpha / rank times
    lora_targets: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")  # beside which matrices
    # diffusion
    paired: bool = False  # two complementary half-masks of half as many rows: less variance at the same cost
    loss_norm: str = "token"  # token: a mean over tokens (pre-training); completion: over rows, each by its own length
    # sampling: of rollouts (whose log-probs grpo takes under the same filter) and at evaluations
    diffusion_steps: int = 16  # forward passes that fill a completion; of a block_causal model, each of its blocks
    order: str = "confidence"  # which hole first: random, confidence, margin, entropy, left, sampled
    rule: str = "quota"  # how many a step: quota, dream, threshold, factor, entropy, dynamic
    block_len: int | None = None  # fill blocks of this length from left to right; None: everything at once
    cache: str = "none"  # what is outside of a block is computed once for it: none, prefix, dual; see behaviour_gap
    threshold: float = 0.9  # of rule threshold: whatever is at least this probable, and the best
    factor: float = 1.0  # of rule factor: n of them, if the last is at least 1 - factor / (n + 1) probable
    budget: float = 0.1  # of rule entropy: while the sum of entropies, less the largest, is within this (nats)
    tempered: bool = False  # order and rule look at probabilities after temperature, top_k, top_p; False: before
    temperature: float = 1.0  # of rollouts and of the sampled pass rate; the greedy one is always measured too
    top_k: int | None = None  # draw from the k most probable tokens; None: from all
    top_p: float | None = None  # draw from the most probable tokens that reach this probability; None: from all
    repetition_penalty: float = 1.0  # above 1: tokens that a row already has become less likely
    # rewards
    rewards: tuple[str, ...] = ()  # names, path.py:function, length(target=40); the first decides at evaluations
    reward_weights: tuple[float, ...] = ()  # one for each reward; empty: all 1
    reward_timeout: float = 1.0  # CPU seconds per program
    reward_workers: int | None = None  # programs at a time; None: six per core, at most 64
    sandbox_unsafe: tuple[str, ...] = ()  # what you accept not to be contained on this machine, see judges/sandbox.py
    reward_clip: float | None = None  # each reward is cut to at most this far from 0
    diversity_bonus: float = 0.0  # weight of how much a completion differs from those of its group
    judge_from: str | None = None  # the judge behind the reward `judge`: a folder or a config file, as for init_from
    # grpo: rollouts
    group_size: int = 8  # completions of each prompt, which are compared with each other
    rollout_steps: int | None = None  # forward passes of a rollout; None: diffusion_steps, as at evaluations
    rollout_chunk: int | None = None  # completions generated, held-out rows filled at a time, at most; None: all
    early_end: bool = False  # of rollouts: all before its end is filled, so a row is done; evaluations never go on
    updates_per_rollout: int = 1  # passes over the completions, each with masks of its own
    keep_completions: int | None = None  # update on so many at most, with the largest advantages; None: on all
    minibatch_size: int | None = None  # completions an update, at most; None: all that are kept
    mask_truncated: bool = False  # leave completions without an end of text out of the loss
    score_after_end: bool = False  # what was drawn after its end is in the loss, too: only then trace has no bias
    dynamic_sampling: int = 0  # draw groups that agree with themselves again, at most that many times
    fill_in: bool = False  # prompts are the rows' own completions with holes
    mask_ratio_min: float = 0.2  # of fill_in: the smallest share of tokens that are holes; of coupled: the lowest t
    mask_ratio_max: float = 0.8  # the largest
    # grpo: log-probabilities
    logp_est: str = "trace"  # how, see diffusion.py; of a causal model exact
    logp_views: int = 4  # masked copies of a completion, where the estimator leaves their number open
    logp_chunk: int | None = None  # masked copies computed at a time; None: all
    logp_scale: float = 1.0  # a factor; 2/3 makes the weights of coupled sum to 1
    random_masking: bool = True  # new masks in every pass; False: stale ones, as a known bug has it
    p_mask_prompt: float = 0.0  # of one_step: the probability that a token of the prompt is masked, too
    # grpo: advantages and loss, see grpo.py
    adv_baseline: str = "mean"  # of the group: mean, or loo, the mean of the others
    adv_norm: str = "group"  # divide by the standard deviation of the group, the batch, or none
    adv_eps: float = 1e-4  # is added to that
    adv_negative: float = 1.0  # weight of negative advantages; 0: learn only from what beats its group
    reward_norm: str = "sum"  # several rewards: sum them up and normalize, or normalize each first
    ratio_level: str = "token"  # compare with the policy that wrote it each token, the sequence, or none
    loss_type: str = "dapo"  # how tokens are clipped and averaged, as a paper has it
    aggregation: str | None = None  # average them otherwise than loss_type
    clip_low: float = 0.2  # ratios below 1 - clip_low do not fall any more
    clip_high: float = 0.2  # ratios above 1 + clip_high do not rise any more
    clip_cap: float | None = None  # dual clip: with a negative advantage no ratio counts as more
    cispo_cap: float = 5.0  # of cispo: no ratio weighs more
    spg_mix: float = 0.5  # of spg: the share of the upper bound where a completion should become less likely
    spg_power: float = 1.5  # of spg: its power mean
    entropy_coef: float = 0.0  # weight of a bonus for uncertain predictions
    kl_beta: float = 0.0  # weight of the KL to the reference; 0: there is no reference
    kl_est: str = "k3"  # how it is estimated
    kl_in_reward: bool = False  # subtract it from the rewards instead of adding it to the loss
    ref_from: str | None = None  # the reference: a folder or a config file; None: what the policy starts from
    ref_mode: str = "static"  # the reference stays, follows (ema) or is renewed (periodic)
    ref_decay: float = 0.99  # of ema: the weight of the old reference
    ref_sync_interval: int = 64  # of periodic: iterations between renewals
    ref_sync_mix: float = 1.0  # of periodic: the weight of the policy in the new reference
    ref_offload: bool = False  # keep the reference in host memory while it is not used
    # judge
    judge_rows: int = 8192  # train rows that pairs are made of
    judge_temperatures: tuple[float, ...] = (0.5, 1.0, 1.5)  # at which the generator writes the worse half of a pair
    model: ModelConfig = ModelConfig()

    def __new__(cls, *_, **keys):
        if strange := [name for name in keys if name not in cls.__dataclass_fields__]:
            raise ValueError("; ".join(map(unknown_in_python, strange)))
        return super().__new__(cls)

    def __post_init__(self):
        check_types(self)
        if self.kl_est == "k1":
            raise ValueError("kl_est='k1' in the loss has a gradient that is 0 on average: it would penalize nothing. "
                             "Use k2, whose gradient is that of the reverse KL, or k3")
        for key, allowed in CHOICES.items():
            if getattr(self, key) not in allowed:
                raise ValueError(f"{key}={getattr(self, key)!r}: one of {', '.join(map(str, allowed))}")
        for key, (holds, expected) in RANGES.items():
            if getattr(self, key) is not None and not holds(getattr(self, key)):
                raise ValueError(f"{key}={getattr(self, key)!r} must be {expected}")
        for wrong, message in between_keys(self):
            if wrong:
                raise ValueError(message)


# What a dict of functions offers is said by that dict; of order and rule by sample.Plan.
CHOICES = {
    "objective": ("pretrain", "judge", "grpo"), "lr_schedule": ("cosine", "constant"),
    "loss_norm": ("token", "completion"), "adv_baseline": ("mean", "loo"), "adv_norm": ("group", "batch", "none"),
    "reward_norm": ("sum", "each"), "ratio_level": ("token", "sequence", "none"), "logp_est": diffusion.ESTIMATORS,
    "loss_type": grpo.LOSSES, "aggregation": {None: None} | grpo.AGGREGATIONS, "kl_est": grpo.KLS,
    "ref_mode": ("static", "ema", "periodic"), "chat_template": data.CHAT,
}  # fmt: skip
AT_LEAST = {
    0: "warmup_iters weight_decay log_samples max_prompt_len temperature dynamic_sampling kl_beta adv_eps "
       "diversity_bonus entropy_coef adv_negative",
    1: "max_iters log_interval eval_interval eval_size save_interval keep_checkpoints max_new_tokens batch_size "
       "gradient_accumulation_steps diffusion_steps reward_workers judge_rows eval_samples rollout_chunk rollout_steps "
       "keep_completions updates_per_rollout minibatch_size logp_views logp_chunk ref_sync_interval lora_rank "
       "block_len",
}  # fmt: skip
ABOVE_0 = ("learning_rate adam_eps grad_clip reward_timeout reward_clip logp_scale spg_power cispo_cap clip_high "
           "lora_alpha limit num_epochs")  # fmt: skip
RANGES = {  # key: what holds of it, in words; of None, anything. What a sampler can do is checked by sample.Plan
    **{key: (lambda v, n=n: v >= n, f"at least {n}") for n, keys in AT_LEAST.items() for key in keys.split()},
    **dict.fromkeys(ABOVE_0.split(), (lambda v: v > 0, "above 0")),
    **dict.fromkeys(("beta1", "beta2", "ema_decay", "stop_at"), (lambda v: 0 <= v < 1, "at least 0 and below 1")),
    **dict.fromkeys(("lr_end", "p_mask_prompt", "ref_decay", "ref_sync_mix", "spg_mix", "clip_low"),
                    (lambda v: 0 <= v <= 1, "from 0 to 1")),
    **dict.fromkeys(("mask_ratio_min", "mask_ratio_max"), (lambda v: 0 < v <= 1, "above 0 and at most 1")),
    "clip_cap": (lambda v: v > 1, "above 1"),
    "group_size": (lambda v: v >= 2, "at least 2: a completion is compared with the others of its group"),
    "pass_at": (lambda v: v > 0, "above 0: a completion that earns nothing would pass"),
    "seed": (lambda v: 0 <= v < 2**32, "at least 0 and below 2**32"),
    "out_dir": (bool, "the name of a folder"),
    **dict.fromkeys(("judge_from", "ref_from"), (bool, "None, a folder or a config file")),
    "init_from": (lambda v: v not in ("", "resume", "scratch"),
                  "None, a folder or a config file; what continues the run in out_dir is --resume=True"),
}


def n_views(c):
    """How many masked copies of a completion grpo scores."""
    return {"one_step": 1, "coupled": 3, "coupled_elbo": 2 * c.logp_views, "exact": 1}.get(c.logp_est, c.logp_views)


def kept(c):
    """How many completions of a rollout grpo updates on."""
    return min(c.keep_completions or c.batch_size * c.group_size, c.batch_size * c.group_size)


def minibatch(c):
    """How many completions an update of grpo takes."""
    return min(c.minibatch_size or kept(c), kept(c))


def updates_per_iter(c):
    """How often the optimizer steps in an iteration of the loop."""
    return c.updates_per_rollout * kept(c) // minibatch(c) if c.objective == "grpo" else 1


def tokens_per_iter(c):
    """How many tokens an iteration looks at: whole rows, padding included, of GRPO each completion with its prompt."""
    rows = {"grpo": c.batch_size * c.group_size, "judge": 2 * c.batch_size}.get(c.objective, c.batch_size)
    return rows * (c.max_prompt_len + c.max_new_tokens)


def rollout_rows(c):
    """How many completions grpo generates at a time: rollout_chunk at most, in parts that are as equal as whole groups
    can be."""
    prompts, most = c.batch_size, c.rollout_chunk or c.batch_size * c.group_size
    if most < c.group_size:
        return most
    parts = -(-prompts // (most // c.group_size))
    return -(-prompts // parts) * c.group_size


def eval_rows(c):
    """How many held-out texts an evaluation scores at a time: what fits as a part of a batch fits here, too."""
    return c.rollout_chunk or max(c.batch_size // c.gradient_accumulation_steps, 1)


def between_keys(c):
    """-> (is it wrong, what to say then) of everything that has to hold between keys."""
    deciding, named, known = c.rewards + c.eval_rewards, c.lora_targets, Config.lora_targets
    yield from (
        (not named or len(set(named)) < len(named) or not set(named) <= set(known),
         f"lora_targets={named}: expected one or more of {', '.join(known)}, each once"),
        (named != known and not (c.lora_rank or c.eval_only),
         f"lora_targets={named} changes nothing without lora_rank, the width of the adapters: set that, or leave "
         "lora_targets out"),
        (c.objective != "grpo" and c.batch_size % c.gradient_accumulation_steps,
         f"batch_size={c.batch_size} must be divisible by gradient_accumulation_steps={c.gradient_accumulation_steps}: "
         f"--gradient_accumulation_steps={math.gcd(c.batch_size, c.gradient_accumulation_steps)} works"),
        (c.paired and c.batch_size % 2,
         f"paired=True sees every row twice: batch_size={c.batch_size} must be even"),
        (c.judge_from and not {"judge", "coherence"} & {*deciding},
         f"judge_from={c.judge_from!r} is for the reward judge or coherence, but rewards are "
         f"{', '.join(deciding) or 'none'}"),
        (c.base and not (c.init_from or "").endswith(".py"),
         f"base={c.base} is for the config file in init_from, now {c.init_from!r}"),
        (c.difficulty and (len(c.difficulty) != 2 or c.difficulty[0] > c.difficulty[1]),
         f"difficulty={c.difficulty}: two numbers, the lowest and the highest, as in 1,3"),
        (c.curriculum and c.objective == "judge",
         f"curriculum={c.curriculum}: objective={c.objective!r} takes its rows in any order"),
        (c.reward_weights and len(c.reward_weights) != len(c.rewards),
         f"reward_weights={c.reward_weights} has {len(c.reward_weights)} numbers for {len(c.rewards)} rewards "
         f"{c.rewards}"),
        (c.adapt and (c.objective != "pretrain" or not c.init_from),
         "adapt=True turns the causal model in init_from into a denoiser by objective='pretrain', now "
         f"init_from={c.init_from!r}, objective={c.objective!r}"),
        (c.stop_at is not None and c.objective == "pretrain" and not c.rewards,
         f"stop_at={c.stop_at} needs rewards: the first of them decides what passes"),
    )  # fmt: skip
    yield from between_keys_of_lora(c) if c.lora_rank else ()
    yield from between_keys_of_grpo(c) if c.objective == "grpo" else ()
    yield (c.init_from and not (c.resume or c.eval_only) and same_place(c.init_from, c.out_dir),
           f"init_from={c.init_from!r} lies in out_dir={c.out_dir!r}, where this run writes: give it another out_dir")


def between_keys_of_lora(c):
    """The same for LoRA."""
    return (
        (c.adapt, f"adapt=True changes all weights, and lora_rank={c.lora_rank} leaves them as they are in init_from: "
         "make the denoiser first, then start from that"),
        (not (c.init_from or c.resume or c.eval_only),
         f"lora_rank={c.lora_rank} needs init_from: the folder of the base, or the config file that trains it"),
        (c.ref_mode != "static" or c.ref_offload or c.ref_from,
         f"ref_mode={c.ref_mode!r}, ref_offload={c.ref_offload}, ref_from={c.ref_from!r}: with lora_rank the reference "
         "is the base, which nothing changes and which is always in use: 'static', False and None"),
    )  # fmt: skip


IDLE = (  # keys of grpo, where they have an effect, and in words
    (("paired", "loss_norm"), lambda c: False, "objective='pretrain'"),
    (("p_mask_prompt",), lambda c: c.logp_est == "one_step", "logp_est='one_step'"),
    (("mask_ratio_min", "mask_ratio_max"), lambda c: c.fill_in or c.logp_est == "coupled",
     "fill_in=True or logp_est='coupled'"),
    (("clip_low", "clip_high", "clip_cap"), lambda c: c.ratio_level != "none",
     "a ratio: ratio_level='token' or 'sequence'"),
    (("ref_mode", "ref_from", "kl_in_reward"), lambda c: c.kl_beta, "kl_beta above 0: there is no reference without"),
)  # fmt: skip


def between_keys_of_grpo(c):
    """The same for grpo; and what would be taken silently and change nothing is refused."""
    completions = c.batch_size * c.group_size
    updated, size = kept(c), minibatch(c)
    view = n_views(c)
    micro = size // c.gradient_accumulation_steps
    where = f"batch_size={c.batch_size} x group_size={c.group_size} = {completions} completions"
    judged = "judge" in c.rewards + c.eval_rewards
    return (
        (not (c.init_from or c.resume or c.eval_only),
         "objective='grpo' needs init_from: a folder, or the config file that trains the model to start from"),
        (updated % size, f"minibatch_size={size} must divide "
         + (f"keep_completions={updated}" if updated < completions else where)
         + f": --minibatch_size={math.gcd(size, updated)} does"),
        (size % c.gradient_accumulation_steps,
         f"gradient_accumulation_steps={c.gradient_accumulation_steps} must divide the {size} completions an update: "
         f"--gradient_accumulation_steps={math.gcd(size, c.gradient_accumulation_steps)} does"),
        (c.logp_chunk and (micro * view % c.logp_chunk or updated * view % c.logp_chunk),
         f"logp_chunk={c.logp_chunk} must divide the {micro * view} masked copies of a micro-batch: "
         f"{micro} completions x {view} views"),
        (c.mask_ratio_min > c.mask_ratio_max,
         f"mask_ratio_min={c.mask_ratio_min} must be at most mask_ratio_max={c.mask_ratio_max}"),
        (c.logp_est == "coupled" and c.mask_ratio_max == 1,
         "logp_est='coupled' divides by 1 - t: mask_ratio_max must be below 1"),
        (c.fill_in and c.mask_truncated,
         "mask_truncated=True with fill_in=True would leave out everything: the holes do not include an end of text"),
        (c.clip_cap is not None and c.clip_cap <= 1 + c.clip_high,
         f"clip_cap={c.clip_cap} is for ratios that are clipped nowhere else: it must be above 1 + clip_high = "
         f"{1 + c.clip_high:g}"),
        (c.early_end and c.score_after_end,
         "early_end=True draws nothing behind an end of text, and score_after_end=True trains on that: leave one out"),
        (c.temperature == 0 or c.top_k == 1,
         f"temperature={c.temperature}, top_k={c.top_k}: all completions of a group would be the same; use 1.0 and "
         "None"),
        (c.kl_in_reward and c.reward_norm == "each",
         "kl_in_reward=True with reward_norm='each' would give every KL the same size, whatever kl_beta says"),
        (c.loss_type == "spg" and (c.logp_est != "elbo" or c.kl_beta),
         f"loss_type='spg' is a bound made of the views of logp_est='elbo' (now {c.logp_est!r}), with kl_beta=0 (now "
         f"{c.kl_beta})"),
        (c.loss_type in ("wd1", "spg") and c.ratio_level != "none",
         f"loss_type={c.loss_type!r} has no ratio: set ratio_level='none' (now {c.ratio_level!r})"),
        (judged and not c.judge_from,
         "the reward 'judge' needs judge_from: the folder of a judge, or the config file that trains one"),
        *((getattr(c, key) != getattr(Config, key) and not works(c),
           f"{key}={getattr(c, key)!r} changes nothing here, it is for {where}; leave it out or set "
           f"{key}={getattr(Config, key)!r}") for keys, works, where in IDLE for key in keys),
    )  # fmt: skip


def of_shape(c, shape):
    """A run, the ModelConfig of what it starts from -> the run with this model, computed as the run says."""
    return dataclasses.replace(c, model=dataclasses.replace(shape, dtype=c.model.dtype, remat=c.model.remat))


def check_start(c, shape, where):
    """Does what a run asks of its model hold for the one that it starts from?"""
    for f in dataclasses.fields(shape):
        asked, there = getattr(c.model, f.name), getattr(shape, f.name)
        if f.name not in ("dtype", "remat") and asked not in (f.default, there):
            raise ValueError(f"{f.name}={asked}, but the model {where} has {f.name}={there}")
    if shape.causal:
        asked = {"order": "left", "cache": "none", "score_after_end": False}  # what follows an end was never drawn
        asked |= {"logp_est": "exact"} if c.objective == "grpo" else {"paired": False}
        for key, value in asked.items():
            if getattr(c, key) != value:
                raise ValueError(f"{key}={getattr(c, key)!r}: a causal model reads from left to right and needs "
                                 f"{key}={value!r}")  # fmt: skip
    elif c.objective == "grpo" and c.logp_est == "exact":
        raise ValueError(f"logp_est='exact', but the model {where} is no causal one: it sees the tokens it should "
                         "predict, so take trace, coupled, elbo, ...")  # fmt: skip
    if shape.block_causal and shape.block_causal % min(c.block_len or shape.block_causal, shape.block_causal):
        raise ValueError(f"block_len={c.block_len}: the model {where} has blocks of {shape.block_causal}, which are "
                         "filled in parts of a length that divides it, or at once: None")  # fmt: skip
    texts, parts = c.batch_size // 2, c.gradient_accumulation_steps
    if shape.block_causal and c.paired and texts % parts:
        raise ValueError(f"paired=True has {texts} texts in batch_size={c.batch_size}, and a block model reads a text "
                         f"with both of its noisy copies: gradient_accumulation_steps={parts} must divide {texts}; "
                         f"--gradient_accumulation_steps={math.gcd(texts, parts)} does")  # fmt: skip
    if shape.block_causal and c.objective == "grpo" and c.repetition_penalty != 1:
        raise ValueError(f"repetition_penalty={c.repetition_penalty}: grpo scores all blocks of a block_causal model "
                         "at once, and each was drawn with other tokens there: 1.0")  # fmt: skip


def same_place(path, folder):
    """Whether a path is a folder or lies in it."""
    return f"{os.path.abspath(path)}/".startswith(f"{os.path.abspath(folder)}/")


# ---- types -----------------------------------------------------------------------------------------------------------

def check_types(cfg):
    """Every field of a dataclass has the type that its annotation says (an int will do for a float)."""
    for name, kind in typing.get_type_hints(type(cfg)).items():
        value = getattr(cfg, name)
        if not fits(value, kind):
            raise ValueError(f"{name}={value!r}: expected {describe(kind)}, got {type(value).__name__}")


def fits(value, kind):
    """Whether a value is what an annotation says."""
    if isinstance(kind, types.UnionType):
        return any(fits(value, k) for k in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)
        inner = inner[:1] * len(value) if inner[-1] is Ellipsis and isinstance(value, tuple) else inner
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(fits, value, inner))
    if kind is float:  # neither inf nor nan, nor a whole number that no float holds
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return type(value) is kind or (dataclasses.is_dataclass(kind) and isinstance(value, kind))


def describe(kind):
    """An annotation in words."""
    if isinstance(kind, types.UnionType):
        return " or ".join(describe(k) for k in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        shell, file = {str: ("a,b", "('a', 'b')"), float: ("1,2", "(1, 2)"),
                       int: ("1,8,1", "(1, 8, 1)")}.get(inner, ["((0, 1), (500, 2))"] * 2)  # fmt: skip
        return f"a tuple, as in {shell} on the command line or {file} in a file"
    return {int: "a whole number", float: "a finite number", bool: "True or False", str: "text",
            type(None): "None"}.get(kind, getattr(kind, "__name__", str(kind)))  # fmt: skip


def parse(name, text, kind):
    """The value that `--name=text` stands for, of the annotated type, or a ValueError that says what was expected."""
    for value in readings(text, typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)):
        if fits(value, kind):
            return value
    raise ValueError(f"--{name}={text}: expected {describe(kind)}")


def readings(text, kinds):
    """What a text may mean, the likeliest first: text as it is (--wandb_run_name=7 is a name), else Python."""
    if type(None) in kinds and text == "None":
        yield None
    if str in kinds:
        yield text
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of "\d" and the like
            value = frozen(ast.literal_eval(text.strip()))
        yield value
        yield (value,)  # a single name, number or pair where several are possible
    yield tuple(part for part in terminal.parts(text) if part)


def frozen(value):
    """Lists within lists -> tuples within tuples."""
    return tuple(map(frozen, value)) if isinstance(value, (list, tuple)) else value


# ---- keys ------------------------------------------------------------------------------------------------------------

def flatten(cfg, prefix=""):
    """{"max_iters": 1000, ..., "model.n_layer": 4, ...}"""
    out = {}
    for f in dataclasses.fields(cfg):
        v = getattr(cfg, f.name)
        out |= flatten(v, f"{prefix}{f.name}.") if dataclasses.is_dataclass(v) else {prefix + f.name: v}
    return out


@functools.cache
def elsewhere():
    """Read config/elsewhere.txt -> [(a name in other programs, "=" or "-", our key or why there is none)]."""
    with open(os.path.join(os.path.dirname(__file__), "elsewhere.txt")) as file:
        return [line.split(maxsplit=2) for line in file.read().splitlines() if line.strip() and line[0] != "#"]


def unknown(name, known):
    """Say in one sentence that a key does not exist, and which one means the same here or is spelled almost so."""
    said = f"unknown config key {name!r}"
    for theirs, sign, answer in elsewhere():
        if fnmatch.fnmatchcase(name, theirs):
            return f"{said}: " + ("here it is " if sign == "=" else "there is no such thing here: ") + answer
    names = {k.split(".")[-1]: k for k in known} | {k: k for k in known}
    near = difflib.get_close_matches(name, names, 1, 0.7)
    return said + (f", did you mean {names[near[0]]!r}?" if near else "; see --help=all")


def unknown_in_python(name):
    """The same for a keyword of Config(...)."""
    if name in ModelConfig.__dataclass_fields__:
        return f"{name} is a key of the model: model=ModelConfig({name}=...), or model=replace(base.model, {name}=...)"
    return unknown(name, flatten(Config()))


def refuse_unknown(names, known):
    """Raise a ValueError that answers every name that is no key."""
    if strange := [name for name in names if not {name, f"model.{name}"} & known.keys() and name[:5] != "base."]:
        raise ValueError("; ".join(unknown(name, known) for name in strange))


def override(cfg, args):
    """A copy of cfg with {name: text} set, all at once. Model keys need no prefix: n_layer is model.n_layer. Those for
    the config file behind init_from begin with base., and what they say of its model holds for what starts from it."""
    known, of_run, of_model = flatten(cfg), {}, {}
    behind = {name.removeprefix("base."): text for name, text in args.items() if name.startswith("base.")}
    if behind:
        others = tuple(key for key in cfg.base if key.partition("=")[0] not in behind)
        of_run["base"] = others + tuple(f"{name}={text}" for name, text in behind.items())
        args = {name: text for name, text in behind.items() if f"model.{name}" in known.keys() - args.keys()} | args
    refuse_unknown(args, known)
    for name, text in args.items():
        if name.startswith("base."):
            continue
        name = f"model.{name}" if name not in known else name
        leaf = name.removeprefix("model.")
        cls, to = (ModelConfig, of_model) if leaf != name else (Config, of_run)
        if leaf in to:
            raise ValueError(f"--{leaf} is given twice")
        to[leaf] = parse(leaf, text, typing.get_type_hints(cls)[leaf])
    return dataclasses.replace(cfg, **of_run, model=dataclasses.replace(cfg.model, **of_model))


def define(path):
    """All that a config file defines, its `config` checked, or a ValueError that says what is wrong with the file."""
    asked = path
    path = next(filter(os.path.isfile, (placed(p) for p in (path, f"{path}.py", f"config/{path}.py"))), None)
    if path is None:
        here = os.path.dirname(os.path.abspath(__file__))
        there = sorted(f[:-3] for f in os.listdir(here) if f.endswith(".py") and f != "__init__.py")
        near = difflib.get_close_matches(os.path.basename(asked).removesuffix(".py"), there, 1)
        raise ValueError(f"no config file {asked!r}" + (f" (did you mean config/{near[0]}.py?)" if near else "")
                         + f"; as config/NAME.py there are {', '.join(there)}")
    try:
        defined = runpy.run_path(path)
        if "tiny" in defined:
            dataclasses.replace(defined["config"], **defined["tiny"])
    except Exception as e:  # whatever a file of the user's raises is said in one line, with its place in the file
        key = re.search(r"unexpected keyword argument '(\w+)'", str(e))  # of ModelConfig, as dataclasses say it
        what = unknown(key[1], flatten(Config())) if key else str(e)
        kind = "" if key or isinstance(e, (ValueError, ImportError, SyntaxError)) else f"{type(e).__name__}: "
        lines = [f.lineno for f in traceback.extract_tb(e.__traceback__) if f.filename == path]
        raise ValueError(f"{path}{f', line {lines[-1]}' if lines else ''}: {kind}{what}") from None
    found = defined.get("config")
    if not isinstance(found, Config):
        raise ValueError(f"{path} defines no `config = Config(...)`, but config = {found!r}")
    check_types(found.model)
    return defined


def read(path):
    """The `config` that a config file defines."""
    return at_home(define(path)["config"])


def placed(path):
    """A path as a person gives it -> one that can be opened: ~ is their home, and what is not in the working folder but
    comes with this program, or is made by its data/, is found there."""
    path = os.path.expanduser(path)
    ours = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), path)
    there = lambda path: os.path.exists(path) or os.path.exists(os.path.join(os.path.dirname(path), "prepare.py"))
    return ours if not there(path) and there(ours) else path


def at_home(cfg):
    """Config -> the same, its paths `placed`. Where it writes is always in the working folder."""
    given = {key: getattr(cfg, key) for key in ("init_from", "judge_from", "ref_from", "dataset") if getattr(cfg, key)}
    own = lambda name: re.sub(r"^(.*?\.py)(?=:)", lambda path: placed(path[0]), name)
    return dataclasses.replace(
        cfg, out_dir=os.path.expanduser(cfg.out_dir), **{key: placed(path) for key, path in given.items()},
        rewards=tuple(map(own, cfg.rewards)), eval_rewards=tuple(map(own, cfg.eval_rewards)))  # fmt: skip


def sized(path, defined, asked):
    """The config of a recipe at --model=tiny or --model=small."""
    if asked not in ("tiny", "small"):
        raise ValueError(f"--model={asked}: only tiny and small are names; to start from another model, write "
                         "--init_from=FOLDER")  # fmt: skip
    if asked not in defined:
        why = ("has only --model=tiny" if "tiny" in defined else
               "is no recipe for a model that has to be downloaded: it needs nothing but its own command")  # fmt: skip
        raise ValueError(f"--model={asked}: {path} {why}")
    return dataclasses.replace(defined["config"], **defined[asked])


def check_downloads(file, defined, cfg):
    """Is everything there that a recipe does not bring along?"""
    lacking = [f"{path} ({source})" for key, source in defined.get("downloads", {}).items()
               if (path := getattr(cfg, key)) == getattr(defined["config"], key) and not os.path.exists(placed(path))]
    if lacking:
        raise ValueError(f"{file} needs {' and '.join(lacking)}, which you have to download to that place, or to "
                         "name as ORG/NAME to have it fetched; with --model=tiny it can be tried without")


def base_of(cfg):
    """The Config of the run that cfg starts from; None where that is no config file. With keys of its own, it writes
    beside cfg, unless these say where."""
    if not (cfg.init_from or "").endswith(".py"):
        return None
    keys = dict(key.split("=", 1) if "=" in key else (key, "") for key in cfg.base)
    if len(keys) < len(cfg.base):
        raise ValueError(f"base={cfg.base} has a key twice")
    return at_home(override(read(cfg.init_from), {"out_dir": f"{cfg.out_dir}_base"} | keys if keys else {}))


def lineage(cfg):
    """A run, the run of the config file that it starts from, and so on: all can be read, none writes into another, and
    each is of a model that the next can start from."""
    chain = [cfg]
    while base := base_of(chain[-1]):
        if any(same_place(base.out_dir, run.out_dir) for run in chain):
            raise ValueError(f"init_from={chain[-1].init_from!r} writes into {base.out_dir!r}, where the run that "
                             "starts from it writes, too: give that another out_dir")
        chain.append(base)
    if not chain[-1].init_from and not any(run.adapt for run in chain):  # made from scratch: its shape is known now
        for run in chain[:-1]:
            check_start(run, chain[-1].model, f"of {run.init_from}")
    if cfg.judge_from and cfg.judge_from.endswith(".py") and read(cfg.judge_from).objective != "judge":
        raise ValueError(f"judge_from={cfg.judge_from!r} trains no judge: its objective is "
                         f"{read(cfg.judge_from).objective!r}")
    return chain


def arguments(argv):
    """Sort the words of a command line -> config files, {key: text}. Keys of other programs are answered first."""
    known = flatten(Config()) | {"model": None}
    files, args, bare, words = [], {}, [], list(argv)
    while words:
        word = words.pop(0)
        name, equals, text = word[2:].partition("=")
        if word[:2] != "--" and (word[:1] == "-" or "=" in word and not word.endswith(".py")):
            raise ValueError(f"{word}: write it as --{word.lstrip('-')}")
        if not word.startswith("--"):
            files.append(word)
            continue
        if not equals:
            follows = bool(words) and words[0][:2] != "--" and not words[0].endswith(".py")
            value = "True" if type(known.get(name)) is bool else words[0] if follows else "value"
            del words[:follows]
            bare.append(f"{word}: write it as {word}={value}")
        elif name in args:
            raise ValueError(f"--{name} is given twice")
        args[name] = text
    refuse_unknown(args, known)
    if bare:
        raise ValueError(bare[0])
    return files, args


def load(argv, planned=False):
    """The arguments of `python train.py FILE [--key=value ...]` -> Config. planned: what it does not bring along need
    not be there, and its model has the shape that its file knows."""
    files, args = arguments(argv)
    if len(files) != 1:
        raise ValueError("usage: python train.py config/NAME.py [--key=value ...], with one config file, got "
                         + (" and ".join(map(repr, files)) or "none"))  # fmt: skip
    defined, asked = define(files[0]), args.pop("model", None)
    cfg = override(defined["config"] if asked is None else sized(files[0], defined, asked), args)
    if not planned:
        check_downloads(files[0], defined, cfg)
    elif "shape" in defined and cfg.init_from == defined["config"].init_from:
        cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, **defined["shape"]))
    return lineage(at_home(cfg))[0]


# What a first run may want to change; every other key has its default or what a recipe says.
FIRST = ("objective out_dir init_from resume seed max_iters eval_interval eval_size dataset max_prompt_len "
         "max_new_tokens batch_size learning_rate diffusion_steps temperature lora_rank rewards group_size kl_beta "
         "n_layer d_model").split()  # fmt: skip


def help_text(everything=False):
    """The keys of FIRST, or every key, with its default and the comment beside it, in sections."""
    sections = []
    for cls, prefix in ((Config, ""), (ModelConfig, "model.")):
        for line in inspect.getsource(cls).splitlines():
            if section := re.fullmatch(r"    # (.+)|    model: .*", line):
                sections.append([section[1] or "model (a model key needs no prefix)"])
            elif key := re.fullmatch(r"    (\w+): [^=]+ = (.+?)(?:  # (.*))?", line):
                offered = CHOICES[key[1]] if isinstance(CHOICES.get(key[1]), dict) else ()  # others are in the comment
                said = f"  {key[3]}" + (f": {', '.join(map(str, offered))}" if offered else "")
                if everything or key[1] in FIRST:
                    sections[-1].append(f"  --{prefix}{key[1]}={key[2]}".ljust(42) + said)
    more = [] if everything else ["", f"these are the {len(FIRST)} keys of a first run; --help=all prints them all"]
    return "\n".join(["usage: python train.py config/NAME.py [--key=value ...]",
                      "--model=tiny tries a recipe for somebody else's model on a random one, --model=small on one "
                      "that is trained first, in minutes",
                      "--plan=8xH100 says what a run would take on such devices, which need not be there",
                      *(line for lines in sections if lines[1:] for line in ["", *lines]), *more])  # fmt: skip
