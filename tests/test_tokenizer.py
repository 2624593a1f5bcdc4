"""system/tokens/bpe.py: the same text, the same ids, whoever wrote the files."""
import collections
import json
import random
import re
import unicodedata

import pytest
import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import refused

import data
from data import learn
from system.tokens import bpe, byte_merges, foreign
from system.tokens.bpe import Tokenizer

tokenizers = pytest.importorskip("tokenizers")
LLADA = "tests/fixtures/llada"
SAMPLE = [
    "the theory of the thing\n    return a + b1\n\n\tif x == 10:\r\n  pass  ",
    "  two  spaces, naïve café, \x0c\x1c\x85\u2028 and \u3000, 你好 😀! don't they'll 1234567 ٣",
    "e\u0301 \u0130 ﬁ <|mask|> <|endoftext|> \x00 \ufeff a\u200db", "", " ", "\n \n",
]
BYTES, TRAINED, FIXTURE = Tokenizer.bytes(), learn.tokenizer(SAMPLE * 3, 300), data.open_tokenizer(LLADA)
ALL = pytest.mark.parametrize("tok", [BYTES, TRAINED, FIXTURE], ids=["bytes", "trained", "llada"])


def spec(**changes):
    """The fixture's tokenizer.json with some entries changed."""
    return json.load(open(f"{LLADA}/tokenizer.json", encoding="utf-8")) | changes


def folder(tmp_path, **files):
    """Writes files, `name__json` for name.json -> the folder."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        (tmp_path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return tmp_path


# ---- round trips ----

@settings(max_examples=40, deadline=None)
@given(st.text())
def test_every_text_comes_back_in_its_nfc_form(text):
    for tok in BYTES, TRAINED, FIXTURE:
        assert tok.decode(tok.encode(text)) == unicodedata.normalize("NFC", text)


def test_bytes_are_their_own_ids_and_special_tokens_are_read_and_shown_only_when_asked():
    assert BYTES.encode("aé") == [97, 0xC3, 0xA9]
    assert (BYTES.mask_id, BYTES.pad_id, BYTES.eos_id, BYTES.vocab_size) == (256, 257, 258, 259)
    assert BYTES.encode("a<|mask|>", specials=True) == [97, 256]
    assert 256 not in BYTES.encode("a<|mask|>") and BYTES.decode(BYTES.encode("a<|mask|>")) == "a<|mask|>"
    assert BYTES.decode([97, 256, 258, 257]) == "a" and BYTES.decode([97, 256], specials=True) == "a<|mask|>"
    assert BYTES.decode([97, 999, 98]) == "a\ufffdb"  # LLaDA's head has 115 rows more than its tokenizer has ids
    assert BYTES.decode([0xE2, 0x82]) == "\ufffd"  # half a character
    for tok in BYTES, FIXTURE:  # another half, which JSON can hold
        assert tok.decode(tok.encode("a\ud800b\ud83d\ude00")) == "a\ufffdb\U0001f600"


# ---- training ----

def naive(texts, size):
    """BPE as the paper has it: count all pairs anew for every merge."""
    words = [[bytes([b]) for b in piece.encode()] for text in texts for piece in re.findall(bpe.OWN_PATTERN, text)]
    ranks = {bytes([b]): b for b in range(256)}
    while len(ranks) < size:
        pairs = collections.Counter(pair for word in words for pair in zip(word, word[1:], strict=False))
        count, best = min(((-n, pair) for pair, n in pairs.items()), default=(0, None))
        if count > -2:
            break
        ranks.setdefault(best[0] + best[1], len(ranks))
        words = [learn.merge_pair(word, best) for word in words]
    return ranks


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(alphabet="ab cd1\n.é", max_size=60), max_size=6), st.integers(256, 300))
def test_the_fast_trainer_learns_what_the_naive_one_learns(texts, size):
    texts = [unicodedata.normalize("NFC", text) for text in texts]
    assert learn.train(texts, size) == naive(texts, size)


def test_a_trained_vocabulary_has_the_size_that_was_asked_for_and_numbers_of_two_digits():
    assert TRAINED.vocab_size == 300 == TRAINED.eos_id + 1 == TRAINED.mask_id + 3
    assert len(TRAINED.encode(SAMPLE[0])) < 0.8 * len(BYTES.encode(SAMPLE[0]))
    refused("too small.* need 259", learn.tokenizer, SAMPLE, 258)
    tok = learn.tokenizer(["123 456 789 " * 50], 400)
    assert [tok.decode([i]) for i in tok.encode("123 456")] == ["12", "3", " 45", "6"]


# ---- other people's files ----

def test_llada_files_give_the_ids_that_the_original_gives():
    expected = json.load(open(f"{LLADA}/tokenizer_expected.json", encoding="utf-8"))
    for case in expected["texts"]:
        assert FIXTURE.encode(case["text"], specials=True) == case["ids"]
    for case in expected["decode"]:
        assert FIXTURE.decode(case["ids"]) == case["text"]
    assert (FIXTURE.mask_id, FIXTURE.eos_id, FIXTURE.pad_id, FIXTURE.vocab_size) == (308, 305, 305, 314)


def huggingface(path):
    """tokenizer.json -> encode of Hugging Face's own library, where special tokens are always read."""
    tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@ALL
