"""
Find the final answer in a text of mathematics, and compare it with the right one.

Numbers are compared exactly, with their units. Other answers (lists, intervals, equations) are compared part by part,
as text in one spelling. Where math-verify is installed (pip install math-verify), it decides whether two formulas that
are spelled differently are equal, unless they differ in a way that it overlooks: 5 and x >= 5, pi and Pi. Text of a
model is never evaluated as Python. All costs are bounded by the length of the text, or by a limit of time.
"""

import ast
import functools
import importlib.util
import operator
import re
from fractions import Fraction
from typing import Any

from judges.rules import tagged_answer
from system import helper

# A number, but not the 2 of x^2 or x2. A sign is part of it unless it may be a minus between two terms. The bound {1,6}
# keeps the search linear in texts like ",111,111,...".
NUMBER = re.compile(
    r"(?<![\w^])(?:(?<![.)\]}])[-+])?(?:(?:\d{1,3}(?:,\d{3}){1,6}(?!,?\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:/\d+)?",
    re.ASCII,
)
# A number and perhaps a unit: 3 1/2 cups, 1.5e3, 2 \times 10^3 m/s^2. Not 5x, 5!, 5 or 6, 5 million, 12:30.
UNITS = (
    r"[kcmn]?m|k?g|mg|lbs?|oz|m?[lL]|m?s|min|hr?s?|ft|in|yd|mi|mph|kmh?|[km]?[WVAJN]|kWh|[kM]?Hz|[kM]?Pa|[KCF]|"
    r"mol|cents?|dollars?|st|nd|rd|th"
)
NO_UNITS = (
    r"or|and|to|plus|minus|times|over|by|half|hundred|thousand|million|billion|trillion|dozen|pi|sqrt|factorial|"
    "squared|cubed"
)
POWER = r"(?:\^\{?-?[1-9]\}?|[²³])?"
WORDS = rf"(?!(?:{NO_UNITS})\b)[A-Za-z]{{2,}}{POWER}(?:[ '/.,-]{{1,3}}[A-Za-z]+{POWER})*"
QUANTITY = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<number>(?P<whole>\d{1,40})\s+(?P<part>\d{1,40}/\d{1,40})|"
    r"(?:\d{1,3}(?:,\d{3}){1,13}|\d{1,50})(?:\.\d{1,50})?(?:/\d{1,40})?|\.\d{1,50})"
    r"(?:[eE](?P<e>[-+]?\d{1,2})|\s*(?:\\times|\\cdot|×|\*)\s*10\^\{?(?P<ten>-?\d{1,2})\}?)?"
    rf"(?:\s*(?:\^\{{?\\circ\}}?|°))?(?:\s*(?:{UNITS}){POWER}(?:/(?:{UNITS}){POWER})?|\s+{WORDS})?",
    re.ASCII,
)
ALGEBRA_SECONDS = 2.0
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
LONG_UNITS = {
    "km": "kilometers? kilometres?", "m": "meters? metres?", "cm": "centimeters? centimetres?", "kg": "kilograms?",
    "mm": "millimeters? millimetres?", "g": "grams?", "s": "seconds? secs?",
    "min": "minutes? mins?", "h": "hours? hrs?", "ft": "feet foot",
    "in": "inch(?:es)?", "mi": "miles?", "lb": "pounds? lbs", "day": "days", "week": "weeks",
}  # fmt: skip


def without_spaces(found):
    """Return a match without its white space."""
    return re.sub(r"\s", "", found[0])


