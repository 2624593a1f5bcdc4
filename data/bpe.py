"""
Turn text into token ids and back.

Byte-level BPE cuts a text into pieces with a regular expression and each piece into bytes; then it merges neighbouring
tokens, always the pair that was learnt first. The tokenizers that this project trains do that, and tiktoken runs them.
The package `tokenizers` runs those of other people, whatever their kind, from tokenizer.json or from vocab.json with
merges.txt. Both are a `Tokenizer`.
"""

import base64
import builtins
import collections
import contextlib
import heapq
import itertools
import json
import operator
import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tiktoken

# The pieces of our own BPE: words, at most two digits (GPT-4 takes three: 1000 tokens to learn), runs of other
# characters, a line break with the indentation after it. The classes mean the same to `re`, tiktoken and `tokenizers`.
# Together they match every character, because tiktoken silently drops what no piece matches.
OWN_PATTERN = r" ?[A-Za-z]+| ?[0-9]{1,2}| ?[^ \t\nA-Za-z0-9]+|\n[ \t]*|[ \t]+"
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

SPECIALS = {"mask": "<|mask|>", "pad": "<|pad|>", "eos": "<|eos|>"}  # ours, in the order of their ids
USUAL_NAMES = {  # of other people's special tokens, for files that do not say which token plays the role
    "mask": ("<|mask|>", "<|mdm_mask|>", "[MASK]", "<mask>", "<|MASK|>", "<MASK>", "|<MASK>|", "<[MASK]>"),
    "pad": ("<|pad|>", "<|dlm_pad|>", "<pad>", "[PAD]"),
    "eos": ("<|eos|>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<eos>", "</s>"),
}
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
READABLE = "tokenizer.json, vocab.json with merges.txt, or NAME.tiktoken"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # the start of a file that Git LFS has not fetched
UNKNOWN = "\ufffd"