def test_what_we_save_is_read_back_and_has_the_same_ids_in_hugging_faces_library(tok, tmp_path, monkeypatch):
    tok.save(tmp_path)
    encode = huggingface(tmp_path)

    @settings(max_examples=40, deadline=None)
    @given(st.text() | st.sampled_from(SAMPLE) | st.text(alphabet="the aE1\n\r\t'.!é\u0301<|mask>"))
    def same(text):
        assert tok.encode(text, specials=True) == encode(text)

    same()
    if tok is not FIXTURE:  # what was saved here is read without the package
        monkeypatch.setattr(foreign, "open_tokenizer", lambda path: pytest.fail("the package is asked for"))
    again, files = data.open_tokenizer(tmp_path), ("tokenizer.json", "tokenizer_config.json")
    assert shared.facts(again) == shared.facts(tok) == shared.facts(data.open_tokenizer(tmp_path / "tokenizer.json"))
    again.save(tmp_path / "again")  # as a resumed run does: to the byte
    assert all((tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in files)
    assert all(again.encode(text, specials=True) == tok.encode(text, specials=True) for text in SAMPLE)
    assert (again.mask_id, again.eos_id, again.pad_id) == (tok.mask_id, tok.eos_id, tok.pad_id)


@pytest.mark.slow
def test_transformers_opens_what_we_save(tmp_path):
    transformers = pytest.importorskip("transformers")
    TRAINED.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.mask_token_id, theirs.eos_token_id, theirs.pad_token_id) == (297, 299, 298)
    assert [theirs(text)["input_ids"] for text in SAMPLE] == [TRAINED.encode(text, specials=True) for text in SAMPLE]
    assert theirs.decode(TRAINED.encode(SAMPLE[0])) == SAMPLE[0]


LLAMA3 = foreign.QWEN2_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
LING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
        r"|\s+(?!\S)|\s+")
