"""
GRPO for masked diffusion language models, and the loop around it:  python train.py config/sudoku.py [--key=value ...]

`iteration` is the whole algorithm; its steps are in rl.py. Pretraining and judges run in the same loop: they differ in
where a batch comes from and in what the loss is, which a Task says. Step s derives its random numbers from the run's
seed and s, so any step can be run again alone, and a resumed run equals the unbroken one bit for bit. What wraps the
loop (locks, resuming, checks) is in loop/.
"""
from system import terminal

if __name__ == "__main__":
    terminal.launch_by_flag(
        {"-h": "loop.help", "--help": "loop.help", "--plan": "tools.plan", "--anatomy": "tools.anatomy"}
    )

import collections
import contextlib
import functools
import sys
import time

import jax

import config
import data
import grpo
import model
import rewards
import rl
from checkpoints import checkpoint
from data.texts import encode_split, eval_texts, prompt_sampler, rows_of_steps, texts_to_learn
from loop import evaluation, rollout_log, runs, setup
from rl import State, Task
from system import sharding

# ---- GRPO ------------------------------------------------------------------------------------------------------------


def iteration(policy, key, update, draw, reward_fns, cfg, tok, old_logp_of=None):
    """Run an iteration: write completions, judge and compare them, make the better ones likelier -> numbers to log.

    policy: the State before the updates; the first of them overwrites it. update(minibatch): take a step with the
    gradient of `rl.policy_loss`. draw: see data.texts.prompt_sampler. old_logp_of: see Task."""
    notes = collections.defaultdict(float)
    rollout_key, order_key = jax.random.split(key)
    write_key, view_key = jax.random.fold_in(rollout_key, 0), jax.random.fold_in(rollout_key, 1)
    prompts = draw(policy.step)
    # 1  Write G completions of each prompt.
    with rollout_log.timed(notes, "time/rollout"):
        r = jax.block_until_ready(rl.roll_out(policy.params, write_key, prompts, cfg))
    # 2  Judge them.
    with rollout_log.timed(notes, "time/reward"):
        found = rl.score_rollout(r, prompts.rows, reward_fns, cfg, tok)
    # 3  Compare them within each group, and choose those that learn.
    adv = grpo.advantages(found.rewards, **rewards.advantage_settings(found.rewards, cfg))
    notes |= rollout_log.describe(found, adv, cfg)
    if notes["skipped"]:  # all rewards of all completions are None
        return notes
    chosen = rl.select_completions(found, adv, cfg)
    notes["group"] = rollout_log.first_group(found, chosen, cfg, tok)
    # 4, 5  For each pass draw views (masked copies), cut minibatches, and add the log-probs that the loss needs.
    with rollout_log.timed(notes, "time/old_ref"):
        ready = jax.block_until_ready(rl.minibatches(policy, (view_key, order_key), chosen, cfg, old_logp_of))
    # 6, 7  Each minibatch is one update of the policy.
    for minibatch in ready:
        update(minibatch)
    return notes


def tune(cfg, tok, start) -> Task:
    """Make the task of GRPO on the prompts of the rows, or on masks in their completions."""
    train = encode_split(cfg, tok, "train", with_completions=cfg.fill_in)
    shown = eval_texts(cfg, tok, with_completions=cfg.fill_in)
    reward_fns, more = evaluation.reward_functions(cfg, tok, train.rows + shown.rows)
    draw = prompt_sampler(cfg, tok, train)

    def iterate(policy, key, update, old_logp_of=None):
        return iteration(policy, key, update, draw, reward_fns, cfg, tok, old_logp_of)

    def evaluate(state, key):
        return evaluation.pass_rates(cfg, tok, reward_fns, more, state.weights, key, shown)

    def init(key):
        return start

    return Task(init, iterate, functools.partial(rl.policy_loss, cfg=cfg), evaluate, len(train.rows), "val/sampled")


def pretrain(cfg, tok, start) -> Task:
    """Make the task of masked diffusion on completions (of a causal model: of next tokens), with or without prompts."""
    train, shown = texts_to_learn(cfg, tok), eval_texts(cfg, tok)
    fns, more, asked = evaluation.rewards_of_pretraining(cfg, tok, shown)
    noise = rl.noise(cfg)
    allowed = rows_of_steps(train.rows, cfg)

    def init(key):
        return start or model.init(key, cfg.model)

    def iterate(state, key, update):
        size, rows = cfg.batch_size // config.copies(cfg), allowed(state.step)
        update(noise(key, train.arrays(rows[data.batch_indices(len(rows), size, state.step, cfg.seed)])))
        return {}

    def evaluate(state, key):
        bounds = evaluation.bounds(state.weights, shown, cfg, tok)
        rates, samples = evaluation.pass_rates(cfg, tok, fns, more, state.weights, key, asked)
        return bounds | rates, samples

    best_metric = "val/sampled" if cfg.rewards or cfg.eval_rewards else None
    n = len(train.rows) * config.copies(cfg)  # a text may fill several rows of a batch
    return Task(init, iterate, rl.denoising_loss(cfg), evaluate, n, best_metric)


