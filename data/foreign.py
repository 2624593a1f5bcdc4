"""
Read other people's tokenizers, whatever their kind, from tokenizer.json or from vocab.json with merges.txt; the package
`tokenizers` runs them. Files of our own BPE that bpe.py does not read, such as a .tiktoken file, are read here as well.
Importing this file adds it to bpe.OPENERS.
"""

import base64
import itertools
import json
import operator
from pathlib import Path
from typing import Any

from data.bpe import (
    FLAGS,
    OPENERS,
    OWN_PATTERN,
    SETTINGS,
    SPECIALS,
    UNKNOWN,
    Tokenizer,
    byte_level_spec,
    is_byte_level,
    own,
    read_json,
    regular_file,
    to_bytes,
)

QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
USUAL_NAMES = {  # of other people's special tokens, for files that do not say which token plays the role
    "mask": ("<|mask|>", "<|mdm_mask|>", "[MASK]", "<mask>", "<|MASK|>", "<MASK>", "|<MASK>|", "<[MASK]>"),
    "pad": ("<|pad|>", "<|dlm_pad|>", "<pad>", "[PAD]"),
    "eos": ("<|eos|>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<eos>", "</s>"),
}
READABLE = "tokenizer.json, vocab.json with merges.txt, or NAME.tiktoken"


class Foreign(Tokenizer):
    """A tokenizer that the package `tokenizers` runs."""

    def __init__(self, vocab: dict[bytes, int], specials: dict[str, int], roles: dict[str, str], spec: dict[str, Any],
                 **more: Any):  # fmt: skip
        """Make a tokenizer from its tokens, as `Tokenizer` takes them, and spec, the content of a tokenizer.json."""
        self.spec = spec
        super().__init__(vocab, specials, roles, **more)

    def start_engine(self) -> None:
        """Make an engine when text is encoded: there is one for each set of tokens that are read."""
        self._engines: dict[frozenset[str], Any] = {}

    def encode_with(self, text: str, allowed: set[str]) -> list[int]:
        """Turn text into ids; the added tokens in `allowed` are read as one id each."""
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # JSON can hold half a character
        return self._engine(frozenset(allowed)).encode(text, add_special_tokens=False).ids

    def join(self, ids: list[int]) -> bytes:
        """Turn ids, all of them shown, into UTF-8."""
        if is_byte_level(self.spec):
            return super().join(ids)
        engine, texts = self._engine(self.visible), []
        for known, run in itertools.groupby(ids, self._bytes.__contains__):  # the package skips ids that it lacks
            same = list(run)
            texts.append(engine.decode(same, skip_special_tokens=False) if known else UNKNOWN * len(same))
        return "".join(texts).encode()

    def _engine(self, allowed):
        """Return the `tokenizers.Tokenizer` of the spec that takes only the added tokens whose text is in `allowed` for
        tokens; the text of any other is encoded like ordinary text."""
        if allowed not in self._engines:
            added = [token | {"special": token["content"] not in allowed} for token in self.spec["added_tokens"]]
            engine = package().Tokenizer.from_str(json.dumps(self.spec | {"added_tokens": added}))
            engine.encode_special_tokens = True  # the package's name for: a special token is ordinary text
            self._engines[allowed] = engine
        return self._engines[allowed]

    def content(self) -> dict[str, Any]:
        """Return the content of tokenizer.json."""
        return self.spec


def package():
    """Return the package tokenizers, which runs other people's tokenizers; ours need tiktoken alone."""
    try:
        import tokenizers
    except ImportError:
        raise ValueError("this tokenizer was made by other people and needs the package tokenizers, which is not "
                         "installed: pip install tokenizers") from None  # fmt: skip
    return tokenizers


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
    cut = ((spec.get("pre_tokenizer") or {}).get("pretokenizers") or [{}])[0]
    is_ours = cut.get("pattern") == {"Regex": OWN_PATTERN}
    vocab = spec["model"]["vocab"] if is_ours else run_spec(spec, added, file).get_vocab(with_added_tokens=False)
    roles, specials = find_roles(file, config, vocab, {text: token["id"] for text, token in added.items()})
    bos = find_bos(config, spec.get("post_processor"))
    visible = [text for text, token in added.items() if not token["special"]]
    extra = {key: config[key] for key in SETTINGS if key in config}
    parts = {"roles": roles, "bos": bos, "visible": visible, "extra": extra}
    if is_ours and (tok := own(spec, specials, **parts)):
        return tok
    added |= {text: {"id": i, "content": text} | FLAGS for text, i in specials.items() if text not in added}
    if lacking := set(bos) - specials.keys():
        raise ValueError(f"{file.parent}: texts are said to begin with {lacking.pop()!r}, which is no special token")
    spec = complete(spec, added)
    engine = run_spec(spec, added, file)
    if wrong := [text for text, i in specials.items() if engine.token_to_id(text) != i]:
        raise ValueError(f"{file}: {wrong[0]!r} should have the id {specials[wrong[0]]}, which it cannot be given")
    read = to_bytes if is_byte_level(spec) else str.encode
    ordinary = {read(text): i for text, i in vocab.items() if text not in specials}
    return Foreign(ordinary, specials, spec=spec, **parts)


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


OPENERS["others"] = open_tokenizer
