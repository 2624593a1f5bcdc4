"""
Run the chat template in a tokenizer's files, in a process with limits.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

from system import helper

# A template is a stranger's program. Jinja's sandbox limits what it can reach, the kernel its time and memory.
TEMPLATE_SECONDS, TEMPLATE_BYTES = 5, 1 << 30
RENDERER = """
import resource, sys, time
from jinja2 import TemplateError, sandbox

def refuse(why):
    raise TemplateError(why)

box = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=["jinja2.ext.loopcontrols"])
if sys.platform == "linux":
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))

def answer(text, given, messages):
    given |= {"raise_exception": refuse, "strftime_now": time.strftime}
    try:
        return box.from_string(text).render(given, messages=messages)
    except Exception as e:  # whatever a stranger's program raises
        return [f"{type(e).__name__}: {e}"[:500]]
"""


def writer(tok: Any, names: list[str]) -> Callable:
    """Return a writer of turns that runs the Jinja template in the tokenizer's files, in a process with limits.

    The template is given the names that transformers gives it. names: the templates that data.chat knows, for messages
    """
    text = tok.extra.get("chat_template")
    if isinstance(text, list):
        text = {template["name"]: template["template"] for template in text}.get("default")
    if not text:
        raise ValueError(
            "texts.chat_template='own', but the tokenizer's files have none: a base model (None), or name one "
            f"of {', '.join(names)}"
        )
    if importlib.util.find_spec("jinja2") is None:
        raise ValueError("texts.chat_template='own' needs the package jinja2, which is not installed: "
                         "pip install jinja2")  # fmt: skip
    given = {f"{role}_token": token for role, token in tok.roles.items()} | {"bos_token": "".join(tok.bos)}
    given |= {"tools": None, "documents": None, "add_generation_prompt": True}
    program = RENDERER.replace("MEMORY", str(TEMPLATE_BYTES))

    def write(turns):
        messages = [{"role": role, "content": text} for role, text in turns]
        try:
            answer = helper.ask(program, text, given, messages, seconds=TEMPLATE_SECONDS)
        except RuntimeError:  # the process has ended without an answer, for lack of memory
            answer = None
        if isinstance(answer, str):
            return answer
        if answer:
            raise ValueError(f"the chat template in the tokenizer's files fails: {answer[0]}")
        raise ValueError(
            f"the chat template in the tokenizer's files takes more than {TEMPLATE_SECONDS} s or "
            f"{TEMPLATE_BYTES >> 20} MB for one prompt: it is a program, and this one does not end. "
            f"Name the template yourself: one of {', '.join(name for name in names if name != 'own')}"
        )

    write([("user", "")])
    return write
