"""
Choose the masks of a fill-in task at random, for rows without the column `masked`, or refuse what is in that column.
"""

from typing import Any, NoReturn

import numpy as np

import data
from system.tokens.bpe import Tokenizer


def mask_completions(
    encoded: data.Batch,
    cfg: Any,
    tok: Tokenizer,
    seed: int | list[int],
) -> data.Batch:
    """Choose the positions of a fill-in task: a random share of the tokens of each completion, at least one.

    The share is between mask_ratio_min and mask_ratio_max. An end of text is never chosen."""
    rng = np.random.default_rng(seed)
    text = encoded.maskable & (encoded.tokens != tok.eos_id)
    ratio = rng.uniform(cfg.mask_ratio_min, cfg.mask_ratio_max, (len(text), 1))
    noise = np.where(text, rng.random(text.shape), 2)
    rank = noise.argsort(1).argsort(1)
    count = np.maximum(np.rint(ratio * text.sum(1, keepdims=True)), 1)
    return encoded._replace(maskable=text & (rank < count))


def refuse_masks(row: data.Row, ids: list[int], cfg: Any, tok: Tokenizer) -> NoReturn:
    """Raise a ValueError for a text without masks, or one that is too long. ids: of the text"""
    raise ValueError(
        f"{cfg.dataset}: masked={row['masked'][:80]!r} has {ids.count(tok.mask_id)} <|mask|> among {len(ids)} "
        f"tokens; there should be at least one, and no more tokens than max_new_tokens={cfg.max_new_tokens}"
    )


def refuse_completion(row: data.Row, cfg: Any) -> NoReturn:
    """Raise a ValueError for a text with masks that is not the completion of its row."""
    raise ValueError(f"{cfg.dataset}: masked={row['masked'][:80]!r} should be the completion "
                     f"{row['completion'][:80]!r} with some tokens masked")  # fmt: skip