STYLES = {  # the patterns and the special tokens of real models: (pattern or digits, NFC, ignore_merges, specials)
    "qwen2": (foreign.QWEN2_PATTERN, True, False, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]),
    "llama3": (LLAMA3, False, True, ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>"]),
    "llada": (LING, True, False, ["<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|eot_id|>"]),
    "gpt2": (None, False, False, ["<|endoftext|>"]),
    "smollm2": ("digits", False, False, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
}


WRITTEN = r"""def return if else: for in lambda k: self.head import numpy as np None x_1 logits[i + 1:] (B, T, V) ==
    => != **2 {'a': 1} 0.125 1e-5 # the loss of a step, 'One line.' f"{x:.2f}" https://example.org/a?b=c&d | a | b |
    `python run.py` It don't matter -- the naïve café's model, e.g. GPT-2's; 12,345 tokens... <a> </b> <|x|> @cache
    \n it''s""".split()


def two_thousand(specials=()):
    """Texts of every kind: programs and prose, scripts of the world, spaces, emoji, numbers, contractions."""
    rng = random.Random(0)
    code = "".join(rng.choice(WRITTEN) + rng.choice([" ", " ", " ", "", ", ", ".\n\n", "\n    ", "\n        "])
                   for _ in range(20_000))  # it spells no special token out: some of these we add ourselves
    blocks = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600), (0x900, 0x980), (0x1100, 0x1200),
              (0x1E00, 0x2070), (0x2150, 0x2190), (0x3000, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00),
              (0xFB00, 0xFB50), (0xFF00, 0xFFF0), (0x1D400, 0x1D500), (0x1F600, 0x1F650)]
    spaces = [" ", "  ", "\n", "\r\n", "\t", "\n\n", "\u00a0", "\u3000", "\x0b", "\x0c", "\u2028",
              "\x85", "\x1c", "\u200b"]
    emoji = ["😀", "👩\u200d👩\u200d👧", "🇫🇷", "❤\ufe0f", "👍🏽", "1\ufe0f\u20e3"]
    words = ["don't", "I'LL", "we'Ve", "it'ſ", "o'clock", "naïve", "e\u0301", "x_1", "3.14", "1234567", "²½", "٣٤",
             "==", "()", "Ⅷ"]
    some = lambda pool, n: "".join(rng.choice(pool) for _ in range(rng.randint(1, n)))
    unicode = lambda: "".join(chr(rng.randrange(*rng.choice(blocks))) for _ in range(rng.randint(1, 30)))
    kinds = [lambda: code[(i := rng.randrange(len(code))):i + rng.randint(1, 300)], unicode, lambda: some(spaces, 9),
             lambda: some(spaces + emoji + words, 20), lambda: some(words + spaces[:5] + list(specials), 12)]
    return [kinds[i % len(kinds)]() for i in range(2000)]


@pytest.fixture(scope="module", params=STYLES)
def style(request, tmp_path_factory):
    """-> name, a folder with a tokenizer.json that Hugging Face's library trained in that style."""
    hf, (cut, nfc, ignore_merges, specials) = tokenizers, STYLES[request.param]
    pre = hf.pre_tokenizers
    level = pre.ByteLevel(add_prefix_space=False, use_regex=cut in (None, "digits"))
    before = [] if cut is None else [pre.Digits(individual_digits=True)] if cut == "digits" else [
        pre.Split(hf.Regex(cut), "isolated")]
    trained = hf.Tokenizer(hf.models.BPE(ignore_merges=ignore_merges))
    trained.pre_tokenizer = pre.Sequence([*before, level]) if before else level
    trained.normalizer = hf.normalizers.NFC() if nfc else None
    trained.decoder = hf.decoders.ByteLevel()
    trainer = hf.trainers.BpeTrainer(vocab_size=900, special_tokens=specials, show_progress=False,
                                     initial_alphabet=sorted(pre.ByteLevel.alphabet()))
    trained.train_from_iterator(two_thousand(), trainer)
    path = tmp_path_factory.mktemp(request.param)
    trained.save(str(path / "tokenizer.json"))
    eos = next(s for s in specials if "end" in s)
    return request.param, folder(path, tokenizer_config__json={"eos_token": eos, "tokenizer_class": "GPT2Tokenizer"
                                                               if cut is None else "PreTrainedTokenizerFast"})


def test_2000_texts_have_the_ids_that_hugging_faces_library_gives_them(style, tmp_path):
    name, path = style
    tok, encode, texts = data.open_tokenizer(path), huggingface(path), two_thousand(STYLES[name][3])
    assert [t for t in texts if tok.encode(t, specials=True) != encode(t)] == []
    tok.save(tmp_path)
    again = huggingface(tmp_path)
    assert [t for t in texts if again(t) != encode(t)] == []


