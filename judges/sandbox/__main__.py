"""Print what this machine contains and which languages run here."""

import sys

from judges.sandbox.jobs import Job, problem
from judges.sandbox.languages import LANGUAGES
from judges.sandbox.pool import HOLDS, JudgeDied, Pool


def report() -> int:
    """Print what holds and what runs -> exit status."""
    with Pool(workers=1, timeout=10, unsafe=HOLDS) as pool:
        worker = pool.spawn()
        try:
            out = worker.probe()
        except JudgeDied:
            raise SystemExit("no worker starts: see the errors above") from None
        pool.idle.append(worker)
        for what in HOLDS:
            print(f"{what:12}{'NOT CONTAINED' if what in out else 'contained'}")
        print(f"{'python':12}{sys.version.split()[0]}, asserts and stdin/stdout")
        for name in LANGUAGES:
            print(f"{name:12}{problem(Job('', [], '', name)) or 'stdin/stdout'}")
    return bool(out)


if __name__ == "__main__":
    sys.exit(report())
