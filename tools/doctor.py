"""
`python sample.py FOLDER --explain`: say how a folder is read, and test that on a text.

Whether a model is shifted, who sees whom and which token is the mask are facts about its weights. A folder can state
them wrongly, and then everything runs and is a little or very wrong. So a text that every Python carries is read in
several ways, with the same tokens masked, and the way with the lowest cross-entropy is what the weights were trained
for. Half of the texts are masked so that seeing more than in training hurts, the other half so that it helps:

    all is masked to the right of the masks      a reading that sees too much meets masks it was not trained on
    the text goes on to the right of the masks   a reading that sees too little lacks that text

An alternative counts if it is better, or worse, by more than three standard errors of the paired difference.
"""

if __name__ == "__main__":
    raise SystemExit("error: type python sample.py OUT_DIR --explain")


import codecs
import contextlib
import dataclasses
import functools
import io

import jax
import jax.numpy as jnp
import numpy as np

import data
import diffusion
import model
from checkpoints import checkpoint, huggingface
from system import sections

WIDTH = 80  # tokens per text
FEWEST = 112  # tokens of the whole text
GROUP = 4  # columns: the scored masks of a text are one group, which lies in one block in every reading
BLOCKS = 4, 8, 16, 32
MOST_MASKS = 16  # candidates for the mask that are tried
AGREES, CONTRADICTED, UNDECIDED = 0, 1, 3  # exit codes; 2 is that of a mistake on the command line


def zen():
    """Return the Zen of Python, the same in every version; importing it prints it."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return codecs.decode(this.s, "rot13")


# ---- readings: a reading is a ModelConfig ----------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="cfg")
def token_loss(params, x, z, cfg):
    """Compute -log p of the tokens x (R, T) from z (R, T) with masks."""
    h = model.hidden(params, z, cfg)
    everywhere = jnp.ones(x.shape, bool)
    return -diffusion.read_logits(params, h, cfg, diffusion.gather_logp, everywhere, (x,))


def mean_and_error(values, counts):
    """Return the mean of the values (R, T) that count (R, T), and its standard error over rows."""
    n, sums = counts.sum(1), np.where(counts, values, 0).sum(1)
    mean = sums.sum() / n.sum()
    return mean, np.sqrt(((sums - mean * n) ** 2).sum()) / n.sum()


def is_sure(margin):
    """True if a margin (mean, standard error) is above 0 by more than noise."""
    mean, error = margin
    return mean > max(3 * error, 0.005)


class Reader:
    """Compute the losses of a model on R texts of T tokens with masks, under readings, each once."""

    def __init__(self, params, ids, masks):
        """masks: candidates for the mask. Where one, an ordinary token, stands in the text, no reading is scored,
        because a model never predicts its mask."""
        self.params, self.known = params, {}
        starts = np.linspace(0, len(ids) - WIDTH, len(ids) // 4).astype(int)  # more would score the same places again
        self.x = np.lib.stride_tricks.sliding_window_view(np.array(ids, np.int32), WIDTH)[starts]
        self.by_frequency = -np.log(np.bincount(self.x.ravel())[self.x] / self.x.size)  # -log of how frequent x is
        row, column = np.indices(self.x.shape)
        # Half of the groups end where blocks of all lengths do: only a bidirectional model sees what is right of them.
        begin = np.where(row % 4 < 2, max(BLOCKS) - GROUP, 16 + row // 4 * GROUP % 60)
        nothing_right = row % 2 == 1
        group = (column >= begin) & (column < begin + GROUP)
        self.masked = group | (column >= begin) & nothing_right
        self.scored = group & ~np.isin(self.x, masks)
        self.first = self.scored & nothing_right & (column == begin)
        self.later = self.scored & nothing_right & (column > begin)

    def losses(self, cfg):
        """Return -log p (R, T) of the tokens. A causal model reads the text without masks."""
        if cfg not in self.known:
            z = self.x if cfg.causal else np.where(self.masked, np.int32(cfg.mask_id), self.x)
            self.known[cfg] = np.asarray(token_loss(self.params, self.x, z, cfg))
        return self.known[cfg]

    def loss(self, cfg):
        """Return the mean loss of a reading in nats per masked token."""
        return self.losses(cfg)[self.first if cfg.causal else self.scored].mean()

    def margin(self, cfg, other):
        """Return by how much `other` is worse than cfg, in nats per masked token, and the standard error.

        If one is causal, only those masks count that have nothing but text to their left and masks to their right:
        there the other reading sees no more than the causal one."""
        counts = self.first if cfg.causal or other.causal else self.scored
        return mean_and_error(self.losses(other) - self.losses(cfg), counts)

    def fills_masks(self, cfg):
        """Return by how much a denoiser beats the frequencies of the text's tokens at masks behind another mask (nats
        per token), and the standard error.

        At the first mask an autoregressive model and a shifted denoiser are alike. Behind it the former has to read a
        token that it was never trained on."""
        return mean_and_error(self.by_frequency - self.losses(cfg), self.later)


def nearby(cfg, options):
    """List the readings that differ from cfg in one field at most. options {field: values}"""
    changes = [{field: value} for field, values in options.items() for value in values]
    changes = [{"blocks": False} if change == {"blocks.block": None} else change for change in changes]
    return [sections.changed(cfg, change) for change in changes]


def best_denoiser(reader, stated, options):
    """Find the denoiser's reading with the lowest loss: from the stated one, change one field at a time where that is
    surely better."""
    best = sections.changed(stated, {"causal": False, "mask_id": options["mask_id"][0]})
    for field in 4 * [*options]:
        lowest = min(nearby(best, {field: options[field]}), key=reader.loss)
        if is_sure(reader.margin(lowest, best)):
            best = lowest
    return best


def choose(reader, stated, best, causal):
    """Choose between the best denoiser's reading and the causal one."""
    if is_sure(reader.margin(best, causal)):
        return best
    if is_sure(reader.margin(causal, best)) or stated.causal:
        return causal
    return best if is_sure(reader.fills_masks(best)) or not is_sure(reader.margin(causal, stated)) else causal


