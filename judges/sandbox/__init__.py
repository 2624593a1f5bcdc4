"""Run code that a model wrote against tests: fast, contained, hard to cheat. Standard library only, and never jax.

    trainer --starts--> warden
       |                   |
       |                   +-- zygote --forks--> candidate
       |                   |                         | calls, answers
       +------job, verdict--- bench --forks--> judge

    warden (warden.py) starts, watches and ends the processes of one worker, and reads neither code nor test
    bench (bench.py) is forked for each worker: it has parsed the tests, and runs nothing
    judge (judge.py, tests/) has the tests of one completion after another and runs them, and never runs the code
    zygote (zygote.py) is forked for each worker, and never had a test in its memory
    candidate (candidate.py) runs the code of one completion

`run` gives a job, code and tests, to a worker of the pool (pool.py), and it goes from there to the judge. The judge has
the zygote fork a candidate and speaks to it over a socket of its own. The files of wire/ say what may cross there:
channel.py (messages), values.py (plain data), stubs.py and operations.py (everything else), peer.py (the conversation).
The walls around each process are in walls.py, programs of other languages in languages.py, what tests use of pytest in
tests/small_pytest.py. `python -m judges.sandbox` says what holds here, docs/sandbox.md what that is good for.

Scoring: tests run in the judge. There the candidate's functions are stubs that send arguments out and get plain data
back, so a forged answer is worth what a wrong answer is. The candidate shares no memory with a test.

Who trusts whom. Nobody believes a candidate: the judge takes plain data from it, and no word of its objects about how
they compare with plain data. A test may evaluate an answer, and so hand its judge over: the trainer then believes the
judge's verdict on that completion, which is the completion's own loss or gain, and nothing else. The judge, its lines
to the other processes and its files are gone before the next completion comes. Only tests that evaluate nothing of a
completion (tests/plain.py, decided by the trainer) share a judge, until it meets more than plain data (bench.py).

Containment (Linux): a candidate cannot start processes, signal, use the network, write, or read more than Python's
standard library and the system's; memory, CPU time, threads and descriptors are limited. Workers try to get out before
they are used, and refuse to work if they can. Kernel bugs and side channels are not contained.

This file is imported in all these processes, also behind the walls, so it loads the pool only when `run` is called.
"""

from collections.abc import Iterable
from typing import Any

from judges.sandbox.jobs import Job, Verdict, problem

__all__ = ["Job", "Verdict", "problem", "run"]
pools: dict[tuple, Any] = {}  # at most one Pool, by its settings: its workers stay from one batch to the next


def run(
    jobs: Iterable[Job], *, timeout: float = 3.0, workers: int | None = None, unsafe: Iterable[str] = ()
) -> list[Verdict]:
    """Score jobs. RuntimeError if this machine fails twice or lets a program out, ValueError for a job with a problem.

    timeout: CPU seconds for all asserts of a job, and for each input
    workers: jobs at a time, None: six per core; unsafe: what need not be contained"""
    settings = timeout, workers, tuple(unsafe)
    if settings not in pools:
        from judges.sandbox.pool import Pool

        made = Pool(workers, timeout, unsafe=settings[2])
        while pools:
            pools.popitem()[1].close()
        pools[settings] = made
    return pools[settings].run(jobs)
