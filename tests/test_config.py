"""config/: every config file loads, and every mistake gives a message of one sentence."""
import contextlib
import dataclasses
import glob
import os
import re
import runpy
import sys
import typing

import jax
import pytest
import shared
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shared import refused

import config
import diffusion
import grpo
import model
import rewards
import sample
from checkpoints import older
from data import texts
from loop import help, memory, same_run
from system import index, sections
from variants import blocks, curriculum, gemma, lora, moe

RUNS = sorted(set(glob.glob("config/*.py")) - {"config/__init__.py"})
KINDS = {name: kind for cls in (config.Config, model.ModelConfig)
         for name, kind in typing.get_type_hints(cls).items() if name not in ("model", "kind", "typed")}  # fmt: skip
REAL = {path for path in RUNS if "downloads" in config.run_file(path)}  # recipes for models that are not here
GIVEN = "dataset='sudoku', model=ModelConfig(n_layer=2)"  # what most of the config files below say


def written(folder, text, name="run.py"):
    """Write a config file with this text to a folder and return its path."""
    path = folder / name
    imports = "from dataclasses import replace", "from config import Config", "from model import ModelConfig"
    imports += ("from variants import blocks, curriculum, lora, paired",)
    path.write_text("\n".join([*imports, text, ""]))
    return str(path)


@pytest.fixture
def file(tmp_path):
    return written(tmp_path, f"config = Config({GIVEN})")


def raised(fn, *given):
    """Return the message of the ValueError that fn(*given) raises."""
    with pytest.raises(ValueError) as e:
        fn(*given)
    return str(e.value)


def message(*argv):
    """Return the message of `config.load` for wrong arguments: one line that is not Python's own."""
    text = raised(config.load, [str(a) for a in argv])
    assert "\n" not in text and "Traceback" not in text and "__init__" not in text and len(text) < 850
    return text


# ---- the files in config/ ----


def test_every_run_can_be_loaded_writes_to_a_place_of_its_own_and_starts_from_what_exists():
    cfgs = [config.read_file(path) if path in REAL else config.load([path]) for path in RUNS]
    cfgs += [config.load([path, "--model=tiny"]) for path in RUNS if "tiny" in config.run_file(path)]
    for cfg in cfgs:
        for name in vars(cfg):
            assert name in ("model", "typed") or config.sections.fits(getattr(cfg, name), KINDS[name])
        ours = [name for name in cfg.rewards if ":" not in name]  # else a function in a file of the user's
        assert len(ours) == len(rewards.resolve(ours, judge=len))
        sample.plan(cfg, cfg.temperature)
        assert cfg.out_dir.startswith("out/")  # what git ignores
        assert cfg.init_from is None or not cfg.init_from.endswith(".py") or os.path.exists(cfg.init_from)
    assert len({os.path.abspath(cfg.out_dir) for cfg in cfgs}) == len(cfgs) > 6


# ---- recipes for models that have to be downloaded ----


@pytest.mark.parametrize("path", sorted(REAL))
def test_a_recipe_names_its_downloads_and_that_tiny_which_the_command_line_overrides_needs_none(path, tmp_path):
    cfg, downloads = config.read_file(path), config.run_file(path)["downloads"]
    said = message(path)
    for key in downloads:
        assert f"{getattr(cfg, key)} ({downloads[key]})" in said and "--model=tiny" in said
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}")
    said = message(path, f"--dataset={rows}")  # what is the user's own is not looked for elsewhere
    assert cfg.init_from in said and ("dataset" not in downloads or cfg.dataset not in said)
    own = config.load([path, f"--dataset={rows}", "--init_from=/nowhere"])
    assert (own.dataset, own.init_from, own.rewards) == (str(rows), "/nowhere", cfg.rewards)
    changed, tiny = config.run_file(path)["tiny"], config.load([path, "--model=tiny", "--max_iters=7"])
    assert tiny == shared.changed(cfg, **changed | {"max_iters": 7})
    assert "data/tiny/" in tiny.init_from and "data/tiny/" in tiny.dataset
    of_paper = {"rewards", "reward_weights", "logp_est", "loss_type", "kl_beta", "chat_template", "learning_rate"}
    assert not of_paper & set(changed)


def test_only_recipes_have_a_tiny_model_and_unknown_model_names_are_refused(file, tmp_path):
    said = message(file, "--model=tiny")
    assert f"--model=tiny: {file} is no recipe for a model that has to be downloaded: it needs nothing but" in said
    assert "gemma2_gsm8k_grpo.py has only --model=tiny" in message("config/gemma2_gsm8k_grpo.py", "--model=small")
    for name, why in {"llada": "", "random": "there is no such thing here: --plan=8xH100"}.items():
        said = message("config/llada_gsm8k_grpo.py", f"--model={name}")
        assert f"--model='{name}': one of tiny, small; {why}" in said and "--init_from=FOLDER" in said
    recipe = written(tmp_path, "config = Config()\ntiny = {'sed': 1}", "t.py")
    assert "did you mean 'seed'" in message(recipe, "--model=tiny")