def alternatives(reader, found, best, causal, options):
    """List the readings that `found` has to be compared with. best: of the denoisers' readings"""
    mean, error = reader.fills_masks(best)
    if found.causal:
        return [] if is_sure((-mean, error)) else [best]
    return [other for other in nearby(best, options) if other != best] + ([] if is_sure((mean, error)) else [causal])


# ---- what is said ----------------------------------------------------------------------------------------------------


def described(cfg):
    """Say how a ModelConfig reads a text."""
    return f"mask_id={cfg.mask_id}, shift={cfg.shift}, blocks.block={cfg.block}, causal={cfg.causal}"


def explain(folder, open_as, dtype):
    """Print how a folder is read and what a test says about that -> exit code."""
    family = checkpoint.family_to_open(folder, open_as)
    if not huggingface.has_adapters(folder):
        family = huggingface.read_kind(folder, family)
    params, cfg = checkpoint.load(folder, dtype, family)
    checkpoint.refuse_judge(folder, params)
    tok = data.open_tokenizer(folder, cfg.vocab_size)
    ids = tok.encode(zen())
    masks = dict.fromkeys([cfg.mask_id, tok.mask_id, *tok.specials.values()])
    masks = [i for i in masks if i is not None and i < cfg.vocab_size][:MOST_MASKS]
    if len(ids) < FEWEST or not masks:
        raise ValueError("--explain needs a tokenizer with a special token, which may be the mask, that makes more "
                         "tokens of the Zen of Python")  # fmt: skip
    print(f"{folder}: {described(cfg)}")
    # Any token may be tried as the mask.
    stated = dataclasses.replace(cfg, eos_id=None, end_ids=(), pad_id=None, bos_id=None)
    return verdict(Reader(params, ids, masks), stated, masks)


def verdict(reader, stated, masks):
    """Search for the best reading, print what that says about the stated one -> exit code."""
    if not np.isfinite(reader.losses(stated)).all():
        print("verdict: WRONG: the model computes nan or inf as log-probs: fetch the files again, or train anew")
        return CONTRADICTED
    blocks = dict.fromkeys((None, *BLOCKS, stated.block))
    options = {"mask_id": masks, "shift": (False, True), "blocks.block": blocks}
    causal = sections.changed(stated, {"blocks": False, "causal": True, "shift": True})
    best = best_denoiser(reader, stated, options)
    found = choose(reader, stated, best, causal)
    frequency = reader.by_frequency[reader.scored].mean()
    print(f"test: the Zen of Python; as stated {reader.loss(stated):.3f} nats per masked token, at best "
          f"{reader.loss(found):.3f}, by their frequencies {frequency:.3f}")  # fmt: skip
    if reader.loss(found) > frequency:
        print("verdict: undecided: however they are read, the weights tell less about English than frequencies do. They"
              " know none, or what they were trained with was not tried: another mask, or another rope_theta")
        return UNDECIDED
    n_open = 0
    for other in alternatives(reader, found, best, causal, options):
        mean, error = reader.margin(found, other)
        print(f"  {described(other)}: worse by {mean:.3f} +- {error:.3f}")
        n_open += not is_sure((mean, error))
    if found != stated:
        print(f"verdict: WRONG: the weights are for {described(found)}. Change config.json, or name the family that "
              "they are of with --checkpoint.open_as")  # fmt: skip
        return CONTRADICTED
    if n_open:
        print(f"verdict: undecided: nothing contradicts the folder, but {n_open} of these are too close to say")
        return UNDECIDED
    print("verdict: the weights agree with the folder")
    return AGREES
