r"""
Find the final answer in a text of mathematics, and compare it with the right one.

Numbers, fractions, percentages and one variable (x = 5) are compared exactly here, with their units. Everything else
(lists, intervals, equations, formulas) is compared by math-verify, where it is installed, unless the two differ in a
way that it overlooks: 5 and x >= 5, pi and Pi. Without it such an answer has to be spelled like the right one, and that
is said once. Text of a model is never evaluated as Python. All costs are bounded by the length of the text, or by a
limit of time.
"""

import functools
import importlib.util
import math
import re
import sys
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
    r"mol|cents?|dollars?|st|nd|rd|th|days?|weeks?"
)
NO_UNITS = (
    r"or|and|to|plus|minus|times|over|by|half|halves|quarters?|scores?|pi|sqrt|factorial|squared|cubed"
)
POWER = r"(?:\^\{?-?[1-9]\}?|[²³])?"
WORDS = rf"(?!(?:{NO_UNITS})\b)[A-Za-z]{{2,}}{POWER}(?:[ '/.,-]{{1,3}}[A-Za-z]+{POWER})*"
QUANTITY = re.compile(
    r"(?P<sign>[-+]?)\s*(?:(?P<whole>\d{1,40})\s+(?=\d{1,40}/))?"
    r"(?P<over>(?:\d{1,3}(?:,\d{3}){1,13}|\d{1,50})(?:\.\d{1,50})?|\.\d{1,50})(?:/(?P<under>\d{1,40}))?"
    r"(?:[eE](?P<e>[-+]?\d{1,2})|\s*(?:\\times|\\cdot|×|\*)\s*10\^\{?(?P<ten>-?\d{1,2})\}?)?"
    r"(?:\s*(?:\^\{?\\circ\}?|°))?"
    rf"(?:\s*(?P<unit>(?:{UNITS}){POWER}(?:/(?:{UNITS}){POWER})?)|\s+{WORDS})?",
    re.ASCII,
)
LAST = re.compile(
    rf"(?:(?<![\w.,/])\d{{1,40}} (?=\d+/))?{NUMBER.pattern}(?:e[-+]?\d{{1,2}}\b|(?:{UNITS}){POWER}(?![\w^]))?", re.ASCII
)
# What is named: x = 5, f(x) = 5, 12 - 7 = 5.
NAME = re.compile(r"(^|[,;]|\bor\b|\band\b)\s*([A-Za-z\\_ ]*(?:\([a-z]\)|_\d)?\s*|[\d\s+*/^().-]+)=\s*")
WORD = re.compile(r"(?<![\\{A-Za-z])(?!(?:sin|cos|tan|log|ln|sqrt|pi|and|or)\b)[A-Za-z]{2,}")
ALGEBRA_SECONDS = 2.0


TIMES = {"ten": 10, "dozen": 12, "hundred": 100, "k": 1000, "thousand": 1000, "million": 10**6, "billion": 10**9,
         "trillion": 10**12}  # fmt: skip


def without_spaces(found):
    """Return a match without its white space."""
    return re.sub(r"\s", "", found[0])


def multiplied(found):
    """Write 3 dozen as 36."""
    return str(Fraction(found[1].replace(",", "")) * TIMES[found[2].lower().rstrip("s")])


def factorial(found):
    """Write 5! as 120."""
    return str(math.factorial(int(found[1])))


def turned(found):
    """Write 3 < x as x > 3."""
    return f"{found[3]} {found[2].translate(str.maketrans('<>≤≥', '><≥≤'))} {found[1]}"


def periodic(found):
    """Write 0.1\\overline{6} as 15/90."""
    before, again = found[1] + found[2], found[3]
    nines = (10 ** len(again) - 1) * 10 ** len(found[2])
    return f"{int(before + again) - int(before)}/{nines}"