PAPERS = {  # config/NAME.py: what its paper states
    "diffucoder_grpo":
        "batch_size=8 group_size=10 updates_per_rollout=2 logp_est=coupled mask_ratio_min=0.2 mask_ratio_max=0.8 "
        "adv_baseline=loo adv_norm=none loss_type=bnpo clip_low=0.5 clip_high=0.5 kl_beta=0.01 "
        "moving_reference.mode=periodic moving_reference.mix=0.6 moving_reference.interval=32 "
        "learning_rate=1e-6 lr_end=0.1 beta1=0.9 beta2=0.99 weight_decay=0.1 "
        "grad_clip=0.2 max_prompt_len=200 max_new_tokens=256 diffusion_steps=256 order=entropy temperature=1 "
        "top_p=None rewards=tests_fenced,fenced reward_weights=2,0.5 programs.timeout=5 texts.chat_template=chatml",
    "llada_gsm8k_grpo":
        "batch_size=16 group_size=6 updates_per_rollout=12 logp_est=one_step masked_prompt.share=0.15 "
        "adv_baseline=mean adv_norm=none kl_beta=0.04 lora.rank=128 loss_type=bnpo clip_low=0.5 clip_high=0.5 "
        "ratio_level=token beta2=0.99 learning_rate=3e-6 lr_schedule=constant weight_decay=0.1 grad_clip=0.2 "
        "max_prompt_len=200 max_new_tokens=256 diffusion_steps=128 block_len=32 order=sampled rule=quota "
        "temperature=0.9 texts.chat_template=llada",
    "dream_countdown_grpo":
        "group_size=6 updates_per_rollout=8 logp_est=coupled_elbo logp_views=2 ratio_level=sequence clip_low=4e-4 "
        "clip_high=4e-4 kl_beta=1e-3 kl_est=k2_sequence learning_rate=3e-6 lr_schedule=constant weight_decay=0.01 "
        "grad_clip=0.2 max_prompt_len=400 max_new_tokens=256 diffusion_steps=64 temperature=1 rewards=countdown "
        "curriculum.difficulty=3,3 texts.chat_template=chatml",
    "llama_gsm8k_grpo":
        "logp_est=exact order=left updates_per_rollout=1 kl_beta=0.04 kl_est=k3 batch_size=16 group_size=4 "
        "adv_norm=group temperature=0.7 learning_rate=1e-6 rewards=xml_answer,xml_tags reward_weights=2,1 "
        "top_p=None top_k=None",
}  # fmt: skip


@pytest.mark.parametrize("name", PAPERS)
def test_a_recipe_has_the_settings_of_its_paper(name):
    cfg = config.read_file(f"config/{name}.py")
    assert config.override(cfg, dict(pair.split("=") for pair in PAPERS[name].split())) == cfg


@pytest.mark.parametrize("name", ["diffucoder_grpo", "llama_gsm8k_grpo"])
def test_the_command_for_one_card_in_a_recipes_header_fits_80_gb(name):
    path = f"config/{name}.py"
    shape = config.run_file(path)["shape"]
    paper, said = config.read_file(path), open(path).read().split('"""')[1]
    lora = config.override(paper, dict(re.findall(r"--([\w.]+)=(\S+)", re.search(r".*--lora.rank.*\n?.*", said)[0])))
    shaped = lambda c: dataclasses.replace(c, model=shared.changed(c.model, **shape))
    refusal = lambda c: memory.refusal(shaped(c), 80e9, n_devices=1)
    assert refusal(paper) and not refusal(lora)


# ---- what can be wrong, in a file and on the command line alike ----

WRONG = [  # what a file says, what the command line says, what must be in the answer
    ("max_iter=3", "--max_iter=3", ("'max_iter'", "did you mean 'max_iters'?")),
    ("lerning_rate=3.", "--lerning_rate=3.", ("did you mean 'learning_rate'?",)),
    ("nonsense=1", "--nonsense=1", ("unknown config key 'nonsense'; see --help=all",)),
    ("**{'gone.factor': 1}", "--gone.factor=1", ("'gone.factor'", "; there is no variants/gone.py with keys")),
    ("**{'champion.factor': 1}", "--champion.factor=1", ("key 'champion.factor'; there is no variants/champion.py",)),
    ("**{'gone.fast_factor': 1}", "--gone.fast_factor=1", ("key 'gone.fast_factor'; there is no variants/gone.py",)),
    ("max_iter=3", "--model.max_iters=3", ("unknown config key", "max_iter")),
    ("max_iters='many'", "--max_iters=many", ("max_iters", "many", "a whole number")),
    ("max_iters=True", "--max_iters=True", ("max_iters", "a whole number")),
    ("resume='yes'", "--resume=yes", ("resume", "True or False")),
    ("learning_rate='x'", "--learning_rate=x", ("learning_rate", "a finite number")),
    ("learning_rate=float('nan')", "--learning_rate=nan", ("learning_rate", "a finite number")),
    ("use=(curriculum.Keys(difficulty=('a', 'b')),)", "--curriculum.difficulty=a,b", ("difficulty", "as in")),
    ("use=(curriculum.Keys(difficulty=(1,)),)", "--curriculum.difficulty=1", ("difficulty", "two numbers")),
    ("use=(curriculum.Keys(difficulty=(3, 1)),)", "--curriculum.difficulty=3,1",
     ("difficulty", "lowest and the highest")),
    ("use=(curriculum.Keys(schedule=(1, 2)),)", "--curriculum.schedule=1,2,3", ("schedule", "((0, 1), (500, 2))")),
    ("max_iters=0", "--max_iters=0", ("max_iters=0 must be at least 1",)),
    ("seed=-1", "--seed=-1", ("seed=-1 must be at least 0",)),
    ("lr_end=1.5", "--lr_end=1.5", ("lr_end=1.5", "from 0 to 1")),
    ("block_len=0", "--block_len=0", ("block_len=0 must be at least 1",)),
    ("pass_at=0.0", "--pass_at=0", ("pass_at=0", "above 0", "a completion that earns nothing would pass")),
    ("objective='grpo', init_from='a', group_size=0", "--objective=grpo --init_from=a --group_size=0",
     ("group_size=0 must be at least 2",)),
    ("judge_from='out/j', rewards=('exact',)", "--judge_from=out/j --rewards=exact",
     ("judge_from='out/j'", "the reward 'judge'")),
    ("base=('seed=1',)", "--base.seed=1", ("base=('seed=1',)", "a config file in init_from")),
    ("init_from='resume'", "--init_from=resume", ("--resume=True",)),
    ("ema_decay=1.0", "--ema_decay=1.0", ("ema_decay=1.0", "below 1")),
    ("stop_at=30.0, rewards=('exact',)", "--stop_at=30.0 --rewards=exact", ("stop_at=30.0", "below 1")),
    ("stop_at=0.3", "--stop_at=0.3", ("stop_at=0.3 needs rewards",)),
    ("objective='grop'", "--objective=grop", ("objective='grop'", "pretrain, judge")),
    ("lr_schedule='linear'", "--lr_schedule=linear", ("cosine, constant",)),
    ("batch_size=10, gradient_accumulation_steps=4", "--batch_size=10 --gradient_accumulation_steps=4",
     ("batch_size=10", "must divide", "gradient_accumulation_steps=4", "--gradient_accumulation_steps=2 does")),
    ("batch_size=7, use=(paired.Keys(),)", "--batch_size=7 --paired=True",
     ("paired=True", "batch_size=7 must be a multiple of 2")),
    ("rewards=('exact',), reward_weights=(1.0, 2.0)", "--rewards=exact --reward_weights=1,2",
     ("reward_weights", "2 numbers for 1 rewards")),
    ("out_dir=''", "--out_dir=", ("out_dir=''",)),
    ("out_dir='out/x', init_from='./out//x/step-000001'", "--out_dir=out/x --init_from=./out//x/step-000001",
     ("init_from", "lies in out_dir='out/x'")),
    ("init_from='config/sudoky.py'", "--init_from=config/sudoky.py", ("no config file 'config/sudoky.py'", ", text,")),
    ("init_from='config/sudoku.py', out_dir='out/sudoku'", "--init_from=config/sudoku.py --out_dir=out/sudoku",
     ("init_from", "another out_dir")),
    ("model=ModelConfig(n_layers=3)", "--n_layers=3", ("'n_layers'", "did you mean 'model.n_layer'?")),
    ("model=ModelConfig(n_layer='3')", "--n_layer='3'", ("n_layer", "'3'", "expected")),
    ("model=ModelConfig(d_model=130)", "--d_model=130", ("d_model=130", "divisible by n_head=4")),
    ("model=ModelConfig(n_kv_head=3)", "--n_kv_head=3", ("n_head=4", "divisible by n_kv_head=3")),
    ("model=ModelConfig(causal=True)", "--causal=True", ("causal=True needs shift=True",)),
    ("model=ModelConfig(dtype='float16')", "--dtype=float16", ("'float16'", "float32, bfloat16")),
    ("model=None", "--model=None", ("model",)),
]  # fmt: skip


