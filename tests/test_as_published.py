"""The plans with which the authors of models published their numbers."""
import dataclasses

import pytest
import shared
from shared import byte_model

from checkpoints import huggingface
from tools import complete, published
from tools import options as options_of_sample


def folder_named(path, **switches):
    byte_model(path, **switches)
    return str(path)


@pytest.mark.parametrize("name, switches, plan", [
    ("LLaDA-8B-Instruct", {}, dict(max_new_tokens=256, block_len=8, temperature=0.0, rule="quota")),
    ("models--GSAI-ML--LLaDA-1.5/snapshots/6f1c0b3", {}, dict(max_new_tokens=256, block_len=16)),
    ("Dream-v0-Instruct-7B", dict(shift=True, qkv_bias=True),
     dict(rule="dream", order="entropy", temperature=0.1, top_p=0.9, tempered=True, steps=256)),
    ("SDAR-8B-Chat", dict(**{"blocks.block": 4}, qk_norm=True), dict(rule="static", temperature=0.0, cache="prefix")),
])  # fmt: skip
def test_a_plan_is_known_by_the_name_of_the_folder_and_typed_flags_go_before(name, switches, plan, tmp_path):
    loaded = complete.find_model(folder_named(tmp_path / name, **switches))
    for typed, expected in ((), plan), (("--block_len=4", "--max_new_tokens=12"), dict(block_len=4, max_new_tokens=12)):
        options = options_of_sample.parser().parse_args([loaded.folder, "--as_published", "--prompt=a", *typed])
        given = published.fill_in(options, complete.typed_plan(options), loaded.folder)
        found = complete.make_plan(given, loaded, options.max_new_tokens, 1)
        values = dataclasses.asdict(found) | {"max_new_tokens": options.max_new_tokens}
        assert {key: values[key] for key in expected} == expected


def test_every_published_plan_is_one_of_a_known_family_and_stands_in_the_page():
    huggingface.plug_families()
    with open("docs/checkpoints.md") as file:
        section = file.read().split("## How did the authors sample?")[1].split("\n## ")[0]
    for entry in published.PUBLISHED:
        shared.plan(**entry.plan)
        assert {*entry.families.split()} <= {*huggingface.FAMILIES} and f"| {entry.max_new_tokens}" in section
        for name, value in (entry.plan.items() - published.GREEDY.items()):
            assert f"{name}={value}" in section or f"; {value}" in section


def test_a_typed_command_samples_as_published(tmp_path, capsys):
    assert complete.main([folder_named(tmp_path / "mine"), "--as_published", "--prompt=a"]) == 2
    said = capsys.readouterr().err
    assert "no plan is known for the folder 'mine'" in said and "LLaDA-8B-Instruct" in said
    folder = folder_named(tmp_path / "Fast_dLLM_v2_7B", **{"blocks.block": 32}, shift=True, qkv_bias=True)
    assert complete.main([folder, "--as_published", "--prompt=a", "--max_new_tokens=11", "--threshold=0.8"]) == 0
    assert "--temperature=0.0 --rule=dynamic --threshold=0.8 --max_new_tokens=11" in capsys.readouterr().err