# What is replaced by what.
LATEX: list[tuple[str, Any]] = [
    (r"<<[^<>\n]{0,80}>>", ""),  # GSM8K's calculator
    (r"(?<![\w.])(\d{1,9})\.(\d{0,9})\\overline\s{0,9}\{(\d{1,9})\}", periodic),
    (r"(?<![\w.])(1?\d|20)!(?![=!\w])", factorial),
    (r"(\d)\s{0,9}(?=\\[dt]?frac)", r"\1 "),  # 3\frac12 is 3 1/2
    (r"\\[dt]?frac\s{0,9}(?:\{(-?\d{1,40})\}|(\d))\s{0,9}(?:\{(-?\d{1,40})\}|(\d))", r"\1\2/\3\4"),
    (r"\\(?:text|mathrm|mbox|textbf|mathbf)\{([^{}]{0,80})\}", r" \1"),
    (r"(?i)\$(\d[\d,]{0,9}(?:\.\d{1,9})?)(k)\b", multiplied),  # 300K is a temperature
    (r"(?i)(?<![\w.,/])(\d[\d,]{0,20}(?:\.\d{1,9})?)\s{1,9}(tens?|dozens?|hundred|thousand|[mbt]r?illion)\b",
     multiplied),
    (r"\{,\}", ","),
    (r"([\^_])\{(\w)\}", r"\1\2"),
    (r"[–—−‑]", "-"),
    (r"\\?[$€£%]|\\[!,;:() \[\]]|\\left|\\right|(?<!\\)\\$|\*\*|__", ""),
    (r"^\s*(?:[Oo]ption|[Cc]hoice)\s+(?=\(?[A-J]\b)", ""),
    (r"\\geq?(?![a-z])|>=|\\geqslant", "≥"),
    (r"\\leq?(?![a-z])|<=|\\leqslant", "≤"),
    (r"\\neq?(?![a-z])|!=", "≠"),
    (r"^([^<>≤≥]{1,40})([<>≤≥])\s*([a-z])\s*$", turned),
    (r"\b(?:[Nn]egative|[Mm]inus)\s+(?=[\d.])", "-"),
    (r"\b(?:(?:(k)ilo|(c)enti|(m)illi)?(?:(m)et(?:er|re)|(g)ram)|"
     r"(h)(?:ou)?r|(min)ute|(s)ec(?:ond)?)s?\b", r"\1\2\3\4\5\6\7\8"),
    (r"^\s*\(([^(),]*)\)\.?\s*$", r"\1"),
    (r"(?<![\w.,/])\d{1,3}(?:[ \u00a0\u202f]\d{3}){1,6}(?![\w/]|[.,]\d)", without_spaces),
]
HEADING = re.compile(r"\W*(?:the )?(?:final )?(?:answer|result|solution)s?\W*", re.I)
# A last number behind or before these words is not the answer, or not all of it.
NOT_ALONE = re.compile(
    r"(?:(?:n['’]t|\b(?:not|cannot|never|hardly|no longer|anything but))(?: (?:be|equals?|equal to))?|"
    r"\b(?:at (?:least|most)|(?:more|less|fewer|greater) than|over|under|or|and|between|to|by|times|plus|"
    r"about|around|roughly|approximately|nearly|almost|twice|double|triple|log|ln|sin|cos|tan|"
    r"(?:half|third|quarter) of)|"
    r"[-+*/<>≥≤≠±×·(\[]|\d[A-Za-z]\s*=)\s*$",
    re.I,
)
NOT_WHOLE = re.compile(rf"\s*(?:{NO_UNITS}|[-+*/×·=]\s*\d)(?![A-Za-z])|[\w^!\\{{(°]|:\d", re.I)


def canonical(text: str) -> str:
    r"""Write an answer in one spelling: \dfrac12 as 1/2, >= as ≥, negative 5 as -5, 5 kilometers as 5 km."""
    for pattern, spelling in LATEX:
        text = re.sub(pattern, spelling, text)
    return text.strip().rstrip(".").strip()


# ---- finding the answer ----------------------------------------------------------------------------------------------


def marked_answer(text):
    """Return what follows the last ####, or is in the last <answer> or \\boxed, or follows "answer is"; or None."""
    if "####" in text:
        lines = text.rsplit("####", 1)[1].strip()[:400].split("\n")
        lines = [line for line in lines if line.strip() and not HEADING.fullmatch(line)]
        part = lines[0] if lines else ""
    elif "<answer>" in text or "\\boxed" in text:
        part = tagged_answer(text)
    elif marks := [m.end() for m in re.finditer(r"\b(?:answer|option|choice)(?:\s{1,9}is\b:?|\s{0,9}:)", text, re.I)]:
        after = text[marks[-1] :].lstrip(" \n\t*")[:200]
        # In a sentence the ! behind an answer, as in "is 5!", ends it; a factorial goes on, as in 5! = 120 and $5!$.
        part = re.split(r"\.\s|!\s+(?=[A-Z])|\n|[,;]\s|\s(?:because|since|as|so)\s", after)[0].rstrip(" *!,;")
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


def last_number(text):
    """Find the last number of a text, with its unit; "" if there is none, or it is part of 5x, 5^2, 5! or 12:30."""
    numbers = [*LAST.finditer(text)]
    if not numbers:
        return ""
    start, end = numbers[-1].span()
    before = text[max(0, start - 40) : start]
    part_of_more = before.endswith(("{", "_", ":", "\\")) or NOT_ALONE.search(before.rstrip("$ (*"))
    return "" if part_of_more or NOT_WHOLE.match(text[end:]) else numbers[-1][0]


def as_fraction(text):
    """Read a number with perhaps a unit as an exact fraction, or return None if the text is anything else."""
    found = QUANTITY.fullmatch(text.strip()) if len(text) < 300 else None
    if not found or not int(found["under"] or 1):
        return None
    value = Fraction(found["whole"] or 0) + Fraction(found["over"].replace(",", "")) / int(found["under"] or 1)
    value *= Fraction(10) ** int(found["e"] or found["ten"] or 0)
    return -value if found["sign"] == "-" else value


