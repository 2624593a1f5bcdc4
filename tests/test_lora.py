"""LoRA: adapters that begin as nothing and merge into what they computed, and runs that train and save nothing else."""
import dataclasses
import functools
import itertools
import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import shared
from faults import Killed
from shared import KEY, byte_model, kept_in_16_bits, left, logits_of, refused, slow, watch, write_rows
from test_model import AUTOREGRESSIVE, SAVED, TOKENS, close

import data
import model
import rl
import train
from checkpoints import adapters, checkpoint, huggingface
from judges import model_judge
from loop.setup import prepare
from system import disk
from tools import complete
from variants import lora

ALL = lora.TARGETS
pytestmark = pytest.mark.usefixtures("one_step_for_all_runs")


@functools.cache
def start(cfg):
    """Params with gains and biases, too, that are not those of a new model."""
    return shared.far(jax.jit(functools.partial(model.init, cfg=cfg))(jax.random.key(1)), 0.1)


@functools.cache
def trained_adapters(cfg, targets=ALL, rank=3):
    """Adapters as if they had been trained: B is not 0 any more."""
    new = lora.adapters(KEY, cfg, targets, rank)
    draw = lambda i, x: np.float32(0.1) * np.asarray(jax.random.normal(jax.random.key(i), x.shape))
    of_layer = lambda n, w: {name: draw(99 * n + i, x) if name.endswith("_b") else x for i, (name, x)
                               in enumerate(w.items())}  # fmt: skip
    return {"blocks": [of_layer(n, w) for n, w in enumerate(new["blocks"])]}


@pytest.fixture
def saved(tmp_path):
    """saved(cfg, ...) -> base, adapters, the folder of the adapters; the base is in a folder beside it."""
    def write(cfg, targets=ALL, rank=3, alpha=5.0, n_out=None):
        base = start(cfg)
        huggingface.save(tmp_path / "base", base, cfg)
        new = trained_adapters(cfg, targets, rank)
        new = new | ({"head": 0.1 * jax.random.normal(KEY, (cfg.d_model, 1))} if n_out else {})
        disk.write_files(tmp_path / "lora", adapters.adapter_files(new, cfg, str(tmp_path / "base"), alpha))
        return base, new, tmp_path / "lora"
    return write


def test_new_adapters_are_those_of_peft_a_uniform_a_and_a_zero_b():
    cfg = model.ModelConfig(n_layer=3, n_head=2, d_model=64, d_ff=96)
    new = lora.adapters(KEY, cfg, ("q", "down"), 32)["blocks"]
    sizes = {"q_a": (64, 32), "q_b": (32, 64), "down_a": (96, 32), "down_b": (32, 64)}
    assert [{n: x.shape for n, x in w.items()} for w in new] == [sizes] * 3
    for name, width in (("q", 64), ("down", 96)):
        a = np.asarray([w[name + "_a"] for w in new])
        assert not any(w[name + "_b"].any() for w in new) and 0.98 < np.abs(a).max() * width**0.5 <= 1
        assert a.std() == pytest.approx((3 * width) ** -0.5, rel=0.03)  # torch: kaiming_uniform_(a=sqrt(5))
    assert abs(np.corrcoef(new[0]["q_a"].ravel(), new[1]["q_a"].ravel())[0, 1]) < 0.1


@pytest.mark.slow
def test_the_gradient_of_adapters_is_that_of_their_matrix_seen_through_the_other_one():
    cfg = SAVED["llada"]
    base, new = model.init(KEY, cfg), trained_adapters(cfg)
    loss = lambda params: jnp.sum(jnp.sin(model.logits(params, TOKENS, cfg)[..., :37]))
    of = jax.jit(jax.grad(lambda new, params: loss(lora.adapted(params, new, 6.0)), argnums=(0, 1)))
    layers = zip(*(g["blocks"] for g in of(new, base)), new["blocks"], strict=True)
    for name, (ours, full, w) in itertools.product(ALL, layers):  # W + 2 A B: dA = 2 dW B', dB = 2 A' dW
        np.testing.assert_allclose(ours[name + "_a"], 2 * full[name] @ w[name + "_b"].T, atol=1e-3)
        np.testing.assert_allclose(ours[name + "_b"], 2 * w[name + "_a"].T @ full[name], atol=1e-3)
        assert float(jnp.abs(ours[name + "_b"]).max()) > 0.02, name


