"""
How prompts are written for models that were taught a format. A writer takes a system prompt (None: the usual one, if
there is one) and a prompt, and returns the text that asks for an answer.
"""
import functools
import re
from collections.abc import Callable

from data.bpe import Tokenizer
from system import sections


def plain(system, prompt):
    """Write the prompt alone, for a base model."""
    return prompt


def chatml(system, prompt):
    """Write a prompt as Qwen2, Dream, DiffuCoder and SmolLM2 were taught to read it."""
    system = "You are a helpful assistant." if system is None else system
    return (f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n"
            "<|im_start|>assistant\n")  # fmt: skip


def headers(first, system, prompt):
    """Write turns with a header each, without a usual system prompt, after the token `first` (LLaDA, Llama 3)."""
    turns = [("user", prompt)] if system is None else [("system", system), ("user", prompt)]
    written = [f"<|start_header_id|>{role}<|end_header_id|>\n\n{text.strip()}<|eot_id|>" for role, text in turns]
    return f"{first}{''.join(written)}<|start_header_id|>assistant<|end_header_id|>\n\n"


def gemma(system, prompt):
    """Write a prompt as Gemma 2 reads it. It has no system role: a system prompt stands before the question."""
    text = prompt if system is None else f"{system}\n\n{prompt}"
    return f"<bos><start_of_turn>user\n{text.strip()}<end_of_turn>\n<start_of_turn>model\n"


CHAT: dict[str | None, Callable[[str | None, str], str]] = {
    None: plain,
    "chatml": chatml,
    "llada": functools.partial(headers, "<|startoftext|>"),  # LLaDA-Instruct
    "llama3": functools.partial(headers, "<|begin_of_text|>"),  # Llama-3-Instruct
    "gemma": gemma,
}


def template(
    name: str | None, system: str | None, tok: Tokenizer, instruction: str | None = None
) -> Callable[[str], str] | None:
    """Return template(prompt), which writes the text with special tokens; None if nothing is added.

    name: a key of CHAT
    system: the system prompt; None: the usual one of the template, if it has one
    instruction: text before every prompt in its turn, or around it if it contains {prompt}
    """
    if name is None and instruction is None:
        return None
    if name not in CHAT:
        sections.refuse("texts.chat_template", name, CHAT)
    write = CHAT[name]
    lacking = set(re.findall(r"<\|\w+\|>|<\w+>", write(None, ""))) - tok.specials.keys()
    if lacking:
        raise ValueError(
            f"texts.chat_template={name!r} writes {', '.join(sorted(lacking))}, which this tokenizer does not "
            "have as special tokens: this model was taught another template, or none (None)"
        )
    form = instruction or ""
    form = form if "{prompt}" in form else form + "{prompt}"
    return lambda prompt: write(system, form.replace("{prompt}", prompt))