SPELLINGS: list[tuple[str, Any]] = [  # (a pattern, its one spelling)
    (r"\*\*|__", ""),  # Markdown
    (r"^\s*(?:[Oo]ption|[Cc]hoice)\s+(?=\(?[A-J]\b)", ""),
    (r"[–—−‑]", "-"),
    (r"π", r"\\pi"),
    (r"\\geq?(?![a-z])|>=|\\geqslant", "≥"),
    (r"\\leq?(?![a-z])|<=|\\leqslant", "≤"),
    (r"\\neq?(?![a-z])|!=", "≠"),
    (r"\\[dt]frac", r"\\frac"),
    (r"(\d)\s*\\frac", r"\1 \\frac"),
    (r"\\(frac|sqrt)(\d)", r"\\\1{\2}"),
    (r"\\frac\{([^{}]{1,40})\}(\d)", r"\\frac{\1}{\2}"),
    (r"\\frac\{([^{}\s+-]{1,40})\}\{(\w{1,40})\}", r"\1/\2"),
    (r"([\^_])\{(\w)\}", r"\1\2"),
    (r"\\(?:mathrm|mbox|text|textbf|mathbf)\{([^{}]{0,80})\}", r" \1"),
    (r"\b(?:negative|minus)\s+(?=[\d.])", "-"),
    (r"(?<![\w.,/])\d{1,3}(?:[ \u00a0\u202f]\d{3}){1,6}(?![\w/]|[.,]\d)", without_spaces),
]
WORD = r"(?<![\\A-Za-z])(?!(?:sin|cos|tan|log|ln|sqrt|pi)\b)[A-Za-z]{2,}"
HEADING = re.compile(r"\W*(?:the )?(?:final )?(?:answer|result|solution)s?\W*", re.I)
# A last number behind or before these words is not the answer, or not all of it.
NOT_ALONE = re.compile(
    r"(?:\b(?:not|at (?:least|most)|(?:more|less|fewer|greater) than|over|under|or|and|between|to|by|times|plus|"
    r"about|around|roughly|approximately|nearly|almost|twice|double|triple|log|ln|sin|cos|tan|"
    r"(?:half|third|quarter) of)|"
    r"[-+*/<>≥≤≠±×·(\[]|\d[A-Za-z]\s*=)\s*$",
    re.I,
)
NOT_WHOLE = re.compile(rf"\s*(?:{NO_UNITS}|[-+*/×·=]\s*\d)(?![A-Za-z])", re.I)


def canonical(text: str) -> str:
    """Write a formula in one spelling: \\dfrac12 and \\frac{1}{2} as 1/2, x^{2} as x^2, >= as ≥, negative 5 as -5."""
    text = text[:400]
    for pattern, spelling in SPELLINGS:
        text = re.sub(pattern, spelling, text, flags=re.I if "negative" in pattern else 0)
    return without_latex(text).strip()


def marked_answer(text):
    """Return what follows the last ####, or is in the last <answer> or \\boxed, or follows "answer is"; or None."""
    if "####" in text:
        lines = [line for line in text.rsplit("####", 1)[1].strip()[:400].split("\n") if line.strip()] or [""]
        part = lines[1] if len(lines) > 1 and HEADING.fullmatch(lines[0]) else lines[0]
    elif "<answer>" in text or "\\boxed" in text:
        part = tagged_answer(text)
    elif marks := [m.end() for m in re.finditer(r"\b(?:answer|option|choice)(?:\s{1,9}is\b:?|\s{0,9}:)", text, re.I)]:
        after = text[marks[-1] :].lstrip(" \n\t*")[:200]
        part = re.split(r"\.\s|\n|[,;]\s|\s(?:because|since|as|so)\s", after)[0]
    else:
        return None
    return boxed(part) if "\\boxed" in part else part


def boxed(text):
    """Return the content of the last \\boxed."""
    part = text.rsplit("\\boxed", 1)[1].strip()
    depth = 0
    for i, c in enumerate(part):  # to the brace that closes the first: "{\\frac{1}{2}} apples" -> "\\frac{1}{2}"
        depth += (c == "{") - (c == "}")
        if depth <= 0:
            return part[1:i] if i else part.split()[0]
    return part.lstrip("{")


def without_latex(text):
    """Remove LaTeX, currency, % and a full stop from a number: "\\frac{3}{4}." -> "3/4", "-\\$1{,}200" -> "-1,200"."""
    part = r"(?:\{(-?\d{1,40})\}|(\d))"
    text = re.sub(
        rf"(\d?)\s{{0,9}}\\[dt]?frac\s{{0,9}}{part}\s{{0,9}}{part}",
        lambda m: (m[1] and m[1] + " ") + (f"{m[2] or m[3]}/{m[4] or m[5]}"),
        text,
    )  # 3\frac12 is 3 1/2
    text = re.sub(r"\\(?:text|mathrm|mbox|textbf|mathbf)\{([^{}]{0,80})\}", r"\1", text)
    text = text.replace("{,}", ",").replace("−", "-")
    text = re.sub(r"\\?[$€£%]|\\[!,;:() \[\]]|\\left|\\right|(?<!\\)\\$", "", text)
    return text.strip().rstrip(".").strip()


def last_number(text):
    """Find the last number of a text, with its unit; "" if there is none, or it is part of 5x, 5^2, 5! or 12:30."""
    last = None
    for found in NUMBER.finditer(text):
        last = found
    if not last or re.search(r"[{_:\\]$", text[: last.start()][-1:]):
        return ""
    before = text[max(0, last.start() - 40) : last.start()]
    if NOT_ALONE.search(before.rstrip("$ (*")) or NOT_WHOLE.match(text[last.end() :]):
        return ""
    whole = re.search(r"(?<![\w.,/])\d{1,40} $", text[: last.start()][-42:]) if "/" in last[0] else None
    number = (whole[0] if whole else "") + last[0]
    unit = re.match(rf"(?:e[-+]?\d{{1,2}}\b|(?:{UNITS}){POWER})(?![\w^])", text[last.end() :])
    after = text[last.end() + (unit.end() if unit else 0) :][:2]
    return "" if re.match(r"[\w^!\\{(°]|:\d", after) else number + (unit[0] if unit else "")