@pytest.mark.slow
def test_a_base_may_be_adapters_of_a_base_itself(saved, tmp_path):
    cfg = SAVED["llada"]
    base, first, folder = saved(cfg)
    second = trained_adapters(cfg, ("o",), 2)
    disk.write_files(tmp_path / "second", adapters.adapter_files(second, cfg, str(folder), 4.0))
    close(logits_of(checkpoint.load(tmp_path / "second")[0], TOKENS, cfg),
          logits_of(lora.adapted(checkpoint.load(folder)[0], second, 4.0), TOKENS, cfg), 1e-5)  # fmt: skip


@pytest.mark.slow
def test_a_base_held_in_bfloat16_computes_what_one_cast_at_every_step_does(saved):
    cfg = dataclasses.replace(SAVED["Dream"], dtype="bfloat16")
    base, new, folder = saved(cfg)
    held, _ = checkpoint.load(folder.parent / "base", "bfloat16")
    assert kept_in_16_bits(held)
    a, b = (logits_of(lora.adapted(params, new, 5.0), TOKENS, cfg) for params in (base, held))
    assert np.array_equal(a, b)
    assert kept_in_16_bits(checkpoint.load(folder, "bfloat16")[0])


def read_by_peft(base, folder=None, kind="CausalLM", **more):
    """Open a base, and adapters on it, as peft does -> the model, what it makes of TOKENS."""
    peft, torch, transformers = map(pytest.importorskip, ("peft", "torch", "transformers"))
    auto = getattr(transformers, f"AutoModelFor{kind}")
    theirs = auto.from_pretrained(base, attn_implementation="eager", **more)
    if folder:
        theirs = peft.PeftModel.from_pretrained(theirs, folder)
    with torch.no_grad():
        return theirs, theirs.eval()(torch.tensor(np.asarray(TOKENS))).logits.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", AUTOREGRESSIVE)
def test_adapters_open_in_peft_and_their_base_in_transformers_with_the_same_logits(name, saved):
    cfg = SAVED[name]
    base, new, folder = saved(cfg)
    _, raw = read_by_peft(folder.parent / "base", folder)
    close(model.logits(lora.adapted(base, new, 5.0), TOKENS, cfg)[:, 1:], raw[:, :-1])


@pytest.mark.slow
def test_a_judge_of_adapters_opens_in_peft_with_the_same_scores(saved):
    cfg = dataclasses.replace(SAVED["llama"], pad_id=39)
    base, new, folder = saved(cfg, n_out=1)
    _, raw = read_by_peft(folder.parent / "base", folder, "SequenceClassification", num_labels=1)
    close(model_judge.rate(lora.adapted(base, new, 5.0), TOKENS, cfg, jnp.ones(TOKENS.shape, bool)), raw[:, 0])


