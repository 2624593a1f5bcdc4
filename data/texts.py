"""
The rows that a run is about, as arrays of one length with holes, and the texts that were written into these.
"""
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import data
from machine import mesh


class Text(NamedTuple):
    """A split of a data set, as rows and as arrays of one length."""

    rows: list  # one for each row of the arrays
    arrays: dict  # tokens, hole (N, T) and valid, None where no row is padded

    def part(self, index):
        return Text([self.rows[i] for i in index], {k: None if v is None else v[index] for k, v in self.arrays.items()})

    def take(self, index):
        return {k: None if v is None else jnp.asarray(v[index]) for k, v in self.arrays.items()}


def read_rows(cfg, split):
    """The rows of a split, of the difficulties that this run is about; unrated rows always are."""
    columns = "prompt", "completion", "answer", "tests", "language", "difficulty"
    names = {name: getattr(cfg, f"{name}_key") for name in columns}
    rows = data.load(cfg.dataset, split, {ours: theirs for ours, theirs in names.items() if theirs})
    if cfg.difficulty:
        low, high = cfg.difficulty
        rows = [row for row in rows if low <= row.get("difficulty", low) <= high]
        if not rows:
            raise ValueError(f"{cfg.dataset}/{split}: no row has difficulty={cfg.difficulty}")
    if cfg.limit and split == "train":
        n = max(1, round(cfg.limit * len(rows) if cfg.limit < 1 else cfg.limit))
        rows = [rows[i] for i in sorted(np.random.default_rng(0).permutation(len(rows))[:n])]  # of all parts of a file
    return rows


def read_text(cfg, tok, split, learnt=True):
    """A split as Text. What does not fit is counted and said; completions have to only where they are to be learnt."""
    rows = read_rows(cfg, split)
    template = data.chat(cfg.chat_template, cfg.system_prompt, tok, cfg.instruction)
    taken = rows if learnt else [{"prompt": row["prompt"]} for row in rows]
    arrays, notes = data.encode(taken, tok, cfg.max_prompt_len, cfg.max_new_tokens, template)
    if not len(arrays["tokens"]):
        raise ValueError(f"{cfg.dataset}/{split}: no row fits max_prompt_len={cfg.max_prompt_len} and max_new_tokens="
                         f"{cfg.max_new_tokens}: " + ", ".join(f"{count} {note}" for note, count in notes.items()))
    for note, count in notes.items():
        tqdm.write(f"{cfg.dataset}/{split}: {count} {note}")
    rows = [rows[i] for i in arrays.pop("row")]
    return Text(rows, arrays | {"valid": None if arrays["valid"].all() else arrays["valid"]})


def few(text, cfg):
    """The eval_size rows of a Text that evaluations look at, the same every time."""
    return text.part(np.random.default_rng(0).permutation(len(text.rows))[: cfg.eval_size])


def stages(cfg, rows):
    """-> index(step): the rows that the curriculum allows at this step."""
    allowed = {step: data.curriculum(rows, cfg.curriculum, step) for step, _ in cfg.curriculum}
    latest = lambda step: max((s for s in allowed if s <= step), default=min(allowed))
    return lambda step: allowed[latest(step)] if allowed else np.arange(len(rows))


def up_to_its_end(text, tok):
    """Text -> Text that asks for completions up to their first end of text: a causal model stops there."""
    ends = text.arrays["hole"] & (text.arrays["tokens"] == tok.eos_id)
    return Text(text.rows, text.arrays | {"hole": text.arrays["hole"] & (ends.cumsum(1) - ends == 0)})


def punch(text, cfg, tok, seed):
    """Text -> Text for a fill-in task: a share of the tokens of every completion (not its end) are its only holes."""
    rng, tokens = np.random.default_rng(seed), text.arrays["tokens"]
    written = text.arrays["hole"] & (tokens != tok.eos_id)
    ratio = rng.uniform(cfg.mask_ratio_min, cfg.mask_ratio_max, (len(tokens), 1))
    noise = np.where(written, rng.random(tokens.shape), 2)
    count = np.maximum(np.rint(ratio * written.sum(1, keepdims=True)), 1)
    return Text(text.rows, text.arrays | {"hole": written & (noise.argsort(1).argsort(1) < count)})


def holes_of_rows(text, cfg, tok):
    """Text whose rows have a column `masked`, their completion with <|mask|> for some of its tokens -> Text with those
    holes; None where the rows leave the choice to `punch`."""
    if not all("masked" in row for row in text.rows):
        return None
    tokens, first = text.arrays["tokens"].copy(), cfg.max_prompt_len
    tokens[:, first:] = tok.eos_id
    for i, row in enumerate(text.rows):
        ids = tok.encode(row["masked"], specials=True)
        if tok.mask_id not in ids or len(ids) > cfg.max_new_tokens:
            raise ValueError(
                f"{cfg.dataset}: masked={row['masked'][:80]!r} has {ids.count(tok.mask_id)} <|mask|> among {len(ids)} "
                f"tokens; there should be at least one, and no more tokens than max_new_tokens={cfg.max_new_tokens}"
            )
        tokens[i, first : first + len(ids)] = ids
    return Text(text.rows, text.arrays | {"tokens": tokens, "hole": tokens == tok.mask_id})


def draws(cfg, tok, text):
    """-> draw(step, n): Text of N rows of a Text, as the curriculum allows it. n > 0: a redraw of dynamic sampling. It
    has a stream of its own, so an epoch still takes every row once, whatever was drawn again."""
    allowed, given = stages(cfg, text.rows), cfg.fill_in and holes_of_rows(text, cfg, tok)

    def draw(step, n):
        index, at = allowed(step), step * cfg.dynamic_sampling + n - 1 if n else step
        chosen = index[data.batch_indices(len(index), cfg.batch_size, at, cfg.seed, stream=int(n > 0))]
        if cfg.fill_in and not given:
            return punch(text.part(chosen), cfg, tok, [cfg.seed, step, n])
        return (given or text).part(chosen)

    return draw


def written(tokens, tok, cfg):
    """tokens (B, T) -> the ids of the completions, up to their first end of text."""
    completions = mesh.gather(tokens)[:, cfg.max_prompt_len :].tolist()
    return [row[: row.index(tok.eos_id)] if tok.eos_id in row else row for row in completions]