class Tokenizer:
    """Encode and decode text. The ids that matter are mask_id, eos_id and pad_id; every id is below vocab_size."""

    def __init__(
        self,
        vocab: dict[bytes, int],
        specials: dict[str, int],
        roles: dict[str, str],
        spec: dict[str, Any] | None = None,
        visible: Iterable[str] = (),
        bos: tuple[str, ...] = (),
        extra: dict[str, Any] | None = None,
    ):
        """Make a tokenizer from its tokens.

        vocab {token: id}: the ordinary tokens; in our own BPE the id is also the rank of the merge
        specials {text: id}: the added tokens
        roles {"mask", "eos", "pad": text}: the added tokens with these roles
        spec: the content of a tokenizer.json, run by the package tokenizers; None: our own BPE, run by tiktoken
        visible: the added tokens that are ordinary text to a reader
        bos: (text,) if every text of the model begins with this token (Llama 3, Gemma), else ()
        extra: entries to write into tokenizer_config.json (a chat template)
        """
        self.vocab, self.specials, self.roles, self.spec = vocab, specials, roles, spec
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
        self._engines: dict[frozenset[str], Any] = {}
        if spec is None:
            self._tiktoken = tiktoken.Encoding(
                "unmask", pat_str=OWN_PATTERN, mergeable_ranks=vocab, special_tokens=specials
            )

    def encode(self, text: str, specials: bool = False, mask: bool = True) -> list[int]:
        """Turn text into ids, without a first token (`add_bos`).

        specials: read special tokens in the text, such as `<|eos|>`, as one id each; False: they are ordinary text
        mask: with specials, read `<|mask|>` as well; False for prompts, where the sampler would fill it
        """
        allowed = set(self.specials) if specials else set(self.visible)
        if not mask:
            allowed.discard(self.roles["mask"])
        if self.spec is None:
            text = unicodedata.normalize("NFC", text)
            return self._tiktoken.encode(text, allowed_special=allowed, disallowed_special=())
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # JSON can hold half a character
        return self._engine(frozenset(allowed)).encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int], specials: bool = False) -> str:
        """Turn ids into text, without special tokens unless specials=True. An id without a token gives U+FFFD."""
        return self.decode_bytes(ids, specials).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], specials: bool = False) -> builtins.bytes:
        """Turn ids into UTF-8, whose first and last character can be incomplete if the ids are part of a text."""
        shown = [i for i in map(int, ids) if specials or i not in self._hidden]
        if self.spec is None or is_byte_level(self.spec):
            return b"".join(self._bytes.get(i, UNKNOWN.encode()) for i in shown)
        engine, texts = self._engine(self.visible), []
        for known, run in itertools.groupby(shown, self._bytes.__contains__):  # the package skips ids that it lacks
            same = list(run)
            texts.append(engine.decode(same, skip_special_tokens=False) if known else UNKNOWN * len(same))
        return "".join(texts).encode()

    def add_bos(self, ids: list[int]) -> list[int]:
        """Put the model's first token before the ids of a text, unless it is already there."""
        return ids if ids[: len(self.bos_ids)] == self.bos_ids else self.bos_ids + ids

    def _engine(self, allowed):
        """Return the `tokenizers.Tokenizer` of the spec that takes only the added tokens whose text is in `allowed` for
        tokens; the text of any other is encoded like ordinary text."""
        if allowed not in self._engines:
            added = [token | {"special": token["content"] not in allowed} for token in self.spec["added_tokens"]]
            engine = package().Tokenizer.from_str(json.dumps(self.spec | {"added_tokens": added}))
            engine.encode_special_tokens = True  # the package's name for: a special token is ordinary text
            self._engines[allowed] = engine
        return self._engines[allowed]

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
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Train at most `vocab_size` ids on texts: the bytes, the most frequent merges, our special tokens."""
        return cls.from_ranks(train(texts, vocab_size - len(SPECIALS)))

    @classmethod
    def from_ranks(cls, ranks: dict[builtins.bytes, int]) -> "Tokenizer":
        """Make our own BPE from {token: rank}, with our special tokens after the last rank."""
        first = max(ranks.values()) + 1
        return cls(ranks, {text: first + i for i, text in enumerate(SPECIALS.values())}, SPECIALS)

    @classmethod
    def load(cls, path: str | Path, vocab_size: int | None = None) -> "Tokenizer":
        """Read a folder or a file (READABLE).

        If there is no mask token, `<|mask|>` gets the id in config.json, or else the one after the last.

        vocab_size: the model's; every id must be below it, except for the mask of a model that never reads one
        """
        tok = open_tokenizer(Path(path))
        highest = max(i for i in tok._bytes if i != tok.mask_id)
        if vocab_size is not None and highest >= vocab_size:
            raise ValueError(
                f"{path}: the tokenizer has ids up to {highest}, its model only {vocab_size} ids: the files belong to "
                "two models, or tokens were added to one of them only"
            )
        return tok

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which Hugging Face's tools read, too."""
        write_json(Path(folder) / "tokenizer.json", self.content())
        roles = {f"{role}_token": text for role, text in self.roles.items()}
        bos = {"bos_token": self.bos[0], "add_bos_token": True} if self.bos else {}
        fixed = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        write_json(Path(folder) / "tokenizer_config.json", self.extra | fixed | roles | bos)

    def content(self) -> dict[str, Any]:
        """Return the content of tokenizer.json."""
        if self.spec is not None:
            return self.spec
        added = [
            {"id": i, "content": text} | FLAGS | {"special": text not in self.visible}
            for text, i in self.specials.items()
        ]
        spec = byte_level_spec(self.vocab, merges_of(self.vocab), added, OWN_PATTERN, nfc=True)
        spec["model"]["ignore_merges"] = True  # a piece that is a token stays whole, as in tiktoken
        return spec | {"post_processor": bos_processor(self.bos, self.bos_ids)}


# ---- training --------------------------------------------------------------------------------------------------------


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


