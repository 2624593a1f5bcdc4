"""What programs read on their command line beside their options."""
import sys


def value_and_others(flag: str) -> tuple[str, list[str]]:
    """Take a flag from the command line -> its value (of several the last), and the other words."""
    values, others = [], []
    for word in sys.argv[1:]:
        name, _, value = word.partition("=")
        if name == flag:
            values.append(value)
        else:
            others.append(word)
    return values[-1], others


def once(words: list[str]) -> list[str]:
    """Return the words of a command line, or raise a ValueError if a flag is given twice."""
    flags = [word for word in words if word.startswith("--")]
    names = [flag.partition("=")[0] for flag in flags]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{twice[0]} is given twice")
    return words
