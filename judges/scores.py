"""
From the completions of a run to what its rewards say of them, to advantages, and to the numbers and samples of a log.
"""
import contextlib
import dataclasses
import itertools
import json
import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import data
import disk
import grpo
import rewards
import sample
from data import texts
from judges import learned, rules
from machine import mesh, slots


@contextlib.contextmanager
def in_memory(cfg, rows, fns):
    """Give rows (a list, or {"train": list, "val"?: list}) and reward functions (one, a list, {name: fn}) of a Python
    program, either None, names that mean them as long as this lasts -> the Config that says these names."""
    known = {name: rewards.as_reward(f"reward {name!r}:", name, fn) for name, fn in named(fns).items()}
    rewards_before = dict(rewards.REWARDS)
    if rows is not None:
        splits = in_splits(rows)
        number = zlib.crc32(json.dumps(splits, default=repr).encode())  # other rows are another run
        name = f"{len(splits['train']) + len(splits['val'])} {data.IN_MEMORY}, {number:08x}"
        cfg, data.MEMORY[name] = dataclasses.replace(cfg, dataset=name), splits
    try:
        rewards.REWARDS.update(known)
        yield dataclasses.replace(cfg, rewards=cfg.rewards or tuple(known))
    finally:
        rewards.REWARDS.clear()
        rewards.REWARDS.update(rewards_before)
        if rows is not None:
            del data.MEMORY[name]


def in_splits(rows):
    """Rows of a Python program, an iterable or one for each split -> {"train": rows, "val": rows}."""
    given = rows if isinstance(rows, dict) else {"train": rows}
    try:
        splits = {split: list(next((given[name] for name in names if name in given), ()))
                  for split, names in data.SPLITS.items()}  # fmt: skip
    except TypeError:
        splits = {"train": []}
    if not splits["train"] or given.keys() - set(itertools.chain(*data.SPLITS.values())):
        raise ValueError(f"rows={data.shown(rows)}: expected a list of rows, at least one, or {{'train': rows, 'val': "
                         "rows}")  # fmt: skip
    if not splits["val"]:
        splits = {split: data.part(splits["train"], split, "the list of rows") for split in splits}
    return splits


def named(fns):
    """Reward functions as a Python program gives them, one, a list or {name: fn} -> {name: fn}."""
    if isinstance(fns, dict):
        return fns
    fns = fns if isinstance(fns, (list, tuple)) else [fns] if fns is not None else []
    if strange := [fn for fn in fns if not callable(fn)]:
        raise ValueError(f"rewards: {strange[0]!r} is no function; what has a name already is named in the config, "
                         "Config(rewards=('exact',))")  # fmt: skip
    by_name = {getattr(fn, "__name__", type(fn).__name__): fn for fn in fns}
    if len(by_name) < len(fns):
        raise ValueError("rewards: two functions have one name; give them as {name: function}")
    return by_name


def named_rewards(cfg, rows, **made):
    """-> {name: fn} of cfg.rewards, and of cfg.eval_rewards; `made` are those from models. Stops if one of them needs a
    column that no row has."""
    fns, more = rewards.resolve(cfg.rewards, **made), rewards.resolve(cfg.eval_rewards, **made)
    if twice := fns.keys() & more.keys():
        raise ValueError(f"{', '.join(twice)} in rewards and in eval_rewards: what is trained is evaluated anyway")
    columns = rewards.as_columns(rows) | {"groups": [], "token_ids": [], "max_length": []}
    for name, fn in (fns | more).items():
        rewards.arguments(name, fn, columns)
    return fns, more


def check_early(cfg):
    """What can be said of the rewards before a base or a judge is trained for them: that they and their columns are
    there."""
    if not cfg.rewards:
        raise ValueError("objective='grpo' needs rewards, for example rewards=('exact',); python rewards.py --help "
                         "lists them")  # fmt: skip
    later = lambda prompts, completions: []
    for split in ("train", "val"):
        rows = texts.read_rows(cfg, split)
        named_rewards(cfg, rows, judge=later, coherence=later)
        bare, marked = [row for row in rows if not row.get("completion")], sum("masked" in row for row in rows)
        if cfg.fill_in and 0 < marked < len(rows):
            raise ValueError(f"{cfg.dataset}/{split}: {marked} of {len(rows)} rows say in `masked` which tokens to "
                             "fill: all rows of a split should, or none")  # fmt: skip
        if cfg.fill_in and bare and not all("masked" in row for row in rows):
            raise ValueError(f"fill_in=True makes holes in completions, and {len(bare)} rows of {cfg.dataset}/{split} "
                             f"have none: {str(bare[0])[:80]}")  # fmt: skip