@pytest.mark.parametrize("style", ["qwen2"], indirect=True)
def test_2000_texts_have_the_same_ids_from_vocab_and_merges_files(style, tmp_path):
    _, path = style
    spec, config = (json.loads((path / f).read_text()) for f in ("tokenizer.json", "tokenizer_config.json"))
    added = {t["content"]: t["id"] for t in spec["added_tokens"]}
    merges = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in spec["model"]["merges"])
    folder(tmp_path, vocab__json=spec["model"]["vocab"], merges__txt=merges, added_tokens__json=added,
           tokenizer_config__json=config)  # fmt: skip
    tok, encode = data.open_tokenizer(tmp_path), huggingface(path)
    assert [t for t in two_thousand(added) if tok.encode(t, specials=True) != encode(t)] == []


@pytest.mark.parametrize("seed, normalizer", [(0, None), (1, {"type": "NFC"})])
def test_ids_need_not_be_in_the_order_of_the_merges(tmp_path, seed, normalizer):
    """Shuffled ids, merges as strings, GPT-2's pattern inside ByteLevel: the same ids as Hugging Face's."""
    changed = spec(normalizer=normalizer, added_tokens=[], pre_tokenizer={
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True})
    n = len(changed["model"]["vocab"])
    ids = random.Random(seed).sample(range(n), n)
    changed["model"]["vocab"] = dict(zip(changed["model"]["vocab"], ids, strict=True))
    changed["added_tokens"] = [{"id": n, "content": "<|endoftext|>"} | bpe.FLAGS]
    changed["model"]["merges"] = [" ".join(pair) for pair in changed["model"]["merges"]]
    folder(tmp_path, tokenizer__json=changed, tokenizer_config__json={"eos_token": "<|endoftext|>"})
    tok = data.open_tokenizer(tmp_path)
    assert tok.mask_id == n + 1 and tok.vocab_size == n + 2
    tok.save(tmp_path / "again")
    assert shared.facts(data.open_tokenizer(tmp_path / "again")) == shared.facts(tok)
    for encode in huggingface(tmp_path), huggingface(tmp_path / "again"):
        for text in [*SAMPLE[:2], "the dog in the word the end \n\n  x", "e\u0301"]:
            assert tok.encode(text) == encode(text)


def test_added_tokens_that_are_not_special_are_ordinary_text_and_a_chat_template_is_passed_on(tmp_path):
    added = [*spec()["added_tokens"], bpe.FLAGS | {"id": 314, "content": "<think>", "special": False}]
    tok = data.open_tokenizer(folder(tmp_path, tokenizer__json=spec(added_tokens=added),
                                tokenizer_config__json={"chat_template": "{{ messages }}"}))  # fmt: skip
    assert tok.encode("<think>") == [314] and tok.decode([314, 305]) == "<think>"
    tok.save(tmp_path / "saved")
    assert shared.facts(data.open_tokenizer(tmp_path / "saved")) == shared.facts(tok)
    assert json.loads((tmp_path / "saved/tokenizer_config.json").read_text())["chat_template"] == "{{ messages }}"
    folder(tmp_path, tokenizer__json=spec())
    assert shared.facts(data.open_tokenizer(tmp_path, 314)) == shared.facts(FIXTURE)
    refused("ids up to 313, its model only 313 ids", data.open_tokenizer, tmp_path, 313)


def test_a_model_without_a_mask_gets_one_after_its_last_id(tmp_path):
    added = [t | ({"content": "[A]"} if t["content"] == "<|mdm_mask|>" else {}) for t in spec()["added_tokens"]]
    folder(tmp_path, tokenizer__json=spec(added_tokens=added))
    assert (data.open_tokenizer(tmp_path).mask_id, data.open_tokenizer(tmp_path).vocab_size) == (314, 315)
    assert data.open_tokenizer(tmp_path, 314).mask_id == 314  # an autoregressive model needs no row for it
    folder(tmp_path, tokenizer_config__json={"mask_token": "[A]"})
    assert data.open_tokenizer(tmp_path).mask_id == 308 and data.open_tokenizer(tmp_path).roles["mask"] == "[A]"


