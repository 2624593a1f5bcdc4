"""
Which method learns most from the same number of forward passes?  python tests/bench.py compare, ladder or arms

All three start runs of train.py, one on each core, and skip those that are finished already. So they can be stopped
at any time and go on where they were, and --show prints what there is without starting anything. The results of the
runs behind docs/estimators.md are in tests/compare.jsonl and count as finished, as long as their command is the same;
--record adds yours, --fresh leaves them out.

`compare` has seven estimators (`exact` needs an autoregressive model) on three tasks, from bases of
three strengths, with many seeds, and summarizes them as rliable does (2108.13264): the interquartile mean, and its 95%
interval over seeds drawn again and again within each task and base. `ladder` begins with a paper's settings and takes
over ours one after the other. `arms` takes the rung apart on which negative advantages go.
"""

import hashlib
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

import config
from checkpoints import checkpoint
from loop import runs

# ---- the methods -----------------------------------------------------------------------------------------------------

BOTH = "--adv_negative=1.0 --adv_norm=none --learning_rate=1e-4"
# Name: the flags, and the forward passes that one scoring of a completion takes.
METHODS = {
    "one_step": ("--logp_est=one_step", 1),
    "coupled": ("--logp_est=coupled", 3),
    "elbo": ("--logp_est=elbo --logp_views=4", 4),
    "coupled_elbo": ("--logp_est=coupled_elbo --logp_views=2", 4),
    "quadrature": ("--logp_est=quadrature --logp_views=4", 4),
    "strata": ("--logp_est=strata --logp_views=4", 4),
    "trace": ("--logp_est=trace --logp_views=4", 4),
    "trace_both_signs": (f"{BOTH} --logp_est=trace --logp_views=4", 4),
}

# ---- the tasks -------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    model: str  # flags of its size
    base: str  # flags of the training of its base
    prompts: int  # of which as many completions are kept, those that are furthest above the average of their group
    updates: int  # on them
    rate: float


# The model of sudoku has a sixth of the size of that in config/sudoku_d1_base.py.
TASKS = {
    "sudoku": Task("--d_model=64 --n_layer=3", "--learning_rate=2e-3", 64, 4, 3e-4),
    "countdown": Task("--d_model=128 --n_layer=4", "", 128, 2, 5e-4),
    "arith": Task("--d_model=128 --n_layer=4", "", 128, 4, 3e-4),
}
STRENGTHS = 10, 30, 60  # percent of samples that are right at the start
RECIPES = {"sudoku": "sudoku_d1"}  # where a task has another name in config/
POSITIVE = "--adv_negative=0.0 --warmup_iters=5"
COMPARED = (
    "--group_size=4 --lr_schedule=constant --ema_decay=0.95 --save_interval=10000 --eval_size=256 "
    "--rule=quota --order=confidence"
)
BUDGET = 150_000  # forward passes of a completion that each run gets: a dearer estimator has fewer iterations


def recipe(task, stage):
    """Return the config file of a task. stage: base or grpo"""
    return f"config/{RECIPES.get(task, task)}_{stage}.py"


def iterations(budget, prompts, group, kept, updates, steps, views, reading=0):
    """Count the iterations that a budget of forward passes is good for.

    An iteration fills `group` completions of each prompt in `steps` passes each. Every update scores the kept ones with
    `views` passes each (also the first, which would not need it), and has a gradient that costs 3 times as much.
    reading: further passes over each kept one."""
    return max(1, round(budget / (prompts * group * steps + kept * (updates * (1 + 3) * views + reading))))


# ---- runs ------------------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """A run of train.py."""

    out: str  # its folder
    command: str  # the config file and the flags


def finished(out):
    """Tell whether a run of train.py was run to its end. A damaged one is named, and counts as not finished."""
    if not (steps := checkpoint.steps(out)):
        return False
    try:
        run = checkpoint.read_run(checkpoint.find(out))
    except ValueError as e:
        tqdm.write(f"{e}; here it is run again", file=sys.stderr)
        return False
    if run.get("finished") and run["config"]["objective"] == "grpo":  # whose metrics are the result
        rows = runs.read_lines(f"{out}/metrics.jsonl")
        if not rows or rows[-1]["step"] != steps[-1]:
            tqdm.write(f"{out}/metrics.jsonl lacks rows up to step {steps[-1]}: it is run again", file=sys.stderr)
            return False
    return bool(run.get("finished"))


