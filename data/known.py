"""
Rows that are not ours: those of GSM8K and documents. They are recognised by their columns, and turned into ours.
"""

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


def gsm8k(row):
    """Read {"question", "answer": "... #### 1,200"}: the worked solution is the completion, 1200 the answer."""
    solution = str(row.pop("answer"))
    answer = solution.split("####")[-1].strip().replace(",", "")
    return {"prompt": row.pop("question"), "completion": solution, "answer": answer}


def document(row):
    """Read {"text"}, a document."""
    return {"prompt": "", "completion": row.pop("text")}


FORMATS: dict[tuple[str, ...], Callable[[Row], Row]] = {  # the columns that tell a format
    ("question", "answer"): gsm8k,
    ("text",): document,
}


def from_format(row: Row) -> Row:
    """Turn a row without a prompt into ours, by FORMATS. Columns that its reader does not pop stay."""
    read = next((read for columns, read in FORMATS.items() if row.keys() >= set(columns)), None)
    if read is None:
        raise ValueError(
            'no prompt; expected "prompt", or "question" and "answer" as in GSM8K, or "text", a document; '
            f"found {', '.join(row) or 'none'}; for other names train.py has --texts.prompt_key=COLUMN "
            "and --texts.completion_key=COLUMN, also answer_key, tests_key, language_key, difficulty_key; what a data "
            'set has in another form, such as a chat, rewrite as rows {"prompt", "completion", "answer", "tests"}'
        )
    return read(row) | row
