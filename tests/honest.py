"""Right programs as people and models write them, with tests as data sets have them: each is to be paid.

They are in fixtures/honest.txt. In ASSERTED an item is a name, a program, and its tests, with lines of dashes in
between; in PROMPTED the prompt comes before the program; in PROGRAMS an item is a language and a program that prints
twice its input."""
import os


def parts(kind, n):
    """The items of a list in the file -> [(name, part, ...)]; the first part lies below the name."""
    with open(os.path.join(os.path.dirname(__file__), "fixtures", "honest.txt"), encoding="utf-8") as f:
        text = f.read().split(f"######## {kind}\n")[1].split("\n######## ")[0]
    for item in text.strip("\n").split("\n====\n"):
        name, rest = item.split("\n", 1)
        yield name.removeprefix("# "), *rest.split("\n----\n", n)


def jobs():
    """{name: (prompt, completion, tests, language)}"""
    found = {}
    for name, code, tests in parts("ASSERTED", 1):
        found[name] = "", code, tests.split("\n----\n"), "python"
    for name, prompt, completion, tests in parts("PROMPTED", 2):
        found[name] = prompt + "\n", completion, tests.split("\n----\n"), "python"
    for i, (language, code) in enumerate(parts("PROGRAMS", 0)):
        tests = [{"input": "21\n", "output": "42\n"}, {"input": "4", "output": "8"}]
        found[f"{language} {i}"] = "", code, tests, language
    return found