def merges_of(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """List the merges that make the tokens, in the order of their ranks; a token that two others do not make has none.

    ranks {token: rank}: the 256 bytes among them
    """
    merges = (split_token(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1)
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


# ---- tokenizer.json --------------------------------------------------------------------------------------------------


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


def is_byte_level(spec):
    """True if the tokens of this tokenizer.json are bytes, written as in GPT-2's files."""
    return (spec["decoder"] or {}).get("type") == "ByteLevel"


def byte_level_spec(
    vocab: dict[bytes, int],
    merges: list[tuple[bytes, bytes]],
    added: list[dict[str, Any]],
    pattern: str | None,
    nfc: bool,
) -> dict[str, Any]:
    """Make the content of a tokenizer.json for byte-level BPE.

    pattern: the regular expression that cuts texts; None: GPT-2's, which the package knows
    """
    texts = {to_text(token): i for token, i in vocab.items()} | {token["content"]: token["id"] for token in added}
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pattern is None}
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
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*([cut] if pattern else []), byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }


def package():
    """Return the package tokenizers, which runs other people's tokenizers; ours need tiktoken alone."""
    try:
        import tokenizers
    except ImportError:
        raise ValueError("this tokenizer was made by other people and needs the package tokenizers, which is not "
                         "installed: pip install tokenizers") from None  # fmt: skip
    return tokenizers


def bos_processor(bos: tuple[str, ...], ids: list[int]) -> dict[str, Any] | None:
    """Make the post-processor of a tokenizer.json that writes these special tokens before every text."""
    if not bos:
        return None
    first = [{"SpecialToken": {"id": text, "type_id": 0}} for text in bos]
    a, b = ({"Sequence": {"id": name, "type_id": n}} for n, name in enumerate("AB"))
    tokens = {text: {"id": text, "ids": [i], "tokens": [text]} for text, i in zip(bos, ids, strict=True)}
    return {
        "type": "TemplateProcessing",
        "single": [*first, a],
        "pair": [*first, a, *first, b],
        "special_tokens": tokens,
    }


# ---- other people's files --------------------------------------------------------------------------------------------


def open_tokenizer(path: Path) -> Tokenizer:
    """Read a folder or a file (READABLE)."""
    files = [path / "tokenizer.json", path / "vocab.json", *sorted(path.glob("*.tiktoken"))]
    file = next(filter(Path.is_file, files if path.is_dir() else [path]), None)
    if file is None or file.suffix not in (".json", ".tiktoken"):
        raise ValueError(f"no tokenizer at {path}: expected {READABLE}, or a folder with one of them")
    if file.suffix == ".tiktoken":
        return Tokenizer.from_ranks(read_ranks(file))
    try:
        spec = vocab_and_merges(file) if file.name == "vocab.json" else read_json(file)
        return from_spec(spec, file)
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError(
            f"{file} does not look like a tokenizer file ({type(e).__name__}: {e}); expected {READABLE}"
        ) from e


def vocab_and_merges(file):
    """Read vocab.json and merges.txt (Qwen2, Dream, DiffuCoder, GPT-2) as the content of a tokenizer.json."""
    if not file.with_name("merges.txt").exists():
        raise ValueError(f"{file} needs merges.txt beside it")
    lines = regular_file(file.with_name("merges.txt")).read_text(encoding="utf-8").split("\n")
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    gpt2 = str(read_json(file.with_name("tokenizer_config.json")).get("tokenizer_class")).startswith("GPT2")
    spec = byte_level_spec({}, [], [], None if gpt2 else QWEN2_PATTERN, nfc=not gpt2)
    spec["model"] |= {"vocab": read_json(file), "merges": merges}
    return spec


