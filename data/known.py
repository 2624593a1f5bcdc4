"""
Rows that are not ours, or have tests. Those of GSM8K, chats and documents are recognised by their columns. All are
turned into ours, and checked.
"""

from collections.abc import Callable
from typing import Any

from system.unknown import quote

Row = dict[str, Any]
DIFFICULTY = {"easy": 1, "medium": 2, "hard": 3}


def read_list(path: Any, values: list, names: dict[str, str] | None) -> list:
    """Turn a list of rows in any format into ours. path: where they are; names: see data.load"""
    rows = []
    for number, row in enumerate(values, 1):
        try:
            rows.append(normalize_row(row, names or {}))
        except ValueError as e:
            raise ValueError(f"{path}, row {number}: {e}") from e
    return rows


def normalize_row(row: Any, names: dict[str, str]) -> Row:
    """Turn a row in any format into ours, and check it. names {our column: theirs}: columns to rename."""
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with a prompt, found {quote(row)}")
    for ours, theirs in names.items():
        if theirs not in row:
            raise ValueError(f"{ours}_key={theirs!r}: no such column; found {', '.join(row) or 'none'}")
    row = {name: value for name, value in row.items() if value is not None}
    row |= {ours: row[theirs] for ours, theirs in names.items() if theirs in row}
    if is_number(row.get("answer")):
        row["answer"] = str(row["answer"])
    row = row if "prompt" in row else from_format(row)
    row = from_chat(row) if isinstance(row["prompt"], list) else row
    if "test_cases" in row:
        row["tests"] = row.pop("test_cases")
    if isinstance(row.get("difficulty"), str):
        row["difficulty"] = DIFFICULTY.get(row["difficulty"].lower(), row["difficulty"])
    for column, value in row.items():
        if column in COLUMNS:
            is_valid, expected = COLUMNS[column]
            if not is_valid(value):
                raise ValueError(f"{column} should be {expected}, found {quote(value)}")
    return row


def is_text(value):
    return isinstance(value, str)


def is_number(value):
    return type(value) in (int, float)


def is_test(value):
    return is_text(value) or isinstance(value, dict) and {"input", "output"} <= value.keys()


def is_tests(value):
    return isinstance(value, list) and all(map(is_test, value))


TEXTS = "prompt", "completion", "answer", "language", "entry", "chosen", "rejected", "masked"
COLUMNS: dict[str, tuple[Callable[[Any], bool], str]] = dict.fromkeys(TEXTS, (is_text, "a string")) | {
    "tests": (is_tests, 'a list of strings such as "assert f(2) == 4" or of {"input": ..., "output": ...}'),
    "difficulty": (is_number, f"a number or one of {', '.join(DIFFICULTY)}"),
}


# ---- formats ---------------------------------------------------------------------------------------------------------


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
