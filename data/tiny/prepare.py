"""
Make tiny stand-ins for real models and data, to try recipes on:

    python train.py config/llada_gsm8k_grpo.py --model=tiny        # makes what it needs
    python data/tiny/prepare.py llada gsm8k                        # makes these two

A model is random, with two layers, in the files of its family. Its data are a few rows in the format of the real ones.
Each gets a folder here. They show on a CPU, in a minute, that a recipe runs from its chat template to its last
checkpoint; nothing can be learnt from them.
"""
import json
import random
import shutil
import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import data
import model
from checkpoints import huggingface
from data import learn
from data.acecode import prepare as real_acecode
from data.countdown_tasks import prepare as real_countdown
from data.making import write_whole
from system import disk, sections, sharding
from system.tokens import bpe, byte_merges, foreign
from variants import blocks, gemma, moe

HERE = Path(__file__).parent
SIZE = dict(n_layer=2, n_head=4, d_model=64, d_ff=128)
VOCAB = 640  # bytes and merges, before the special tokens
LLAMA3 = foreign.QWEN2_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
GEMMA = ("{{ bos_token }}{% for m in messages %}<start_of_turn>{{ {'assistant': 'model'}.get(m.role, m.role) }}\n"
         "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
         "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}")
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EXPERTS = dict(n_experts=8, experts_per_token=2, d_expert=32, norm_routing=True)
TURNS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

# name: fields of ModelConfig, special tokens in the order of their ids, roles of some, the pattern that cuts texts.
# Only LLaDA's config.json says which token is the mask, its tokenizer does not; a causal model has no mask. LLaDA2's
# special tokens are LLaDA's, with another mask.
MODELS = {
    "llada": (dict(rope_theta=5e5),
              ("<|startoftext|>", "<|endoftext|>", "[CLS]", "[gMASK]", "<|mdm_mask|>", "<role>", "</role>", *TURNS),
              dict(mask="<|mdm_mask|>", eos="<|endoftext|>", pad="<|endoftext|>"), foreign.QWEN2_PATTERN),
    "dream": (dict(shift=True, qkv_bias=True, n_kv_head=2, rope_theta=1e6, norm_eps=1e-6),
              (*QWEN, "<|beginoftext|>", "<|mask|>"),
              dict(mask="<|mask|>", eos="<|endoftext|>", pad="<|endoftext|>"), foreign.QWEN2_PATTERN),
    "diffucoder": (dict(shift=True, qkv_bias=True, n_kv_head=2, rope_theta=1e6, norm_eps=1e-6),
                   (*QWEN, "<|beginoftext|>", "<|mask|>", "<|dlm_pad|>"),
                   dict(mask="<|mask|>", eos="<|endoftext|>", pad="<|dlm_pad|>"), foreign.QWEN2_PATTERN),
    "llama": (dict(causal=True, shift=True, n_kv_head=2, rope_theta=5e5),
              ("<|begin_of_text|>", "<|end_of_text|>", *TURNS), dict(eos="<|eot_id|>"), LLAMA3),
    "sdar_moe": (dict(qk_norm=True, n_kv_head=2, d_head=32, rope_theta=1e6, norm_eps=1e-6,
                      use=(blocks.Shape(4), moe.Shape(**EXPERTS))),
                 (*QWEN, "<|MASK|>"), dict(mask="<|MASK|>", eos="<|im_end|>", pad="<|endoftext|>"),
                 foreign.QWEN2_PATTERN),
    "llada2_moe": (dict(qk_norm=True, n_kv_head=2, rope_theta=6e5, norm_eps=1e-6, rotary_share=0.5,
                        use=(blocks.Shape(32), moe.Shape(**EXPERTS, routing="sigmoid", routing_scale=2.5, n_shared=1,
                                                         expert_groups=4, groups_per_token=2, first_dense=1))),
                   ("<|startoftext|>", "<|endoftext|>", "[CLS]", "[gMASK]", "<|mask|>", "<role>", "</role>"),
                   dict(mask="<|mask|>", eos="<|endoftext|>", pad="<|endoftext|>"), foreign.QWEN2_PATTERN),
    "gemma2": (dict(causal=True, shift=True, tie_embeddings=True, n_kv_head=2, d_head=16, norm_eps=1e-6,
                    use=(gemma.Shape(window=64, query_scale=16, attn_cap=50.0, logit_cap=30.0),)),
               ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"),
               dict(mask="<mask>", eos="<end_of_turn>", pad="<pad>"), None),
    "a2d": (dict(qk_norm=True, n_kv_head=2, d_head=16, rope_theta=1e6, norm_eps=1e-6), (*QWEN, "<|mask|>"),
            dict(mask="<|mask|>", eos="<|im_end|>", pad="<|endoftext|>"), foreign.QWEN2_PATTERN),
}  # fmt: skip