def as_fraction(text):
    """Read a number with perhaps a unit as an exact fraction, or return None if the text is anything else."""
    found = QUANTITY.fullmatch(text.strip()) if len(text) < 300 else None
    if not found:
        return None
    whole, number = (found["whole"], found["part"]) if found["whole"] else (0, found["number"].replace(",", ""))
    over, _, under = number.partition("/")
    if not Fraction(under or 1):
        return None
    power = int(found["e"] or found["ten"] or 0)
    value = (Fraction(whole) + Fraction(over) / Fraction(under or 1)) * Fraction(10) ** power
    return -value if found["sign"] == "-" else value


# ---- are two answers equal? True, False, or None if the rules cannot tell --------------------------------------------


def arithmetic(text):
    """Compute + - * / and small powers of numbers exactly -> Fraction; None for anything else."""

    def value(node):
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            base, power = value(node.left), value(node.right)
            if power.denominator == 1 and abs(power) <= 100 and max(abs(base.numerator), base.denominator) < 10**9:
                return base ** int(power)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return Fraction(str(node.value))
        raise ValueError("not arithmetic")

    text = re.sub(r"\\times|\\cdot|[×·]", "*", text).replace("\\div", "/").replace("÷", "/").replace("^", "**")
    text = text.replace("{", "(").replace("}", ")")
    if not re.fullmatch(r"[\d+\-*/(). ]{1,100}", text, re.ASCII):
        return None
    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def unit_of(text):
    """Return the unit of a quantity in its short form, or ""."""
    unit = re.sub(r"[{}\s\\]", "", re.sub(r"^[-+\d.,/\s]+(?:e[-+]?\d+)?", "", text.strip(), flags=re.I))
    for short, long in LONG_UNITS.items():
        unit = re.sub(rf"^(?:{long.replace(' ', '|')})(?=\^|$)", short, unit)
    return unit if re.fullmatch(rf"(?:{UNITS}|day|week|{'|'.join(LONG_UNITS)}){POWER}(?:/.*)?", unit) else ""


def equation(text):
    """Split "x = 5" into ("x", "5"), "12 - 5 = 7" into ("", "7") and "x = 3 or x = 5" into ("x", "3, 5"); (None, text)
    if it states something else, as 2x = 10 does."""
    if "=" not in text:
        return "", text
    pairs = [part.split("=") for part in re.split(r",|;|\bor\b|\band\b", text) if part.strip()]
    lefts = [pair[0].strip() for pair in pairs if len(pair) > 1]  # "x = 3, 5" names it once
    names = {left if len(left) == 1 else left.lower() for left in lefts}
    values = [pair[-1].strip() for pair in pairs]
    if len(names) > 1 or len(pairs[0]) < 2:
        return None, text
    (name,) = names
    if re.fullmatch(r"[\\A-Za-z_ ]*(?:\([a-z]\)|_\d)?", name):
        return name, ", ".join(values)
    computed = arithmetic(name)
    return ("", values[0]) if computed is not None and computed == arithmetic(values[-1]) else (None, text)


def elements(text):
    """Split a list at the commas outside of its brackets -> its brackets, its elements."""
    text = text.replace("\\{", "{").replace("\\}", "}").strip()
    whole = re.fullmatch(r"([(\[{])(.*)([)\]}])", text, re.S)
    brackets, inside = (whole[1] + whole[3], whole[2]) if whole else ("", text)
    parts, depth = [""], 0
    for c in inside:
        depth += (c in "([{") - (c in ")]}")
        if depth < 0:
            return "", [text]  # "(1)(2)"
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return "" if brackets == "{}" else brackets, [part.strip() for part in parts]


def equal_lists(given, wanted):
    """Compare two lists, tuples, sets or intervals; the order counts if they are in ( ) or [ ]."""
    (around, parts), (wanted_around, wanted_parts) = elements(given), elements(wanted)
    if around != wanted_around or len(parts) != len(wanted_parts):
        return False
    if len(parts) == 1:
        return None if parts == [given] or around == "[]" else equal(parts[0], wanted_parts[0])
    if not (around.startswith(("(", "[")) or around.endswith(("]", ")"))):
        parts, wanted_parts = sorted(parts), sorted(wanted_parts)
    found = [equal(*pair) for pair in zip(parts, wanted_parts, strict=True)]
    return False if False in found else None if None in found else True


