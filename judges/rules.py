"""
Rules: what one text is worth, taken alone. Which answer does it give; is it right, well formed, of the wanted kind?

The functions of the last section take a completion and, by parameter name, columns of its row, and return a number, or
None for no opinion. rewards.py makes rewards of them, and has two rules of its own: no opinion where a column without a
default is empty, 0.0 for blank text. Nothing a model wrote is evaluated: arithmetic is parsed and walked over exact
fractions, and every cost is bounded by the length of the text. Standard library only.
"""
import ast
import contextlib
import functools
import itertools
import json
import math
import operator
import re
import signal
import subprocess
import sys
import threading
from fractions import Fraction
from xml.parsers import expat

# The last is a social security number. A block list knows words, not meanings: it is a floor, not a judge.
UNSAFE = (r"\b(?:kill (?:yourself|himself|herself|themselves)|commit suicide|(?:make|build) an? (?:pipe )?bomb|"
          r"(?:cook|make) meth(?:amphetamine)?|child porn\w*|rm -rf /|\d{3}-\d{2}-\d{4})(?!\w)")
# Not the 2 of x^2 or x2. A sign counts unless it could subtract. {1,6}: or ",111,111" is tried again from every start.
NUMBER = re.compile(r"(?<![\w^])(?:(?<![.)\]}])[-+])?(?:(?:\d{1,3}(?:,\d{3}){1,6}(?!,?\d)|\d+)(?:\.\d+)?|\.\d+)"
                    r"(?:/\d+)?", re.ASCII)
# A number and at most a unit: 3 1/2 cups, 1.5e3, 2 \times 10^3 m/s^2. Not 5x, 5!, 5 or 6, 5 million, 12:30.
UNITS = (r"[kcmn]?m|k?g|mg|lbs?|oz|m?[lL]|m?s|min|hr?s?|ft|in|yd|mi|mph|kmh?|[km]?[WVAJN]|kWh|[kM]?Hz|[kM]?Pa|[KCF]|"
         r"mol|cents?|dollars?|st|nd|rd|th")
NO_UNITS = r"or|and|to|plus|minus|times|over|by|half|hundred|thousand|million|billion|trillion|dozen|pi|sqrt|factorial"
POWER = r"(?:\^\{?-?[1-9]\}?|[²³])?"
WORDS = rf"(?!(?:{NO_UNITS})\b)[A-Za-z]{{2,}}{POWER}(?:[ '/.,-]{{1,3}}[A-Za-z]+{POWER})*"
QUANTITY = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<number>(?P<whole>\d{1,40})\s+(?P<part>\d{1,40}/\d{1,40})|"
    r"(?:\d{1,3}(?:,\d{3}){1,13}|\d{1,50})(?:\.\d{1,50})?(?:/\d{1,40})?|\.\d{1,50})"
    r"(?:[eE](?P<e>[-+]?\d{1,2})|\s*(?:\\times|\\cdot|×|\*)\s*10\^\{?(?P<ten>-?\d{1,2})\}?)?"
    rf"(?:\s*(?:\^\{{?\\circ\}}?|°))?(?:\s*(?:{UNITS}){POWER}(?:/(?:{UNITS}){POWER})?|\s+{WORDS})?", re.ASCII)
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


# ---- what a text says -----------------------------------------------------------------------------------------------

def fenced(text):
    """Text -> the contents of its ``` blocks in order; the last one may be cut off."""
    return re.findall(r"^ {0,3}```[^\n`]*\n(.*?)(?:```|\Z)", text, re.M | re.S)


def tagged(text):
    """Text -> what stands in its last <answer>, closed or cut off, over any number of lines; without one, the text."""
    return text.rsplit("<answer>", 1)[-1].split("</answer>")[0].strip()


def loads(text):
    """Text -> the JSON object or array that it is, else None: a bare number has no structure, and NaN is not JSON."""
    def refuse(constant):
        raise ValueError(constant)
    try:        # numbers stay text: int() of a million digits takes seconds
        value = json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None