def merged(file, *flags):
    """Write the command of train.py with these flags; of a flag that is given twice, the last counts."""
    latest = dict(flag.split("=", 1) for flag in " ".join(flags).split())
    return " ".join([file, *(f"{key}={value}" for key, value in latest.items())])


def run_all(jobs, options):
    """Run the jobs that are not finished, one on each core (small models use one well and two badly)."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None] * (os.cpu_count() or 1)
    free = list(cores[:1] if options.toy else cores)
    kept = recorded(options)

    def run(job):
        if record_key(job, options) in kept or finished(job.out):
            return
        core = free.pop()
        if core is not None:
            os.sched_setaffinity(0, {core})  # of this thread, and so of what it starts
        command = [sys.executable, "train.py", *job.command.split(), f"--out_dir={job.out}"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        free.append(core)
        if done.returncode:
            raise ValueError(f"python {' '.join(command[1:])}\n{done.stderr[-2000:]}")

    if not options.show:
        with ThreadPoolExecutor(len(free)) as pool:
            list(tqdm(pool.map(run, jobs), total=len(jobs), unit="run"))


class Result(NamedTuple):
    """Held-out accuracy of a run, in percent."""

    before: np.ndarray  # (2,) greedy, sampled
    after: np.ndarray  # (2,)
    reward: float  # mean over the rollouts of the last fifth of the run


RECORD = "tests/compare.jsonl"  # a line for each run: its name, a digest of its command, and its Result


NAMES_THEN = {  # what flags were called when results were kept
    "save_interval=10000": "save_interval=10000 --log_samples=0",
    "moving_reference=False": "ref_mode=static --ref_sync_interval=64 --ref_sync_mix=1.0",
    "moving_reference.mode": "ref_mode",
    "moving_reference.interval": "ref_sync_interval",
    "moving_reference.mix": "ref_sync_mix",
    "masked_prompt=False": "p_mask_prompt=0.0",
    "masked_prompt.share": "p_mask_prompt",
}


def record_key(job, options):
    """Return what a result is found by: the name of the run, and a digest of its command, whatever --out is."""
    # What is sudoku_d1 in config/ was sudoku when most results were kept.
    command = job.command.replace(f"={options.out}/", "=out/").replace("config/sudoku_d1_", "config/sudoku_")
    for now, then in NAMES_THEN.items():
        command = command.replace(f"--{now}", f"--{then}")
    return os.path.basename(job.out), hashlib.sha256(command.encode()).hexdigest()[:12]


def read_record():
    """Read all results that are kept -> {(name, digest): Result}."""
    if not os.path.exists(RECORD):
        return {}
    with open(RECORD, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return {
        (row["run"], row["command"]): Result(np.array(row["before"]), np.array(row["after"]), row["reward"])
        for row in rows
    }


def recorded(options):
    """Return the kept results that count as finished runs: none with --fresh, or in a toy run."""
    return {} if options.fresh or options.toy else read_record()


def results_of(jobs, options):
    """Read what is there of these jobs {key: Job} -> {key: Result}. With --record, new ones are kept."""
    kept, found = recorded(options), {}
    for key, job in jobs.items():
        if reached := kept.get(record_key(job, options)) or result(job):
            found[key] = reached
    if options.record and not options.toy:
        add_to_record({record_key(jobs[key], options): reached for key, reached in found.items()})
    return found


def add_to_record(results):
    """Keep those of the results {(name, digest): Result} that are not kept yet."""
    kept = read_record()
    with open(RECORD, "a", encoding="utf-8") as f:
        for (name, digest), reached in results.items():
            if (name, digest) not in kept:
                before, after, reward = (np.round(x, 6).tolist() for x in reached)
                row = {"run": name, "command": digest, "before": before, "after": after, "reward": reward}
                f.write(json.dumps(row) + "\n")


def result(job):
    """Read what a finished run has reached; None: it is not finished."""
    if not finished(job.out):
        return None
    lines = runs.read_lines(f"{job.out}/metrics.jsonl")
    rows = [[100 * row[f"val/{how}"] for how in ("greedy", "sampled")] for row in lines if "val/greedy" in row]
    rewards = [row["reward"] for row in lines if row.get("reward") is not None]
    last = rewards[-max(1, len(rewards) // 5) :]
    return Result(np.array(rows[0]), np.array(rows[-1]), float(np.mean(last)) if last else np.nan)


# ---- statistics over tasks and seeds ---------------------------------------------------------------------------------


def draw_again(runs_of, rng):
    """Draw as many seeds of each task and base as there are, with repetition: [(n,) of each] -> such a list."""
    return [scores[rng.integers(len(scores), size=len(scores))] for scores in runs_of]


DRAWS = 2000  # of the bootstrap


def interquartile_mean(values):
    """Average over seeds without their lowest and highest quarter: (seeds, ...) -> (...). Of up to three: the mean."""
    cut = len(values) // 4
    return np.sort(values, 0)[cut : len(values) - cut].mean(0)


def interval(summary, runs_of, draws=DRAWS, seed=0):
    """Give the 95% interval of summary(rng) over `draws` bootstrap samples -> low, high; nan if some task and base in
    runs_of has one seed only, because that one says nothing about the others."""
    if min(map(len, runs_of)) < 2:
        return np.nan, np.nan
    rng = np.random.default_rng(seed)
    return np.percentile([summary(rng) for _ in range(draws)], (2.5, 97.5))


def mean_with_interval(runs_of):
    """Compute the interquartile mean of the runs of all tasks [(n,), ...], and its 95% interval -> mean, low, high."""
    low, high = interval(lambda rng: interquartile_mean(np.concatenate(draw_again(runs_of, rng))), runs_of)
    return interquartile_mean(np.concatenate(runs_of)), low, high


def chance_to_win(a, b):
    """Estimate the probability that a run of method a beats one of b: [(n,), ...] and [(m,), ...] of the same tasks.

    Ties count half; the mean over tasks and bases (the Mann-Whitney statistic)."""
    wins = [(x[:, None] > y).mean() + (x[:, None] == y).mean() / 2 for x, y in zip(a, b, strict=True)]
    return float(np.mean(wins))


def chance_with_interval(a, b):
    """Estimate the probability that a run of method a beats one of b, and its 95% interval -> chance, low, high."""
    low, high = interval(lambda rng: chance_to_win(draw_again(a, rng), draw_again(b, rng)), [*a, *b])
    return chance_to_win(a, b), low, high


# ---- compare ---------------------------------------------------------------------------------------------------------


def chosen(text, there):
    """Split the tasks of --tasks at commas; without them, all there are."""
    names = text.split(",") if text else list(there)
    if lacking := [name for name in names if name not in there]:
        raise ValueError(f"--tasks={text}: there is no {lacking[0]!r}, only {', '.join(there)}")
    return names


def base_job(task, strength, options):
    """Make the job that trains a base until `strength` percent of its samples are right."""
    kind = TASKS[task]
    short = "--max_iters=20 --eval_interval=20" if options.toy else f"--max_iters=8000 --stop_at={strength / 100}"
    command = merged(recipe(task, "base"), kind.model, kind.base, "--eval_size=256", short)
    return Job(f"{options.out}/{task}-{strength}-base", command)


def compare_jobs(options):
    """List the runs of the comparison -> {(task, strength, method, seed): Job}; seeds outermost, so that what is there
    after some hours is a fair table."""
    jobs = {}
    bases, methods = (STRENGTHS[1:2], ("one_step", "coupled_elbo")) if options.toy else (STRENGTHS, METHODS)
    cells = itertools.product(range(options.seeds), chosen(options.tasks, TASKS), bases, methods)
    for seed, task, strength, name in cells:
        first, kind, (flags, views) = config.read_file(recipe(task, "base")), TASKS[task], METHODS[name]
        steps, rows = first.diffusion_steps, kind.prompts
        n = 1 if options.toy else iterations(BUDGET, rows, 4, rows, kind.updates, steps, views)
        command = merged(
            recipe(task, "grpo"), COMPARED, kind.model, POSITIVE,
            f"--batch_size={rows} --keep_completions={rows} --updates_per_rollout={kind.updates}",
            f"--diffusion_steps={steps} --ratio_level=token --learning_rate={kind.rate} --seed={seed}",
            f"--init_from={base_job(task, strength, options).out} --max_iters={n} --eval_interval={n}",
            flags, options.flags,
        )  # fmt: skip
        jobs[task, strength, name, seed] = Job(f"{options.out}/{task}-{strength}-positive-{name}-{seed}", command)
    return jobs


def by_method(results):
    """Sort the gains of finished runs -> {method: [(n, 2) of each task and base]}. Tasks and bases without any run are
    left out, and then methods that lack one."""
    cells = sorted({key[:2] for key in results})
    found = {name: [gains_of(results, (*cell, name)) for cell in cells] for name in METHODS}
    return {name: gains for name, gains in found.items() if cells and all(map(len, gains))}


def gains_of(results, cell):
    """Return the points gained (n, 2), greedy and sampled, of the results whose keys begin with a cell."""
    return np.array([r.after - r.before for key, r in results.items() if key[: len(cell)] == cell])


def finish(jobs, options):
    """Run the jobs {key: Job} that are not finished, and say how many are there -> {key: Result}."""
    run_all(list(jobs.values()), options)
    results = results_of(jobs, options)
    print(f"{len(results)} of {len(jobs)} runs are there; the same command goes on")
    return results


def compare(options, table):
    """every estimator in GRPO at equal forward passes: three tasks, three bases, many seeds, with intervals"""
    jobs, kept = compare_jobs(options), recorded(options)
    unfinished = {key[:2] for key, job in jobs.items() if record_key(job, options) not in kept}
    run_all([base_job(*cell, options) for cell in sorted(unfinished)], options)
    results = finish(jobs, options)
    gains, cells = by_method(results), sorted({key[:2] for key in results})
    for cell in cells:
        before = [r.before for key, r in results.items() if key[:2] == cell]
        greedy, sampled = np.mean(before, 0)  # of one base, or of as many as the machines that trained them
        print(f"{cell[0]} from {greedy:.1f}% greedy, {sampled:.1f}% sampled: {len(before)} runs")
    for i, how in enumerate(("greedy", "sampled")):
        print(f"\n{how}: points gained, interquartile mean and 95% interval; chance to gain more than coupled_elbo\n")
        rows, reference = [], gains.get("coupled_elbo")
        for name, runs_of in gains.items():
            scores = [g[:, i] for g in runs_of]
            mean, low, high = mean_with_interval(scores)
            row = [sum(map(len, scores)), f"{mean:+.1f}", span(low, high, "+.1f"), "-"]
            if reference is not None and name != "coupled_elbo":
                chance, low, high = chance_with_interval(scores, [g[:, i] for g in reference])
                row[-1] = f"{chance:.2f} ({span(low, high, '.2f')})"
            rows.append([name, *row, *(f"{interquartile_mean(of_cell):+.1f}" for of_cell in scores)])
        heads = ["method", "runs", "mean", "95% interval", "beats coupled_elbo"]
        table([*heads, *(f"{task} {strength}%" for task, strength in cells)], METHODS, rows)
    if options.picture and gains:
        picture(gains, options.picture)


def span(low, high, form):
    """Write an interval with numbers in this format, or say what is missing for one."""
    return "one seed" if np.isnan(low) else f"{low:{form}} to {high:{form}}"


def require_matplotlib():
    """Raise a ValueError if matplotlib is not installed, before the runs that are to be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("--picture needs matplotlib, which is not installed: pip install matplotlib") from None