def reward_functions(cfg, tok, rows):
    """-> {name: fn} of cfg.rewards, and of cfg.eval_rewards, all checked against the columns of rows."""
    names = cfg.rewards + cfg.eval_rewards
    made = learned.load(cfg.judge_from, cfg.model.dtype) if cfg.judge_from else {}
    if cfg.judge_from and not set(made) & set(names):
        raise ValueError(
            f"judge_from={cfg.judge_from!r} makes the reward {'judge' if 'judge' in made else 'coherence'!r}"
            + (", and is not a judge: its head has not width 1" if "judge" not in made else "")
            + f", but rewards are {', '.join(names) or 'none'}"
        )
    if "coherence" in names and "coherence" not in made and cfg.init_from:
        made["coherence"] = learned.coherence(disk.load(cfg.init_from, cfg.model.dtype)[0], cfg.model, tok)
    fns, more = named_rewards(cfg, rows, **made)
    tested = {"tests", "tests_all", "tests_fenced", "performance"} & set(fns | more)
    if tested or {"syntax", "fenced"} & set(fns | more):
        box = rewards.sandbox(timeout=cfg.reward_timeout, workers=cfg.reward_workers, unsafe=cfg.sandbox_unsafe)
        try:  # refuse a machine without walls now
            box.run([("", ["assert True"], "")] if tested else [])
            strange = rewards.programs.check(rows) if tested else {}
        except (RuntimeError, ValueError) as e:
            raise ValueError(f"{cfg.dataset}: {e}") from None
        for language, count in strange.items():
            tqdm.write(f"{cfg.dataset}: no opinion on {count} rows in {language!r}, which tests are not run in")
    return fns, more


def score(fns, more, cfg, tok, rows, ids, each):
    """The ids of `each` completions of every row -> these as text, their total reward (B,), {name: (B,)}; what is in
    `more` is not in the total. Of several processes each scores its rows; models, which are split over all, all."""
    weights = (cfg.reward_weights or (1.0,) * len(fns)) + (0.0,) * len(more)
    many = [row for row in rows for _ in range(each)]
    columns = {"groups": np.repeat(np.arange(len(rows)), each).tolist(), "token_ids": ids,
               "max_length": [cfg.max_new_tokens] * len(many)}  # fmt: skip
    columns = rewards.as_columns(many) | columns
    prompts, completions = [row["prompt"] for row in many], [tok.decode(row) for row in ids]
    part = mesh.share(len(rows))
    part, fns = slice(part.start * each, part.stop * each), fns | more
    for name in fns.keys() & {"judge", "coherence"}:
        said = rewards.call_reward(name, fns[name], prompts, completions, columns)[part]
        fns |= {name: lambda completions, said=said: said}
    own = {name: column[part] for name, column in columns.items()}
    found = mesh.everyone(lambda: rewards.combine(fns, weights, prompts[part], completions[part], own, cfg.reward_clip))
    names = dict.fromkeys(name for _, parts in found for name in parts)  # nobody may have noted it of some rows
    joint = {k: np.concatenate([p[k] if k in p else np.zeros(len(total)) for total, p in found]) for k in names}
    return completions, np.concatenate([total for total, _ in found]), joint


def opinions(parts, cfg, fns):
    """{name: (B,)} -> (R, B) of the rewards `fns` that are trained; what weighs nothing has no opinion."""
    weights = cfg.reward_weights or (1.0,) * len(fns)
    return np.stack([np.where(w, parts[name], np.nan) for w, name in zip(weights, fns, strict=True)])


def weights_of(table, cfg):
    """Return the weights (R,) of a table of rewards (R, N, G), whose last row may be the diversity bonus."""
    weights = cfg.reward_weights or (1.0,) * len(cfg.rewards)
    return np.array([*weights, cfg.diversity_bonus][: len(table)])


