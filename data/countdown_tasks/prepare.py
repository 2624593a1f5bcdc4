"""
Download Countdown-Tasks-3to4: three or four numbers, and a target to make of them. The difficulty is how many numbers.

    {"prompt": "Make 98 from the numbers [44, 19, 35]: write ...", "numbers": [44, 19, 35], "target": 98,
     "difficulty": 3}

It comes from huggingface.co, by the packages huggingface_hub and pyarrow. Without a network, put rows of this form into
train.jsonl in this folder.

    python data/countdown_tasks/prepare.py
"""
import sys
from pathlib import Path

HERE = Path(__file__).parent


def ours(row):
    """Turn a row {"nums": [44, 19, 35], "target": 98} into ours."""
    numbers = row["nums"]
    return {
        "prompt": f"Make {row['target']} from the numbers {numbers}: write one arithmetic expression in which each "
        "of them occurs exactly once, with +, -, *, / and parentheses. The answer is the expression "
        "alone, without an equals sign and the result.",
        "numbers": numbers,
        "difficulty": len(numbers),
        "target": row["target"],
    }


def main():
    making.save_downloaded(HERE, "Jiayi-Pan/Countdown-Tasks-3to4", ours)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from data import making
    main()
