"""
How every program begins and ends: whatever happens at the terminal, nobody there sees a traceback of ours.
"""
import os
import re
import signal
import sys


def begin():
    """Before the imports, which take seconds: is Python new enough? And ctrl-C during them says nothing."""
    if sys.version_info < (3, 11):
        raise SystemExit("error: Python 3.11 or newer is needed, this is " + sys.version.split()[0])
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(main, leave=sys.exit):
    """leave(main(), the exit code of the program). ctrl-C is 130; when nobody reads what is printed (`| head`), 141."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = main()
    except SystemExit as e:
        code = e.code
    except KeyboardInterrupt as e:  # of `train`, with the number of the signal
        code = 128 + (e.args or (signal.SIGINT,))[0]
    except BrokenPipeError:
        silence(sys.stdout)
        code = 128 + signal.SIGPIPE
    leave(code)


def parts(text):
    """"a, b(c=1, d=2)" -> ["a", "b(c=1, d=2)"]: commas in parentheses belong to what is before these."""
    depth, out = 0, [""]
    for c in re.findall(r"\\.|.", text, re.S):  # \( is none
        depth += (c == "(") - (c == ")")
        out[-1:] = [out[-1], ""] if c == "," and depth <= 0 else [out[-1] + c]
    return [part.strip() for part in out]


def once(words):
    """Words of a command line -> the same; a ValueError if a flag stands among them twice."""
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]} is given twice")
    return words


def silence(stream):
    """What a stream is still given goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def visible(text):
    """Spell out the control characters of a model's text: an escape sequence could rewrite what is on the screen."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda c: repr(c[0])[1:-1], text)
