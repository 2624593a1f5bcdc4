"""
Text <-> ids, one class for every model here, run by tiktoken: single bytes, merges trained in seconds, or the
Hugging Face files of somebody else's model.

All of byte-level BPE: cut the text into pieces with a regular expression and each piece into bytes; then, while two
neighbours together are a token, join the pair whose token was learnt first. Tokenizers differ in the expression, in the
order of learning, and in the ids. A tokenizer.json of another kind (Gemma's, Llama 2's, T5's: SentencePiece) is run by
the package `tokenizers`, where that is installed.
"""
import base64
import collections
import functools
import heapq
import itertools
import json
import os
import re
import unicodedata
from pathlib import Path

import tiktoken

# Our own pieces: words, two digits at most (GPT-4 takes three: 1000 words to learn), runs of the rest, a line break
# with the indentation after it. Only plain classes, which mean the same to `re`, tiktoken and Hugging Face's
# `tokenizers`; and together they match every character, because what no piece matches, tiktoken drops silently.
OWN = r" ?[A-Za-z]+| ?[0-9]{1,2}| ?[^ \t\nA-Za-z0-9]+|\n[ \t]*|[ \t]+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
# GPT-2's where every digit has been cut off first (SmolLM2): \s+(?!\S) then takes a digit for the end of the text.
DIGITS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"

SPECIALS = {"mask": "<|mask|>", "pad": "<|pad|>", "eos": "<|eos|>"}  # ours, in the order of their ids
USUAL = {  # what others call theirs, for when no file says which token plays the part
    "mask": ("<|mask|>", "<|mdm_mask|>", "[MASK]", "<mask>", "<|MASK|>", "<MASK>", "|<MASK>|"),
    "pad": ("<|pad|>", "<|dlm_pad|>", "<pad>", "[PAD]"),
    "eos": ("<|eos|>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<eos>", "</s>"),
}
READABLE = "tokenizer.json, vocab.json with merges.txt, or NAME.tiktoken"
POINTER = b"version https://git-lfs.github.com/spec/"  # how a file begins that Git LFS has not fetched
CHUNK = 8192  # characters at a time, only for text that overflows the stack of the regex engine


