"""What an audit found wrong, each seen to fail before it was mended. The merger moves these tests to their files."""
import json

import data
from config import Config
from data import texts
from variants import dpo

CHATTY = data.Tokenizer(
    data.Tokenizer.bytes().vocab,
    {text: 256 + i for i, text in enumerate(("<|mask|>", "<|pad|>", "<|eos|>", "<|im_start|>", "<|im_end|>"))},
    {"mask": "<|mask|>", "pad": "<|pad|>", "eos": "<|eos|>"},
)


def file(tmp_path, rows, name="mine.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_prompts_of_grpo_and_dpo_keep_the_messages_before_them(tmp_path):
    turns = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}]
    row = {"prompt": turns, "completion": "2", "chosen": "2", "rejected": "3"}
    cfg = Config(dataset=file(tmp_path, [row] * 3), max_prompt_len=120, chat_template="chatml")
    wanted = "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n"
    asked = texts.encode_split(cfg, CHATTY, "train", with_completions=False)
    for encoded in asked, *dpo.encode_pairs(cfg, CHATTY, "train"):
        assert CHATTY.decode(encoded.tokens[0, :120], specials=True).replace("<|pad|>", "") == wanted
