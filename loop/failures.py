"""
Say why a run fails: no device, a loss that is not finite, a full disk, a reward that raises or cannot read its rows.
"""

import errno
import math
import os
import shutil

from checkpoints import checkpoint
from config import is_inside
from system import unknown


def without_device(e):
    """Say that JAX finds no device -> the error to raise. e: what JAX raised."""
    why = str(e).strip().splitlines() or ["there is none"]
    return ValueError(f"JAX finds no device as JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')} asks for ({why[0]}): "
                      "unset it to run on what there is, or install jax for your GPU")


def not_finite(step, values, last, cfg, is_first):
    """Say which metrics, `values`, are not finite, and what may help -> the error to raise. last: the metrics of the
    step before, or None. is_first: True if nothing was updated before."""
    what = f"step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}. "
    if is_first:
        names = ", ".join(name for name, value in values.items() if not math.isfinite(value))
        return ValueError(f"{what}This was the first update, so the reason is no learning rate. Not finite: {names}. "
                          "Look at the starting model, and at what is your own: loss, estimator, credit, views")
    if last and "loss" in last:
        what += (f"The last finite step was {last['step']}: loss {last['loss']:.4f}, gradient norm "
                 f"{last['grad_norm']:.3g}. ")  # fmt: skip
    if kept := checkpoint.steps(cfg.out_dir):
        what += f"The checkpoint before it is kept: {cfg.out_dir}/step-{kept[-1]:06d}. "
    return ValueError(f"{what}Try a lower learning_rate (now {cfg.learning_rate}), more warmup_iters, a smaller "
                      "grad_clip" + (", dtype=float32" if cfg.model.dtype != "float32" else ""))  # fmt: skip


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
    message = f"{where}: {unknown.explain(error)}"
    if not state.step or run.cfg.eval_only:
        return ValueError(message)
    checkpoint.save_run(run.cfg, state, run.tok, best, finished=False)
    return ValueError(f"{message}. Saved {run.cfg.out_dir}/step-{state.step:06d}; mend it and continue with "
                      "--resume=True")  # fmt: skip