@pytest.mark.slow
def test_in_peft_the_head_of_llada_is_not_taken_for_a_matrix_of_the_same_name(saved):
    peft, torch = map(pytest.importorskip, ("peft", "torch"))
    cfg = SAVED["llada"]
    base, new, folder = saved(cfg)
    root = torch.nn.Module()  # a skeleton with the names of LLaDA's modules
    for _, _, name in huggingface.tensor_places(cfg, None):
        *path, leaf = name.removesuffix(".weight").split(".")
        at = root
        for part in path:
            at.add_module(part, getattr(at, part, None) or torch.nn.Module())
            at = getattr(at, part)
        at.add_module(leaf, torch.nn.Linear(1, 1, bias=False))
    tensors = safetensors.numpy.load_file(folder / "adapter_model.safetensors")
    for name, x in tensors.items():
        if "lora_A" in name:
            at = root.get_submodule(name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
            at.in_features = x.shape[1]
        else:
            at.out_features = x.shape[0]
            at.weight = torch.nn.Parameter(torch.zeros(at.out_features, at.in_features))
    theirs = peft.PeftModel.from_pretrained(root, folder)
    wrapped = {n: x.detach().numpy() for n, x in theirs.named_parameters() if ".lora_" in n}
    assert {n.replace(".default", "") for n in wrapped} == set(tensors)
    for name, x in wrapped.items():
        np.testing.assert_array_equal(x, tensors[name.replace(".default", "")])


@pytest.mark.slow
def test_adapters_that_peft_wrote_open_here(saved, tmp_path):
    peft = pytest.importorskip("peft")
    cfg = SAVED["qwen2"]
    _, _, folder = saved(cfg)
    theirs, _ = read_by_peft(folder.parent / "base")
    asked = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False,
                            task_type="CAUSAL_LM")  # fmt: skip
    peft.get_peft_model(theirs, asked).save_pretrained(tmp_path / "theirs")
    _, raw = read_by_peft(folder.parent / "base", tmp_path / "theirs")
    close(model.logits(checkpoint.load(tmp_path / "theirs")[0], TOKENS, cfg)[:, 1:], raw[:, :-1])


@pytest.mark.parametrize("change, named", [
    (dict(peft_type="LOHA"), "peft_type='LOHA' is not supported; this code computes peft_type='LORA'"),
    (dict(use_dora=True), "use_dora=True is not supported"), (dict(use_rslora=True), "use_rslora=True"),
    (dict(rank_pattern={"q_proj": 2}), "rank_pattern="), (dict(bias="all"), "bias='all'"),
    (dict(r=None), "expected the numbers r and lora_alpha"), (dict(r=0), "got 0, 5.0"),
    (dict(lora_alpha="8"), "'8'"),
    (dict(base_model_name_or_path=None), "base_model_name_or_path, got 3, 5.0 and None"),
    (dict(base_model_name_or_path="GSAI-ML/LLaDA-8B-Base"), "'GSAI-ML/LLaDA-8B-Base', is not a folder here"),
    (dict(r=4), r"q_proj.lora_A.weight has the shape \(3, 32\), but adapter_config.json makes it \(4, 32\)"),
])  # fmt: skip
def test_adapters_that_this_code_cannot_compute_are_refused_in_one_sentence(change, named, saved):
    _, _, folder = saved(SAVED["llada"])
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    refused(named, checkpoint.load, folder)


@pytest.mark.slow
def test_a_base_that_is_gone_or_another_is_named(saved, tmp_path):
    cfg = SAVED["llada"]
    _, _, folder = saved(cfg)
    shutil.rmtree(tmp_path / "base")
    refused(f"base_model_name_or_path='{tmp_path}/base', is not a folder here: bring it", checkpoint.load, folder)
    huggingface.save(tmp_path / "base", start(SAVED["Dream"]), SAVED["Dream"])
    refused("not the LoRA of a Dream model that its adapter_config.json describes: missing tensors: none; unknown "
            r"tensors: base_model\.model\.model\.trans", checkpoint.load, folder)
    thinner = dataclasses.replace(cfg, n_layer=1)
    huggingface.save(tmp_path / "base", start(thinner), thinner)
    refused(r"unknown tensors: base_model\.\S+blocks\.1", checkpoint.load, folder)