def advantages(table, cfg, kl=None):
    """Compute advantages (N, G) from rewards (R, N, G) and from the KL (N, G) that is subtracted from them.

    The KL is subtracted after normalization: normalized with the rewards, a KL of any size would make advantages of
    about 1 in a group whose rewards are all equal.
    """
    table = jnp.asarray(table, jnp.float32)
    adv = grpo.advantages(
        table, weights_of(table, cfg), cfg.adv_baseline, cfg.adv_norm, cfg.adv_eps, cfg.reward_norm
    )
    if kl is None:
        return adv
    penalty = grpo.centred(jnp.asarray(kl), cfg.adv_baseline, "none", cfg.adv_eps)
    return adv - cfg.kl_beta * jnp.nan_to_num(penalty)


def spread(scored, cfg):
    """-> (N,): has a group anything to teach, the diversity bonus apart? Groups that agree have no advantages."""
    return np.asarray(advantages(scored.rewards[: len(cfg.rewards)], cfg) != 0).any(1)


def distinct(completions, n=3):
    """The share of the n-grams of words in all completions that are different: near 0 when they are all alike."""
    grams = [gram for text in completions for gram in rules.ngrams(text, n)]
    return len(set(grams)) / max(len(grams), 1)


def decisive(fns, more):
    """The reward that decides what passes: the first of eval_rewards, or else of rewards."""
    return next(iter(more or fns), None)


def meaning(cfg, fns, more):
    """What val/greedy and val/sampled are, in words."""
    name = decisive(fns, more)
    if cfg.pass_at is None:
        return f"val/greedy, val/sampled: the mean of {name}; with pass_at=1.0 the share of completions that earn 1"
    return f"val/greedy, val/sampled: the share of completions that earn {cfg.pass_at:g} or more from {name}"


def passing(each, cfg):
    """What a reward said, nan for no opinion -> the same, or with pass_at whether that passes."""
    if cfg.pass_at is None:
        return each
    return np.where(np.isnan(each), np.nan, each >= min(cfg.pass_at, cfg.reward_clip or math.inf))


def film(x, trace, length, cfg, tok):
    """Tokens (B, T), their trace -> [token, step, probability] of the first row, of so many tokens and its end."""
    parts = (np.asarray(a[0, cfg.max_prompt_len :]) for a in (x, trace["step"], trace["logp"]))
    shown = [[tok.decode([int(i)]) or "∎", int(at), round(math.exp(p), 4)] for i, at, p in zip(*parts, strict=True)]
    return shown[: length + 1]


def pass_rates(cfg, tok, fns, more, params, key, text):
    """Fills the holes of a Text: once greedily, and eval_samples times at the run's temperature -> metrics, samples.

    Rates are means, over prompts, of what the decisive reward says; of 0 and 1 that is how many pass. With pass_at it
    says 1 from there on (or from what reward_clip leaves of it), else 0. What it has no opinion on is left out."""
    out, arrays, judge_of_all, n_rows = {}, text.take(slice(None)), decisive(fns, more), len(text.rows)
    k = cfg.eval_samples or (4 if cfg.objective == "grpo" else 1)

    def answers(key, temperature):  # the tokens of every row, and how they came about
        size = cfg.rollout_chunk or n_rows
        return slots.fill(params, sample.row_keys(key, n_rows), arrays, cfg, sample.plan(cfg, temperature), size)

    samples = [{"prompt": row["prompt"]} for row in text.rows]
    for name, temperature, n in (("greedy", 0.0, 1), ("sampled", cfg.temperature, k)):
        made = [answers(jax.random.fold_in(key, i), temperature) for i in range(n)]
        each = [texts.written(x, tok, cfg) for x, _ in made]
        if name == "greedy":
            samples[0]["film"] = film(*made[0], len(each[0][0]), cfg, tok)
        ids = [row for group in zip(*each, strict=True) for row in group]  # those of one prompt in a row
        completions, total, parts = score(fns, more, cfg, tok, text.rows, ids, n)
        for i, s in enumerate(samples):
            s[name] = completions[i] if n == 1 else completions[i * n : (i + 1) * n]
        if not judge_of_all:
            continue
        each = passing(parts[judge_of_all].reshape(-1, n), cfg)
        each = each[~np.isnan(each).all(1)]
        of_prompts = np.nanmean(each, 1) if len(each) else np.array([np.nan])
        out[f"val/{name}"] = float(of_prompts.mean())
        if len(each) > 1:
            out[f"val/{name}_se"] = float(of_prompts.std(ddof=1) / len(each) ** 0.5)  # the standard error
        if fns:
            out[f"val/{name}_reward"] = rewards.mean(total)
        if len(fns | more) > 1:
            out |= {f"val/{name}/{part}": rewards.mean(parts[part]) for part in fns | more}
        if n > 1 and fns:
            adv = np.asarray(advantages(opinions(parts, cfg, fns).reshape(len(fns), -1, n), cfg))
            for s, r, a in zip(samples, total.reshape(-1, n).tolist(), adv.tolist(), strict=True):
                s |= {"rewards": r, "advantages": [round(x, 4) for x in a]}
        if n > 1:
            out[f"val/pass@{n}"] = float(np.nanmax(each, 1).mean()) if len(each) else math.nan
            out["val/distinct_3"] = distinct(completions)
        if not len(each):
            tqdm.write(f"{cfg.dataset}/val: {judge_of_all} has no opinion on any of the {len(ids)} {name} completions")
    for s, row in zip(samples, text.rows, strict=True):  # what rewards.py needs to score them
        reference = {name: row["completion"] for name in ("reference", "answer") if "completion" in row}
        s["columns"] = reference | {k: v for k, v in row.items() if k not in ("prompt", "completion")}
    return out, samples


