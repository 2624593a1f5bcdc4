"""
Say why a run fails, or may be failing: no device, a loss that is not finite, a full disk, a reward that raises
or cannot read its rows.
"""

import errno
import os
import shutil

from checkpoints import checkpoint
from config import is_inside


def without_device(e):
    """Say that JAX finds no device -> the error to raise. e: what JAX raised."""
    why = str(e).strip().splitlines() or ["there is none"]
    return ValueError(f"JAX finds no device as JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')} asks for ({why[0]}): "
                      "unset it to run on what there is, or install jax for your GPU")


def not_finite(step, values, last, cfg):
    """Say which metrics, `values`, are not finite, and what may help -> the error to raise. last: the metrics of the
    step before, or None."""
    kept = checkpoint.steps(cfg.out_dir)
    return ValueError(
        f"step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}. The last finite step was "
        + (f"{last['step']}: loss {last['loss']:.4f}, gradient norm {last['grad_norm']:.3g}. "
           if last and "loss" in last else "none. ")
        + (f"The checkpoint before it is kept: {cfg.out_dir}/step-{kept[-1]:06d}. " if kept else "None was saved yet. ")
        + f"Try a lower learning_rate (now {cfg.learning_rate}), more warmup_iters (now {cfg.warmup_iters}), "
        + f"a smaller grad_clip (now {cfg.grad_clip})" + (", dtype=float32" if cfg.model.dtype != "float32" else "")
    )  # fmt: skip


def of_the_disk(e, out_dir):
    """Say where an OSError in out_dir left the run -> the error to raise, which names the last whole checkpoint; an
    error of elsewhere as it is. A half written checkpoint is deleted."""
    file = str(e.filename)
    if e.errno == errno.ENOENT or not (is_inside(file, out_dir) or is_inside(out_dir, file)):
        return e
    shutil.rmtree(os.path.join(out_dir, checkpoint.WRITING), ignore_errors=True)
    cure = "make room" if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "mend that"
    advice = f"no checkpoint was whole yet; {cure} and start again"
    if steps := checkpoint.steps(out_dir):
        advice = f"{checkpoint.checkpoint_folder(out_dir, steps[-1])} is whole; {cure} and go on with --resume=True"
    return ValueError(f"{os.strerror(e.errno or 0)} at {file}: {advice}")


def of_first_row(name, fn, error, dataset, what):
    """Say that a reward cannot score the first row of val, of which `what` shows its texts -> the error to raise."""
    needs = (fn.__doc__ or "").split(". ")[0].split("\n\n")[0]
    meaning = f" ({' '.join(needs.split())})" if needs else ""
    return ValueError(
        f"{dataset}/val: the reward {name!r}{meaning} cannot score its first row, {what}: "
        f"{error.__cause__ or error}. If these rows are of another task than the recipe's, name rewards that fit them, "
        "for example --rewards=exact (python rewards.py --help lists them); else mend the row"
    )


def save_and_explain(run, state, best, where, error):
    """Save the run when a reward fails, if it has taken a step and trains -> the error to raise, which says where it
    failed and how to go on."""
    if not state.step or run.cfg.eval_only:
        return ValueError(f"{where}: {error}")
    checkpoint.save_run(run.cfg, state, run.tok, best, finished=False)
    return ValueError(f"{where}: {error}. Saved {run.cfg.out_dir}/step-{state.step:06d}; mend it and continue with "
                      "--resume=True")  # fmt: skip


def collapse(name, means, group_size):
    """Warn of a metric that looks like a collapse, and say when that is likely to be false. means: see
    rollout_log.looks_collapsed."""
    best, last = means.max(), means[-1]
    if name == "reward":
        return (f"the reward has fallen from {best:.3g} to {last:.3g}. Try a lower learning_rate. Likely to be false "
                "if few completions earn anything, if the prompts became harder, or if the reward always goes up and "
                "down")  # fmt: skip
    if name == "entropy":
        return (f"the entropy is {last:.2g} nats per token, so the policy tries nothing new. Try a lower "
                "learning_rate or a higher temperature. Likely to be false if most completions are right")  # fmt: skip
    different = last * group_size
    return (f"the {group_size} completions of a prompt are on average {different:.3g} different texts, so there is "
            "little to compare. Try a higher temperature. Likely to be false if answers are short, or if most "
            "completions are right")  # fmt: skip
