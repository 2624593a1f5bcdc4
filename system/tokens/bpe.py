"""
Turn text into token ids and back.

Byte-level BPE cuts a text into pieces with a regular expression and each piece into bytes; then it merges neighbouring
tokens, always the pair that was learnt first. The tokenizers that this project trains (data/learn.py) do that, and
tiktoken runs them. Those of other people are in foreign.py, which loads when a folder has one. Both are a `Tokenizer`.
"""

import builtins
import functools
import operator
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tiktoken

from system.disk import read_json, write_json

# The pieces of our own BPE: words, at most two digits (GPT-4 takes three: 1000 tokens to learn), runs of other
# characters, a line break with the indentation after it. The classes mean the same to `re`, tiktoken and `tokenizers`.
# Together they match every character, because tiktoken silently drops what no piece matches.
OWN_PATTERN = r" ?[A-Za-z]+| ?[0-9]{1,2}| ?[^ \t\nA-Za-z0-9]+|\n[ \t]*|[ \t]+"

SPECIALS = {"mask": "<|mask|>", "pad": "<|pad|>", "eos": "<|eos|>"}  # ours, in the order of their ids
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
UNKNOWN = "\ufffd"


class Tokenizer:
    """Encode and decode text. The ids that matter are mask_id, eos_id and pad_id; every id is below vocab_size."""

    def __init__(self, vocab: dict[bytes, int], specials: dict[str, int], roles: dict[str, str] = SPECIALS):
        """Make a tokenizer from its tokens.

        vocab {token: id}: the ordinary tokens; in our own BPE the id is also the rank of the merge
        specials {text: id}: the added tokens
        roles {"mask", "eos", "pad": text}: the added tokens with these roles
        """
        self.vocab, self.specials, self.roles = vocab, specials, roles
        self.mask_id, self.eos_id, self.pad_id = (specials[roles[role]] for role in ("mask", "eos", "pad"))
        self.bos_ids: list[int] = []  # [id] if every text of the model begins with this token (Llama 3, Gemma)
        if self.mask_id in (self.eos_id, self.pad_id):
            raise ValueError(
                f"{roles['mask']!r} is the mask and also the end or the padding of a text: a masked position must "
                "differ from both; give the mask a token of its own"
            )
        self.vocab_size = max(*vocab.values(), *specials.values()) + 1
        self._bytes = {i: token for token, i in vocab.items()}
        self._bytes |= {i: text.encode() for text, i in specials.items()}
        self._hidden = set(specials.values())  # unless they are asked for

    @functools.cached_property
    def _tiktoken(self):
        """Make what encodes text with our own BPE."""
        return tiktoken.Encoding(
            "unmask", pat_str=OWN_PATTERN, mergeable_ranks=self.vocab, special_tokens=self.specials
        )

    def encode(self, text: str, specials: bool = False, mask: bool = True) -> list[int]:
        """Turn text into ids, without a first token (`add_bos`).

        specials: read special tokens in the text, such as `<|eos|>`, as one id each; False: they are ordinary text
        mask: with specials, read `<|mask|>` as well; False for prompts, where the sampler would fill it
        """
        allowed = set(self.specials) if specials else set()
        if not mask:
            allowed.discard(self.roles["mask"])
        text = unicodedata.normalize("NFC", text)
        return self._tiktoken.encode(text, allowed_special=allowed, disallowed_special=())

    def decode(self, ids: Iterable[int], specials: bool = False) -> str:
        """Turn ids into text, without special tokens unless specials=True. An id without a token gives U+FFFD."""
        return self.decode_bytes(ids, specials).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], specials: bool = False) -> builtins.bytes:
        """Turn ids into UTF-8, whose first and last character can be incomplete if the ids are part of a text."""
        shown = [i for i in map(int, ids) if specials or i not in self._hidden]
        return self.join(shown)

    def join(self, ids: list[int]) -> builtins.bytes:
        """Turn ids, all of them shown, into UTF-8."""
        return b"".join(self._bytes.get(i, UNKNOWN.encode()) for i in ids)

    def add_bos(self, ids: list[int]) -> list[int]:
        """Put the model's first token before the ids of a text, unless it is already there."""
        return ids if ids[: len(self.bos_ids)] == self.bos_ids else self.bos_ids + ids

    @classmethod
    def bytes(cls) -> "Tokenizer":
        """Make the tokenizer that needs no file: one id per byte, then mask, pad and eos."""
        return cls.from_ranks({bytes([b]): b for b in range(256)})

    @classmethod
    def from_ranks(cls, ranks: dict[builtins.bytes, int]) -> "Tokenizer":
        """Make our own BPE from {token: rank}, with our special tokens after the last rank."""
        first = max(ranks.values()) + 1
        return cls(ranks, {text: first + i for i, text in enumerate(SPECIALS.values())})

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which Hugging Face's tools read, too."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_json(Path(folder) / "tokenizer.json", self.content(), ascii_only=False)
        write_json(Path(folder) / "tokenizer_config.json", self.settings(), ascii_only=False)

    def settings(self) -> dict[str, Any]:
        """Return the content of tokenizer_config.json."""
        roles = {f"{role}_token": text for role, text in self.roles.items()}
        return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | roles

    def content(self) -> dict[str, Any]:
        """Return the content of tokenizer.json."""
        added = [{"id": i, "content": text} | FLAGS for text, i in self.specials.items()]
        pairs = []
        if max(map(len, self.vocab)) > 1:
            from system.tokens import byte_merges  # single bytes have no merges

            pairs = byte_merges.merges_of(self.vocab)
        spec = byte_level_spec(self.vocab, pairs, added, OWN_PATTERN, nfc=True)
        spec["model"]["ignore_merges"] = True  # a piece that is a token stays whole, as in tiktoken
        return spec