def from_spec(spec, file):
    """Make a Tokenizer from the content of a tokenizer.json, with what the small files beside it say."""
    config = read_json(file.with_name("tokenizer_config.json"))
    template = file.with_name("chat_template.jinja")
    if template.exists():
        config["chat_template"] = regular_file(template).read_text(encoding="utf-8")
    added = added_tokens(file.parent, spec)
    if tok := own_tokenizer(spec, config, added, file):
        return tok
    vocab = run_spec(spec, added, file).get_vocab(with_added_tokens=False)
    roles, specials = find_roles(file, config, vocab, {text: token["id"] for text, token in added.items()})
    added |= {text: {"id": i, "content": text} | FLAGS for text, i in specials.items() if text not in added}
    bos = find_bos(config, spec.get("post_processor"))
    if lacking := set(bos) - specials.keys():
        raise ValueError(f"{file.parent}: texts are said to begin with {lacking.pop()!r}, which is no special token")
    spec = complete(spec, added)
    engine = run_spec(spec, added, file)
    if wrong := [text for text, i in specials.items() if engine.token_to_id(text) != i]:
        raise ValueError(f"{file}: {wrong[0]!r} should have the id {specials[wrong[0]]}, which it cannot be given")
    read = to_bytes if is_byte_level(spec) else str.encode
    return Tokenizer(
        {read(text): i for text, i in vocab.items() if text not in specials},
        specials,
        roles,
        spec,
        bos=bos,
        **from_small_files(config, added),
    )


def from_small_files(config, added):
    """Take from tokenizer_config.json and the added tokens what a Tokenizer keeps of them -> {parameter: value}."""
    return {
        "visible": [text for text, token in added.items() if not token["special"]],
        "extra": {key: config[key] for key in ("bos_token", "chat_template", "model_max_length") if key in config},
    }


def own_tokenizer(spec, config, added, file):
    """Make the Tokenizer of a tokenizer.json that this project wrote, which tiktoken runs; None: others wrote it."""
    cut = ((spec.get("pre_tokenizer") or {}).get("pretokenizers") or [{}])[0]
    if cut.get("pattern") != {"Regex": OWN_PATTERN}:
        return None
    vocab, ids = spec["model"]["vocab"], {text: token["id"] for text, token in added.items()}
    roles, specials = find_roles(file, config, vocab, ids)
    tok = Tokenizer(
        {to_bytes(text): i for text, i in vocab.items() if text not in specials},
        specials,
        roles,
        bos=find_bos(config, spec.get("post_processor")),
        **from_small_files(config, added),
    )
    return tok if tok.content() == spec else None