def test_adapters_that_are_their_own_base_or_damaged_are_named_in_one_sentence(saved, tmp_path):
    _, _, folder = saved(SAVED["llada"])
    names = "adapter_config.json", "adapter_model.safetensors"
    theirs, folders = json.loads((folder / names[0]).read_text()), [tmp_path / "lora0", tmp_path / "lora1"]
    for copy, base in zip(folders, folders[::-1], strict=True):
        shutil.copytree(folder, copy)
        disk.write_json(copy / names[0], theirs | {"base_model_name_or_path": str(base)})
    refused("their own base: .*lora0 -> .*lora1 -> .*lora0; write the folder", checkpoint.load, folders[0])
    disk.write_json(folders[0] / names[0], theirs | {"base_model_name_or_path": str(folders[0])})
    refused("adapters that are their own base: .*lora0 -> .*lora0; write the folder", checkpoint.load, folders[0])
    for name in names:
        content = (folder / name).read_bytes()
        for broken in (content[: len(content) // 2], b"", b"[1]"):
            (folder / name).write_bytes(broken)
            refused(name, checkpoint.load, folder)
        os.remove(folder / name)
        refused("missing|neither a config.json", checkpoint.load, folder)
        (folder / name).write_bytes(content)


SECONDS = dict(max_prompt_len=3, max_new_tokens=4, max_iters=4, batch_size=8, eval_interval=4, eval_size=8,
               save_interval=2, log_interval=1, diffusion_steps=4, warmup_iters=0, lr_schedule="constant",
               learning_rate=1e-2, **{"checkpoint.keep": 9})  # fmt: skip
SHAPE = model.ModelConfig(n_layer=1, n_head=2, d_model=16)
OF = {
    "pretrain": dict(gradient_accumulation_steps=2, ema_decay=0.5),
    "judge": dict(rewards=()),
    "grpo": dict(batch_size=2, group_size=4, kl_beta=0.1, rewards=("sorted.py:digits",), updates_per_rollout=2,
                 logp_est="trace", ratio_level="token", adv_negative=1.0),
}
REWARD = """
def digits(prompts, completions):
    return [sum(c.isdigit() for c in text) / 4 + ord(text[:1] or "a") / 1e3 for text in completions]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Rows "37" -> "73", which are pairs of a better and a worse text, too; a reward; and a base, untrained."""
    folder = tmp_path_factory.mktemp("place")
    write_rows(folder, lambda p: {"chosen": p[::-1], "rejected": p}, [i for i in range(100) if i % 11])
    (folder / "sorted.py").write_text(REWARD)
    byte_model(folder / "base")
    return folder


@pytest.fixture
def tiny(place, tmp_path, monkeypatch):
    """tiny(objective, key=value, ...) -> the Config of a LoRA run of seconds; the evaluations of a run cost nothing."""
    values = dict.fromkeys(("val/nelbo", "val/greedy", "val/sampled", "val/pair_acc"), 0.5)
    for name, make in list(rl.OBJECTIVES.items()):
        quick = lambda cfg, tok, start, make=make: make(cfg, tok, start)._replace(evaluate=lambda *_: (values, []))
        monkeypatch.setitem(rl.OBJECTIVES, name, quick)

    def make(objective, **changes):
        rewards = [f"{place}/{r}" for r in OF[objective].get("rewards", ())]
        given = SECONDS | OF[objective] | dict(rewards=tuple(rewards), out_dir=f"{tmp_path}/{objective}")
        return shared.run(**given | dict(objective=objective, dataset=str(place), init_from=f"{place}/base",
                                            **{"lora.rank": 2}) | changes)  # fmt: skip
    return make


@pytest.mark.parametrize("objective", ["pretrain", slow("judge"), slow("grpo")])
def test_a_run_trains_and_saves_adapters_alone_and_resumes_to_the_bit(objective, tiny, place, monkeypatch, tmp_path):
    cfg, starts = tiny(objective), []
    with monkeypatch.context() as m:
        watch(m, objective, lambda start, state, batch: starts.append(start))
        state, _ = train.train(cfg)
    base, _ = checkpoint.load(place / "base")
    jax.tree.map(np.testing.assert_array_equal, starts[-1], base)  # nothing was written to the arrays of the base
    folder = checkpoint.find(cfg.out_dir)
    names = {"tokenizer.json", "tokenizer_config.json", "run.json", "state.safetensors"}
    assert set(os.listdir(folder)) == names | {"adapter_config.json", "adapter_model.safetensors"}
    kept = {f"{name}_{end}" for name in ALL for end in "ab"} | ({"head"} if objective == "judge" else set())
    leaves = safetensors.numpy.load_file(f"{folder}/state.safetensors")
    assert {path.split("'")[-2] for path in leaves if "'" in path} == kept
    assert state.reference is None and (state.average is None) == (objective != "pretrain")
    began = rl.split(base, jax.random.fold_in(jax.random.key(cfg.seed), 3), tiny("pretrain", model=SHAPE))[0]
    for now, was in zip(state.params["blocks"], began["blocks"], strict=True):
        assert not any(np.array_equal(now[name], was[name]) for name in now)

    def kill(start, state, batch):
        if state.step == 3:
            raise Killed

    again = dataclasses.replace(cfg, out_dir=f"{tmp_path}/killed")
    with monkeypatch.context() as m:
        watch(m, objective, kill)
        with pytest.raises(Killed):
            train.train(again)
    assert checkpoint.steps(again.out_dir) == [2]
    train.train(dataclasses.replace(again, resume=True, init_from=None))  # the checkpoint knows its base
    assert left(again.out_dir) == left(cfg.out_dir)


@pytest.mark.slow
def test_the_reference_of_grpo_is_the_base_at_every_step(tiny, place, monkeypatch):
    base, shape = checkpoint.load(place / "base")
    cfg, gaps = tiny("grpo", updates_per_rollout=1), []

    def compare(start, state, b):
        score = jax.jit(functools.partial(shared.estimated_logp, cfg=shape, start=3))
        own, of_base = (score(p, b.rollout.tokens, b.views, valid=b.rollout.valid) for p in (state.params, base))
        np.testing.assert_allclose(b.loss.ref_logp, of_base[:, 3:], atol=2e-5)
        gaps.append(float(jnp.abs(own - of_base).max()))

    watch(monkeypatch, "grpo", compare)
    train.train(cfg)
    kl = [row["kl"] for row in map(json.loads, open(f"{cfg.out_dir}/metrics.jsonl")) if "kl" in row]
    assert len(kl) == len(gaps) == 4 and gaps[0] < 1e-6 and abs(kl[0]) < 1e-9 < 1e-6 < min(kl[1:])
    assert min(gaps[1:]) > 1e-3


@pytest.mark.slow
def test_a_checkpoint_samples_exports_starts_another_run_and_is_measured(tiny, place, tmp_path, capsys):
    cfg = tiny("pretrain")
    state, _ = train.train(cfg)
    base, shape = checkpoint.load(place / "base")
    merged, _ = checkpoint.load(cfg.out_dir)
    # What is saved is the average, where there is one.
    unmerged = lora.adapted(base, state.average, lora.Keys.of(cfg).alpha)
    close(model.logits(merged, TOKENS + 60, shape), model.logits(unmerged, TOKENS + 60, shape), 1e-5)
    capsys.readouterr()
    assert complete.main([cfg.out_dir, f"--export={tmp_path}/whole"]) == 0
    exported, _ = checkpoint.load(tmp_path / "whole")
    jax.tree.map(np.testing.assert_array_equal, exported, merged)
    assert shared.facts(data.open_tokenizer(tmp_path / "whole")) == shared.facts(data.open_tokenizer(place / "base"))
    for flags, said in ((["--export={}/whole"], "is there already"),
                        (["--export={}/other", "--prompt=1"], "--export and --prompt do not go together")):
        assert complete.main([cfg.out_dir, *(flag.format(tmp_path) for flag in flags)]) == 2
        assert said in capsys.readouterr().err
    assert complete.main([cfg.out_dir, "--prompt=12", "--order=left"]) == 0
    told = capsys.readouterr().out
    assert complete.main([f"{tmp_path}/whole", "--prompt=12", "--order=left", "--max_new_tokens=4", "--steps=4"]) == 0
    assert capsys.readouterr().out == told
    followed = tiny("pretrain", init_from=cfg.out_dir, lora=False, max_iters=1, out_dir=f"{tmp_path}/full",
                    learning_rate=1e-9, ema_decay=None)  # fmt: skip
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), train.train(followed)[0].params, merged)
    assert not os.path.exists(f"{checkpoint.find(followed.out_dir)}/adapter_config.json")
    assert train.train(dataclasses.replace(cfg, eval_only=True))[0].step == 4