def ngrams(text, n):
    """Text -> the list of its n-grams of words and punctuation; of shorter ones where there are fewer than n words."""
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    n = min(n, len(words))
    return [tuple(words[i:i + n]) for i in range(len(words) - n + 1)] if n else []


def tidy(text):
    """Undresses a number of LaTeX, currency, %, full stop: "\\frac{3}{4}." -> "3/4", "-\\$1{,}200" -> "-1,200"."""
    part = r"(?:\{(-?\d{1,40})\}|(\d))"
    text = re.sub(rf"(\d?)\s{{0,9}}\\[dt]?frac\s{{0,9}}{part}\s{{0,9}}{part}", lambda m: (m[1] and m[1] + " ") + (
        f"{m[2] or m[3]}/{m[4] or m[5]}"), text)       # 3\frac12 is 3 1/2
    text = re.sub(r"\\(?:text|mathrm|mbox|textbf|mathbf)\{([^{}]{0,80})\}", r"\1", text)
    text = text.replace("{,}", ",").replace("−", "-")
    text = re.sub(r"\\?[$€£%]|\\[!,;:() \[\]]|\\left|\\right|(?<!\\)\\$", "", text)
    return text.strip().rstrip(".").strip()


def final_answer(text):
    """Text -> its final answer: after the last ####, else in the last <answer>, else in the last \\boxed, else after
    the last "answer is", else its last number, if it stands alone. An equation counts as its right side."""
    if "####" in text:
        part = text.rsplit("####", 1)[1].strip().split("\n")[0]
    elif "<answer>" in text or "\\boxed" in text:
        part = tagged(text)
    elif marks := [m.end() for m in re.finditer(r"\banswer\s{1,9}is\b:?", text, re.I)]:
        part = re.split(r"\.\s|\n|[,;]\s|\s(?:because|since|as|so)\s", text[marks[-1]:].lstrip()[:200])[0]
    else:
        return last_number(tidy(text))
    if "\\boxed" in part:
        part = part.rsplit("\\boxed", 1)[1].strip()
        depth = 0
        for i, c in enumerate(part):    # to the brace that closes the first: "{\frac{1}{2}} apples" -> "\frac{1}{2}"
            depth += (c == "{") - (c == "}")
            if depth <= 0:
                part = part[1:i] if i else part.split()[0]
                break
    return tidy(part.split("=")[-1])


def last_number(text):
    """Text -> its last number, "" if that is a part of something: of 5x, 5^2, 5!, \\sqrt{5}, 12:30."""
    found = last = None
    for found in NUMBER.finditer(text):
        last = found
    if not last or re.search(r"[{_:\\]$", text[:last.start()][-1:]):
        return ""
    whole = re.search(r"(?<![\w.,/])\d{1,40} $", text[:last.start()][-42:]) if "/" in last[0] else None
    number = (whole[0] if whole else "") + last[0]
    unit = re.match(rf"(?:e[-+]?\d{{1,2}}\b|(?:{UNITS}){POWER})(?![\w^])", text[last.end():])
    after = text[last.end() + (unit.end() if unit else 0):][:2]
    return "" if re.match(r"[\w^!\\{(°]|:\d", after) else number + (unit[0] if unit else "")


def fraction(text):
    """Text -> its number as an exact fraction, or None: it is a number and at most a unit."""
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