def test_one_message_gives_our_names_for_every_key_of_another_programs_command(file):
    typed = ("--num_generations=4 --beta=0.04 --epsilon_high=0.28 --max_prompt_length=128 --max_completion_length=256 "
             "--per_device_train_batch_size=8 --scale_rewards=False --num_iterations=1 --ema_alpha=0.9 --epsilon=0.1")
    ours = ("group_size kl_beta clip_high max_prompt_len max_new_tokens batch_size adv_norm updates_per_rollout "
            "moving_reference.decay clip_low")  # fmt: skip
    said = raised(config.load, [file, *typed.split()])
    assert re.findall(r"here it is ([\w.]+)", said) == ours.split()
    for both in ("updates_per_rollout (TRL, EasyDeL, DiffuCoder), or max_iters (ReLax)",
                 "an average of the policy itself is ema_decay",
                 "clip_low and clip_high (if it is added to a standard deviation: adv_eps)"):  # fmt: skip
        assert both in said


@pytest.mark.parametrize("offers, key", [(diffusion.ESTIMATORS, "logp_est"), (grpo.LOSSES, "loss_type"),
                                         (grpo.KLS, "kl_est")])  # fmt: skip
def test_a_new_line_in_a_dict_of_functions_is_a_new_value_of_its_key(offers, key, monkeypatch):
    refused(f"{key}='mine': one of .*, {[*offers][-1]}", shared.run, **{key: "mine"})
    monkeypatch.setitem(offers, "mine", lambda *_: None)
    assert config.flatten(shared.run(**{key: "mine"}))[key] == "mine"
    text = help.help_text(everything=True)  # which loads all variants, so that their names are there, too
    assert re.search(rf"--{key}=.*: {', '.join(map(str, offers))}$", text, re.M)


def test_the_number_of_views_is_that_of_the_estimator(monkeypatch):
    cfg = config.Config(objective="grpo", init_from="a", logp_est="coupled_elbo", logp_views=3)
    assert config.n_views(cfg) == 6 and config.n_views(dataclasses.replace(cfg, logp_est="coupled")) == 3

    def two_more_than_asked(key, completion, inputs):
        masked = jax.numpy.repeat(completion[:, None], inputs.n + 2, 1)
        return masked, masked, completion

    def by_a_key_of_its_own(key, completion, inputs):
        assert completion.shape == inputs.counts.shape == inputs.valid.shape == inputs.step.shape == (2, 40)
        masked = jax.numpy.repeat(completion[:, None], lora.Keys.of(inputs).rank, 1)
        refused("a ModelConfig has not the keys of lora", lora.Keys.of, inputs.cfg)
        return masked, masked, completion

    monkeypatch.setitem(diffusion.ESTIMATORS, "own", by_a_key_of_its_own)
    assert config.n_views(dataclasses.replace(cfg, logp_est="own", use=(lora.Keys(rank=3),))) == 3
    monkeypatch.setitem(diffusion.ESTIMATORS, "flat", lambda key, completion, inputs: (completion[:, None],) * 3)
    with pytest.raises(ValueError, match=r"of <lambda> returns the shape \(2, 1, 40\): expected \(2, 40\)"):
        config.n_views(dataclasses.replace(cfg, logp_est="flat"))
    monkeypatch.setitem(diffusion.ESTIMATORS, "two_more", two_more_than_asked)
    assert config.n_views(dataclasses.replace(cfg, logp_est="two_more")) == 5