class Tokenizer:
    """Byte-level BPE, or what a `spec` says; the ids that matter are `mask_id`, `eos_id` and `pad_id`, and every id is
    below `vocab_size`."""

    def __init__(self, vocab, specials, roles, pattern=OWN, nfc=True, order=None, shown=(), extra=None, bos=(),
                 spec=None):
        """vocab {bytes: id}, specials {text: id}, roles {"mask", "eos", "pad": text} -> a tokenizer.

        order: [bytes], the tokens by age, if their ids do not tell; shown: the specials that are text to a reader;
        extra: entries of tokenizer_config.json that we only pass on (a chat template); bos: (), or the [text] of the
        special token that every text of this model begins with (Llama 3, Gemma); spec: what is in a tokenizer.json that
        tiktoken cannot express, and all but the special tokens is then said by it: pattern, nfc, order mean nothing."""
        self.vocab, self.specials, self.roles = vocab, specials, roles
        self.pattern, self.nfc, self.shown, self.extra = pattern, nfc, frozenset(shown), extra or {}
        single = sorted((bytes([b]) for b in range(256)), key=lambda t: vocab.get(t, len(vocab)))
        self.order = single + [t for t in order or sorted(vocab, key=vocab.get) if len(t) > 1]
        self.spec = spec
        self.mask_id, self.eos_id, self.pad_id = (specials[roles[role]] for role in ("mask", "eos", "pad"))
        self.bos, self.bos_ids = tuple(bos), [specials[text] for text in bos]
        if self.mask_id in (self.eos_id, self.pad_id):
            raise ValueError(f"{roles['mask']!r} is the mask and also the end or the padding of a text: "
                             "a hole must look like nothing else, give the mask a token of its own")
        self.vocab_size = max(max(vocab.values()), max(specials.values())) + 1
        # tiktoken joins by the rank of the joined token, so its ranks are our ages; ids are looked up afterwards
        self._id = [vocab.get(t) for t in self.order] + list(specials.values())
        self._bytes = {i: t for t, i in vocab.items()} | {i: s.encode() for s, i in specials.items()}
        self._hidden = {i for s, i in specials.items() if s not in self.shown}
        self._engines = {}
        self._tiktoken = spec or tiktoken.Encoding(
            "unmask", pat_str=pattern, mergeable_ranks={t: rank for rank, t in enumerate(self.order)},
            special_tokens={s: len(self.order) + i for i, s in enumerate(specials)})

    def begin(self, ids):
        """[id] of a text -> the same after what every text of this model begins with, unless it is there already."""
        return ids if ids[: len(self.bos_ids)] == self.bos_ids else self.bos_ids + ids

    def encode(self, text, specials=False, mask=True):
        """Text -> [id], of its NFC form if the model was trained so; specials=True reads `<|eos|>` as one token, and
        `<|mask|>` unless mask=False: in a prompt it is text, for a hole there would be filled."""
        allowed = (set(self.specials) if specials else set(self.shown)) - (set() if mask else {self.roles["mask"]})
        if self.spec:
            return self._engine(frozenset(allowed)).encode(text, add_special_tokens=False).ids
        text = unicodedata.normalize("NFC", text) if self.nfc else text
        try:
            ranks = self._tiktoken.encode(text, allowed_special=allowed, disallowed_special=())
        except ValueError:  # Qwen's and LLaDA's patterns backtrack through runs of spaces: a million are too many
            parts = (text[i:i + CHUNK] for i in range(0, len(text), CHUNK))
            ranks = [r for p in parts for r in self._tiktoken.encode(p, allowed_special=allowed, disallowed_special=())]
        return [i for i in map(self._id.__getitem__, ranks) if i is not None]  # None: a byte this vocabulary lacks

    def decode(self, ids, specials=False):
        """[id] -> text. Special tokens are left out unless specials=True; an id without a token is U+FFFD."""
        return self.spell(ids, specials).decode("utf-8", "replace")

    def spell(self, ids, specials=False):
        """[id] -> its bytes, of which the first and the last character of a window may have only some."""
        shown = (i for i in map(int, ids) if specials or i not in self._hidden)
        if self.spec:
            write = functools.partial(self._engine(frozenset()).decode, skip_special_tokens=False)
            runs = itertools.groupby(shown, self._bytes.__contains__)
            return "".join(write(list(r)) if known else "\ufffd" * len(list(r)) for known, r in runs).encode()
        return b"".join(self._bytes.get(i, b"\xef\xbf\xbd") for i in shown)

    def _engine(self, allowed):
        """{special tokens that a text may hold} -> the `tokenizers.Tokenizer` of the spec that reads these only."""
        if allowed not in self._engines:
            added = [t | {"special": t["content"] not in allowed} for t in self.spec["added_tokens"]]
            self._engines[allowed] = engine = open_spec(self.spec | {"added_tokens": added})
            engine.encode_special_tokens = True  # a special token is ordinary text
        return self._engines[allowed]

    def __eq__(self, other):
        """Do both give every text the same ids, and the same ids the same parts to play?"""
        facts = ("vocab", "specials", "roles", "pattern", "nfc", "order", "shown", "bos", "spec")
        return isinstance(other, Tokenizer) and all(getattr(self, f) == getattr(other, f) for f in facts)

    @classmethod
    def bytes(cls):
        """The tokenizer that needs no file: one id per byte, then mask, pad and eos."""
        return cls.from_ranks({bytes([b]): b for b in range(256)})

    @classmethod
    def train(cls, texts, vocab_size):
        """[text] -> a tokenizer of at most `vocab_size` ids: the bytes, the most frequent merges, our specials."""
        return cls.from_ranks(train(texts, vocab_size - len(SPECIALS)))

    @classmethod
    def from_ranks(cls, ranks):
        """{bytes: rank} -> a tokenizer with our pattern, and our special tokens after the last rank."""
        first = max(ranks.values()) + 1
        return cls(ranks, {s: first + i for i, s in enumerate(SPECIALS.values())}, SPECIALS)

    @classmethod
    def load(cls, path, vocab_size=None):
        """A folder or file, one of READABLE -> Tokenizer. Where there is no mask, `<|mask|>` follows the last id.

        vocab_size: of the model beside it, which must have a row for every id, save for a mask that it never reads."""
        tok = cls.open(Path(path))
        most = max(i for i in tok._bytes if i != tok.mask_id)
        if vocab_size is not None and most >= vocab_size:
            raise ValueError(f"{path}: the tokenizer has ids up to {most}, its model only {vocab_size} ids: these are "
                             "files of two models, or tokens were added to one of them only")
        return tok

    @classmethod
    def open(cls, path):
        """`load` without the check."""
        files = [path / "tokenizer.json", path / "vocab.json", *sorted(path.glob("*.tiktoken"))]
        file = next(filter(Path.is_file, files if path.is_dir() else [path]), None)
        if file is None or file.suffix not in (".json", ".tiktoken"):
            raise ValueError(f"no tokenizer at {path}: expected {READABLE}, or a folder with one of them")
        if file.suffix == ".tiktoken":
            return cls.from_ranks(read_ranks(file))
        try:
            return cls(**(read_vocab if file.name == "vocab.json" else read_huggingface)(file))
        except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as e:
            raise ValueError(f"{file} does not look like a tokenizer file ({type(e).__name__}: {e}); "
                             f"expected {READABLE}") from e

    def save(self, folder):
        """Writes tokenizer.json and tokenizer_config.json: Hugging Face's tools and `load` read the same ids back."""
        age = {t: rank for rank, t in enumerate(self.order)}
        pairs = (split(t, age) for t in self.order[256:])
        vocab = {written(t): i for t, i in self.vocab.items()} | self.specials
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        added = [{"id": i, "content": s, **flags, "special": s not in self.shown} for s, i in self.specials.items()]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        cut = {"type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated", "invert": False}
        write_json(Path(folder) / "tokenizer.json", self.spec or {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": sorted(added, key=lambda token: token["id"]),
            "normalizer": {"type": "NFC"} if self.nfc else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, byte_level]},
            "post_processor": prefix(self.bos, self.bos_ids), "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                "ignore_merges": self.vocab.keys() <= age.keys(),  # a piece that is a token stays whole, as in tiktoken
                "vocab": {t: vocab[t] for t in sorted(vocab, key=vocab.get)},
                "merges": [list(map(written, pair)) for pair in pairs if len(pair) == 2]}})
        write_json(Path(folder) / "tokenizer_config.json", self.extra | {
            "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
            **{f"{role}_token": text for role, text in self.roles.items()},
            **({"bos_token": self.bos[0], "add_bos_token": True} if self.bos else {})})


