"""
`python sample.py FOLDER --explain`: say how a folder is read, where each fact comes from, what using it costs, and test
it on a text.

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


import contextlib
import dataclasses
import functools
import io
import json
import math
import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import config
import data
import diffusion
import model
from model import ModelConfig
from system import adapters, checkpoint, disk, fit, foreign, huggingface

WIDTH = 80  # tokens per text
FEWEST_ROWS = 32  # texts, half of each kind
FLOPS = 4e12  # operations of a pass over all texts: small models read more texts, up to this
GROUP = 4  # columns: the scored masks of a text lie in one group, and a group in one block in every reading
BLOCKS = 4, 8, 16, 32
MOST_MASKS = 16  # candidates for the mask that are tried
FIELDS = "mask_id", "shift", "attention"


def zen() -> str:
    """Return the Zen of Python, the same in every version; importing it prints it."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return "".join(this.d.get(letter, letter) for letter in this.s)


# ---- the texts -------------------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """R texts with masks, the same for all readings; arrays (R, T)."""

    x: np.ndarray  # tokens
    masked: np.ndarray  # True where a mask stands
    scored: np.ndarray  # True for masks whose loss counts
    first: np.ndarray  # True for the first scored mask, in rows that have only masks to its right
    later: np.ndarray  # True for the other scored masks of these rows