def test_the_base_of_a_run_is_held_in_the_dtype_of_its_matmuls_and_adapters_in_float32(tiny):
    kinds = lambda tree: {str(x.dtype) for x in jax.tree.leaves(tree)}
    low = dataclasses.replace(SHAPE, dtype="bfloat16")
    cfg, _, start, _ = prepare(tiny("pretrain", model=low), train.train)
    new, base = rl.split(start, KEY, cfg)
    assert kinds(new) == {"float32"} and kept_in_16_bits(base)
    assert kinds(prepare(tiny("pretrain", model=low, lora=False), train.train)[2]) == {"float32"}


@pytest.mark.parametrize("changes, words", [
    ({"lora.rank": 0}, "lora.rank=0 must be at least 1"), ({"lora.alpha": 0.0}, "lora.alpha=0.0 must be above 0"),
    ({"lora.targets": ("q", "w")}, "expected one or more of q, k, v, o, gate, up, down"),
    ({"lora.targets": ("q", "q")}, "each once"), ({"lora.targets": ()}, "one or more"),
    (dict(init_from=None), "lora.rank=2 needs init_from"),
    ({"moving_reference.mode": "ema"}, "the reference is the base"),
])  # fmt: skip
def test_keys_that_contradict_each_other_are_refused(changes, words, tiny):
    refused(words, tiny, "pretrain", **changes)