def arithmetic(node, pool):
    """ast of + - * / -> its Fraction, each whole number in it taken out of the list `pool`; ValueError for the rest."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](arithmetic(node.left, pool), arithmetic(node.right, pool))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if isinstance(node.operand, ast.Constant) and -node.operand.value in pool:      # the -4 of an earlier step
            pool.remove(-node.operand.value)
            return Fraction(-node.operand.value)
        return -arithmetic(node.operand, pool)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        pool.remove(node.value)     # ValueError: not given, or used before
        return Fraction(node.value)
    raise ValueError("only + - * / and whole numbers")


def cells_of(text):
    """Text -> the cells of the sudoku in it, row by row; 0 is an empty one, written 0, "." or "_"."""
    return [int(c) if c in "123456789" else 0 for c in re.findall(r"[0-9._]", text)]


def puzzle_cells(prompt, puzzle):
    """The cells of a 4x4 or 9x9 puzzle: the column `puzzle`, if the row has one, else all that the prompt holds."""
    cells = cells_of(puzzle or prompt)
    if len(cells) not in (16, 81):
        raise ValueError(f"16 or 81 cells make a sudoku, {puzzle or prompt!r} has {len(cells)}; name them in `puzzle`")
    return cells


@functools.lru_cache
def units(size):
    """Number of cells (16 or 81) -> the rows, columns and boxes, as lists of cell indices."""
    n = math.isqrt(size)
    side = math.isqrt(n)
    kinds = (lambda i: i // n, lambda i: i % n, lambda i: i // n // side * side + i % n // side)
    return [[i for i in range(size) if kind(i) == k] for kind in kinds for k in range(n)]


def solutions(cells):
    """Cells of a sudoku -> its solutions, lazily, the cell with the fewest options first."""
    holes = [i for i, value in enumerate(cells) if not value]
    if not holes:
        yield cells
        return
    taken = {i: {cells[j] for unit in units(len(cells)) if i in unit for j in unit} for i in holes}
    i = max(holes, key=lambda i: len(taken[i]))
    for value in sorted(set(range(1, math.isqrt(len(cells)) + 1)) - taken[i]):
        yield from solutions(cells[:i] + [value] + cells[i + 1:])


@functools.lru_cache(4096)
def only_solution(cells):
    """A tuple of cells -> the cells of its one solution, or None if there is none or more than one."""
    found = list(itertools.islice(solutions(list(cells)), 2))
    return found[0] if len(found) == 1 else None


# ---- a search with a limit of time ----------------------------------------------------------------------------------

# The matcher of `re` cannot be interrupted, and (a+)+$ takes twice as long for every further a. So a row's own pattern
# runs in a process that the kernel ends when it has used so much of a processor: a busy machine fails no search.
SEARCH_SECONDS = 2.0
SEARCHER = """
import json, re, signal, sys
for line in sys.stdin:
    pattern, text, flags, seconds = json.loads(line)
    compiled = re.compile(pattern, flags)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    found = compiled.search(text)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    print(int(bool(found)), flush=True)
"""
searchers, one_search = [], threading.Lock()


def search(pattern, text, flags=0, seconds=SEARCH_SECONDS):
    """True if a pattern that is not ours is found in the text; ValueError if that takes too long."""
    re.compile(pattern, flags)      # an error in it is raised here
    with one_search:
        if not searchers:
            pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
            searchers.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", SEARCHER], text=True, **pipes))
        process = searchers[0]
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([pattern, text, flags, seconds]), file=process.stdin, flush=True)
        if line := process.stdout.readline():
            return line == "1\n"
        searchers.clear()
        with contextlib.suppress(BrokenPipeError):
            process.communicate()
    if process.returncode != -signal.SIGVTALRM:
        raise RuntimeError(f"the process that searches for {pattern!r} ended with {process.returncode}: out of memory?")
    raise ValueError(f"the pattern {pattern!r} takes more than {seconds:g} s on a text of {len(text)} characters: "
                     "write it so that a text matches in one way only, as a+ instead of (a+)+, or bound it, as a{1,9}")


# ---- rules ----------------------------------------------------------------------------------------------------------

def exact(text, answer):
    """1.0 if the completion is the answer, white space at the ends apart, else 0.0."""
    return float(text.strip() == str(answer).strip())


def contains(text, answer):
    """1.0 if the answer occurs in the completion, else 0.0."""
    return float(str(answer).strip() in text)


def regex(text, pattern):
    """1.0 if the row's `pattern` is found in the completion (re.search), else 0.0; an error where it takes 2 s."""
    return float(search(pattern, text))


def keywords(text, keywords):
    """Share of the row's list `keywords` that occur as whole words, in any case."""
    if isinstance(keywords, str):
        raise TypeError(f"the column keywords is a list of words, not the text {keywords!r}")
    return sum(bool(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.I)) for word in keywords) / len(keywords)


