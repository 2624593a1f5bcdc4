"""
How chats are written for models that were taught a format. A writer takes turns [(role, text), ...], the last by the
user, and returns the text that asks for an answer; data.CHAT names all.
"""
import functools
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from system import sections
from system.unknown import quote


def plain(turns):
    """Write the last turn alone, for a base model."""
    return turns[-1][1]


def chatml(turns):
    """Write turns as Qwen2, Dream, DiffuCoder and SmolLM2 were taught to read them, up to the model's answer."""
    first = [] if turns[0][0] == "system" else [("system", "You are a helpful assistant.")]
    written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in [*first, *turns])
    return f"{written}<|im_start|>assistant\n"


def headers(first, turns):
    """Write turns with a header each, without a default system prompt, after the token `first` (LLaDA, Llama 3)."""
    written = [f"<|start_header_id|>{role}<|end_header_id|>\n\n{text.strip()}<|eot_id|>" for role, text in turns]
    return f"{first}{''.join(written)}<|start_header_id|>assistant<|end_header_id|>\n\n"


llada = functools.partial(headers, "<|startoftext|>")  # LLaDA-Instruct
llama3 = functools.partial(headers, "<|begin_of_text|>")  # Llama-3-Instruct


def gemma(turns):
    """Write turns as Gemma 2 reads them. It has no system role: a system prompt stands before the first question."""
    if turns[0][0] == "system":
        turns = [(turns[1][0], f"{turns[0][1]}\n\n{turns[1][1]}"), *turns[2:]]
    written = [
        f"<start_of_turn>{'model' if role == 'assistant' else role}\n{text.strip()}<end_of_turn>\n"
        for role, text in turns
    ]
    return f"<bos>{''.join(written)}<start_of_turn>model\n"


def template(name, known, system, tok, instruction):
    """Make what data.chat returns. known: data.CHAT."""
    sections.require("texts.chat_template", name, known)
    write = globals()[name or "plain"]
    lacking = set(re.findall(r"<\|\w+\|>|<\w+>", write([("user", "")]))) - tok.specials.keys()
    if lacking:
        raise ValueError(
            f"texts.chat_template={name!r} writes {', '.join(sorted(lacking))}, which this tokenizer does not "
            "have as special tokens: this model was taught another template, or none (None)"
        )
    form = instruction or ""
    form = form if "{prompt}" in form else form + "{prompt}"

    def template(prompt, turns=()):
        if turns and name is None:
            refuse(turns)
        first = [] if system is None or turns and turns[0]["role"] == "system" else [("system", system)]
        before = [(turn["role"], turn["content"]) for turn in turns]
        return write([*first, *before, ("user", form.replace("{prompt}", prompt))])

    return template


def refuse(turns: Sequence[Any]) -> NoReturn:
    """Raise the error for a row with earlier turns where no template says how they are written."""
    raise ValueError(
        f"a row has messages before its prompt, the first is {quote(turns[0])}: how they are written "
        "is up to the model, so set texts.chat_template"
    )