# ---- training --------------------------------------------------------------------------------------------------------

def train(texts, size):
    """[text] -> {bytes: rank}: 256 bytes, then the most frequent pair, again and again (Sennrich et al. 2016)."""
    if size < 256:
        raise ValueError(f"a vocabulary of {size + len(SPECIALS)} is too small: "
                         f"256 bytes and {len(SPECIALS)} special tokens need {256 + len(SPECIALS)}")
    # Every distinct piece is handled once, with its count, and a merge visits only the pieces it occurs in:
    # 1 MB takes one or two seconds, tiktoken's own educational trainer 270.
    texts = (unicodedata.normalize("NFC", text) for text in texts)
    counts = collections.Counter(piece for text in texts for piece in re.findall(OWN, text))
    words, freq = [[bytes([b]) for b in piece.encode()] for piece in counts], list(counts.values())
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, word in enumerate(words):
        for pair in zip(word, word[1:], strict=False):
            pairs[pair] += freq[i]
            where[pair].add(i)
    heap = [(-n, pair) for pair, n in pairs.items()]
    heapq.heapify(heap)
    ranks = {bytes([b]): b for b in range(256)}
    while len(ranks) < size and heap:
        n, best = heapq.heappop(heap)
        if -n != pairs[best]:  # the entry is older than the count: back to where it belongs by now
            if pairs[best] > 0:
                heapq.heappush(heap, (-pairs[best], best))
            continue
        if -n < 2:  # what occurs once is not a pattern
            break
        ranks.setdefault(best[0] + best[1], len(ranks))
        changed = set()
        for i in where.pop(best):
            old, words[i] = words[i], join(words[i], best)
            for pair in zip(old, old[1:], strict=False):
                pairs[pair] -= freq[i]
            for pair in zip(words[i], words[i][1:], strict=False):
                pairs[pair] += freq[i]
                where[pair].add(i)
                changed.add(pair)
        for pair in changed:
            heapq.heappush(heap, (-pairs[pair], pair))
    return ranks