def valid_json(text):
    """1.0 if the completion, or its first ``` block, is a JSON object or array, else 0.0."""
    return float(loads((fenced(text) or [text])[0]) is not None)


def valid_xml(text):
    """1.0 if the completion is well-formed XML with at least one element and no document type, else 0.0."""
    parser, seen = expat.ParserCreate(), []
    parser.StartElementHandler = lambda name, attributes: seen.append(name)
    body = re.sub(r"^<\?xml[^>]*>", "", text.strip())
    try:        # inside a root of ours no DOCTYPE can stand, hence no entity bomb
        parser.Parse(f"<all>{body}</all>".encode("utf-8", "replace"), True)
    except expat.ExpatError:
        return 0.0
    return float(len(seen) > 1)


def xml_tags(text):
    """0.125 for each tag of "<reasoning>\\n..\\n</reasoning>\\n<answer>\\n..\\n</answer>" that is there exactly once,
    with these line ends, minus 0.001 for every character after the last one and its line end; at least 0.0. (d1's takes
    the 0.001 twice, and off the whole text where the last tag has no line end: a right text loses by its length.)"""
    tags = sum(text.count(tag) == 1 for tag in ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>"))
    _, closed, after = text.rpartition("\n</answer>")
    return max(0.0, round(0.125 * tags - 0.001 * len(after.removeprefix("\n")) * bool(closed), 6))


def xml_soft(text):
    """1.0 if it begins with <reasoning>..</reasoning><answer>..</answer>, white space apart, over any lines, else 0.0.
    (d1's regex, worth 0.5, lacks DOTALL: reasoning of two lines never earned it.)"""
    head, _, rest = text.lstrip().partition("</reasoning>")
    return float(head.startswith("<reasoning>") and rest.lstrip().startswith("<answer>") and "</answer>" in rest)


def xml_strict(text):
    """1.0 if it is "<reasoning>\\n..\\n</reasoning>\\n<answer>\\n..\\n</answer>", each tag once, else 0.0. (d1's regex,
    worth 0.5, lacks DOTALL, too, and wants one line end more, which a text that ends with its answer does not have.)"""
    parts = re.split(r"(</?(?:reasoning|answer)>)", text.removesuffix("\n"))
    lines = len(parts) == 9 and all(len(part) > 1 and part[0] == part[-1] == "\n" for part in (parts[2], parts[6]))
    tags = ["<reasoning>", "</reasoning>", "<answer>", "</answer>"]
    return float(lines and parts[1::2] == tags and parts[::4] == ["", "\n", ""])


def xml_int(text):
    """1.0 if what <answer> holds (without one: the text) is a whole number: sign and thousands may be there, else 0.0.
    (d1's, worth 0.5, asks str.isdigit: not for -5 or 1,200, but for a superscript two.)"""
    return float(bool(re.fullmatch(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)", tagged(text), re.ASCII)))


def xml_answer(text, answer):
    """1.0 if what <answer> holds (without one: the text) is the answer and nothing else, as exact numbers if both are,
    else as strings; else 0.0. (d1's, worth 2.0, compares strings only, so that 1,200 is not 1200.)"""
    said, wanted = tidy(tagged(text)), tidy(str(answer))
    if NUMBER.fullmatch(said) and NUMBER.fullmatch(wanted) and fraction(said) is not None:
        return float(fraction(wanted) is not None and fraction(said) == fraction(wanted))
    return float(bool(wanted) and said == wanted)


def math_answer(text, answer):
    """1.0 if the final answers (see `final_answer`) of completion and column are equal, else 0.0. If the column is a
    number, as exact numbers: sign, decimals, thousands, 3 1/2, 1e3, $, %, and a unit may follow; else as strings."""
    answer = str(answer)
    given = final_answer(text)
    wanted = final_answer(answer) if re.search(r"####|<answer>|\\boxed", answer) else tidy(answer)
    if (number := fraction(wanted)) is not None or NUMBER.fullmatch(wanted):    # 1/0 is a number that nothing equals
        return float(number is not None and fraction(given) == number)
    return float(bool(wanted) and re.sub(r"\s", "", given).lower() == re.sub(r"\s", "", wanted).lower())


def countdown(text, numbers, target):
    """Steps "44-15=29,79-29=50" or one expression, also in <answer>. 1.0 solved: each number used exactly once, every
    equation true, only the target left. 0.1 wrong. 0.0 no answer: <answer> is empty or, without it, no arithmetic.
    (d1's evaluates the text, where 9**9**9 or 7//2 can stand, and calls what is within 0.00001 of the target right.)"""
    answered = 0.1 if "<answer>" in text and tagged(text) else 0.0
    text = tagged(text).rstrip(".").replace("×", "*").replace("÷", "/")
    if len(text) > 400 or not re.fullmatch(r"[0-9+\-*/()=,;\s]+", text):
        return answered
    steps = [step.partition("=") for step in re.split(r"[,;\n]", text) if step.strip()]
    try:
        trees = [ast.parse(left.strip(), mode="eval").body for left, _, _ in steps]
    except (SyntaxError, RecursionError, MemoryError):
        return answered
    pool = [Fraction(number) for number in numbers]
    try:
        for tree, (_, equals, right) in zip(trees, steps, strict=True):
            pool.append(arithmetic(tree, pool))
            if equals and pool[-1] != Fraction(right.strip()):
                return 0.1
    except (ValueError, ZeroDivisionError, RecursionError):
        return 0.1
    return 1.0 if pool == [Fraction(target)] else 0.1 if steps else 0.0


def sudoku(text, prompt, puzzle=None, answer=None):
    """Share of the empty cells filled as in `answer`, or without it as in the only solution; None if neither exists."""
    cells, got = puzzle_cells(prompt, puzzle), cells_of(tagged(text))
    wanted = cells_of(answer) if answer else only_solution(tuple(cells))
    if wanted and len(wanted) != len(cells):
        raise ValueError(f"the puzzle has {len(cells)} cells, its answer {answer!r} has {len(wanted)}")
    holes = [i for i, value in enumerate(cells) if not value]
    return sum(i < len(got) and got[i] == wanted[i] for i in holes) / len(holes) if holes and wanted else None


def sudoku_all(text, prompt, puzzle=None):
    """1.0 if it is a whole grid that keeps the givens, every row, column and box a permutation; else 0.0."""
    cells, got = puzzle_cells(prompt, puzzle), cells_of(tagged(text))
    kept = len(got) == len(cells) and all(given in (0, value) for given, value in zip(cells, got, strict=True))
    return float(kept and all(sorted(got[i] for i in unit) == [*range(1, len(unit) + 1)] for unit in units(len(got))))


def length(text, target_length=100, token_ids=None):
    """1 - |length - target_length| / target_length, at least 0; in tokens with a column token_ids, else characters."""
    size = len(text if token_ids is None else token_ids)
    return max(0.0, 1 - abs(size - target_length) / target_length)


def overlong(text, max_length, soft_length=None, token_ids=None):
    """DAPO (2503.14476) Eq. 13: 0.0 up to max_length - soft_length, falling to -1.0 at max_length and beyond; length as
    in `length`. soft_length is a fifth of max_length unless given, as in the paper (4096 of 20480)."""
    soft = soft_length or max_length / 5
    size = len(text if token_ids is None else token_ids)
    return -min(1.0, max(0.0, (size - (max_length - soft)) / soft))


def repetition(text):
    """-(1 - distinct / all 3-grams of words and punctuation): 0.0 if none is repeated, towards -1.0 if all are one."""
    grams = ngrams(text, 3)
    return len(set(grams)) / len(grams) - 1 if grams else 0.0


def reasoning(text):
    """0.8 if it says "step 1" and "therefore", in any case, else 0.3."""
    return 0.8 if "step 1" in text.lower() and "therefore" in text.lower() else 0.3


def safety(text, blocked=UNSAFE):
    """1.0 unless the block list (a regex; the column `blocked` replaces ours) is found in it, in any case: then 0.0."""
    return float(not (re.search if blocked == UNSAFE else search)(blocked, text, re.I))