# ---- rows ------------------------------------------------------------------------------------------------------------

def gsm8k(rng):
    """Make a row of GSM8K, {"question", "answer"}: the steps and, after ####, the number."""
    name, a, b = rng.choice(("Ann", "Ben", "Eva")), rng.randint(2, 9), rng.randint(2, 9)
    return {"question": f"{name} has {a} apples and buys {b} more. How many apples does {name} have now?",
            "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b} apples.\n#### {a + b}"}


def countdown(rng):
    """Make a row as of Countdown-Tasks-3to4."""
    numbers = [rng.randint(1, 30) for _ in range(3)]
    return real_countdown.ours({"nums": numbers, "target": numbers[0] + numbers[1] - numbers[2]})


def acecode(rng):
    """Make a row as of AceCode-87K."""
    n = rng.randint(2, 9)
    question = f"Write a Python function add_{n}(x) that returns x + {n}."
    tests = [f"assert add_{n}({x}) == {x + n}" for x in (0, 1, 7)]
    rates = [{"pass_rate": i / 2} for i in range(2)]
    return real_acecode.ours({"id": f"tiny_{n}", "question": question, "test_cases": tests, "inferences": rates})


ROWS = {"gsm8k": gsm8k, "countdown": countdown, "acecode": acecode}


def rows(name):
    """Make {"train": 16 rows, "test": 8 rows} of a data set in ROWS, always the same."""
    rng = random.Random(name)
    return {"train": [ROWS[name](rng) for _ in range(16)], "test": [ROWS[name](rng) for _ in range(8)]}


# ---- models ----------------------------------------------------------------------------------------------------------

def tokenizer(name):
    """Make the tokenizer of a model: the bytes in GPT-2's order, merges trained on all rows, the special tokens."""
    _, specials, roles, pattern = MODELS[name]
    texts = [str(value) for kind in ROWS for row in rows(kind)["train"] for value in data.normalize_row(row).values()]
    merges = [token for token in learn.train(texts, VOCAB) if len(token) > 1]
    if name == "gemma2":
        return sentencepiece(merges, specials, roles)
    vocab = {token: i for i, token in enumerate([*(bytes([b]) for b in bpe.CHARACTER), *merges])}
    roles = {"mask": bpe.SPECIALS["mask"], "pad": roles["eos"]} | roles
    ids = {text: len(vocab) + i for i, text in enumerate(dict.fromkeys((*specials, roles["mask"])))}
    added = [{"id": i, "content": text} | bpe.FLAGS for text, i in ids.items()]
    spec = bpe.byte_level_spec(vocab, byte_merges.merges_of(vocab), added, pattern, nfc=name != "llama")
    return foreign.Foreign(foreign.package().Tokenizer.from_str(json.dumps(spec)), roles)


def bos_processor(text, i):
    """Make the post-processor of a tokenizer.json that writes this special token before every text."""
    first, a, b = {"SpecialToken": {"id": text, "type_id": 0}}, *({"Sequence": {"id": name, "type_id": n}}
                                                                  for n, name in enumerate("AB"))
    return {"type": "TemplateProcessing", "single": [first, a], "pair": [first, a, first, b],
            "special_tokens": {text: {"id": text, "ids": [i], "tokens": [text]}}}


def sentencepiece(merges, specials, roles):
    """Make a tokenizer like Gemma's: characters, ▁ for a space, bytes only for characters that no token has.

    merges: ASCII tokens, in the order of their merges
    """
    def read(token):
        return token.decode().replace(" ", "▁")
    ranks = {token: i for i, token in enumerate([*(bytes([b]) for b in range(128)), *merges])}
    texts = [*(f"<0x{b:02X}>" for b in range(256)), *map(read, ranks)]
    vocab = {text: i for i, text in enumerate(dict.fromkeys((*specials, *texts)))}
    fallback = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}]
    from_text = foreign.package().Tokenizer.from_str
    return foreign.Foreign(roles=roles, bos=("<bos>",), extra={"chat_template": GEMMA}, engine=from_text(
        json.dumps({
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": vocab[text], "content": text, **bpe.FLAGS} for text in specials],
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                              "invert": False},
            "post_processor": bos_processor("<bos>", vocab["<bos>"]),
            "decoder": {"type": "Sequence", "decoders": [*fallback, {"type": "Fuse"}]},
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                      "vocab": vocab, "merges": [list(map(read, pair)) for pair in byte_merges.merges_of(ranks)]}})))