def join(word, pair):
    """[bytes], (a, b) -> [bytes] in which every a b, from the left, is one."""
    out, i = [], 0
    while i < len(word):
        hit = tuple(word[i:i + 2]) == pair
        out.append(pair[0] + pair[1] if hit else word[i])
        i += 1 + hit
    return out


def split(token, age):
    """Token, {bytes: age} -> the two it is made of: BPE of its bytes with older tokens only (longer: out of reach)."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        ages = [age.get(a + b, age[token]) for a, b in zip(parts, parts[1:], strict=False)]
        i = min(range(len(ages)), key=ages.__getitem__)
        if ages[i] >= age[token]:
            break
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


# ---- files -----------------------------------------------------------------------------------------------------------

def alphabet():
    """{byte: the character GPT-2's files write for it}: itself where visible, else the next one from U+0100 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    return {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}


CHAR = alphabet()
BYTE = {c: b for b, c in CHAR.items()}
written = lambda token: "".join(map(CHAR.__getitem__, token))
read = lambda text: bytes(map(BYTE.__getitem__, text))


def write(path, text):
    """Writes a file so that nobody ever sees half of it: under another name, renamed when it is complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)


def write_json(path, value):
    """Writes a value as JSON that a person can read."""
    write(path, json.dumps(value, ensure_ascii=False, indent=1))


def regular(file):
    """The same path; ValueError for a pipe, which would be waited for, and for a device, which may never end."""
    if os.path.exists(file) and not os.path.isfile(file):
        raise ValueError(f"{file} is not an ordinary file but a folder, a pipe or a device: put the file there itself")
    return file


def read_json(file):
    """A JSON file that holds an object -> dict; {} if there is no such file."""
    try:
        found = json.loads(regular(file).read_text(encoding="utf-8")) if file.exists() else {}
    except json.JSONDecodeError as e:
        if file.read_bytes().startswith(POINTER):
            raise ValueError(f"{file} is only a pointer of Git LFS to the file: git lfs pull fetches it") from None
        raise ValueError(f"{file} is not valid JSON: {e}") from e
    except (UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"{file} cannot be read as JSON: {e}") from e
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds a {type(found).__name__}, expected an object such as {{...}}")
    return found


def read_ranks(file):
    """A .tiktoken file, base64 and rank on each line -> {bytes: rank}. (tiktoken's reader may return an old copy.)"""
    try:
        lines = map(str.split, regular(Path(file)).read_text(encoding="utf-8").splitlines())
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    except ValueError as e:
        raise ValueError(f"{file} is not in tiktoken's format, base64 and a rank on each line: {e}") from e
    if not {bytes([b]) for b in range(256)} <= ranks.keys():
        raise ValueError(f"{file} lacks some of the 256 single bytes: there are texts that it cannot write")
    return ranks


def ranks_text(ranks):
    """{bytes: rank} -> the text of a .tiktoken file."""
    return "".join(f"{base64.b64encode(t).decode()} {ranks[t]}\n" for t in sorted(ranks, key=ranks.get))


def read_huggingface(file):
    """tokenizer.json (LLaDA, Llama 3, Qwen, SmolLM2) and the small files beside it -> the arguments of Tokenizer."""
    spec = read_json(file)
    model, steps, change = spec["model"], spec["pre_tokenizer"] or {}, spec["normalizer"]
    steps = steps.get("pretokenizers") or [steps]
    changes = [] if change is None else change.get("normalizers", [change])
    pattern = cuts(steps)
    added = {t["content"]: t for t in spec["added_tokens"]}
    if model.get("type") != "BPE" or pattern is None or any(c != {"type": "NFC"} for c in changes):
        return foreign(file, spec, added)
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    return arguments(
        file, model["vocab"], merges, added, model.get("ignore_merges"),
        pattern=pattern, nfc=bool(changes), processor=spec.get("post_processor"))


def foreign(file, spec, added):
    """A tokenizer.json that is no byte-level BPE, what it holds, its added tokens -> the arguments of Tokenizer."""
    try:
        vocab = open_spec(spec).get_vocab(with_added_tokens=False)
    except ValueError as e:
        steps = ", ".join(str(spec[key] and spec[key].get("type")) for key in ("normalizer", "pre_tokenizer", "model"))
        raise ValueError(f"{file} is no byte-level BPE (its normalizer, pre-tokenizer and model are {steps}), which "
                         f"the package tokenizers is for: {e}") from None
    out = arguments(file, vocab, [], added, False, spell=str.encode, processor=spec["post_processor"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    lacking = [{"id": i, "content": text, **flags} for text, i in out["specials"].items() if text not in added]
    return out | {"spec": spec | {"added_tokens": spec["added_tokens"] + lacking, "truncation": None, "padding": None}}


def open_spec(spec):
    """What is in a tokenizer.json -> a `tokenizers.Tokenizer`."""
    import tokenizers
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as e:  # the package raises nothing more special
        raise ValueError(f"it says {e}") from None


def cuts(steps):
    """The pre-tokenizer of a tokenizer.json, [step] -> the one pattern that cuts like it; None: there is none."""
    *before, last = steps
    if last.get("type") != "ByteLevel" or last["add_prefix_space"] or len(before) > 1:
        return None
    by_gpt2 = last.get("use_regex", True)  # what the step before it left is then cut by GPT-2's pattern
    if not before:
        return GPT2 if by_gpt2 else None
    how, pattern = before[0], before[0].get("pattern", {})
    if how["type"] == "Digits" and how["individual_digits"] and by_gpt2:
        return DIGITS
    if how["type"] == "Split" and not by_gpt2 and (how["behavior"], how["invert"]) in KEEPS:
        return pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"])
    return None


KEEPS = ("Isolated", False), ("Removed", True)  # the ways to split by a pattern in which its matches are the pieces


def read_vocab(file):
    """vocab.json and merges.txt (Qwen2, Dream, DiffuCoder, GPT-2) and the small files -> the arguments of Tokenizer."""
    if not file.with_name("merges.txt").exists():
        raise ValueError(f"{file} needs merges.txt beside it")
    lines = regular(file.with_name("merges.txt")).read_text(encoding="utf-8").split("\n")
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    gpt2 = str(read_json(file.with_name("tokenizer_config.json")).get("tokenizer_class")).startswith("GPT2")
    return arguments(file, read_json(file), merges, {}, False, pattern=GPT2 if gpt2 else QWEN2, nfc=not gpt2)


def prefix(bos, ids):
    """The post-processor of a tokenizer.json that writes these special tokens before every text; None: no tokens."""
    first = [{"SpecialToken": {"id": text, "type_id": 0}} for text in bos]
    text = lambda name, n: {"Sequence": {"id": name, "type_id": n}}
    return {"type": "TemplateProcessing", "single": [*first, text("A", 0)],
            "pair": [*first, text("A", 0), *first, text("B", 1)],
            "special_tokens": {s: {"id": s, "ids": [i], "tokens": [s]} for s, i in zip(bos, ids, strict=True)},
            } if bos else None  # fmt: skip


def begins(config, processor):
    """tokenizer_config.json, the post-processor of tokenizer.json -> [text] that every text begins with."""
    steps = (processor or {}).get("processors", [processor or {}])
    single = next((step["single"] for step in steps if step.get("type") == "TemplateProcessing"), [])
    written = [part["SpecialToken"]["id"] for part in itertools.takewhile(lambda part: "SpecialToken" in part, single)]
    said = config.get("bos_token")  # the config has the last word, where it says anything
    said = said["content"] if isinstance(said, dict) else said
    return {True: [said] if said else written, False: [], None: written}[config.get("add_bos_token")]


def arguments(file, vocab, merges, added, unmerged, processor=None, spell=read, **rest):
    """{text: id}, [[a, b]], {text: added token}, may tokens come from no merge? -> arguments of Tokenizer."""
    config = read_json(file.with_name("tokenizer_config.json"))
    if (own := file.with_name("chat_template.jinja")).exists():
        config["chat_template"] = regular(own).read_text(encoding="utf-8")
    plain = {text: {"id": i} for text, i in read_json(file.with_name("added_tokens.json")).items()}
    listed = {t["content"]: t | {"id": int(i)} for i, t in config.get("added_tokens_decoder", {}).items()}
    added = plain | listed | added
    specials = {text: t["id"] for text, t in added.items()}
    roles, specials = find_roles(file, config, vocab, specials)
    if lacking := set(bos := begins(config, processor)) - specials.keys():
        raise ValueError(f"{file.parent}: texts are said to begin with {lacking.pop()!r}, which is no special token")
    tokens = {spell(text): i for text, i in vocab.items() if text not in specials}
    order = dict.fromkeys(read(a + b) for a, b in merges)  # two merges may make the same token: the older one counts
    if unmerged:
        order |= dict.fromkeys(sorted(tokens, key=tokens.get))
    return dict(vocab=tokens, specials=specials, roles=roles, order=list(order), bos=bos,
                shown=[text for text, t in added.items() if not t.get("special", True)],
                extra={k: config[k] for k in ("bos_token", "chat_template", "model_max_length") if k in config}, **rest)


def find_roles(file, config, vocab, specials):
    """Which tokens are mask, eos and pad, as the files say or by the usual names -> {role: text}, {text: id}."""
    config = read_json(file.with_name("special_tokens_map.json")) | config
    if "<end_of_turn>" in str(config.get("chat_template")):  # Gemma's files call <eos> the end, its chat ends with this
        config["eos_token"] = "<end_of_turn>"
    roles, specials = {}, dict(specials)
    for role, usual in USUAL.items():
        said = config.get(f"{role}_token")
        said = said["content"] if isinstance(said, dict) else said
        if said is not None and said not in specials:
            if said not in vocab:
                raise ValueError(f"{file.parent}: the {role} token is said to be {said!r}, which is in no vocabulary")
            specials[said] = vocab[said]
        roles[role] = said or next((text for text in usual if text in specials), None)
    if roles["mask"] is None:  # some masks have no name, but an id in config.json; a causal model has none at all
        known = read_json(file.with_name("config.json")).get("mask_token_id")
        free = max([*vocab.values(), *specials.values()]) + 1
        roles["mask"] = next((text for text, i in specials.items() if i == known), SPECIALS["mask"])
        specials.setdefault(roles["mask"], free if known is None else known)
    if roles["eos"] is None:
        raise ValueError(f"{file.parent}: no token ends a text; say which in tokenizer_config.json, as eos_token; "
                         f"there are {', '.join(specials)}")
    roles["pad"] = roles["pad"] or roles["eos"]  # LLaDA pads with its end token
    return roles, specials