# ---- our tokenizer.json ----------------------------------------------------------------------------------------------


def characters_of_bytes():
    """Return {byte: the character that stands for it in GPT-2's files}: itself if visible, else from U+0100 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    return {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}


CHARACTER = characters_of_bytes()
BYTE = {c: b for b, c in CHARACTER.items()}


def to_text(token: bytes) -> str:
    """Write a token as in GPT-2's files, one character per byte."""
    return "".join(map(CHARACTER.__getitem__, token))


def to_bytes(text: str) -> bytes:
    """Read a token of GPT-2's files. A token with other characters is plain text."""
    return bytes(BYTE[c] for c in text) if all(c in BYTE for c in text) else text.encode()


def byte_level_spec(
    vocab: dict[bytes, int],
    merges: list[tuple[bytes, bytes]],
    added: list[dict[str, Any]],
    pattern: str,
    nfc: bool,
) -> dict[str, Any]:
    """Make the content of a tokenizer.json for byte-level BPE. pattern: the regular expression that cuts texts."""
    texts = {to_text(token): i for token, i in vocab.items()}
    texts |= {token["content"]: token["id"] for token in added}
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    switches = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}  # fmt: skip
    model = {"type": "BPE"} | switches | {
        "vocab": {text: texts[text] for text in sorted(texts, key=texts.__getitem__)},
        "merges": [[to_text(a), to_text(b)] for a, b in merges],
    }  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=operator.itemgetter("id")),
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }


def read_own(path: Path) -> Tokenizer | None:
    """Read a tokenizer.json as this project writes it, which tiktoken runs, or a .tiktoken file; None: others wrote it,
    or something beside it says more."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.name != "tokenizer.json" or not file.is_file():
        from system.tokens import byte_merges

        ranks = byte_merges.find_ranks(path)
        return Tokenizer.from_ranks(ranks) if ranks else None
    if any(file.with_name(name).exists() for name in ("chat_template.jinja", "added_tokens.json")):
        return None
    spec, settings = read_json(file), read_json(file.with_name("tokenizer_config.json"))
    try:
        vocab = {to_bytes(text): i for text, i in spec["model"]["vocab"].items() if text not in SPECIALS.values()}
        tok = Tokenizer.from_ranks(vocab)
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    return tok if tok.settings() == settings and tok.content() == spec else None
