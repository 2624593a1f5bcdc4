"""
Download GSM8K (2110.14168): 7,473 + 1,319 word problems of primary school, each with its worked solution:

    {"prompt": "Natalia sold ...", "completion": "Natalia sold 48/2 = <<48/2=24>>24 ... #### 72", "answer": "72"}

It comes from huggingface.co, by the packages huggingface_hub and pyarrow. Without them or a network, put train.jsonl
and test.jsonl of github.com/openai/grade-school-math, grade_school_math/data, into this folder.

    python data/gsm8k/prepare.py
"""
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main():
    try:
        making.save(HERE, {split: data.load("openai/gsm8k", split) for split in ("train", "val")})
    except ValueError as e:
        raise SystemExit(f"{e}\nOr put train.jsonl and test.jsonl of github.com/openai/grade-school-math (they are in "
                         f"grade_school_math/data) into {HERE}") from None


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import data
    from data import making
    main()
