"""
A task of one's own in two files, for config/own_grpo.py: this one, and the rows that it writes.

    cp data/letters/mine.py . && python mine.py     # writes mine.jsonl: eight letters, and the same letters sorted
"""
import json
import random


def reward(completions, reference):
    """Give 1 to each completion that is its row's completion, which is called `reference` here, and 0 to others."""
    return [float(x == y) for x, y in zip(completions, reference, strict=True)]


if __name__ == "__main__":
    with open("mine.jsonl", "w") as f:
        for _ in range(5000):
            letters = "".join(random.sample("abcdefghijklmnopqrstuvwxyz", 8))
            f.write(json.dumps({"prompt": letters + ":", "completion": "".join(sorted(letters))}) + "\n")