rl.OBJECTIVES |= {"pretrain": pretrain, "grpo": tune}

# ---- the loop --------------------------------------------------------------------------------------------------------


def advance(run, state):
    """Run one iteration -> State, the metrics of its updates (on the device), other numbers to log."""
    step, updates, start = state.step, [], state.params
    key = rl.step_key(run.key, rl.ITERATIONS, step)

    def update(minibatch):
        """Take a step of the optimizer."""
        nonlocal state
        *arrays, metrics = run.update(*state[1:4], step, minibatch, run.base)
        state = State(step, *arrays, state.reference)
        updates.append(metrics)

    def old_logp_of(minibatch):
        """Compute log p of a minibatch under the policy that wrote it, by the program that is differentiated: in 16
        bits another one rounds otherwise, and ratios of tokens that have not changed would not be 1."""
        _, _, logp = run.gradient(start, run.base, minibatch)
        return sharding.replicate(logp)

    more = {"old_logp_of": old_logp_of} if run.gradient else {}
    notes = run.task.iterate(rl.merged(state, run.base, run.cfg), key, update, **more)
    state = state._replace(step=step + 1)
    for section in run.cfg.use if state.reference is not None else ():
        state = state._replace(reference=section.reference(state, run.cfg))
    return state, updates, notes


def loop(run, state, best, done):
    """Iterate, evaluate and save up to the end -> the last State, the best evaluation."""
    cfg, bar, last, unread = run.cfg, runs.progress_bar(run.cfg, state), None, None
    best, done = evaluation.evaluate_if_lacking(run, state, best, done)
    with runs.StopRequested() as asked, bar:
        while not done:
            jax.block_until_ready(state.params if cfg.objective == "grpo" else ())  # not to be timed as rollout
            clock = time.perf_counter()
            try:
                state, updates, notes = advance(run, state)
            except ValueError as e:  # a reward fails before anything is updated
                rollout_log.read_metrics(unread, last, cfg)  # so that nothing broken is saved
                from loop import failures  # most runs load none of it

                raise failures.save_and_explain(run, state, best, f"step {state.step + 1}", e) from e
            # Read the metrics of the step before, while the device works on this one. (grpo reads its own below.)
            last = rollout_log.read_metrics(unread, last, cfg)
            unread = state.step, updates, notes
            intervals = cfg.log_interval, cfg.eval_interval, cfg.save_interval
            log, evaluates, saves = (state.step % n == 0 for n in intervals)
            done, logged = state.step >= cfg.max_iters, log or not updates
            leaving = asked.signal
            if cfg.objective == "grpo" or done or leaving or logged or evaluates or saves:
                last, unread = rollout_log.read_metrics(unread, last, cfg), None
                runs.write(run, state, last, time.perf_counter() - clock, logged)
                bar.set_postfix({k: f"{last[k]:.3f}" for k in ("reward", "loss") if k in last}, refresh=False)
            bar.set_description_str(refresh=False)  # nothing compiles any more
            bar.update(1)
            before = best
            if evaluates or done:
                values, best = evaluation.evaluate_and_log(run, state, best)
                done = done or evaluation.reaches_stop(run, values)
            if done or best is not before or saves or leaving:
                checkpoint.save_run(cfg, state, run.tok, best, finished=done)
            runs.leave_if_asked(run, state, done, leaving)
    return state, best


def train(cfg, rows=None, rewards=None):
    """Run cfg to its end (with eval_only: evaluate it) -> the last State, the folder of the run.

    From Python, rows (a list, or {"train": list, "val": list}) may replace the key dataset, and rewards (a function, a
    list, or {name: function}) the key rewards."""
    cfg = config.resolve_paths(cfg)
    with contextlib.ExitStack() as claims:
        claims.enter_context(sharding.use(cfg.mesh))
        if rows is not None or rewards is not None:
            from loop import in_memory  # a run from the command line has a data set and rewards with names

            cfg = claims.enter_context(in_memory.in_memory(cfg, rows, rewards))
        if not cfg.eval_only:
            claims.enter_context(runs.locked(cfg.out_dir))
        run, state, best, done = setup.setup(cfg, claims, train)
        setup.announce(run.cfg, state, run.base, done)
        if cfg.eval_only:
            evaluation.evaluate_and_log(run, state, best)
            return state, cfg.out_dir
        state, best = loop(run, state, best, done)
        said = runs.ending(run.cfg, best)
    print(f"done: {cfg.out_dir}/step-{state.step:06d}{said}")
    return state, cfg.out_dir


def main():
    with terminal.errors_explained():
        cfg = config.load(sys.argv[1:])
        runs.skip_autotuning(cfg)
        runs.prepare_process()
        train(cfg)


if __name__ == "__main__":
    terminal.run(main)