def equal(given: str, wanted: str) -> bool | None:
    """Compare two answers in their canonical spelling; None if the rules cannot tell."""
    if not given or not wanted:
        return False
    if re.sub(r"\s", "", given) == re.sub(r"\s", "", wanted):
        return as_fraction(wanted) is not None or not NUMBER.fullmatch(wanted)  # 1/0 is a number that nothing equals
    if choice := re.fullmatch(r"\(?([A-Ja-j])\)?", wanted):
        picked = re.match(r"\(?([A-Ja-j])\)?(?:$|[.:)]|\s+[^\sa-z])", given)
        several = re.search(r"\b(?:or|and)\b|,", given)
        return bool(picked and picked[1].lower() == choice[1].lower() and not several)
    if set(re.findall("[<>≥≤≠±]", given)) != set(re.findall("[<>≥≤≠±]", wanted)):
        return False
    (name, given_side), (wanted_name, wanted_side) = equation(given), equation(wanted)
    if (given_side, wanted_side) != (given, wanted):
        is_other = name and wanted_name and name != wanted_name and len(name) + len(wanted_name) == 2
        return False if is_other or name is None or wanted_name is None else equal(given_side, wanted_side)
    if re.fullmatch(r"[A-Za-z ]{2,}", given + wanted) and min(len(given), len(wanted)) > 1:
        return given.lower() == wanted.lower()
    return equal_numbers(given, wanted)


def equal_numbers(given, wanted):
    """Compare two numbers with their units, or else two lists."""
    numbers = [x if (x := as_fraction(text)) is not None else arithmetic(text) for text in (given, wanted)]
    if None not in numbers:
        units = [unit_of(text) for text in (given, wanted)]
        return numbers[0] == numbers[1] and ("" in units or units[0] == units[1])
    if NUMBER.fullmatch(wanted) and numbers[1] is None:
        return False
    given = re.sub(rf"\s+(?:{UNITS}){POWER}$", "", re.sub(r"(?<=[\w}}]) (?:and|or) (?=[-\d])", ", ", given))
    if re.search(rf"{WORD}|[!:]", given) or re.search("[!:]", wanted):
        return False
    return equal_lists(given, wanted)


def letters(text):
    """List the letters and names of a formula, but for those that only say how it is written."""
    return {*re.findall(r"[A-Za-z]+", text)} - {"frac", "sqrt", "cdot", "times", "div", "left", "right"}


@functools.lru_cache(65536)
def equal_formulas(given: str, wanted: str) -> bool:
    """Ask math-verify, if it is installed, whether two formulas are equal; False if it takes too long."""
    if not importlib.util.find_spec("math_verify") or max(len(given), len(wanted)) > 200:
        return False
    if {*"".join(letters(given))} != {*"".join(letters(wanted))}:
        return False  # math-verify takes Pi for pi
    return bool(helper.ask(helper.ALGEBRA, wanted, given, seconds=ALGEBRA_SECONDS))


def verdict(given, wanted):
    """Compare two answers as they were written -> True or False. 25% is 25 and 1/4."""
    found = equal(canonical(given), canonical(wanted))
    if not found and ("%" in given) != ("%" in wanted):
        less, more = sorted((given, wanted), key=lambda text: "%" in text)
        number, percent = as_fraction(canonical(less)), as_fraction(canonical(more))
        return None not in (number, percent) and percent == 100 * number
    return equal_formulas(*(text.replace("$", "").strip() for text in (given, wanted))) if found is None else found


def math_answer(text: str, answer: object) -> float:
    """1.0 if the final answer of the completion is that of the column `answer`, else 0.0. It is what follows the last
    ####, else the content of the last <answer>, else of the last \\boxed, else what follows the last "answer is", else
    the whole text if it is a formula, else its last number, if that stands alone. Where math-verify is installed, equal
    formulas are equal answers, else only numbers and what is spelled alike."""
    answer = str(answer)
    wanted = marked_answer(answer) if re.search(r"####|<answer>|\\boxed", answer) else answer
    given = marked_answer(text)
    if "\\boxed" in text and given is not None:
        return float(verdict(given, wanted))
    if given is None:
        given = text
    elif (again := marked_answer(given)) is not None:  # "#### The answer is 5"
        given = again
    plain = canonical(given) if len(given) <= 200 and "\n" not in given.strip() else ""
    if plain and verdict(given, wanted):
        return 1.0
    words = re.findall(r"(?<![\\A-Za-z\d])(?!(?:and|or|not)\b)[A-Za-z]{2,}", plain)
    if plain and (not words or QUANTITY.fullmatch(plain)):
        return 0.0
    number = last_number(canonical(given[-400:]))
    return float(bool(number) and bool(equal(number, canonical(wanted))))
