"""
Download AceCode-87K (2502.01718), Python questions with tests, as DiffuCoder asks them: a prompt shows the first test
unless the question has a block of code. The difficulty is the share of tests that programs of other models fail.

    {"prompt": "Write ...\\nTest cases: assert f(1) == 2", "tests": ["assert f(1) == 2", ...], "entry": "f",
     "difficulty": 0.625}

It comes from huggingface.co, by the packages huggingface_hub and pyarrow. Without a network, put rows of this form into
train.jsonl in this folder.

    python data/acecode/prepare.py
"""
import builtins
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent


def ours(row):
    """Turn a row {"id", "question", "test_cases": [assert], "inferences"} into ours."""
    question, tests = row["question"], row["test_cases"]
    rates = [one["pass_rate"] for one in row.get("inferences") or [] if one.get("pass_rate") is not None]
    example = f"\nTest cases: {tests[0]}" if tests and "\n```\n" not in question else ""
    difficulty = {"difficulty": round(1 - sum(rates) / len(rates), 4)} if rates else {}
    return {"prompt": question + example, **difficulty, **called_in(tests), "id": row["id"], "tests": tests}


def called_in(tests):
    """Find the one function that all asserts call -> {"entry": its name}; {} if there is none, or more than one."""
    names = [set(re.findall(r"(?<![\w.])([A-Za-z_]\w*)\s*\(", test)) - set(dir(builtins)) for test in tests]
    common = set.intersection(*names) if names else set()
    return {"entry": common.pop()} if len(common) == 1 else {}


def main():
    making.save_downloaded(HERE, "TIGER-Lab/AceCode-87K", ours)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from data import making
    main()
