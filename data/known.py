"""
Rows that are not ours: those of GSM8K, chats and documents. They are recognised by their columns, and turned into ours.
"""

from collections.abc import Callable
from typing import Any

from system.terminal import quote

Row = dict[str, Any]


def gsm8k(row):
    """Read {"question", "answer": "... #### 1,200"}: the worked solution is the completion, 1200 the answer."""
    solution = str(row.pop("answer"))
    answer = solution.split("####")[-1].strip().replace(",", "")
    return {"prompt": row.pop("question"), "completion": solution, "answer": answer}


def messages(row):
    """Read {"messages"}, a chat."""
    return {"prompt": row.pop("messages")}


def document(row):
    """Read {"text"}, a document."""
    return {"prompt": "", "completion": row.pop("text")}


FORMATS: dict[tuple[str, ...], Callable[[Row], Row]] = {  # the columns that tell a format
    ("question", "answer"): gsm8k,
    ("messages",): messages,
    ("text",): document,
}


def from_format(row: Row) -> Row:
    """Turn a row without a prompt into ours, by FORMATS. Columns that its reader does not pop stay."""
    read = next((read for columns, read in FORMATS.items() if row.keys() >= set(columns)), None)
    if read is None:
        raise ValueError(
            'no prompt; expected "prompt", or "question" and "answer" as in GSM8K, or "messages", a chat, or "text", a '
            f"document; found {', '.join(row) or 'none'}; for other names train.py has --texts.prompt_key=COLUMN "
            "and --texts.completion_key=COLUMN, also answer_key, tests_key, language_key, difficulty_key; what a data "
            'set has in another form, rewrite as rows {"prompt", "completion", "answer", "tests"}'
        )
    return read(row) | row


# ---- chats -----------------------------------------------------------------------------------------------------------


def is_turn(value):
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def is_text_part(value):
    return isinstance(value, dict) and value.get("type") == "text" and isinstance(value.get("text"), str)


def with_text(turn):
    """Replace the content of a chat message that is a list of parts of type text, as OpenAI writes it, by the text."""
    parts = turn.get("content") if isinstance(turn, dict) else None
    if not parts or not isinstance(parts, list):
        return turn
    if others := [part for part in parts if not is_text_part(part)]:
        raise ValueError(f"parts of a message should be of type text, found {quote(others[0])}")
    return turn | {"content": "".join(part["text"] for part in parts)}


def from_chat(row: Row) -> Row:
    """Turn a prompt that is a list of chat messages into text.

    The last message of the user is the prompt, what the model said after it the completion, the rest
    `messages_before`.
    """
    answered = isinstance(row.get("completion"), list)  # TRL's completions can be messages, too
    turns = [with_text(turn) for turn in row["prompt"] + (row["completion"] if answered else [])]
    if not all(map(is_turn, turns)):
        raise ValueError(f'a prompt is text or a list of {{"role": ..., "content": ...}}, found {quote(turns)}')
    answer = turns[-1:] if turns and turns[-1]["role"] == "assistant" else []
    turns = turns[: len(turns) - len(answer)]
    if not turns or turns[-1]["role"] != "user":
        raise ValueError(f"the last to speak before the model should be the user, in {quote(row['prompt'])}")
    *before, prompt = turns
    row = row | {"prompt": prompt["content"]}
    if answer:
        row["completion"] = answer[0]["content"]
    if before:
        row["messages_before"] = before
    return row
