"""
Ask a helper: another process, which the kernel ends after a limit of CPU time.

The matcher of `re` cannot be interrupted, and (a+)+$ takes twice as long for every additional a; a computer algebra may
compute for hours as well. (CPU time, not wall time, so that nothing fails while the machine is busy.)
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from typing import Any

SEARCH = """
import re
def answer(pattern, text, flags):
    return bool(re.search(pattern, text, flags))
"""
# Only LaTeX is read: the other readers of math-verify evaluate a text as Python.
ALGEBRA = """
import logging, resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
logging.disable(logging.CRITICAL)
from math_verify import LatexExtractionConfig, parse, verify
def answer(*texts):
    how = dict(extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
    try:
        return bool(verify(*(parse("$" + text + "$", **how) for text in texts), timeout_seconds=None))
    except Exception:
        return False
"""
LOOP = """
import json, signal, sys
sys.path[:] = json.loads(sys.argv[1])
exec(sys.argv[2])
for line in sys.stdin:
    seconds, *question = json.loads(line)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    found = answer(*question)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    print(json.dumps(found), flush=True)
"""
running: dict[str, subprocess.Popen] = {}  # the process of each program
one_question = threading.Lock()


def ask(program: str, *question: Any, seconds: float) -> Any:
    """Ask a helper that runs `program` (SEARCH, ALGEBRA) -> answer(*question), which the program defines; None if that
    takes more than `seconds` of CPU time. Questions and answers travel as JSON."""
    with one_question:
        if program not in running:
            command = [sys.executable, "-I", "-S", "-c", LOOP, json.dumps(sys.path), program]
            # In a session of its own, so that ctrl-C ends the run and not the helper.
            running[program] = subprocess.Popen(
                command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        process: Any = running[program]
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([seconds, *question]), file=process.stdin, flush=True)
        if line := process.stdout.readline():
            return json.loads(line)
        del running[program]
        with contextlib.suppress(BrokenPipeError):
            process.communicate()
    if process.returncode != -signal.SIGVTALRM:
        raise RuntimeError(f"the helper that was asked {question!r} ended with {process.returncode}: out of memory?")
    return None