@pytest.mark.parametrize("in_file, on_line, parts", WRONG)
def test_a_mistake_gives_the_same_message_in_a_file_and_on_the_command_line(tmp_path, file, in_file, on_line, parts):
    path = written(tmp_path, f"config = replace(Config({GIVEN}), {in_file})", "wrong.py")
    said = message(path)
    assert path in said or "init_from" in in_file  # which may be noticed when the file as such is fine
    for text in (said, message(file, *on_line.split())):
        for part in parts:
            assert part in text


@pytest.mark.parametrize("key", [key for key, kind in KINDS.items() if {int, float} & {kind, *typing.get_args(kind)}])
def test_no_number_raises_anything_but_a_value_error(key):
    for value in (0, -1, 10**30, -1e308, 1e-320):
        for objective in ("pretrain", "grpo", "judge"):
            with contextlib.suppress(ValueError):
                cfg = config.Config(objective=objective, init_from="a", rewards=("exact",))
                sample.plan(config.override(cfg, {key: str(value)}), 1.0)


def test_a_mistake_in_a_file_is_reported_with_its_line(tmp_path):
    for text, parts in {
        "x = 1\nconfig = Config(max_iter=3)": (", line 6:", "max_iters"),
        "config = Config(resume=true)": ("line 5", "'true' is not defined"),
        "config = Config(": ("line 5", "never closed"),
        "config = 1 / 0": ("line 5", "ZeroDivisionError: division by zero"),
        "import nothing_like_this": ("line 5", "No module named 'nothing_like_this'"),
        "from config.nothing import config": ("line 5", "config.nothing"),
        "config = {}['key']": ("line 5", "KeyError: 'key'"),
        "config = open('/nowhere/at/all')": ("line 5", "/nowhere/at/all"),
        "cfg = Config()": ("defines no `config = Config(...)`",), "\0\x80": ("run.py",),
    }.items():
        path = written(tmp_path, text)
        said = message(path)
        assert path in said
        for part in parts:
            assert part in said, said


def test_a_missing_file_is_reported_with_a_list_of_existing_ones(tmp_path):
    for path in ("config/sudoky.py", str(tmp_path), "sudok", "nul\0l"):
        said = message(path)
        assert repr(path) in said and all(os.path.basename(name)[:-3] in said for name in RUNS)
        assert ("did you mean config/sudoku.py?" in said) == ("sudok" in path)


@pytest.mark.parametrize("words, said", [
    ("--rule=drafts", "here it is causal=True"), ("--rule=nemotron", "here it is rule=threshold"),
    ("--rule=dllm", "here it is rule=quota"), ("--rule=renoise", "here it is rule=quota"),
    ("--logp_est=left_to_right", "here it is logp_est=trace with order=left"),
    ("--causal_text=True", "read from left to right they learned more"), ("--noise=uniform", "masks were far ahead"),
])  # fmt: skip
def test_a_name_that_was_here_once_says_what_became_of_it(file, words, said):
    typed = raised(lambda: sample.plan(config.load([file, words]), 1.0))
    assert re.search(rf"{said}.*\(docs/tried.md\)", typed)


def test_a_recipe_that_was_here_once_says_what_became_of_it():
    for name in ("config/countdown_joint_grpo.py", "smollm2_joint"):
        assert re.search(f"no config file '{name}': models of both kinds are gone.*docs/tried.md", message(name))
    assert "masks were far ahead" in message("sudoku_uniform_base.py")


@pytest.mark.parametrize("given", ["config/sudoku.py", ["config/sudoku.py"], None])
def test_what_is_no_config_is_answered_with_how_to_load_one(given):
    assert raised(lambda: config.resolve_paths(given)).endswith("as in train(config.load(['config/sudoku.py']))")


def test_a_config_file_may_be_named_without_its_folder_and_its_ending(monkeypatch, tmp_path):
    expected = config.load(["config/sudoku.py"])
    assert config.load(["config/sudoku"]) == config.load(["sudoku"]) == expected
    monkeypatch.chdir(tmp_path)  # from any folder
    assert config.load(["sudoku"]).out_dir == expected.out_dir


@pytest.mark.parametrize("words, said", [
    ("--n_layer 3", "write it as --n_layer=VALUE"), ("-max_iters=3", "write it as --max_iters=VALUE"),
    ("max_iters=3", "write it as --max_iters=VALUE"), ("--model.gemma", "write it as --model.gemma=VALUE"),
    ("\u2014seed=1 --n_layer 3", "write it as --seed=VALUE; --n_layer: write it as --n_layer=VALUE"),
    ("FILE", "one config file"), ("now", "one config file"),
    ("--seed=1 --seed=2", "--seed is given twice"), ("--n_layer=1 --model.n_layer=2", "--n_layer is given twice"),
    ("--out_dir=out/x --init_from=out/x/step-000007", "lies in out_dir"),
])  # fmt: skip
def test_what_is_typed_wrongly_is_reported_with_the_right_spelling(file, words, said):
    words = words.replace("FILE", file).split()
    assert said in message(file, *words)
    assert said.partition("=")[0] in message(*words, file)
    for argv in ([], ["--n_layer=2"]):
        assert "one config file" in message(*argv)
    assert "has a key twice" in message("config/sudoku_grpo.py", "--base=seed=1,seed=2")


def test_what_can_only_mean_one_thing_is_taken_for_it(file):
    assert config.load([file, "--resume"]).resume and config.load(["--eval_only", file]).eval_only
    assert config.load([file, "--max_iters=1e3"]).max_iters == 1000 and config.load([file, "--seed=2E1"]).seed == 20
    assert "expected a whole number" in message(file, "--max_iters=1.5") + message(file, "--max_iters=1e-3")
    assert config.load(["config/sudoku_grpo.py", "--early_end=true", "--resume=false"]).early_end