def write_tokenizer(folder, tok, name):
    """Write the tokenizer in the files of its family, without what the real ones leave out."""
    _, specials, roles, _ = MODELS[name]
    if name in ("dream", "diffucoder"):
        merges = [" ".join(pair) for pair in tok.content()["model"]["merges"]]
        disk.write_json(folder / "vocab.json", {bpe.to_text(token): i for token, i in tok.vocab.items()})
        write_whole(folder / "merges.txt", "\n".join(["#version: 0.2", *merges, ""]))
        disk.write_json(folder / "added_tokens.json", tok.specials)
        disk.write_json(folder / "tokenizer_config.json", {"tokenizer_class": "DreamTokenizer"} | {
            f"{role}_token": text for role, text in roles.items()})
        return
    tok.save(folder)
    if name == "gemma2":  # its settings name another end of text than its chat uses
        settings = folder / "tokenizer_config.json"
        return disk.write_json(settings, disk.read_json(settings) | {"eos_token": "<eos>"})
    spec, config = (disk.read_json(folder / file) for file in ("tokenizer.json", "tokenizer_config.json"))
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] in specials]
    spec["model"]["vocab"] = {t: i for t, i in spec["model"]["vocab"].items() if t not in tok.specials}
    said = roles.keys() - ({"mask"} if name in ("llada", "llama") else set())
    disk.write_json(folder / "tokenizer.json", spec)
    disk.write_json(folder / "tokenizer_config.json", {
        key: v for key, v in config.items() if key not in {"mask_token", "eos_token", "pad_token"} or key[:-6] in said})


def shape_of(name, tok, **fields):
    """Make the ModelConfig of a model with this tokenizer. fields: in place of those in MODELS, and beside them."""
    fixed, _, roles, _ = MODELS[name]
    ids = {f"{role}_id": tok.specials[text] for role, text in roles.items() if role != "mask" or "causal" not in fixed}
    return sections.changed(model.ModelConfig(), fixed | fields | ids)


def checkpoint(folder, name):
    """Write a random model with its tokenizer -> the number of its parameters."""
    tok, (fixed, specials, _, _) = tokenizer(name), MODELS[name]
    used = max([*tok.vocab.values(), *(tok.specials[text] for text in specials)]) + 1
    # As in the real ones: LLaDA's vocabulary has 115 rows more than ids, Dream's 397, Llama 3's and Gemma's none.
    size = used if "causal" in fixed else used // 64 * 64 + 64
    cfg = shape_of(name, tok, vocab_size=size, **SIZE)
    rng = np.random.default_rng(0)  # model.init would take longer to compile than the model to run
    def draw(shapes):
        return {name: np.float32(rng.normal(name.endswith("norm"), 0.1, shapes[name])) for name in sorted(shapes)}
    shapes = model.shapes(cfg)
    layers = shapes.pop("blocks")
    params = {"blocks": sharding.split_layers(draw(sharding.stacked(layers)), layers)} | draw(shapes)
    huggingface.save(folder, params, cfg)
    write_tokenizer(Path(folder), tok, name)
    return sum(x.size for x in jax.tree.leaves(params))


def make(name):
    """Make the folder of a model or a data set, which appears whole, and print what it is."""
    making, said = HERE / f".{name}", "a few rows in the format of the real data"
    shutil.rmtree(making, ignore_errors=True)
    if name in MODELS:
        said = (f"a random {name} of {checkpoint(making, name):,} parameters. This shows that a recipe runs; nothing "
                "can be learnt from it")  # fmt: skip
    else:
        for split, made in rows(name).items():
            write_whole(making / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in made))
    shutil.rmtree(HERE / name, ignore_errors=True)
    making.rename(HERE / name)
    print(f"data/tiny/{name}: {said}")


def main(names):
    known = [*MODELS, *ROWS]
    if not names or not set(names) <= set(known):
        raise SystemExit(f"data/tiny makes {', '.join(known)}; asked for was {' '.join(names) or 'nothing'}")
    try:
        for name in names:
            make(name)
    except ValueError as error:
        if "pip install" not in str(error):  # the package tokenizers is there
            raise
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1:])