def added_tokens(folder: Path, spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Collect {text: entry} of the added tokens in the files of a folder; tokenizer.json has the last word."""
    listed = [{"id": i, "content": text} for text, i in read_json(folder / "added_tokens.json").items()]
    decoder = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
    listed += [token | {"id": int(i)} for i, token in decoder.items()]
    entries = [
        {"id": token["id"], "content": token["content"]} | FLAGS | token for token in listed + spec["added_tokens"]
    ]
    return {entry["content"]: entry for entry in entries}


def complete(spec, added):
    """Add tokens to the content of a tokenizer.json, each with its id.

    added {text: entry}: an id that does not follow the last one has to be in the vocabulary, too
    """
    model, tokens = spec["model"], sorted(added.values(), key=operator.itemgetter("id"))
    if isinstance(model["vocab"], dict):  # Unigram has a list, in which a token's index is its id
        model = model | {"vocab": model["vocab"] | {token["content"]: token["id"] for token in tokens}}
    return spec | {"model": model, "added_tokens": tokens, "truncation": None, "padding": None}


def run_spec(spec, added, file):
    """Let the package tokenizers read the content of a tokenizer.json, with these added tokens."""
    engine = package().Tokenizer
    try:
        return engine.from_str(json.dumps(spec | {"added_tokens": list(added.values())}))
    except Exception as e:  # the package raises nothing more special
        raise ValueError(f"{file} cannot be read by the package tokenizers: it says {e}") from None


def find_bos(config, processor):
    """Find the tokens that every text begins with -> (text,) or ().

    config: tokenizer_config.json; it has the last word if it says anything
    processor: the post-processor of tokenizer.json
    """
    steps = (processor or {}).get("processors", [processor or {}])
    single = next((step["single"] for step in steps if step.get("type") == "TemplateProcessing"), [])
    first = itertools.takewhile(lambda part: "SpecialToken" in part, single)
    written = tuple(part["SpecialToken"]["id"] for part in first)
    bos = text_of(config.get("bos_token"))
    add_bos = config.get("add_bos_token")
    if add_bos is None or add_bos and not bos:
        return written
    return (bos,) if add_bos else ()


def text_of(token):
    """Return the text of a token in tokenizer_config.json, which is text or {"content": text}."""
    return token["content"] if isinstance(token, dict) else token


def find_roles(file, config, vocab, specials):
    """Find the tokens for mask, eos and pad, as the files say or by their usual names -> {role: text}, {text: id}.

    vocab {text: id}: the ordinary tokens
    specials {text: id}: the added tokens; those with a role are added to the result
    """
    config = read_json(file.with_name("special_tokens_map.json")) | config
    if "<end_of_turn>" in str(config.get("chat_template")):  # Gemma's files name <eos>, but its chat ends with this
        config["eos_token"] = "<end_of_turn>"
    roles, specials = {}, dict(specials)
    for role, usual in USUAL_NAMES.items():
        named = text_of(config.get(f"{role}_token"))
        if named is not None and named not in specials:
            if named not in vocab:
                raise ValueError(f"{file.parent}: the {role} token is said to be {named!r}, which is in no vocabulary")
            specials[named] = vocab[named]
        roles[role] = named or next((text for text in usual if text in specials), None)
    if roles["mask"] is None:  # LLaDA gives only its id, in config.json; a causal model has no mask
        known = read_json(file.with_name("config.json")).get("mask_token_id")
        free = max(*vocab.values(), *specials.values()) + 1
        roles["mask"] = next((text for text, i in specials.items() if i == known), SPECIALS["mask"])
        specials.setdefault(roles["mask"], free if known is None else known)
    if roles["eos"] is None:
        raise ValueError(
            f"{file.parent}: no token ends a text; say which in tokenizer_config.json, as eos_token; "
            f"there are {', '.join(specials)}"
        )
    roles["pad"] = roles["pad"] or roles["eos"]  # LLaDA pads with its end token
    return roles, specials


# ---- files -----------------------------------------------------------------------------------------------------------


def write_whole(path: str | Path, text: str) -> None:
    """Write a file that nobody can see half written: under another name, renamed when it is complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as JSON that a person can read."""
    write_whole(path, json.dumps(value, ensure_ascii=False, indent=1))


def regular_file(file: Any) -> Any:
    """Return the path itself; raise ValueError for a pipe or a device, which might never end, and for a pointer that
    Git LFS left in place of the file."""
    if os.path.exists(file) and not os.path.isfile(file):
        raise ValueError(f"{file} is not an ordinary file but a folder, a pipe or a device: put the file there itself")
    with contextlib.suppress(OSError), open(file, "rb") as f:  # the caller, who reads it, reports these errors
        if f.read(len(LFS_POINTER)) == LFS_POINTER:
            raise ValueError(f"{file} is only a pointer of Git LFS to the file: git lfs pull fetches it")
    return file


def read_json(file: str | Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; {} if there is no such file."""
    file = Path(file)
    try:
        found = json.loads(regular_file(file).read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"{file} cannot be read as JSON: {e}") from e
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds a {type(found).__name__}, expected an object such as {{...}}")
    return found


def read_ranks(file: str | Path) -> dict[bytes, int]:
    """Read {token: rank} from a .tiktoken file. (tiktoken's own reader may return an old copy.)"""
    try:
        lines = map(str.split, regular_file(Path(file)).read_text(encoding="utf-8").splitlines())
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    except ValueError as e:
        raise ValueError(f"{file} is not in tiktoken's format, base64 and a rank on each line: {e}") from e
    if not {bytes([b]) for b in range(256)} <= ranks.keys():
        raise ValueError(f"{file} lacks some of the 256 single bytes: there are texts that it cannot write")
    return ranks


def ranks_text(ranks: dict[bytes, int]) -> str:
    """Write {token: rank} as the text of a .tiktoken file."""
    lines = (f"{base64.b64encode(token).decode()} {ranks[token]}\n" for token in sorted(ranks, key=ranks.__getitem__))
    return "".join(lines)
