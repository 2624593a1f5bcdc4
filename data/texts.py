"""
Turn the rows of a data set into arrays of one length, choose the rows of a step, and read completions back.

`maskable` is True at the positions that are to be filled: the completion or, in a fill-in task, some of its tokens.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import data
from system import sections
from system.tokens.bpe import Tokenizer

RENAMED = "prompt", "completion", "answer", "tests", "language", "difficulty"


@dataclasses.dataclass(frozen=True)
class Keys(sections.Section):
    prompt_key: str | None = sections.key(None, "column of the prompt; None: found by its name")
    completion_key: str | None = sections.key(None, "column of the completion")
    answer_key: str | None = sections.key(None, "column of the answer that rewards compare with")
    tests_key: str | None = sections.key(None, "column of the tests that a program has to pass")
    language_key: str | None = sections.key(None, "column of the programming language")
    difficulty_key: str | None = sections.key(None, "column of the difficulty, for the keys of curriculum")
    chat_template: str | None = sections.key(None, "format of prompts; chatml is that of Dream and Qwen",
                                             choices=data.CHAT)  # fmt: skip
    system_prompt: str | None = sections.key(None, "system message of the template; None: its usual one")
    instruction: str | None = sections.key(None, 'text before every prompt, in its turn; or around it, as in '
                                           '"{prompt} Think."')  # fmt: skip

    def between_keys(self, c):
        yield (self.system_prompt and not self.chat_template,
               f"texts.system_prompt={self.system_prompt!r}: how it is written is up to the model, so set "
               "texts.chat_template")  # fmt: skip


def template_of(cfg: Any, tok: Tokenizer) -> Callable[..., str] | None:
    """Return what writes the prompts of a run, see data.chat."""
    keys = Keys.of(cfg)
    return data.chat(keys.chat_template, keys.system_prompt, tok, keys.instruction)


def rows_of_steps(rows: list[dict[str, Any]], cfg: Any) -> Callable[[int], np.ndarray]:
    """Return a function of the step that gives the indices (M,) of the rows that it may learn from: all of them, or
    those that a variant chooses."""

    def everything(step):
        return np.arange(len(rows))

    chosen = [choose for section in cfg.use if (choose := section.rows_of_steps(rows, cfg))]
    if len(chosen) > 1:
        raise ValueError("two variants choose the rows of a step (see `use`): leave one out")
    return chosen[0] if chosen else everything


def split_rows(cfg: Any, split: str) -> list[dict[str, Any]]:
    """Read the rows of a split that this run uses."""
    keys = Keys.of(cfg)
    columns = {ours: getattr(keys, f"{ours}_key") for ours in RENAMED}
    rows = data.load(cfg.dataset, split, {ours: theirs for ours, theirs in columns.items() if theirs})
    for section in cfg.use:
        rows = section.rows(rows, split, cfg)
    return rows


def encode_split(cfg: Any, tok: Tokenizer, split: str, with_completions: bool = True) -> data.Batch:
    """Read and encode a split. Report how many rows do not fit.

    with_completions: encode the completions, which then have to fit as well; False: put masks in their place
    """
    rows = split_rows(cfg, split)
    template = template_of(cfg, tok)
    bare = [{name: value for name, value in row.items() if name != "completion"} for row in rows]
    used = rows if with_completions else bare
    arrays, index, notes = data.encode(used, tok, cfg.max_prompt_len, cfg.max_new_tokens, template)
    if not len(index):
        raise ValueError(
            f"{cfg.dataset}/{split}: no row fits max_prompt_len={cfg.max_prompt_len} and max_new_tokens="
            f"{cfg.max_new_tokens}: " + ", ".join(f"{count} {note}" for note, count in notes.items())
        )
    for note, count in notes.items():
        tqdm.write(f"{cfg.dataset}/{split}: {count} {note}")
    valid = None if arrays.valid.all() else arrays.valid
    return arrays._replace(valid=valid, rows=[rows[i] for i in index])


def eval_texts(cfg: Any, tok: Tokenizer, with_completions: bool = True) -> data.Batch:
    """Choose `eval_size` rows of val at random, always the same, for every evaluation to score."""
    encoded = encode_split(cfg, tok, "val", with_completions)
    order = np.random.default_rng(0).permutation(len(encoded.rows))
    shown = encoded.part(order[: cfg.eval_size])
    return masked_rows(shown, cfg, tok) if cfg.fill_in else shown


def texts_to_learn(cfg: Any, tok: Tokenizer) -> data.Batch:
    """Encode the train rows of pretraining: maskable is what a model learns to write."""
    train = encode_split(cfg, tok, "train")
    check_completions(cfg, train.rows)
    if cfg.fill_in:  # learn what the masks of the rows hide or, where rows have none, any token
        train = given_masks(train, cfg, tok) or train
    return end_at_eos(train, tok) if cfg.model.causal else train


def check_completions(cfg: Any, rows: list[dict[str, Any]]) -> None:
    """Raise a ValueError if rows to learn from have no completion."""
    if lacking := sum("completion" not in row for row in rows):
        raise ValueError(
            f"{cfg.dataset}/train: {lacking} of {len(rows)} rows have no completion to learn from (from preferences, "
            "chosen and rejected, --objective=judge learns)"
        )


def end_at_eos(encoded: data.Batch, tok: Tokenizer) -> data.Batch:
    """Make only the tokens up to the first end of text maskable, as a causal model stops there."""
    ends = encoded.maskable & (encoded.tokens == tok.eos_id)
    to_end = ends.cumsum(1) - ends == 0
    return encoded._replace(maskable=encoded.maskable & to_end)


def given_masks(encoded: data.Batch, cfg: Any, tok: Tokenizer) -> data.Batch | None:
    """Use the column `masked` of a fill-in task: completions in which some tokens are <|mask|>.

    The masked tokens are those of the completion that a row has, if any, for a denoiser to learn from. Return None
    unless every row has that column: then fill_in.py chooses the positions.
    """
    if not all("masked" in row for row in encoded.rows):
        return None
    tokens, start = encoded.tokens.copy(), cfg.max_prompt_len
    tokens[:, start:] = tok.eos_id
    for i, row in enumerate(encoded.rows):
        ids = tok.encode(row["masked"], specials=True)
        if tok.mask_id not in ids or len(ids) > cfg.max_new_tokens:
            from data import fill_in

            fill_in.refuse_masks(row, ids, cfg, tok)
        tokens[i, start : start + len(ids)] = ids
    maskable = tokens == tok.mask_id
    others = (tokens != encoded.tokens) & ~maskable
    if cfg.objective == "pretrain" and others.any():
        from data import fill_in

        fill_in.refuse_completion(encoded.rows[int(others.any(1).argmax())], cfg)
    return encoded._replace(tokens=np.where(maskable, encoded.tokens, tokens), maskable=maskable)


def masked_rows(encoded: data.Batch, cfg: Any, tok: Tokenizer) -> data.Batch:
    """Mask the rows of a fill-in task for evaluations, always in the same way."""
    if given := given_masks(encoded, cfg, tok):
        return given
    from data import fill_in

    return fill_in.mask_completions(encoded, cfg, tok, 0)


def readable_prompt(row: dict[str, Any]) -> str:
    """Return what a person reads as the prompt of a row: if it has none, its text with a _ for each mask."""
    return row["prompt"] or row.get("masked", "").replace("<|mask|>", "_")


def prompt_sampler(cfg: Any, tok: Tokenizer, encoded: data.Batch) -> Callable[..., data.Batch]:
    """Return draw(step), which chooses the prompts of a step from the rows of that step."""
    allowed = rows_of_steps(encoded.rows, cfg)
    given = given_masks(encoded, cfg, tok) if cfg.fill_in else None

    def draw(step):
        index = allowed(step)
        chosen = index[data.batch_indices(len(index), cfg.batch_size, step, cfg.seed)]
        if cfg.fill_in and given is None:
            from data import fill_in

            return fill_in.mask_completions(encoded.part(chosen), cfg, tok, [cfg.seed, step])
        return (given or encoded).part(chosen)

    return draw


def completion_ids(tokens: jax.Array, tok: Tokenizer, cfg: Any) -> list[list[int]]:
    """Fetch the ids of the completions in tokens (B, T), up to the first end of text and without it."""
    completions = np.asarray(tokens)[:, cfg.max_prompt_len :].tolist()
    ends = {tok.eos_id, *cfg.model.ends}
    return [list(itertools.takewhile(lambda i: i not in ends, row)) for row in completions]
