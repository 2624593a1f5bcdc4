"""
Collect the English and the code that come with every Python: the language reference behind `help("while")`
(pydoc_data.topics) and the sources of the standard library. A row is a document, without a prompt:

    {"prompt": "", "completion": "The \\"while\\" statement\\n****...", "source": "topics/while", "difficulty": 1}

English has difficulty 1, code 2. Every 20th document is val. Nothing is copied into this repository: the text is that
of the Python that runs this (3.11: 563 train documents of 9.4 and 30 val documents of 0.7 million characters). Tests,
tables of character codes and files that are not the library's own are left out. Documents repeat each other: 4.0% of
the characters of val are in runs of 100 that are also in train (cProfile.py 43%; topics/while 94%, as it is also part
of a longer topic), so bits per byte on val are a little too good. The BPE in tokenizer.tiktoken has 2048 ids, trained
on a fifth of train; a token has 3.1 characters. The rows are made in 3 seconds.

    python data/text/prepare.py
"""
import importlib
import random
import sys
import sysconfig
import tokenize
from pathlib import Path

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "lib2to3",
            "_vendor", "_bundled", "turtledemo"}
VAL = 20  # one document in 20
VOCAB, SAMPLE = 2048, 5  # ids; trained on one train document in 5
ENOUGH = 1_000_000  # characters


def documents():
    """Collect {name: text} of this Python's own documents: its help topics, then the sources of its standard library,
    each sorted by name. SystemExit if there are too few."""
    library = Path(sysconfig.get_paths()["stdlib"])
    topics = importlib.import_module("pydoc_data.topics").topics
    found = {f"topics/{name}": text for name, text in sorted(topics.items())}
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if not LEFT_OUT & set(name.parts):
            with tokenize.open(path) as file:  # knows the encoding that a source declares
                found[name.as_posix()] = file.read()
    if sum(map(len, found.values())) < ENOUGH:
        raise SystemExit(f"{library} has too few sources of the standard library: this Python came without them, "
                         "install the full one, or train on a text of your own with --dataset=FILE.txt")
    return {name: text for name, text in found.items() if text.strip()}


def build():
    """Make {"train": rows, "val": rows}, one row per document."""
    rows = [{"prompt": "", "completion": text, "source": name, "difficulty": 1 if name.startswith("topics/") else 2}
            for name, text in documents().items()]
    random.Random(0).shuffle(rows)
    return {"train": [row for i, row in enumerate(rows) if i % VAL], "val": rows[::VAL]}


def main():
    splits = build()
    tokenizer = learn.tokenizer((row["completion"] for row in splits["train"][::SAMPLE]), VOCAB)
    making.save(Path(__file__).parent, splits, tokenizer.vocab)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from data import learn, making
    main()