def test_a_run_is_not_resumed_beside_another_base_than_it_began_with(tiny, place, tmp_path):
    shutil.copytree(place / "base", tmp_path / "base")
    cfg = tiny("pretrain", init_from=f"{tmp_path}/base", out_dir=f"{tmp_path}/run")
    train.train(cfg)
    more = dataclasses.replace(cfg, resume=True, max_iters=cfg.max_iters + 1)
    train.train(more)
    _, shape = checkpoint.load(tmp_path / "base")
    huggingface.save(tmp_path / "base", model.init(jax.random.key(7), shape), shape)
    longer = dataclasses.replace(more, max_iters=cfg.max_iters + 2)
    refused("base is another model than when .* was written", train.train, longer)


def test_a_run_is_resumed_with_its_own_adapters_or_not_at_all(tiny, place, tmp_path):
    cfg = tiny("pretrain")
    train.train(cfg)
    again = dataclasses.replace(cfg, resume=True)
    for changes, words in (({"lora.alpha": 3.0}, r"lora.alpha=3.0 \(it was 16.0\)"),
                           ({"lora.rank": 4}, r"lora.rank=4 \(it was 2\)"),
                           ({"lora.targets": ("q",)}, r"lora.targets=\['q'\] \(it was"),
                           (dict(lora=False), r"lora.rank=None \(it was 2\)")):  # fmt: skip
        refused(words, train.train, shared.changed(again, **changes))
    nothing = dataclasses.replace(again, out_dir=f"{tmp_path}/nothing", init_from=None)
    refused("there is no run in .*nothing'", train.train, nothing)
    full = tiny("pretrain", lora=False, out_dir=f"{tmp_path}/full")
    os.mkdir(full.out_dir)
    base, shape = checkpoint.load(place / "base")
    state = rl.State(1, base, (), None, None)
    checkpoint.save_run(dataclasses.replace(full, model=shape), state, data.Tokenizer.bytes(), None, False)
    refused(r"lora.rank=2 \(it was None\)", train.train, shared.changed(full, resume=True, **{"lora.rank": 2}))
