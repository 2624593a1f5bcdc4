"""
The merges in the tokenizer.json of a tokenizer that has more than single bytes, and the ranks in a .tiktoken file.
"""
import base64
import itertools
from pathlib import Path

from system.disk import regular_file


def merges_of(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """List the merges that make the tokens, in the order of their ranks; a token that two others do not make has none.

    ranks {token: rank}: the 256 bytes among them
    """
    longer = [token for token in ranks if len(token) > 1]
    longer.sort(key=ranks.__getitem__)
    merges = (split_token(token, ranks) for token in longer)
    return [tuple(parts) for parts in merges if len(parts) == 2]


def split_token(token, ranks):
    """Split a token by BPE with tokens of lower rank: into the two that were merged, or more if no merge makes it."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        found = [ranks.get(a + b, ranks[token]) for a, b in itertools.pairwise(parts)]
        i = min(range(len(found)), key=found.__getitem__)
        if found[i] >= ranks[token]:
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def find_ranks(path: Path) -> dict[bytes, int] | None:
    """Read the .tiktoken file that a path is, or that a folder has; None if it has the files of another tokenizer."""
    if path.is_dir() and not any((path / name).exists() for name in ("tokenizer.json", "vocab.json")):
        path = next(iter(sorted(path.glob("*.tiktoken"))), path)
    if path.suffix != ".tiktoken" or path.is_dir():
        return None
    return read_ranks(regular_file(path))


def read_ranks(file: Path) -> dict[bytes, int]:
    """Read {token: rank} from a .tiktoken file. (tiktoken's own reader may return an old copy.)"""
    try:
        lines = map(str.split, file.read_text(encoding="utf-8").splitlines())
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    except ValueError as e:
        raise ValueError(f"{file} is not in tiktoken's format, base64 and a rank on each line: {e}") from e
    if not {bytes([b]) for b in range(256)} <= ranks.keys():
        raise ValueError(f"{file} lacks some of the 256 single bytes: there are texts that it cannot write")
    return ranks