@pytest.mark.parametrize("typed, said", [
    ("--actor_rollout_ref.rollout.n=5", "group_size"), ("--rollout.n=5", "group_size"), ("--kl_loss_coef=0", "kl_beta"),
    ("--actor_rollout_ref.model.lora_rank=8", "lora.rank"),
    ("--actor_rollout_ref.actor.kl_loss_coef=0", "kl_beta"), ("--ppo_mini_batch_size=5", "minibatch_size"),
    ("--data.max_response_length=9", "max_new_tokens"), ("--algorithm.adv_estimator=grpo", "adv_baseline"),
    ("--loss_type=gspo", "ratio_level=sequence"), ("--loss_type=dr.grpo", "dr_grpo"), ("--objective=sft", "pretrain"),
    ("--out_dir=/", "a folder of its own"), ("--out_dir=~", "a folder of its own"),
    ("--diffusion_steps=999", "at most as many steps"),
    ("--cispo.cap=3", "the keys of cispo change nothing here, they are for loss_type='cispo'"),
    ("--factor.limit=2", "the keys of factor change nothing here, they are for rule='factor'"),
    ("--entropy.budget=0.3", "the keys of entropy change nothing here, they are for rule='entropy'"),
    ("--judge.n_rows=9", "the keys of judge change nothing here, they are for objective='judge'"),
    ("--threshold=0.5", "threshold=0.5 changes nothing here, it is for rule='threshold' or 'dynamic'"),
    ("--texts.system_prompt=Add.", "system_prompt='Add.': how it is written is up to the model, so set texts.chat"),
])  # fmt: skip
def test_words_of_other_programs_slips_and_keys_of_a_choice_that_was_not_made_are_answered(typed, said):
    assert said in message("config/sudoku_grpo.py", typed)


def test_a_base_key_on_the_command_line_replaces_the_one_in_the_file(tmp_path):
    (tmp_path / "x.py").write_text("from dataclasses import replace\nfrom config.sudoku_grpo import config as given\n"
                                   "config = replace(given, base=('seed=1', 'max_iters=9'))\n")
    cfg = config.load([f"{tmp_path}/x.py", "--base.seed=2"])
    assert cfg.base == ("max_iters=9", "seed=2") and config.base_run(cfg).seed == 2


def test_runs_that_start_from_each_other_are_refused(tmp_path, file):
    first, second = (tmp_path / name for name in ("first.py", "second.py"))
    written(tmp_path, f"config = Config(out_dir='out/1', init_from={str(second)!r})", "first.py")
    written(tmp_path, f"config = Config(out_dir='out/2', init_from={str(first)!r})", "second.py")
    third = written(tmp_path, f"config = Config(out_dir='out/3', init_from={str(first)!r})", "third.py")
    for path in (first, second, third):
        assert "give that another out_dir" in message(path)
    resumed = config.load([file, "--out_dir=out/x", "--init_from=out/x/step-000007", "--resume=True"])
    assert resumed.resume  # which moves its own checkpoints nowhere
    assert config.load([file, "--out_dir=out/x", "--init_from=out/xyz"]).init_from == "out/xyz"  # no folder in out/x
    # With a slash at the end the folder of the base, out/x/_base, would lie in the run's own.
    base = config.base_run(config.load(["config/sudoku_grpo.py", "--out_dir=./out/x/", "--base.seed=1"]))
    assert base.out_dir == "out/x_base"


# ---- values ----


def test_values_of_every_type_are_read(file):
    line = ("--max_iters=7 --lr_end=0 --learning_rate=2.5e-4 --weight_decay=3 --paired=True --batch_size=8 "
            "--stop_at=None --grad_clip=None --ema_decay=.5 --block_len=None --checkpoint.open_as=7 --out_dir=a=b "
            "--curriculum.difficulty=1,2.5 --rewards=exact,sudoku_all --reward_weights=1,-2e-1 "
            "--curriculum.schedule=[(0,1),(500,2.5)] --dtype=bfloat16 --model.n_layer=3 "
            "--d_ff=None --rope_theta=100 --n_kv_head=2")
    cfg = config.load([file, *line.split()])
    asked = dict(max_iters=7, lr_end=0, learning_rate=2.5e-4, weight_decay=3, paired=True, batch_size=8, stop_at=None,
                 grad_clip=None, ema_decay=0.5, block_len=None, **{"checkpoint.open_as": "7"}, out_dir="a=b",
                 rewards=("exact", "sudoku_all"), reward_weights=(1, -0.2), **{"curriculum.difficulty": (1, 2.5),
                 "curriculum.schedule": ((0, 1), (500, 2.5))})  # fmt: skip
    of_model = dict(dtype="bfloat16", n_layer=3, d_ff=None, rope_theta=100, n_kv_head=2)
    shape = shared.changed(model.ModelConfig(n_layer=2), **of_model)
    assert cfg == shared.changed(config.Config(dataset="sudoku"), **asked, model=shape)
    of = lambda text, key="rewards": getattr(config.load([file, f"--{key}={text}"]), key)
    assert of("exact") == ("exact",) and of("") == of("()") == ()
    for pair in ("0,5", "(0,5)", "((0,5),)", "[[0, 5]]"):
        assert curriculum.Keys.of(config.load([file, f"--curriculum.schedule={pair}"])).schedule == ((0, 5),)
    # Commas in parentheses do not separate rewards.
    assert of("length(target=4,token_ids=None),exact") == ("length(target=4,token_ids=None)", "exact")
    assert of(r"regex(pattern=\((a,b)), exact") == (r"regex(pattern=\((a,b))", "exact")


def test_the_order_of_overrides_does_not_matter(file):
    # each of these alone, or the first without the second, is impossible
    pairs = [("--n_head=3", "--d_model=96"), ("--causal=True", "--shift=True"),
             ("--stop_at=0.5", "--eval_rewards=exact"), ("--reward_weights=2", "--rewards=exact"),
             ("--batch_size=9", "--gradient_accumulation_steps=3"), ("--mask_id=300", "--vocab_size=301")]
    for one, other in pairs:
        assert config.load([file, one, other]) == config.load([other, file, one]) == config.load([other, one, file])
    for one in ("--n_head=3", "--causal=True", "--stop_at=0.5", "--mask_id=300"):
        message(file, one)


