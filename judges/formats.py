"""
Rules that read how a completion is written: JSON, XML, a pattern, arithmetic, words, its length. They are as in
rules.py; importing this file adds them to rewards.REWARDS.

Text of a model is never evaluated: arithmetic is parsed and computed with exact fractions. All costs are bounded by the
length of the text, or by a limit of time.
"""

import ast
import json
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any
from xml.parsers import expat

import rewards
from judges import fences, rules
from judges.answers import NUMBER, as_fraction, boxed, canonical, math_answer
from judges.rules import tagged_answer
from system import helper

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
# The last is a social security number. A block list knows words, not meanings: it finds only the plainest cases.
UNSAFE = (
    r"\b(?:kill (?:yourself|himself|herself|themselves)|commit suicide|(?:make|build) an? (?:pipe )?bomb|"
    r"(?:cook|make) meth(?:amphetamine)?|child porn\w*|rm -rf /|\d{3}-\d{2}-\d{4})(?!\w)"
)


def parse_json(text: str) -> dict | list | None:
    """Parse a JSON object or array, or return None; a bare number does not count, and NaN is not JSON."""

    def refuse(constant):
        raise ValueError(constant)

    try:  # numbers stay text: int() of a million digits takes seconds
        value = json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None


def evaluate(node, pool):
    """Compute a syntax tree of + - * / exactly, removing every whole number in it from the list `pool`.

    A ValueError if a number is not in the pool, or for any other syntax.
    """
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](evaluate(node.left, pool), evaluate(node.right, pool))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if isinstance(node.operand, ast.Constant) and -node.operand.value in pool:  # the result of an earlier step
            pool.remove(-node.operand.value)
            return Fraction(-node.operand.value)
        return -evaluate(node.operand, pool)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        pool.remove(node.value)  # ValueError: not given, or used before
        return Fraction(node.value)
    raise ValueError("only + - * / and whole numbers")


SEARCH_SECONDS = 2.0


def search(pattern: str, text: str, flags: int = 0) -> bool:
    """True if a pattern from a data set is found in the text; a ValueError if that takes SEARCH_SECONDS of CPU time."""
    re.compile(pattern, flags)  # raises if the pattern is wrong
    if (found := helper.ask(helper.SEARCH, pattern, text, flags, seconds=SEARCH_SECONDS)) is not None:
        return found
    raise ValueError(
        f"the pattern {pattern!r} takes more than {SEARCH_SECONDS:g} s on a text of {len(text)} characters: "
        "write it so that a text matches in one way only, as a+ instead of (a+)+, or bound it, as a{1,9}"
    )


# ---- rules ----------------------------------------------------------------------------------------------------------


def regex(text: str, pattern: str) -> float:
    """1.0 if the row's `pattern` is found in the completion (re.search), else 0.0; an error if that takes 2 s."""
    return float(search(pattern, text))


def valid_json(text: str) -> float:
    """1.0 if the completion, or its first ``` block, is a JSON object or array, else 0.0."""
    blocks = fences.blocks(text, "json")
    return float(parse_json(blocks[0].code if blocks else text) is not None)


def valid_xml(text: str) -> float:
    """1.0 if the completion is well-formed XML with at least one element and no document type, else 0.0."""
    parser, elements = expat.ParserCreate(), []
    parser.StartElementHandler = lambda name, attributes: elements.append(name)
    body = re.sub(r"^<\?xml[^>]*>", "", text.strip())
    try:  # within our root element a DOCTYPE is an error, so there is no entity bomb
        parser.Parse(f"<all>{body}</all>".encode("utf-8", "replace"), True)
    except expat.ExpatError:
        return 0.0
    return float(len(elements) > 1)


