"""
Turn text into token ids and back.

Byte-level BPE cuts a text into pieces with a regular expression and each piece into bytes; then it merges neighbouring
tokens, always the pair that was learnt first. The tokenizers that this project trains (learn.py) do that, and tiktoken
runs them. Those of other people are in foreign.py, which loads when a folder has one. Both are a `Tokenizer`.
"""

import builtins
import functools
import operator
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tiktoken

from system.files import read_json, regular_file, write_json

# The pieces of our own BPE: words, at most two digits (GPT-4 takes three: 1000 tokens to learn), runs of other
# characters, a line break with the indentation after it. The classes mean the same to `re`, tiktoken and `tokenizers`.
# Together they match every character, because tiktoken silently drops what no piece matches.
OWN_PATTERN = r" ?[A-Za-z]+| ?[0-9]{1,2}| ?[^ \t\nA-Za-z0-9]+|\n[ \t]*|[ \t]+"

SPECIALS = {"mask": "<|mask|>", "pad": "<|pad|>", "eos": "<|eos|>"}  # ours, in the order of their ids
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
SETTINGS = "bos_token", "chat_template", "model_max_length"  # of tokenizer_config.json, which a Tokenizer keeps
UNKNOWN = "\ufffd"


class Tokenizer:
    """Encode and decode text. The ids that matter are mask_id, eos_id and pad_id; every id is below vocab_size."""

    def __init__(
        self,
        vocab: dict[bytes, int],
        specials: dict[str, int],
        roles: dict[str, str],
        visible: Iterable[str] = (),
        bos: tuple[str, ...] = (),
        extra: dict[str, Any] | None = None,
    ):
        """Make a tokenizer from its tokens.

        vocab {token: id}: the ordinary tokens; in our own BPE the id is also the rank of the merge
        specials {text: id}: the added tokens
        roles {"mask", "eos", "pad": text}: the added tokens with these roles
        visible: the added tokens that are ordinary text to a reader
        bos: (text,) if every text of the model begins with this token (Llama 3, Gemma), else ()
        extra: entries to write into tokenizer_config.json (a chat template)
        """
        self.vocab, self.specials, self.roles = vocab, specials, roles
        self.visible, self.bos, self.extra = frozenset(visible), bos, extra or {}
        self.mask_id, self.eos_id, self.pad_id = (specials[roles[role]] for role in ("mask", "eos", "pad"))
        self.bos_ids = [specials[text] for text in bos]
        if self.mask_id in (self.eos_id, self.pad_id):
            raise ValueError(
                f"{roles['mask']!r} is the mask and also the end or the padding of a text: a masked position must "
                "differ from both; give the mask a token of its own"
            )
        self.vocab_size = max(*vocab.values(), *specials.values()) + 1
        self._bytes = {i: token for token, i in vocab.items()} | {i: text.encode() for text, i in specials.items()}
        self._hidden = {i for text, i in specials.items() if text not in self.visible}

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
        allowed = set(self.specials) if specials else set(self.visible)
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

    def __eq__(self, other: object) -> bool:
        """True if both give all texts the same ids, and the same ids the same roles."""
        if not isinstance(other, Tokenizer):
            return False
        return (self.roles, self.bos, self.content()) == (other.roles, other.bos, other.content())

    @classmethod
    def bytes(cls) -> "Tokenizer":
        """Make the tokenizer that needs no file: one id per byte, then mask, pad and eos."""
        return cls.from_ranks({bytes([b]): b for b in range(256)})

    @classmethod
    def from_ranks(cls, ranks: dict[builtins.bytes, int]) -> "Tokenizer":
        """Make our own BPE from {token: rank}, with our special tokens after the last rank."""
        first = max(ranks.values()) + 1
        return cls(ranks, {text: first + i for i, text in enumerate(SPECIALS.values())}, SPECIALS)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which Hugging Face's tools read, too."""
        write_json(Path(folder) / "tokenizer.json", self.content())
        roles = {f"{role}_token": text for role, text in self.roles.items()}
        bos = {"bos_token": self.bos[0], "add_bos_token": True} if self.bos else {}
        fixed = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        write_json(Path(folder) / "tokenizer_config.json", self.extra | fixed | roles | bos)

    def content(self) -> dict[str, Any]:
        """Return the content of tokenizer.json."""
        added = [
            {"id": i, "content": text} | FLAGS | {"special": text not in self.visible}
            for text, i in self.specials.items()
        ]
        pairs, before_text = [], None  # of a tokenizer of single bytes
        if self.bos or max(map(len, self.vocab)) > 1:
            from data import byte_merges

            pairs, before_text = byte_merges.merges_of(self.vocab), byte_merges.bos_processor(self.bos, self.bos_ids)
        spec = byte_level_spec(self.vocab, pairs, added, OWN_PATTERN, nfc=True)
        spec["model"]["ignore_merges"] = True  # a piece that is a token stays whole, as in tiktoken
        return spec | {"post_processor": before_text}


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
    texts = {to_text(token): i for token, i in vocab.items()} | {token["content"]: token["id"] for token in added}
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
    """Read a .tiktoken file, or a tokenizer.json as this project writes it, which tiktoken runs; None: others wrote it,
    or something beside it says more."""
    if ranks := ranks_file(path):
        from data import byte_merges

        return Tokenizer.from_ranks(byte_merges.read_ranks(regular_file(ranks)))
    file = path / "tokenizer.json" if path.is_dir() else path
    more = "chat_template.jinja", "added_tokens.json"
    if file.name != "tokenizer.json" or not file.is_file() or any(file.with_name(name).exists() for name in more):
        return None
    spec, config = read_json(file), read_json(file.with_name("tokenizer_config.json"))
    if {"chat_template", "added_tokens_decoder"} & config.keys():
        return None
    try:
        if spec["pre_tokenizer"]["pretokenizers"][0]["pattern"] != {"Regex": OWN_PATTERN}:
            return None
        return own(
            spec,
            {token["content"]: token["id"] for token in spec["added_tokens"]},
            roles={role: config[f"{role}_token"] for role in SPECIALS},
            visible=[token["content"] for token in spec["added_tokens"] if not token["special"]],
            bos=(config["bos_token"],) if config.get("add_bos_token") else (),
            extra={key: config[key] for key in SETTINGS if key in config},
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return None


def ranks_file(path):
    """Find the .tiktoken file that a path is, or that a folder has; None if it has the files of another tokenizer."""
    if not path.is_dir():
        return path if path.suffix == ".tiktoken" else None
    others = any((path / name).exists() for name in ("tokenizer.json", "vocab.json"))
    return None if others else next(iter(sorted(path.glob("*.tiktoken"))), None)


def own(spec: dict[str, Any], specials: dict[str, int], **parts: Any) -> Tokenizer | None:
    """Make the Tokenizer of the content of a tokenizer.json that cuts texts as ours do; None: something else differs.

    specials {text: id}; parts: what else a Tokenizer takes
    """
    vocab = {to_bytes(text): i for text, i in spec["model"]["vocab"].items() if text not in specials}
    tok = Tokenizer(vocab, specials, **parts)
    return tok if tok.content() == spec else None
