"""
How every program begins and ends: whatever happens at the terminal, nobody there sees a traceback of ours.
"""
import os
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
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BrokenPipeError:
        silence(sys.stdout)
        code = 128 + signal.SIGPIPE
    leave(code)


def silence(stream):
    """What a stream is still given goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