def test_a_token_that_no_merge_makes_is_used_only_for_a_whole_piece(tmp_path):
    """Llama 3 has such tokens, and `ignore_merges`; without it they are never used."""
    model = spec()["model"]
    for whole in True, False:
        changed = model | {"ignore_merges": whole, "vocab": model["vocab"] | {"zqxj": 400}}
        tok = data.open_tokenizer(folder(tmp_path, tokenizer__json=spec(model=changed)))
        assert tok.encode("zqxj") == ([400] if whole else FIXTURE.encode("zqxj")) == huggingface(tmp_path)("zqxj")
        assert tok.encode("zqxjy") == FIXTURE.encode("zqxjy") and tok.decode([400]) == "zqxj"
        tok.save(tmp_path / "saved")
        saved = json.loads((tmp_path / "saved/tokenizer.json").read_text())["model"]
        assert saved["merges"] == model["merges"]
        assert all(huggingface(tmp_path / "saved")(t) == tok.encode(t) for t in ("zqxj", "zqxjy"))


def test_a_tiktoken_file_is_read_anew_every_time(tmp_path):
    for size in 280, 290:  # tiktoken's own reader would return the first one twice
        ranks = learn.train(SAMPLE * 3, size)
        (tmp_path / "tokenizer.tiktoken").write_text(learn.ranks_text(ranks))
        for path in tmp_path, tmp_path / "tokenizer.tiktoken":
            assert shared.facts(data.open_tokenizer(path)) == shared.facts(Tokenizer.from_ranks(ranks))


def cut_with(pattern, nfc=True):
    """-> TRAINED as somebody else's tokenizer, which cuts texts with this pattern."""
    added = TRAINED.content()["added_tokens"]
    spec = bpe.byte_level_spec(TRAINED.vocab, byte_merges.merges_of(TRAINED.vocab), added, pattern, nfc)
    return foreign.Foreign(tokenizers.Tokenizer.from_str(json.dumps(spec)), TRAINED.roles)


@pytest.mark.parametrize("tok", [TRAINED, cut_with(bpe.OWN_PATTERN), cut_with(foreign.QWEN2_PATTERN)],
                         ids=["own", "own pattern", "qwen2"])  # fmt: skip
def test_very_long_runs_neither_crash_nor_get_lost(tok):
    for text in (" " * 200_000 + "x", "a" * 20_000, " \n" * 10_000):
        assert tok.decode(tok.encode(text)) == text


# ---- errors ----

NO_EOS = [t for t in spec()["added_tokens"] if t["content"] != "<|endoftext|>"]
METASPACE = {"type": "Metaspace", "replacement": "▁"}
SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithNext", "invert": False}


def cut_by(*steps, use_regex=True):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "Sequence", "pretokenizers": [*steps, level]}


@pytest.mark.parametrize("files, message", [
    ({}, "no tokenizer at .*expected tokenizer.json, vocab.json"),
    ({"tokenizer__json": "{"}, "cannot be read as JSON"),
    ({"tokenizer__json": "[" * 100_000}, "cannot be read as JSON"),
    ({"tokenizer__json": "version https://git-lfs.github.com/spec/v1\n"}, "is only a pointer of Git LFS .*lfs pull"),
    ({"tokenizer__json": []}, "tokenizer.json holds a list, expected an object"),
    ({"tokenizer__json": {"model": {}}}, "no tokenizer at .*did not match any variant"),
    ({"tokenizer__json": spec(added_tokens=NO_EOS)}, r"special tokens as eos_token, .*KeyError\('<.endoftext.>'\)"),
    ({"tokenizer__json": spec(), "tokenizer_config__json": {"mask_token": "<hole>"}}, "mask_token, .*'<hole>'"),
    ({"tokenizer__json": spec(), "tokenizer_config__json": {"mask_token": "<|endoftext|>"}}, "is the mask and also"),
    ({"x__tiktoken": "YQ==\n"}, "not in tiktoken's format"),
    ({"x__tiktoken": "YQ== 0\n"}, "lacks some of the 256 single bytes"),
    ({"tokenizer__json": spec(model={"type": "Unigram"})}, "no tokenizer at .*Missing vocab"),
])
def test_a_file_that_cannot_be_used_is_explained_in_a_sentence(tmp_path, files, message):
    refused(message, data.open_tokenizer, folder(tmp_path, **files))


