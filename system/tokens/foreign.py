"""
Other people's tokenizers, which the package `tokenizers` reads and runs: tokenizer.json, or vocab.json with merges.txt.
"""

import json
import types
from pathlib import Path
from typing import Any

from system.disk import read_json, regular_file
from system.tokens.bpe import Tokenizer, to_bytes

QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SETTINGS = "bos_token", "chat_template", "model_max_length"  # of tokenizer_config.json, which are kept
MASKS = "<|mask|>", "<|mdm_mask|>", "<mask>", "<|MASK|>", "|<MASK>|", "<MASK>"  # for files that do not name theirs


def package() -> types.ModuleType:
    """Import the package `tokenizers`, which our own tokenizers do without."""
    try:
        import tokenizers
    except ImportError as e:
        raise ValueError("other people's tokenizers are read by the package tokenizers, which is not installed: "
                         "pip install tokenizers") from e  # fmt: skip
    return tokenizers


class Foreign(Tokenizer):
    """A tokenizer that the package `tokenizers` runs."""

    def __init__(self, engine: Any, roles: dict[str, str], bos: tuple[str, ...] = (), extra: dict | None = None):
        """Make a tokenizer from one of the package.

        roles: as `Tokenizer` takes them
        bos: (text,) if every text of the model begins with this token, else ()
        extra: entries to write into tokenizer_config.json (a chat template)
        """
        self._engine, added = engine, engine.get_added_tokens_decoder()
        self._is_byte_level = isinstance(engine.decoder, package().decoders.ByteLevel)
        read = to_bytes if self._is_byte_level else str.encode
        specials = {token.content: i for i, token in added.items()}
        vocab = {read(text): i for text, i in engine.get_vocab(False).items() if text not in specials}
        super().__init__(vocab, specials, roles)
        self.bos, self.bos_ids, self.extra = bos, [specials[text] for text in bos], extra or {}
        self._hidden = {i for i, token in added.items() if token.special}

    def encode(self, text: str, specials: bool = False, mask: bool = True) -> list[int]:
        """Turn text into ids, as `Tokenizer.encode` does."""
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # JSON can hold half a character
        self._engine.encode_special_tokens = not specials  # the package's name for: a special token is ordinary text
        ids = self._engine.encode(text, add_special_tokens=False).ids
        read_as = [self.mask_id] if mask else self.encode(self.roles["mask"])
        return [part for i in ids for part in (read_as if i == self.mask_id else [i])]

    def join(self, ids: list[int]) -> bytes:
        """Turn ids, all of them shown, into UTF-8."""
        if self._is_byte_level:
            return super().join(ids)
        return self._engine.decode(ids, skip_special_tokens=False).encode()

    def settings(self) -> dict[str, Any]:
        """Return the content of tokenizer_config.json."""
        bos = {"bos_token": self.bos[0], "add_bos_token": True} if self.bos else {}
        return self.extra | super().settings() | bos

    def content(self) -> dict[str, Any]:
        """Return the content of tokenizer.json."""
        return json.loads(self._engine.to_str())


def open_tokenizer(path: Path) -> Tokenizer:
    """Read tokenizer.json, or vocab.json with merges.txt, in a folder; path: the folder or one of the files."""
    folder, engines = path if path.is_dir() else path.parent, package()
    try:
        config = read_json(folder / "tokenizer_config.json")
        template = folder / "chat_template.jinja"
        if template.is_file():
            config["chat_template"] = template.read_text(encoding="utf-8")
        return from_engine(read_engine(engines, folder), config)
    except Exception as e:  # the package raises nothing more special
        raise ValueError(
            f"no tokenizer at {path}: expected tokenizer.json, vocab.json with merges.txt, or NAME.tiktoken, and in "
            f"tokenizer_config.json special tokens as eos_token, mask_token, pad_token ({e!r})"
        ) from e


def read_engine(engines, folder):
    """Let the package `engines` read tokenizer.json or, without one, the files of Qwen2, Dream and DiffuCoder."""
    file, *others = (str(regular_file(folder / name)) for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if Path(file).exists():
        return engines.Tokenizer.from_file(file)
    engine = engines.Tokenizer(engines.models.BPE.from_file(*others))
    engine.normalizer = engines.normalizers.NFC()
    cut = engines.pre_tokenizers.Split(engines.Regex(QWEN2_PATTERN), "isolated")
    byte_level = engines.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = engines.pre_tokenizers.Sequence([cut, byte_level])
    engine.decoder = engines.decoders.ByteLevel()
    ids = read_json(folder / "added_tokens.json")
    engine.add_special_tokens(sorted(ids, key=ids.get))
    return engine


def from_engine(engine, config):
    """Make a Tokenizer from what the package has read, with what tokenizer_config.json says."""
    engine.no_truncation()
    engine.no_padding()
    roles = find_roles(config, engine.get_vocab())
    if roles["mask"] == MASKS[0]:  # a causal model may lack it
        engine.add_special_tokens([MASKS[0]])
    begun = engine.encode("a", add_special_tokens=config.get("add_bos_token") is not False)
    bos = begun.tokens[: begun.special_tokens_mask.index(0)]
    extra = {key: config[key] for key in SETTINGS if key in config}
    return Foreign(engine, roles, tuple(bos), extra)


def find_roles(config, vocab):
    """Find the tokens of a vocabulary {text: id} for mask, eos and pad, as the files say or by their usual names ->
    {role: text}."""
    if "<end_of_turn>" in str(config.get("chat_template")):  # Gemma's files name <eos>, but its chat ends with this
        config = config | {"eos_token": "<end_of_turn>"}

    def find(role, *usual):
        named = config.get(f"{role}_token") or next((text for text in usual if text in vocab), usual[0])
        return named["content"] if isinstance(named, dict) else named

    eos = find("eos", "<|endoftext|>")
    return {"mask": find("mask", *MASKS), "eos": eos, "pad": find("pad", eos)}
