"""What goes into the sandbox and what comes out of it."""

import shutil
from typing import NamedTuple

from judges.sandbox.languages import LANGUAGES, SYNTAX


class Job(NamedTuple):
    """A program and its tests."""

    code: str
    tests: list  # each is Python that asserts, {"input": text, "output": text} for a program, or SYNTAX: it compiles
    entry: str = ""  # the function that the tests are about, "" if unknown
    language: str = "python"

    def turns(self) -> int:
        """Count what has the limit of time for itself: each input, or all asserts together.

        A judge with asserts may obey an answer and sleep, so inputs beside asserts give it no more time."""
        return 1 if any(type(test) is str for test in self.tests) else max(1, len(self.tests))


class Verdict(NamedTuple):
    """What became of a job. A test that has not passed is always the program's own failure."""

    passed: list[bool]  # one per test
    error: str = ""  # the first failure, in one line
    seconds: float = 0.0  # of CPU


def known_test(test, language):
    if type(test) is dict and type(test.get("input")) is type(test.get("output")) is str:
        return True
    return type(test) is str or test == SYNTAX and language in LANGUAGES


def problem(job: Job) -> str | None:
    """Say why a job cannot be run here; None: it can."""
    code, tests, entry, language = job
    texts = type(code) is type(entry) is str and type(tests) in (list, tuple)
    if not (texts and all(known_test(test, language) for test in tests)):
        return 'expected (code: str, [assert: str or {"input": str, "output": str}], entry: str)'
    if language == "python":
        return None
    if language not in LANGUAGES:
        return f"language {language!r} is not python, {', '.join(LANGUAGES)}"
    lang = LANGUAGES[language]
    if not shutil.which(lang.needs):
        return f"{language} needs {lang.needs}, not found here: apt-get install {lang.package}"
    if not all(type(test) is dict for test in tests):
        return f'only python has assert tests, those of {language} are {{"input", "output"}}'
    return None