# ---- are two answers equal? ------------------------------------------------------------------------------------------


def without_name(text):
    """Take off what a text names: "x = 5" -> {"x"}, "5"; "x = 3 or x = 5" -> {"x"}, "3 or 5"."""
    names = {name.strip() for _, name in NAME.findall(text)}
    return names, NAME.sub(r"\1 ", text).strip() if len(names) == 1 else text


def equal(given: str, wanted: str) -> bool | None:
    """Compare two answers in their canonical spelling; None if only algebra can tell."""
    if not given or not wanted:
        return False
    (names, value), (wanted_names, wanted_value) = without_name(given), without_name(wanted)
    if "=" not in value + wanted_value:  # both or none: y = x/2 + 3 is 2y = x + 6
        given, wanted = value, wanted_value
    if names != wanted_names and re.fullmatch(r"\w\w", "".join(names) + "".join(wanted_names)):
        return False  # x and y
    spaces = r"\s(?!\d+/)"  # not that of 1 1/2
    if re.sub(spaces, "", given) == re.sub(spaces, "", wanted):
        return as_fraction(wanted) is not None or not NUMBER.fullmatch(wanted)  # 1/0 is a number that nothing equals
    if choice := re.fullmatch(r"\(?([A-Ja-j])\)?", wanted):
        picked = re.match(r"\(?([A-Ja-j])\)?(?:$|[.:)]|\s+[^\sa-z])(?!.*(?:\b(?:or|and)\b|,))", given)
        return bool(picked and picked[1].lower() == choice[1].lower())
    numbers = as_fraction(given), as_fraction(wanted)
    if None not in numbers:
        units = {found["unit"] for found in map(QUANTITY.fullmatch, (given, wanted)) if found}
        if units == {None, "K"} and re.search(r"\dK", given + wanted):
            return False  # 5K may be 5000
        return numbers[0] == numbers[1] and len(units - {None}) < 2  # None: there is no unit, or another word
    if re.fullmatch(r"[A-Za-z ]{2,}=[A-Za-z ]{2,}", f"{given}={wanted}"):  # words, no letters
        return given.lower() == wanted.lower()
    signs = r"[<>≥≤≠=A-Z]|(?<=\d)_\{?\d+"  # math-verify takes Pi for pi, 5 for x >= 5, and overlooks the 6 of 20_6
    prose = WORD.search(re.sub(rf"\s+(?:{UNITS}){POWER}$", "", given)) or re.search("[!:]", given + wanted)
    return False if prose or {*re.findall(signs, given)} != {*re.findall(signs, wanted)} else None


@functools.cache
def say_what_is_not_judged() -> None:
    """Say, once, that math-verify is missing."""
    print("reward math: lists, intervals, equations and formulas are not judged, but count as wrong unless they are "
          "spelled alike: pip install math-verify, which judges them", file=sys.stderr)  # fmt: skip


@functools.lru_cache(65536)
def equal_formulas(given: str, wanted: str) -> bool:
    """Ask math-verify, if it is installed, whether two formulas are equal; False if it takes too long."""
    if not importlib.util.find_spec("math_verify"):
        say_what_is_not_judged()
        return False
    short = max(len(given), len(wanted)) <= 200
    return short and bool(helper.ask(helper.ALGEBRA, wanted, given, seconds=ALGEBRA_SECONDS))


def verdict(given, wanted):
    """Compare two answers as they were written -> True or False. 25% is 25 and 1/4."""
    found = equal(canonical(given), canonical(wanted))
    if not found and ("%" in given) != ("%" in wanted):
        number, percent = map(as_fraction, map(canonical, sorted((given, wanted), key=lambda text: "%" in text)))
        return None not in (number, percent) and percent == 100 * number
    if found is not None:
        return found
    return equal_formulas(*(text.replace("$", "").rstrip(". \n") for text in (given, wanted)))


def math_answer(text: str, answer: object) -> float:
    """1.0 if the final answer of the completion is that of the column `answer`, else 0.0. It is what follows the last
    ####, else the content of the last <answer>, else of the last \\boxed, else what follows the last "answer is", else
    the whole text if it is a formula, else its last number, if that stands alone."""
    wanted = str(answer)
    if re.search(r"####|<answer>|\\boxed", wanted):
        wanted = marked_answer(wanted)
    given = marked_answer(text)
    is_boxed = "\\boxed" in text and given is not None
    if given is None:
        given = text
    elif not is_boxed and (again := marked_answer(given)) is not None:  # "#### The answer is 5"
        given = again
    is_line = is_boxed or len(given) <= 200 and "\n" not in given.strip()
    if is_line and verdict(given[:400], wanted):
        return 1.0
    if is_line and (is_boxed or not WORD.search(canonical(given)) or QUANTITY.fullmatch(canonical(given))):
        return 0.0
    number = last_number(canonical(given[-400:]))
    return float(bool(equal(number, canonical(wanted))))