def make_trial(ids: list[int], n_params: int, masks: Iterable[int] = ()) -> Trial:
    """Choose texts and masks, always the same ones for the same tokens and size of a model.

    masks: candidates for the mask. If one is an ordinary token, no reading is scored where it stands in the text,
    because a model never predicts its mask."""
    if len(ids) < WIDTH + FEWEST_ROWS:
        raise ValueError(f"--explain tests a model on {WIDTH + FEWEST_ROWS} tokens of English or more, and its "
                         f"tokenizer makes {len(ids)} of the Zen of Python")  # fmt: skip
    rng = np.random.default_rng(0)
    affordable = int(FLOPS / (2 * n_params * WIDTH))
    n_rows = max(min(affordable, len(ids) // 4), FEWEST_ROWS)  # more would score the same places again
    starts = np.linspace(0, len(ids) - WIDTH, n_rows).astype(int)
    x = np.array([ids[start : start + WIDTH] for start in starts], np.int32)
    scored = np.zeros(x.shape, bool)
    masked = np.zeros(x.shape, bool)
    ends = np.array([GROUP * n for n in range(5, WIDTH // GROUP)])
    for row in range(n_rows):
        # Half of the groups end where blocks of all lengths do: only a bidirectional model sees what is right of them.
        end = rng.choice(ends) if row % 4 < 2 else rng.choice(ends[ends % max(BLOCKS) == 0])
        scored[row, end - GROUP : end] = rng.random(GROUP) < 0.7
        scored[row, end - GROUP + rng.integers(GROUP)] = True
        masked[row] = scored[row]
        if row % 2:
            masked[row, end:] = True
    scored &= ~np.isin(x, list(masks))
    left_only = scored & masked[:, -1:]
    first = left_only & (np.cumsum(scored, 1) == 1)
    return Trial(x, masked, scored, first, left_only & ~first)


# ---- readings --------------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="cfg")
def token_loss(params, x, z, cfg):
    """Compute -log p of the tokens x (R, T) from z (R, T) with masks."""
    h = model.hidden(params, z, cfg)
    everywhere = jnp.ones(x.shape, bool)
    return -diffusion.read_logits(params, h, cfg, diffusion.gather_logp, everywhere, (x,))


class Reader:
    """Compute the losses of a model under readings, each once. A reading is a ModelConfig."""

    def __init__(self, params: Any, trial: Trial):
        self.params, self.trial = params, trial
        self.known: dict[ModelConfig, np.ndarray] = {}

    def losses(self, cfg: ModelConfig) -> np.ndarray:
        """Return -log p (R, T) of the trial's tokens. A causal model reads the text without masks."""
        if cfg not in self.known:
            x = self.trial.x
            z = x if cfg.causal else np.where(self.trial.masked, np.int32(cfg.mask_id or 0), x)
            self.known[cfg] = np.asarray(token_loss(self.params, x, z, cfg))
        return self.known[cfg]

    def counted(self, cfg: ModelConfig, other: ModelConfig) -> np.ndarray:
        """Return True for the masks at which the losses of two readings can be compared (R, T): all that are scored; if
        one of the readings is causal, only those that have nothing but text to their left and masks to their right,
        because there the other reading sees no more than the causal one."""
        return self.trial.first if cfg.causal or other.causal else self.trial.scored

    def loss(self, cfg: ModelConfig) -> float:
        """Return the mean loss of a reading in nats per masked token."""
        return float(self.losses(cfg)[self.counted(cfg, cfg)].mean())

    def fills_masks(self, cfg: ModelConfig) -> tuple[float, float]:
        """Return by how much a denoiser beats the frequencies of the text's tokens at masks behind another mask (nats
        per token), and the standard error.

        At the first mask an autoregressive model and a shifted denoiser are alike. Behind it the former has to read a
        token that it was never trained on."""
        gap = (self.by_frequency() - self.losses(cfg))[self.trial.later]
        return float(gap.mean()), float(gap.std() / math.sqrt(len(gap)))

    def by_frequency(self) -> np.ndarray:
        """Return -log (R, T) of how frequent each token is in the texts."""
        _, number, counts = np.unique(self.trial.x, return_inverse=True, return_counts=True)
        return -np.log(counts / counts.sum())[number].reshape(self.trial.x.shape)

    def margin(self, cfg: ModelConfig, other: ModelConfig) -> tuple[float, float]:
        """Return by how much `other` is worse than cfg, in nats per masked token, and the standard error over rows."""
        counts = self.counted(cfg, other)
        gap = np.where(counts, self.losses(other) - self.losses(cfg), 0)
        n = counts.sum(1)
        mean = gap.sum() / n.sum()
        error = np.sqrt(((gap.sum(1) - mean * n) ** 2).sum()) / n.sum()
        return float(mean), float(error)


def is_sure(margin: tuple[float, float]) -> bool:
    """True if a margin (mean, standard error) is above 0 by more than noise."""
    mean, error = margin
    return mean > max(3 * error, 0.005)


def block_of(cfg: ModelConfig) -> int | None:
    """Return the length of the blocks of a reading; None: it has none."""
    return getattr(cfg, "block_causal", None)


def changed(cfg: ModelConfig, **changes: Any) -> ModelConfig:
    """Return another reading: cfg with these changes, and without fields that contradict them.

    It is a denoiser's unless causal=True is among the changes."""
    values = {"causal": False, **changes}
    if values["causal"]:
        values |= {"shift": True, "block_causal": None}
    return dataclasses.replace(cfg, **values)


def alternatives(cfg: ModelConfig, stated: ModelConfig, masks: list[int], field: str) -> list[ModelConfig]:
    """List the readings of cfg, a denoiser's, that differ in one of FIELDS, its own among them: each of `masks`, both
    shifts, or bidirectional and the block lengths of BLOCKS and of `stated`."""
    if field == "mask_id":
        return [changed(cfg, mask_id=mask) for mask in masks]
    if field == "shift":
        return [changed(cfg, shift=shift) for shift in (False, True)]
    sizes = sorted({*BLOCKS, block_of(stated) or BLOCKS[0]})
    return [changed(cfg, block_causal=size) for size in (None, *sizes)]


def search(reader: Reader, stated: ModelConfig, masks: list[int]) -> ModelConfig:
    """Find the reading with the lowest loss: from the stated one, change one of FIELDS at a time where that is surely
    better. Then compare with a causal reading."""
    best = changed(stated, mask_id=masks[0], block_causal=None) if stated.causal else stated
    for _ in range(4):
        before = best
        for field in FIELDS:
            options = alternatives(best, stated, masks, field)
            lowest = min(options, key=reader.loss)
            if is_sure(reader.margin(lowest, best)):
                best = lowest
        if best == before:
            break
    causal = changed(stated, causal=True)
    if is_sure(reader.margin(best, causal)):
        return best
    if is_sure(reader.margin(causal, best)) or stated.causal:
        return causal
    knows_masks = is_sure(reader.fills_masks(best))
    return causal if not knows_masks and is_sure(reader.margin(causal, stated)) else best


# ---- what is said ----------------------------------------------------------------------------------------------------


def value(cfg: ModelConfig, field: str, tok: Any) -> str:
    """Say what a reading has in one of FIELDS."""
    if field == "mask_id":
        names = [name for name, i in tok.specials.items() if i == cfg.mask_id]
        word = names[0] if names else f"the ordinary token {tok.decode([cfg.mask_id])!r}"
        return "none" if cfg.causal else f"{word}, id {cfg.mask_id}"
    if field == "shift":
        return "yes" if cfg.shift else "no"
    if cfg.causal or block_of(cfg) is None:
        return "causal" if cfg.causal else "bidirectional"
    return f"blocks of {block_of(cfg)}"


def sources(folder: str, cfg: ModelConfig, kind: str, asked: str | None) -> dict[str, str]:
    """Say where each of FIELDS and the family was read -> {field: place}."""
    theirs = disk.read_json(os.path.join(folder, "config.json"))
    family = huggingface.FAMILIES[kind]
    block_key = family.keys.get("block_causal", "")
    found = dict.fromkeys(FIELDS, f"family {kind}")
    found["family"] = "--open_as" if asked else "config.json: model_type"
    if not cfg.causal:
        found["mask_id"] = "the tokenizer" if theirs.get("mask_token_id") is None else "config.json: mask_token_id"
    if block_of(cfg) and theirs.get(block_key) is not None:
        found["attention"] = f"config.json: {block_key}"
    elif block_of(cfg) and block_of(cfg) != family.fields.get("block_causal"):
        found["attention"] = f"the folder's name, {foreign.name_of(folder)}"
    return found


def candidates(cfg: ModelConfig, tok: Any) -> list[int]:
    """List the ids that may be the mask: the stated one, the tokenizer's, then other special tokens, those that are
    named so first."""
    named = sorted(tok.specials.items(), key=lambda item: "mask" not in item[0].lower())
    ids = [cfg.mask_id, tok.mask_id, *(i for _, i in named)]
    return [i for i in dict.fromkeys(ids) if i is not None and i < cfg.vocab_size][:MOST_MASKS]


def costs(reader: Reader, stated: ModelConfig) -> Iterable[str]:
    """Yield what sampling and training cost on this machine, from one timed pass and the estimates of memory.py."""
    x = reader.trial.x
    start = time.perf_counter()
    token_loss(reader.params, x, x, stated).block_until_ready()
    per_token = (time.perf_counter() - start) / x.size
    new, prompt = 128, WIDTH
    passes, width = (new, 1) if stated.causal else (32, prompt + new)
    if block := block_of(stated):
        passes, width = max(passes, -(-new // block)), block
    yield (f"sampling: {1 / per_token:,.0f} tokens per second in a pass; {new} tokens in {passes} passes take at least "
           f"{passes * width * per_token:.2g} s")  # fmt: skip
    order = "left" if stated.causal else "confidence"
    cfg = config.Config(batch_size=8, max_prompt_len=prompt, max_new_tokens=new, model=stated, order=order)
    yield f"training 8 texts of {prompt + new} tokens per step: {fit.describe(cfg)[0]}"


class Compared(NamedTuple):
    """The reading that was found, and the best of those that differ from it in one thing."""

    name: str  # of that thing
    found: str
    other: str
    margin: tuple[float, float]  # by how much the other is worse

    def certainty(self) -> float:
        """Return the margin in standard errors."""
        mean, error = self.margin
        return mean / max(error, 1e-9)


def compare(reader: Reader, found: ModelConfig, masks: list[int], tok: Any) -> Iterable[Compared]:
    """Yield a comparison for each thing that a reading says."""

    def nearest(name, field, others):
        other = min(others, key=lambda other: reader.margin(found, other)[0])
        return Compared(name, value(found, field, tok), value(other, field, tok), reader.margin(found, other))

    if found.causal:
        denoisers = [changed(found, shift=shift, mask_id=mask) for mask in masks for shift in (True, False)]
        mean, error = reader.fills_masks(min(denoisers, key=reader.loss))
        behind = Compared("attention", "causal", "a mask behind a mask, than by frequency,", (-mean, error))
        yield max(nearest("attention", "attention", denoisers), behind, key=Compared.certainty)
        return
    for field in ("mask_id", "shift"):
        if others := [c for c in alternatives(found, found, masks, field) if c != found]:
            yield nearest(field.removesuffix("_id"), field, others)
    sizes = [c for c in alternatives(found, found, masks, "attention") if block_of(c) != block_of(found)]
    causal = [] if is_sure(reader.fills_masks(found)) else [changed(found, causal=True)]
    yield nearest("attention", "attention", [*sizes, *causal])


def advice(found: ModelConfig, stated: ModelConfig, kind: str) -> str:
    """Say what to change so that a folder is read as its weights were trained."""
    huggingface.plug_families()
    family, todo = huggingface.FAMILIES[kind], []
    if not found.causal and found.mask_id != stated.mask_id:
        todo.append(f'"mask_token_id": {found.mask_id} in config.json')
    fits = [
        name
        for name, other in huggingface.FAMILIES.items()
        if other.tensors == family.tensors and huggingface.can_hold(other, found)
    ]
    if kind not in fits:
        none = f"add a family to system/families.py: none with the tensors of {kind} has these switches together"
        todo.append(f"--open_as={fits[0]}, or that as model_type in config.json" if fits else none)
        family = huggingface.FAMILIES[fits[0]] if fits else family
    if "block_causal" in family.keys and block_of(found) != block_of(stated):
        todo.append(f'"{family.keys["block_causal"]}": {json.dumps(block_of(found))} in config.json')
    return "; ".join(todo)


AGREES, CONTRADICTED, UNDECIDED = 0, 1, 3  # exit codes; 2 is that of a mistake on the command line


def explain(folder: str, open_as: str | None = None, dtype: str | None = None) -> int:
    """Print how a folder is read and what a test says about that -> exit code."""
    asked = checkpoint.family_to_open(folder, open_as)
    base = folder
    while not os.path.exists(os.path.join(base, "config.json")):  # adapters
        base = checkpoint.find(adapters.read_adapters(base)[0])
    kind = huggingface.read_kind(base, asked)
    params, cfg = checkpoint.load(folder, dtype, kind if base == folder else asked)
    tok = data.Tokenizer.load(folder, cfg.vocab_size)
    places = sources(base, cfg, kind, asked)
    n_params = sum(x.size for x in jax.tree.leaves(params))
    print(f"{folder}: {n_params:,} parameters in {cfg.dtype}, {cfg.vocab_size:,} ids")
    print(f"  {'family':10} {kind} ({places['family']})")
    for field in FIELDS:
        print(f"  {field.removesuffix('_id'):10} {value(cfg, field, tok)} ({places[field]})")
    if tok.mask_id != cfg.mask_id and not cfg.causal:
        print(f"  the tokenizer says that the mask is id {tok.mask_id}: one of the two is wrong")
    # Any token may be tried as the mask.
    stated = dataclasses.replace(cfg, eos_id=None, end_ids=(), pad_id=None, bos_id=None)
    masks = candidates(cfg, tok)
    if not masks:
        print("verdict: undecided: no special token can be a mask, so there is nothing to compare with")
        return UNDECIDED
    reader = Reader(params, make_trial(tok.encode(zen()), n_params, masks))
    if not np.isfinite(reader.losses(stated)).all():
        print("verdict: WRONG: the model computes nan or inf as log-probs, so some of its weights are no numbers, or "
              f"too large for {cfg.dtype}. Change: fetch the files again, or train anew")  # fmt: skip
        return CONTRADICTED
    print(*costs(reader, stated), sep="\n")
    return verdict(reader, stated, masks, tok, kind)


def verdict(reader: Reader, stated: ModelConfig, masks: list[int], tok: Any, kind: str) -> int:
    """Search for the best reading, print what that says about the stated one -> exit code."""
    found = search(reader, stated, masks)
    n = int(reader.counted(stated, stated).sum())
    frequency = float(reader.by_frequency()[reader.trial.scored].mean())
    print(f"test: {n} masked tokens of the Zen of Python; as stated {reader.loss(stated):.3f} nats per token, at best "
          f"{min(reader.loss(found), reader.loss(stated)):.3f}, by their frequencies {frequency:.3f}")  # fmt: skip
    if not reader.loss(found) <= frequency:
        names = ", ".join(tok.decode([mask], specials=True) for mask in masks)
        print("verdict: undecided: however they are read, the weights tell less about English than frequencies do. "
              "They know none, or what they were trained with was not tried: another mask than "
              f"{names}, or another rope_theta")  # fmt: skip
        return UNDECIDED
    compared = list(compare(reader, found, masks, tok))
    for c in compared:
        mean, error = c.margin
        sure = "proved" if is_sure(c.margin) else "too close to say"
        print(f"  {c.name:10} {c.found}: {c.other} is worse by {mean:.3f} +- {error:.3f} nats per token: {sure}")
    if found == stated:
        if open_questions := [c.name for c in compared if not is_sure(c.margin)]:
            print("verdict: undecided: nothing contradicts the folder; too close to say: " + ", ".join(open_questions))
            return UNDECIDED
        print("verdict: the weights agree with the folder")
        return AGREES
    mean, error = reader.margin(found, stated)
    wrong = ", ".join(
        f"{field.removesuffix('_id')} is {value(found, field, tok)} instead of {value(stated, field, tok)}"
        for field in FIELDS if value(found, field, tok) != value(stated, field, tok)
    )  # fmt: skip
    print(f"verdict: WRONG: {wrong}, better by {mean:.3f} +- {error:.3f} nats per token. "
          f"Change: {advice(found, stated, kind)}")  # fmt: skip
    return CONTRADICTED