def picture(gains, path):
    """Draw the gains of all methods: a point is the interquartile mean, a bar its 95% interval."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 1.5 + 0.45 * len(gains)), sharey=True)
    for i, (axis, how) in enumerate(zip(axes, ("greedy", "sampled"), strict=True)):
        for row, runs_of in enumerate(gains.values()):
            mean, low, high = mean_with_interval([g[:, i] for g in runs_of])
            axis.plot([low, high], [row, row], color="#56b4e9", linewidth=6, solid_capstyle="butt")
            axis.plot(mean, row, "o", color="#0072b2", markersize=9)
        axis.axvline(0, color="#999999", linewidth=1)
        axis.set_yticks(range(len(gains)), list(gains), fontsize=13)
        axis.set_title(f"{how}: points gained", fontsize=14)
        axis.tick_params(labelsize=12)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    print(f"drawn in {path}")


# ---- ladder ----------------------------------------------------------------------------------------------------------

# Name: the recipe, whose settings at --model=small are the first rung.
PAPERS = {"d1": "llada_gsm8k_grpo", "DiffuCoder": "diffucoder_grpo", "ESPO": "dream_countdown_grpo"}
# The keys that each rung takes over from config/TASK_grpo.py, beside those of the rungs before it. Rollouts are ours on
# all of them (order, passes, temperature), so that all are evaluated alike.
RUNGS = {
    "as published": "",
    "no KL": "kl_beta kl_est moving_reference.mode moving_reference.interval moving_reference.mix",
    "our estimator": "logp_est logp_views masked_prompt.share mask_ratio_min mask_ratio_max",
    "our ratio, loss, updates": "ratio_level loss_type clip_low clip_high updates_per_rollout",
    "our prompts, groups": "batch_size group_size",
    "our advantages": "adv_baseline adv_norm",
    "only what beats its group": "adv_negative keep_completions",
    "our optimizer": "learning_rate lr_schedule lr_end warmup_iters beta1 beta2 weight_decay grad_clip ema_decay",
}
TRIED_RATES = 3e-5, 1e-4, 3e-4  # with the settings as published; the best one stays until the last rung
# For `arms`: the best rates of the papers. From the rung "our advantages" on, they are all that tells papers apart, but
# for details of the optimizer.
ARM_RATES = {
    "sudoku": {"d1": 3e-5, "DiffuCoder": 1e-4, "ESPO": 3e-4},
    "countdown": {"d1": 1e-4, "DiffuCoder": 3e-4},
}
LADDER_TASKS = {"sudoku": "--learning_rate=3e-4", "countdown": ""}  # what is ours there, for a model of that size


def ladder_job(task, paper, rung, rate, seed, options):
    """Make the job of one rung of the ladder from a paper's settings to ours.

    rate: the learning rate on all rungs but the last"""
    shape = TASKS[task].model
    flags = f"{shape} {LADDER_TASKS[task]}".replace("--", "").split()
    ours = config.override(config.read_file(recipe(task, "grpo")), dict(flag.split("=") for flag in flags))
    theirs = config.load([f"config/{PAPERS[paper]}.py", "--model=small", f"--learning_rate={rate}"])
    keys = [key for of_rung in RUNGS.values() for key in of_rung.split()]
    rungs = list(RUNGS)
    taken = [key for name in rungs[: rungs.index(rung) + 1] for key in RUNGS[name].split()]
    values = {}
    for key in keys:
        said = config.flatten(ours if key in taken else theirs)
        values |= {key: said[key]} if key in said else {key.partition(".")[0]: False}  # the variant is not used
    used = config.override(ours, {key: str(value) for key, value in values.items()})
    kept, updates, views = config.n_update(used), used.updates_per_rollout, config.n_views(used)
    by_reference = updates * views if used.kl_beta else 0
    n = 1 if options.toy else iterations(
        BUDGET, used.batch_size, used.group_size, kept, updates, used.diffusion_steps, views, by_reference
    )  # fmt: skip
    command = merged(
        recipe(task, "grpo"), shape, " ".join(f"--{key}={value}" for key, value in values.items()),
        f"--init_from={base_job(task, 30, options).out} --max_iters={n} --eval_interval={n} --eval_size=256",
        f"--save_interval=10000 --seed={seed}", options.flags,
    )  # fmt: skip
    name = rung.replace(",", "").replace(" ", "_")
    return Job(f"{options.out}/ladder-{task}-{paper}-{name}-{rate}-{seed}", command)


# The rung "only what beats its group" changes three things at once: the sign of the advantages that learn, how many
# completions are scored, and with it how many iterations the budget pays for. Each arm changes one of them alone. Name:
# are negative advantages kept, are all completions scored, and which rung has as many iterations.
ARMS = {
    "both signs, all scored, few": (True, True, "our advantages"),
    "both signs, all scored, many": (True, True, "only what beats its group"),
    "both signs, the largest scored, many": (True, False, "only what beats its group"),
    "only better, few": (False, False, "our advantages"),
    "only better, many": (False, False, "only what beats its group"),
}


def arm_job(task, paper, arm, rate, seed, options):
    """Make the job of one arm: the settings of the rung "only what beats its group", with what ARMS changes."""
    negative, everything, rung = ARMS[arm]
    job = ladder_job(task, paper, "only what beats its group", rate, seed, options)
    n = flag_of(ladder_job(task, paper, rung, rate, seed, options), "max_iters")
    flags = f"--max_iters={n} --eval_interval={n}" + " --adv_negative=1.0" * negative
    command = merged(*job.command.split(maxsplit=1), flags + " --keep_completions=None" * everything)
    return Job(f"{options.out}/arm-{task}-{paper}-{arm.replace(',', '').replace(' ', '_')}-{rate}-{seed}", command)


def flag_of(job, name):
    """Read the value of a flag from the command of a job."""
    return job.command.split(f"--{name}=")[1].split()[0]


def table_of_gains(head, names, cell, results, jobs, table):
    """Print the points gained with each of some settings, in a cell of the results {(*cell, name, seed): Result}."""
    rows = []
    for name in names:
        gains = gains_of(results, (*cell, name))
        if len(gains):
            n, each = flag_of(jobs[(*cell, name, 0)], "max_iters"), [f"{gain:+.1f}" for gain in gains[:, 1]]
            rows.append([name, n, *(f"{gain:+.1f}" for gain in gains.mean(0)), ", ".join(each)])
    table([head, "iterations", "greedy", "sampled", "sampled, each seed"], names, rows)


def arms(options, table):
    """the sign of the advantages that learn, the number of completions scored, and the iterations, one at a time"""
    tasks = chosen(options.tasks, LADDER_TASKS)
    cells = [(task, *each) for task in tasks for each in ARM_RATES[task].items()]
    jobs = {(task, rate, arm, seed): arm_job(task, paper, arm, rate, seed, options)
            for seed in range(options.seeds) for task, paper, rate in cells for arm in ARMS}  # fmt: skip
    run_all([base_job(task, 30, options) for task in tasks], options)
    results = finish(jobs, options)
    for task, rate in dict.fromkeys(key[:2] for key in results):
        before = next(r.before for key, r in results.items() if key[:2] == (task, rate))
        print(f"\n{task} at a rate of {rate:g}; before: {before[0]:.1f}% greedy, {before[1]:.1f}% sampled\n")
        table_of_gains("arm", ARMS, (task, rate), results, jobs, table)


def ladder(options, table):
    """from the settings of three papers to ours, one change after the other, at equal forward passes"""
    cells = list(itertools.product(chosen(options.tasks, LADDER_TASKS), PAPERS))
    tried = {(*cell, rate): ladder_job(*cell, "as published", rate, 0, options)
             for cell in cells for rate in TRIED_RATES}  # fmt: skip
    run_all([base_job(task, 30, options) for task, _ in cells[:: len(PAPERS)]], options)
    run_all(list(tried.values()), options)
    reached = {key: r.reward for key, r in results_of(tried, options).items()}
    best = {cell: max((rate for rate in TRIED_RATES if (*cell, rate) in reached), default=None,
                      key=lambda rate: reached[(*cell, rate)]) for cell in cells}  # fmt: skip
    jobs = {(*cell, rung, seed): ladder_job(*cell, rung, best[cell], seed, options)
            for seed in range(options.seeds) for cell in cells if best[cell] for rung in RUNGS}  # fmt: skip
    results = finish(jobs, options)
    for task, paper in dict.fromkeys(key[:2] for key in results):
        rewards = {rate: f"{reached[task, paper, rate]:.3f}" for rate in TRIED_RATES if (task, paper, rate) in reached}
        rates = ", ".join(f"{reward} at {rate:g}" for rate, reward in rewards.items())
        before = next(r.before for key, r in results.items() if key[:2] == (task, paper))
        print(f"\n{task}, from {paper} to ours; before: {before[0]:.1f}% greedy, {before[1]:.1f}% sampled. Reward of "
              f"rollouts at the end, as published: {rates}\n")  # fmt: skip
        table_of_gains("settings", RUNGS, (task, paper), results, jobs, table)
