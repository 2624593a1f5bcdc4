"""
How every program begins and ends: whatever happens at the terminal, nobody there sees a traceback of ours.
"""
import contextlib
import errno
import io
import os
import re
import signal
import sys


def begin():
    """Before the imports, which take seconds: is Python new enough? And ctrl-C during them says nothing."""
    if sys.version_info < (3, 11):
        raise SystemExit("error: Python 3.11 or newer is needed, this is " + sys.version.split()[0])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    reopen()


def reopen():
    """Gives a program that was started with a closed stream (`>&-`) one that goes nowhere, and for a closed stderr its
    stdout: the next file that is opened would get the stream's number otherwise."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.dup(1) if number == 2 else os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)


def run(main, leave=sys.exit):
    """leave(main(), the exit code of the program). ctrl-C is 130; when nobody reads what is printed (`| head`), 141."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with heard(), guarded(sys.stdout), guarded(sys.stderr):
            code = main()
    except SystemExit as e:
        code = e.code
    except KeyboardInterrupt as e:  # of `train`, with the number of the signal
        code = 128 + (e.args or (signal.SIGINT,))[0]
    except BrokenPipeError:  # `guarded` has silenced the stream
        code = 128 + signal.SIGPIPE
    leave(code)


@contextlib.contextmanager
def heard():
    """While this lasts, ctrl-C is heard also where Python drops the exception that it raises: in a callback, such as
    JAX's at a garbage collection, or in a __del__. It is raised again a moment later, by an alarm."""
    hook = sys.unraisablehook

    def again(dropped):
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            hook(dropped)

    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGALRM, handler)


@contextlib.contextmanager
def guarded(stream, lost=None):
    """While this lasts, characters that the terminal lacks are escaped, and a stream that cannot be written (`| head`,
    `> /dev/full`, a lost terminal) calls `lost`, or raises BrokenPipeError; if it is more than that nobody reads, the
    other stream says why. The innermost `lost` counts, also for what kept the `write` of an outer one (a bar)."""
    plain, before = stream.write, getattr(stream, "lost", None)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")

    def write(text):
        try:
            size = plain(text)
            stream.flush()
            return size
        except OSError as e:
            silence(stream)
            name, other = ("stdout", sys.stderr) if stream is sys.stdout else ("stderr", sys.stdout)
            if e.errno != errno.EPIPE:
                print(f"error: {name} cannot be written: {e.strerror}", file=other)
            if not stream.lost:
                raise BrokenPipeError(errno.EPIPE, f"{name} cannot be written") from None
            stream.lost()
            return len(text)

    stream.write, stream.lost = write, lost
    try:
        yield
    finally:
        stream.write, stream.lost = plain, before


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