def describe(found, adv, cfg, tok):
    """What an iteration logs beside the loss: of the rewards, the advantages (N, G), and the completions."""
    r, each, G = found.rollout, found.rewards, cfg.group_size
    total = np.where(np.isnan(each).all(0), np.nan, np.nansum(weights_of(each, cfg)[:, None, None] * each, 0))
    if found.kl is not None:
        total = total - cfg.kl_beta * found.kl
    known, (_, inside, n) = total[~np.isnan(total)], grpo.moments(total, 1)
    ends, drawn = (np.asarray(a) for a in (r.hole & (r.x == tok.eos_id), r.hole))
    length = (drawn & (ends.cumsum(1) - ends == 0)).sum(1)
    ends = cfg.fill_in | ends.any(1)  # holes in a text: its end is given
    groups = [found.completions[i : i + G] for i in range(0, len(length), G)]
    first = next(iter(found.parts.values()))
    rate = cfg.pass_at is not None or not ((first < 0) | (first > 1)).any()  # else its mean is no share of anything
    return {
        "reward": rewards.mean(total), "reward_std": rewards.mean(np.where(n > 1, inside, np.nan)),  # of one: no spread
        **{f"reward/{how}": float(getattr(known, how)()) if len(known) else math.nan for how in ("std", "min", "max")},
        "frac_reward_zero_std": float(np.mean(~spread(found, cfg))),
        **({"pass_rate": rewards.mean(passing(first, cfg))} if rate else {}),
        "adv/mean": float(adv.mean()), "adv/std": float(adv.std()),
        "unique_completions": float(np.mean([len(set(g)) / G for g in groups])),
        "completions/terminated_frac": float(ends.mean()), "completions/clipped_ratio": float(1 - ends.mean()),
        "steps_per_token": float(r.n_steps) / max(length.mean(), 1), "skipped": float(not len(known)),
    } | {
        f"completions/{stat}_{kind}length": float(getattr(some, stat)()) for stat in ("mean", "min", "max")
        for kind, some in (("", length), ("terminated_", length[ends])) if len(some)
    } | rewards.summary(found.parts)  # fmt: skip


def first_group(found, adv, cfg, tok):
    """Scored, its advantages (N, G) -> the first prompt and all that was made of it, for rollouts.jsonl."""
    G, row, r = cfg.group_size, {"prompt": found.rows[0]["prompt"]}, found.rollout
    if cfg.fill_in:  # the text with its holes
        ids, asked = texts.written(r.x[:1], tok, cfg)[0], np.asarray(r.hole[0, cfg.max_prompt_len :]).tolist()
        parts = itertools.groupby(zip(ids, asked, strict=False), lambda pair: pair[1])
        row["masked"] = "".join("<|mask|>" * len([*some]) if hole else tok.decode([i for i, _ in some])
                                for hole, some in parts)  # fmt: skip
    scores = {name: part[:G].tolist() for name, part in found.parts.items() if "/" not in name}
    return row | {"completions": found.completions[:G], "rewards": scores, "advantages": adv[0].tolist()}