def xml_tags(text: str) -> float:
    """0.125 for each tag of "<reasoning>\\n..\\n</reasoning>\\n<answer>\\n..\\n</answer>" that occurs exactly once with
    these line ends, minus 0.001 per character after the last tag and its line end; at least 0.0. (d1's subtracts 0.001
    twice, and for the whole text if no line end follows the last tag: a right text loses by its length.)"""
    tags = sum(text.count(tag) == 1 for tag in ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>"))
    _, closed, after = text.rpartition("\n</answer>")
    return max(0.0, round(0.125 * tags - 0.001 * len(after.removeprefix("\n")) * bool(closed), 6))


def xml_soft(text: str) -> float:
    """1.0 if it begins with <reasoning>..</reasoning><answer>..</answer>, with any white space between, else 0.0.
    (d1's regex, worth 0.5, lacks DOTALL: reasoning of two lines never matches.)"""
    head, _, rest = text.lstrip().partition("</reasoning>")
    return float(head.startswith("<reasoning>") and rest.lstrip().startswith("<answer>") and "</answer>" in rest)


def xml_strict(text: str) -> float:
    """1.0 if it is "<reasoning>\\n..\\n</reasoning>\\n<answer>\\n..\\n</answer>", each tag once and no part blank,
    else 0.0. (d1's regex, worth 0.5, lacks DOTALL and wants one more line end, which a text that ends with its answer
    does not have.)"""
    parts = re.split(r"(</?(?:reasoning|answer)>)", text.removesuffix("\n"))
    lines = len(parts) == 9 and all(re.fullmatch(r"\n.*\S.*\n", part, re.S) for part in (parts[2], parts[6]))
    tags = ["<reasoning>", "</reasoning>", "<answer>", "</answer>"]
    return float(lines and parts[1::2] == tags and parts[::4] == ["", "\n", ""])


def xml_int(text: str) -> float:
    """1.0 if the content of <answer> (or the text without one) is a whole number, such as -5 or 1,200, else 0.0.
    (d1's, worth 0.5, uses str.isdigit, which rejects both and accepts a superscript two.)"""
    return float(bool(re.fullmatch(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)", tagged_answer(text), re.ASCII)))


def xml_answer(text: str, answer: object) -> float:
    """1.0 if the content of <answer> (or the text without one) is the answer and nothing else, else 0.0. Numbers are
    compared exactly, everything else as strings. (d1's, worth 2.0, compares only strings: 1,200 is not 1200.)"""
    found, wanted = canonical(tagged_answer(text)), canonical(str(answer))
    if NUMBER.fullmatch(found) and NUMBER.fullmatch(wanted) and as_fraction(found) is not None:
        return float(as_fraction(wanted) is not None and as_fraction(found) == as_fraction(wanted))
    return float(bool(wanted) and found == wanted)


def countdown(text: str, numbers: list, target: Any) -> float:
    """1.0 if it is solved, by steps "44-15=29,79-29=50" or one expression: each number is used exactly once, every
    equation is true, and only the target is left. 0.1 if it is wrong, or <answer> has no arithmetic. 0.0 if <answer> is
    empty, or there is neither it nor arithmetic. (d1's evaluates the text, which may be 9**9**9, and accepts any value
    within 0.00001 of the target.)"""
    answered = 0.1 if "<answer>" in text and tagged_answer(text) else 0.0
    text = tagged_answer(text)
    text = boxed(text) if "\\boxed" in text else text
    signs = {
        "×": "*",
        "÷": "/",
        "−": "-",
        "\\times": "*",
        "\\cdot": "*",
        "\\div": "/",
    }
    for spelling, sign in signs.items():
        text = text.replace(spelling, sign)
    text = re.sub(r"\$|\\[()\[\]]", "", text).strip().rstrip(".")
    if len(text) > 400 or not re.fullmatch(r"[0-9+\-*/()=,;\s]+", text):
        return answered
    steps = [step.partition("=") for step in re.split(r"[,;\n]", text) if step.strip()]
    steps = [step[::-1] if step[0].strip().isdigit() and step[2].strip() else step for step in steps]  # 50=79-29
    try:
        trees = [ast.parse(left.strip(), mode="eval").body for left, _, _ in steps]
    except (SyntaxError, RecursionError, MemoryError):
        return answered
    pool = [Fraction(number) for number in numbers]
    try:
        for tree, (_, equals, right) in zip(trees, steps, strict=True):
            pool.append(evaluate(tree, pool))
            if equals and pool[-1] != Fraction(right.strip()):
                return 0.1
    except (ValueError, ZeroDivisionError, RecursionError):
        return 0.1
    return 1.0 if pool == [Fraction(target)] else 0.1 if steps else 0.0


def safety(text: str, blocked: str = UNSAFE) -> float:
    """0.0 if `blocked`, a regular expression, is found in the text, ignoring case, else 1.0. Ours finds orders to kill
    or to build bombs, drugs, child abuse, `rm -rf /` and social security numbers; a column `blocked` replaces it."""
    return float(not (re.search if blocked == UNSAFE else search)(blocked, text, re.I))


def keywords(text: str, keywords: list[str]) -> float:
    """Fraction of the row's list `keywords` that occur as whole words, ignoring case."""
    if isinstance(keywords, str):
        raise TypeError(f"the column keywords is a list of words, not the text {keywords!r}")
    found = [word for word in keywords if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.I)]
    return len(found) / len(keywords)


def length(text: str, target_length: float = 100, token_ids: Any = None) -> float:
    """1 - |length - target_length| / target_length, at least 0; in tokens if there is a column token_ids, else in
    characters."""
    size = len(text if token_ids is None else token_ids)
    return max(0.0, 1 - abs(size - target_length) / target_length)


def contains(text: str, answer: object) -> float:
    """1.0 if the answer occurs in the completion, else 0.0."""
    return float(str(answer).strip() in text)


def reasoning(text: str) -> float:
    """0.8 if it contains "step 1" and "therefore", ignoring case, else 0.3."""
    text = text.lower()
    return 0.8 if "step 1" in text and "therefore" in text else 0.3


RULES: dict[str, Callable] = {
    "contains": contains,
    "regex": regex,
    "json": valid_json,
    "xml": valid_xml,
    "xml_tags": xml_tags,
    "xml_soft": xml_soft,
    "xml_strict": xml_strict,
    "xml_int": xml_int,
    "xml_answer": xml_answer,
    "math": math_answer,
    "countdown": countdown,
    "safety": safety,
    "keywords": keywords,
    "length": length,
    "reasoning": reasoning,
}
rewards.REWARDS.add({name: rules.per_text(rule) for name, rule in RULES.items()})