def test_keys_of_a_run_and_of_its_model_do_not_share_names():
    names = [f.name for cls in (config.Config, model.ModelConfig) for f in dataclasses.fields(cls)]
    names += {name.partition(".")[0] for name in index.all_keys()}
    names.remove("use")  # both have the sections of variants
    assert len(set(names)) == len(names)


NASTY = ["", " ", "None", "True", "nan", "-inf", "1e999", "1" * 5000, "(" * 300, "-" * 5000 + "1", "[" * 99, "{[]: 1}",
         "\\d", "'\\x'", "b'x'", "1,", ",", ",,", "(1,(2,))", "((0,1),(2,))", "0,1,2", "...", "__import__('os')",
         "9**9**9", "1+1j", "{1,2}", "\0", "\ud800", "\n1", "\t 1", "1 2", "١"]
TEXTS = st.one_of(st.text(), st.sampled_from(NASTY), st.text("0123456789.,()[]-+e'\"\\ nNoeTru", max_size=9))


@pytest.mark.slow
@given(st.sampled_from(sorted(KINDS)), TEXTS)
@settings(max_examples=500, deadline=None)
@example("max_iters", "-" * 100_000 + "1")
@example("schedule", "(" * 100_000)
def test_no_text_of_a_value_gives_a_traceback(name, text):
    kind = (KINDS | typing.get_type_hints(curriculum.Keys))[name]
    try:
        value = config.parse(name, text, kind)
    except ValueError as e:
        assert name in str(e) and "expected" in str(e)
    else:
        assert config.sections.fits(value, kind)


@given(st.lists(st.one_of(st.text(max_size=20), st.builds("--{}={}".format, st.sampled_from(sorted(KINDS)), st.text())),
                max_size=3))
@settings(max_examples=60, deadline=None)
def test_no_command_line_gives_a_traceback(argv):
    try:
        config.load(["config/sudoku.py", *argv])
    except ValueError as e:
        assert str(e)


# ---- help and main ----


def test_all_help_lists_every_key_with_its_default_and_a_meaning():
    text = help.help_text(everything=True)
    for cls, prefix in ((config.Config, ""), (model.ModelConfig, "model.")):
        for f in dataclasses.fields(cls):
            if f.name in ("model", "use", "typed"):
                continue
            line = re.search(rf"^  --{re.escape(prefix + f.name)}=(.+?)  +(\S.*\S)$", text, re.M)
            assert line, f"{f.name} has no meaning"
            assert config.parse(f.name, line[1].strip('"'), KINDS[f.name]) == f.default
            assert len(line[2]) >= 8
    keys = {name: key for name, key in index.all_keys().items() if key.field}
    assert len(re.findall(r"^  --", text, re.M)) == len(KINDS) - 1 + len(keys)  # without `use`
    for name, key in keys.items():
        path, file = key.section.__module__.replace(".", "/"), name.partition(".")[0]
        assert re.search(rf"^{path}.py, by --{file}=True .*$(\n  --.*)*\n  --{name}=", text, re.M)


def test_help_lists_the_keys_of_a_first_run_and_names_the_command_for_the_rest():
    first, text = help.help_text(), help.help_text(everything=True)
    names = [line.split("=")[0].removeprefix("  --").removeprefix("model.") for line in first.split("\n  --")[1:]]
    assert sorted(names) == sorted(set(help.FIRST)) and 18 <= len(names) <= 22 and set(names) <= set(KINDS)
    assert {line for line in first.splitlines() if line.startswith("  --")} < set(text.splitlines())
    assert first.endswith("--help=all prints them all") and len(first.splitlines()) <= 45  # a screen


@pytest.mark.parametrize("name, said", [
    ("logp_est", r"  --logp_est=coupled_elbo .*one_step, coupled.*\n"), ("clip_", r"(  --clip_(low|high)=0.2 .*\n){2}"),
    ("lora.r", r"  --lora.rank=.*\n"), ("kl_bta", "unknown config key 'kl_bta', did you mean 'kl_beta'.\n")])
def test_help_of_a_name_prints_the_keys_that_have_it(name, said, monkeypatch, capsys):
    for words in ([f"--help={name}"], ["config/sudoku.py", "--help", name, "--lr_schedule=cosine"]):
        monkeypatch.setattr(sys, "argv", ["train.py", *words])
        help.main()
        assert re.fullmatch(said, capsys.readouterr().out)


@pytest.mark.parametrize("name", ["run.yaml", "README.md", "nanogpt.py"])
def test_a_file_that_is_no_config_file_is_answered_with_what_one_is(name, tmp_path):
    (tmp_path / name).write_text("out_dir = 'out'\n")
    said = message(str(tmp_path / name))
    assert "defines no `config = Config(...)`: a config file, NAME.py, says" in said