@pytest.mark.parametrize("change", [
    {"pre_tokenizer": METASPACE}, {"pre_tokenizer": None}, {"pre_tokenizer": cut_by(use_regex=False)},
    {"pre_tokenizer": cut_by({"type": "Digits", "individual_digits": False})},
    {"pre_tokenizer": cut_by(SPACES, use_regex=False)}, {"pre_tokenizer": cut_by(SPACES | {"behavior": "Isolated"})},
    {"normalizer": {"type": "Lowercase"}}])
def test_a_tokenizer_json_of_any_kind_gives_the_ids_of_the_package_tokenizers(tmp_path, change):
    path = folder(tmp_path, tokenizer__json=spec(**change))
    ours, theirs = data.open_tokenizer(path), tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    text = "The theory of  two things: x1 == 1234\n  return a"
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


# ---- what every text begins with ----

BEGIN = {"type": "Sequence", "processors": [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
    {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
     "single": [{"SpecialToken": {"id": "<|startoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
     "special_tokens": {"<|startoftext|>": {"id": "<|startoftext|>", "tokens": ["<|startoftext|>"]}}}]}  # fmt: skip


def beginning(tmp_path, config, processor=BEGIN):
    """-> the folder of the fixture's tokenizer with this post-processor, as Llama 3 has one, and these settings."""
    made, told = spec(post_processor=processor), json.load(open(f"{LLADA}/tokenizer_config.json"))
    ids = {t["content"]: t["id"] for t in made["added_tokens"]}
    if processor:
        processor["processors"][1]["special_tokens"]["<|startoftext|>"]["ids"] = [ids["<|startoftext|>"]]
    told = {k: v for k, v in told.items() if k != "add_bos_token"} | config
    return folder(tmp_path, tokenizer__json=made, tokenizer_config__json=told), ids["<|startoftext|>"]


@pytest.mark.slow
def test_a_model_whose_texts_begin_with_a_token_gets_it_as_transformers_gives_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    path, bos = beginning(tmp_path, {})
    tok, theirs = data.open_tokenizer(path), transformers.PreTrainedTokenizerFast.from_pretrained(path)
    ids = tok.add_bos(tok.encode("return a + b"))
    assert ids[0] == bos and ids == theirs("return a + b")["input_ids"]
    assert tok.add_bos(ids) == ids  # a chat template may have written it
    tok.save(tmp_path / "again")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "again")
    assert shared.facts(data.open_tokenizer(tmp_path / "again")) == shared.facts(tok)
    assert theirs("return a + b")["input_ids"] == ids


@pytest.mark.parametrize("config, processor, begins", [
    ({}, None, False), ({"add_bos_token": False}, BEGIN, False),
    ({"add_bos_token": True, "bos_token": "<|startoftext|>"}, BEGIN, True)])  # fmt: skip
def test_the_settings_have_the_last_word_on_how_texts_begin(config, processor, begins, tmp_path):
    path, bos = beginning(tmp_path, config, processor)
    assert data.open_tokenizer(path).bos_ids == [bos] * begins
    assert FIXTURE.bos_ids == BYTES.bos_ids == []


def test_prompts_begin_with_it_and_windows_of_documents_do_not(tmp_path):
    from tools import complete
    path, bos = beginning(tmp_path, {})
    tok = data.open_tokenizer(path)
    rows = [{"prompt": "a b", "completion": "c"}, {"prompt": "", "completion": "the thing " * 9}]
    tokens = data.encode(rows, tok, 8, 8)[0].tokens
    assert [bos in row for row in tokens] == [True] + [False] * (len(tokens) - 1)
    assert complete.encode("a b", tok, tok.mask_id, "mask", 3)[0][0] == bos
    tok.save(tmp_path / "again")
    assert json.loads((tmp_path / "again/tokenizer_config.json").read_text())["add_bos_token"] is True


# ---- SentencePiece: what the package tokenizers reads ----


def sentencepiece(tmp_path, prepend, **config):
    """-> a folder with a SentencePiece BPE as Gemma's (or with a space before every text, as Llama 2's), its words."""
    from data.tiny import prepare as tiny
    tok = tiny.tokenizer("gemma2")
    tok.save(tmp_path)
    made = json.loads((tmp_path / "tokenizer.json").read_text())
    if prepend:
        first = {"type": "Prepend", "prepend": "▁"}
        made["normalizer"] = {"type": "Sequence", "normalizers": [first, made["normalizer"]]}
        made["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return folder(tmp_path, tokenizer__json=made, tokenizer_config__json={
        "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", **config})  # fmt: skip


@pytest.mark.parametrize("prepend", [False, True], ids=["gemma", "llama2"])
def test_a_sentencepiece_tokenizer_has_the_ids_and_texts_of_transformers(tmp_path, prepend):
    transformers = pytest.importorskip("transformers")
    path = sentencepiece(tmp_path, prepend)
    tok, theirs = data.open_tokenizer(path), transformers.PreTrainedTokenizerFast.from_pretrained(path)
    rng = random.Random(0)
    made = ["".join(rng.choices("ab  Annhas.\n\t07é你😀\u0301<>", k=rng.randint(0, 30))) for _ in range(300)]
    for text in [*SAMPLE, *made, "Ann has 12 apples.<end_of_turn>\n<start_of_turn>model\n<eos> x <mask>"]:
        ids = theirs(text)["input_ids"]
        assert tok.add_bos(tok.encode(text, specials=True)) == ids
        assert tok.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert tok.decode(ids, specials=True) == theirs.decode(ids, clean_up_tokenization_spaces=False)
        assert tok.decode(tok.encode(text)) == text  # no character is lost, and what looks like a special token is text
    tok.save(tmp_path / "again")
    assert shared.facts(data.open_tokenizer(tmp_path / "again")) == shared.facts(tok)


def test_in_a_sentencepiece_prompt_a_mask_is_text_and_a_chat_ends_with_its_turn(tmp_path):
    tok = data.open_tokenizer(sentencepiece(tmp_path, False))
    ids = tok.encode("a<mask><eos>b", specials=True, mask=False)
    assert tok.mask_id not in ids and tok.eos_id in ids and tok.decode(ids) == "a<mask>b"
    assert (tok.roles["eos"], tok.bos) == ("<eos>", ("<bos>",)) and tok.vocab_size == len(tok.vocab) + len(tok.specials)
    chat = "{% for m in messages %}{{ m.content }}<end_of_turn>{% endfor %}"  # Gemma's ends with its turn
    assert data.open_tokenizer(sentencepiece(tmp_path, False, chat_template=chat)).roles["eos"] == "<end_of_turn>"


# ---- what is written without the package is what the package writes ----


@pytest.mark.parametrize("pattern, nfc", [("y+", False), ("x+", True)])
def test_the_content_of_a_tokenizer_json_is_the_packages(pattern, nfc):
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    cut = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    engine = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([cut, byte_level])
    engine.decoder = tokenizers.decoders.ByteLevel()
    if nfc:
        engine.normalizer = tokenizers.normalizers.NFC()
    ours = bpe.byte_level_spec({b"a": 0, b"b": 1, b"ab": 2}, [(b"a", b"b")], [], pattern, nfc)
    assert ours == json.loads(engine.to_str())
