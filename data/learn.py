"""
Learn byte-level BPE from texts (system/tokens/bpe.py runs it), and write what was learnt as a .tiktoken file.
"""

import base64
import collections
import heapq
import itertools
import re
import unicodedata
from collections.abc import Iterable

from system.tokens.bpe import OWN_PATTERN, SPECIALS, Tokenizer


def tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train at most `vocab_size` ids on texts: the bytes, the most frequent merges, our special tokens."""
    return Tokenizer.from_ranks(train(texts, vocab_size - len(SPECIALS)))


def train(texts: Iterable[str], size: int) -> dict[bytes, int]:
    """Learn {token: rank} of at most `size` tokens: the 256 bytes, then always the most frequent pair of tokens.

    (Sennrich et al. 2016; a pair that occurs once is not learned.)"""
    if size < 256:
        raise ValueError(
            f"a vocabulary of {size + len(SPECIALS)} is too small: "
            f"256 bytes and {len(SPECIALS)} special tokens need {256 + len(SPECIALS)}"
        )
    # Each distinct piece is stored once, with its count, and a merge visits only the pieces in which it occurs:
    # 1 MB takes one or two seconds (tiktoken's own educational trainer: 270).
    texts = (unicodedata.normalize("NFC", text) for text in texts)
    counts = collections.Counter(piece for text in texts for piece in re.findall(OWN_PATTERN, text))
    words, frequency = [[bytes([b]) for b in piece.encode()] for piece in counts], list(counts.values())
    pairs: collections.Counter = collections.Counter()
    where = collections.defaultdict(set)
    for i, word in enumerate(words):
        for pair in itertools.pairwise(word):
            pairs[pair] += frequency[i]
            where[pair].add(i)
    heap = [(-n, pair) for pair, n in pairs.items()]
    heapq.heapify(heap)
    ranks = {bytes([b]): b for b in range(256)}
    while len(ranks) < size and heap:
        n, best = heapq.heappop(heap)
        if -n != pairs[best]:  # the count has changed since: push the pair again with its present count
            if pairs[best] > 0:
                heapq.heappush(heap, (-pairs[best], best))
            continue
        if -n < 2:  # a pair that occurs once is not a pattern
            break
        ranks.setdefault(best[0] + best[1], len(ranks))
        changed = set()
        for i in where.pop(best):
            old, words[i] = words[i], merge_pair(words[i], best)
            for pair in itertools.pairwise(old):
                pairs[pair] -= frequency[i]
            for pair in itertools.pairwise(words[i]):
                pairs[pair] += frequency[i]
                where[pair].add(i)
                changed.add(pair)
        for pair in changed:
            heapq.heappush(heap, (-pairs[pair], pair))
    return ranks


def merge_pair(word, pair):
    """Replace each occurrence of the two tokens of `pair` in a list of tokens by one token, from the left."""
    out, i = [], 0
    while i < len(word):
        found = tuple(word[i : i + 2]) == pair
        out.append(pair[0] + pair[1] if found else word[i])
        i += 1 + found
    return out


def ranks_text(ranks: dict[bytes, int]) -> str:
    """Write {token: rank} as the text of a .tiktoken file."""
    lines = (f"{base64.b64encode(token).decode()} {ranks[token]}\n" for token in sorted(ranks, key=ranks.__getitem__))
    return "".join(lines)