@pytest.mark.parametrize("argv", [["--help"], ["config/sudoku.py", "-h"], ["-h", "config/sudoku.py"], ["--help=all"]])
def test_help_ignores_all_other_arguments(argv, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", *argv])
    with pytest.raises(SystemExit) as e:
        runpy.run_path("train.py", run_name="__main__")
    assert not e.value.code and capsys.readouterr().out == help.help_text("all" in argv[-1]) + "\n"


def test_sections_are_used_where_their_keys_belong():
    for made, section, kind in (config.Config, gemma.Shape(), "Keys"), (model.ModelConfig, lora.Keys(), "Shape"):
        refused(rf"a tuple with {kind} of files of variants/, as in use=\(FILE.{kind}", made, use=(section,))
    refused("has the Keys of a file twice", config.Config, use=(lora.Keys(), lora.Keys(rank=4)))


def test_two_variants_of_one_part_of_a_model_are_refused_in_any_order():
    shape, said, block = model.ModelConfig, "exclude each other", (blocks.Shape(),)
    for use in ((gemma.Shape(), moe.Shape()), (moe.Shape(), gemma.Shape())):
        refused(f"gemma.Shape and moe.Shape {said} in a model: both say what", shape, use=use)
    refused(f"causal=True and blocks.Shape {said} .* what its mask is", shape, causal=True, shift=True, use=block)
    refused(f"mask='causal' and blocks.Shape {said}", shape, mask="causal", use=block)


def test_a_model_says_what_it_is():
    cfg = model.ModelConfig(use=(gemma.Shape(), blocks.Shape()))
    assert (cfg.mlp, cfg.mask, cfg.network, cfg.read, cfg.rotary) == ("gemma", "blocks", "gemma", "own", "plain")
    assert model.ModelConfig(shift=True).read == "shifted"
    causal = model.ModelConfig(causal=True, shift=True)
    assert (causal.mask, causal.read) == ("causal", "causal")
    refused(r"mlp='moe' needs use=\(moe.Shape\(\),\)", model.ModelConfig, mlp="moe")
    refused("mlp='gemma' needs .*without it, set mlp='dense'", dataclasses.replace, cfg, use=())
    refused("read='causal' and shift=True exclude each other", dataclasses.replace, causal, causal=False)
    refused("mask='near': one of all", model.ModelConfig, mask="near")


def test_a_key_is_typed_with_the_name_of_its_file(tmp_path):
    cfg = shared.shape(**{"blocks.block": 8, "gemma.window": 3})
    assert cfg.use == (blocks.Shape(8), gemma.Shape(window=3))
    assert shared.changed(cfg, blocks=False, gemma=False) == model.ModelConfig()
    assert config.changed(config.Config(), {"model.n_layer": 3}) == config.changed(config.Config(), {"n_layer": 3})
    recipe = ["config/countdown_block_base.py"]
    assert config.load(recipe).model.use == (blocks.Shape(4),)
    assert not config.load([*recipe, "--blocks=False"]).model.use
    assert config.load(["config/text.py", "--model.gemma.window=9"]).model.use == (gemma.Shape(window=9),)
    assert config.load(["config/text.py", "--gemma=True"]).model.network == "gemma"
    both = config.load(["config/sudoku_grpo.py", "--base.blocks.block=4", "--logp_views=2"])
    assert both.base == ("blocks.block=4",) and both.model.block == 4 == config.base_run(both).model.block
    assert config.load([*recipe, "--blocks.block=2"]).model.use == (blocks.Shape(2),)
    refused("gemma.window=0 must be at least 1", shared.shape, **{"gemma.window": 0})
    for name in ("query_scale", "attn_cap", "logit_cap"):
        for value in (0, -5):
            refused(f"gemma.{name}={value} must be ", shared.shape, **{f"gemma.{name}": value})


def test_a_key_that_is_not_there_answers_with_those_that_are(file, tmp_path):
    assert "'lora.rnk', did you mean 'lora.rank'?; there are lora.rank, lora.alpha" in message(file, "--lora.rnk=3")
    assert message(file, "--lroa.rank=3").endswith("did you mean 'lora.rank'?")
    assert "'lora_rank': here it is lora.rank" in message(file, "--lora_rank=3")
    assert "'n_experts': here it is moe.n_experts" in message(file, "--model.n_experts=3")
    assert "expected True or False; the keys of factor are factor.limit" in message(file, "--factor=2")
    assert "'use': there is no such thing here: a variant is put in use by a key" in message(file, "--use=lora")
    for old, said in {
        "lora_rank=3": "unknown config key 'lora_rank': here it is lora.rank",
        "budget=3.0": "unknown config key 'budget', did you mean 'entropy.budget'?",
        "**{'lora.rank': 3}": "lora.rank is of a variant, lora: Config(use=(lora.Keys(rank=...),))",
        "**{'entropy.budget': 3.0}": "is of a variant, entropy: Config(use=(rules.Entropy(budget=...),))",
        "lora=True": "lora is of a variant, lora: Config(use=(lora.Keys(),))",
        "model=ModelConfig(**{'blocks.block': 3})":
            "blocks.block is of a variant, blocks: ModelConfig(use=(blocks.Shape(block=...),))",
    }.items():
        assert said in message(written(tmp_path, f"config = Config({old})", "old.py"))


def test_a_typed_key_counts_also_if_it_is_the_default():
    shape = model.ModelConfig(n_head=8, use=(moe.Shape(experts_per_token=4),))
    for typed, there in (("moe.experts_per_token=2", "moe.experts_per_token=4"), ("n_head=4", "n_head=8")):
        asked = config.override(config.Config(), dict([typed.split("=")]))
        refused(f"{typed}, but the model there has {there}", config.check_model, asked, shape, "there")
    config.check_model(config.override(config.Config(), {"moe.experts_per_token": "4"}), shape, "there")


@pytest.mark.parametrize("now, was, changed", [
    ({}, {"model.block_causal": None, "model.causal_text": False, "model.noise": "mask", "model.gemma": False}, ""),
    ({"blocks.block": 4}, {"model.block_causal": 4, "model.causal_text": False}, ""),
    ({"blocks.block": 4}, {"model.block_causal": None}, "model.blocks.block=4 (it was None)"),
    ({"moe.n_experts": 9}, {}, "model.moe.n_experts=9 (it was None)"),
    ({"lora.rank": 4}, {"lora_rank": None}, "lora.rank=4 (it was None)"),
    ({"lora.rank": 4}, {"lora_rank": 4, "lora_alpha": 16.0, "lora_targets": list(lora.TARGETS)}, ""),
    ({}, {"lora_rank": 4}, "lora.rank=None (it was 4)"),
    ({}, {"logp_chunk": 12}, ""),
    ({"paired": True}, {"paired": False}, "paired=True (it was None)"),
    ({"paired": True}, {"paired": True}, ""),
    ({}, {"difficulty": [], "curriculum": [], "nll_coef": 0.0, "cispo_cap": 5.0, "adapt": False, "limit": None}, ""),
    ({"evaluation.samples": 9}, {}, "evaluation.samples=9 (it was None)"),
    ({"objective": "grpo", "loss_type": "wd1"}, {"use": ["wd1"], "loss_type": "wd1"}, ""),
    ({"objective": "grpo", "loss_type": "wd1"}, {"losses": True, "loss_type": "wd1"}, ""),
    ({"objective": "grpo", "loss_type": "bnpo"}, {"use": [], "loss_type": "bnpo"}, ""),
    ({"objective": "grpo", "loss_type": "bnpo"}, {"losses": True, "loss_type": "bnpo"}, ""),
])  # fmt: skip
def test_a_run_of_older_code_has_other_names_and_keys_of_variants_that_it_does_not_use(now, was, changed):
    cfg = config.changed(config.Config(init_from="x"), now)
    found = same_run.changed_keys(cfg, older.as_named_now(was), [])
    assert found.split(", lora.alpha")[0].split(", model.moe")[0] == changed


@pytest.mark.parametrize("use", [lora.Keys(), [lora.Keys()]])
def test_keys_of_variants_that_are_in_no_tuple_are_answered_with_one(use):
    assert "expected a tuple, as in --lora=True on the command line or (lora.Keys(),) in a file" in raised(
        lambda: config.Config(use=use))  # fmt: skip


def test_functions_as_rewards_and_a_command_line_in_one_text_are_answered_as_meant():
    said = raised(lambda: config.Config(rewards=(len, "exact")))
    assert said.endswith("got tuple; functions are given as train(config, rewards=...)")
    assert config.load("config/sudoku.py --seed=3") == config.load(["config/sudoku.py", "--seed=3"])


@dataclasses.dataclass(frozen=True)
class OfANotebook(sections.Section):
    factor: float = 1.0


def test_a_key_of_a_class_that_is_in_no_file_of_variants_makes_another_run_too():
    was = same_run.as_json(config.flatten(config.Config(use=(OfANotebook(2.0),))))
    assert same_run.changed_keys(config.Config(use=(OfANotebook(2.0),)), was, []) == ""
    found = same_run.changed_keys(config.Config(use=(OfANotebook(3.0),)), was, [])
    assert found == "test_config.factor=3.0 (it was 2.0)"


@pytest.mark.parametrize("now, changed", [(None, ""), (9, "model.gemma.window=9 (it was 64)")])
def test_a_run_goes_on_whose_folder_had_the_numbers_of_its_model(now, changed):
    was, cfg = (config.changed(config.Config(), {"gemma.window": n}) for n in (64, now))
    assert same_run.changed_keys(cfg, same_run.as_json(config.flatten(was)), []) == changed


def test_an_older_run_is_read_with_its_variants():
    was = {"use": ["lora"], "lora_rank": 4, "nll_coef": 0.0, "chat_template": "chatml", "max_iters": 7}
    cfg = same_run.recorded(older.as_named_now(was))
    assert (lora.Keys.of(cfg).rank, texts.Keys.of(cfg).chat_template, cfg.max_iters) == (4, "chatml", 7)


def test_no_key_has_the_name_of_a_method_of_section():
    methods = vars(sections.Section).keys() - {"block"}
    for name, key in index.all_keys().items():
        assert key.field not in methods, name


@pytest.mark.parametrize("line, name", [
    ("--moe.n_experts=4 --mlp=dense", "mlp=dense"), ("--blocks.block=2 --mask=all", "mask=all"),
    ("--lora.rank=16 --lora=False", "lora.rank=16"), ("--moe=False --moe.n_experts=4", "moe=False"),
    ("--loss_type=cispo --cispo=False", "cispo=False")])  # fmt: skip
def test_a_typed_key_on_which_another_has_the_last_word_is_refused(file, line, name):
    assert f"--{name} does not go with the other keys, by which it is " in message(file, *line.split())


@pytest.mark.parametrize("typed, said", [
    ("--cispo.cap=3", "the keys of cispo change nothing here, they are for loss_type='cispo'"),
    ("--cispo=True", "the keys of cispo change nothing here"),
    ("--factor.limit=2", "the keys of factor change nothing here, they are for rule='factor'"),
    ("--entropy.budget=0.3", "the keys of entropy change nothing here, they are for rule='entropy'"),
    ("--judge.n_rows=9", "the keys of judge change nothing here, they are for objective='judge'"),
    ("--kl_est=k2", "kl_est='k2' changes nothing here, it is for kl_beta above 0"),
    ("--lr_schedule=constant --lr_end=0.5", "lr_end=0.5 changes nothing here, it is for lr_schedule='cosine'"),
    ("--objective=pretrain --masked_prompt.share=0.5", "masked_prompt changes nothing with objective='pretrain'"),
    ("--threshold=0.5", "threshold=0.5 changes nothing here, it is for rule='threshold' or 'dynamic'"),
    ("--texts.system_prompt=Add.", "system_prompt='Add.': how it is written is up to the model, so set texts.chat")])
def test_typed_keys_of_a_choice_that_was_not_made_are_refused(typed, said):
    refused(said, config.load, ["config/sudoku_grpo.py", *typed.split()])
    config.load(["config/sudoku.py", "--lr_schedule=constant"])  # a recipe may have more than is used


def test_a_typed_key_is_named_and_not_what_follows_from_it():
    cfg = config.override(config.Config(), {"moe.n_experts": "4"})
    refused(r"moe.n_experts=4, but the model of x has moe.n_experts=None", config.check_model, cfg,
            model.ModelConfig(), "of x")  # fmt: skip


@pytest.mark.parametrize("typed", ["--kl_beta=0.04", "--group_size=4", "--ratio_level=token"])
def test_typed_keys_of_reinforcement_learning_are_refused_in_pretraining(typed):
    refused("it is for objective='grpo'", config.load, ["config/sudoku.py", typed])
    config.load(["config/sudoku_grpo.py", typed])
