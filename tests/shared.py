"""For the tests that run train.train many times: to trace and compile a step costs as much as hundreds of them."""
import contextlib
import functools
import glob
import inspect
import itertools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import config
import data
import diffusion
import grpo
import model
import rewards
import rl
import sample
from checkpoints import checkpoint, huggingface
from system import sections
from variants import paired as pairs

# Keys that no compiled function depends on: where a run reads and writes, and when it does what.
FREE = ("out_dir dataset init_from resume eval_only seed rewards eval_rewards eval_interval save_interval log_interval "
        "stop_at eval_size typed").split()  # fmt: skip
FREE_FILES = "checkpoint", "runs", "wandb"


def changed(cfg, **keys):
    """Return settings with these keys, named as on the command line."""
    return (config if isinstance(cfg, config.Config) else sections).changed(cfg, keys)


def run(**keys):
    return changed(config.Config(), **keys)


def shape(**keys):
    return changed(model.ModelConfig(), **keys)


def plan(**keys):
    return changed(sample.Plan(), **keys)


def tracked(pattern):
    """List the files of this repository with such a name, without those of a fork; all files where there is no git."""
    listed = subprocess.run(["git", "ls-files", f":(glob){pattern}"], capture_output=True, text=True)
    return [*filter(os.path.exists, listed.stdout.splitlines())] or glob.glob(pattern, recursive=True)


def slow(*case):
    """Mark a row of a table of cases as slow."""
    return pytest.param(*case, marks=pytest.mark.slow)


def refused(said, call, *given, **keys):
    """Assert that call(*given, **keys) raises a ValueError, and that its message is one line and says this."""
    __tracebackhide__ = True
    with pytest.raises(ValueError, match=said) as e:
        call(*given, **keys)
    assert "\n" not in str(e.value), e.value


def compiled(f):
    """Compile a function whole: op by op, a first call compiles some hundred small programs."""
    settings = {"cfg", "start", "length", "say", "n"} & inspect.signature(f).parameters.keys()
    return jax.jit(f, static_argnames=sorted(settings))


def estimated_logp(params, x, views, cfg, valid=None, start=0):
    """Log p of each token of x (B, T), summed over the views by their weights; 0 where no view scores it."""
    logp, _ = diffusion.view_logp(params, x, views.masked, cfg, valid, start, views.weight != 0)
    return (views.weight * logp).sum(1)


loss, view_logp, token_logp = map(compiled, (diffusion.loss, diffusion.view_logp, estimated_logp))
likelihood, logits_of = map(compiled, (diffusion.likelihood, model.logits))
init = jax.jit(model.init, static_argnames="cfg")
views = jax.jit(diffusion.views, static_argnames=("name", "n", "cfg"))


def __getattr__(name):
    """KEY is made when it is asked for: a benchmark prepares its process (runs.keep_memory) before JAX starts."""
    if name == "KEY":
        return jax.random.key(0)
    raise AttributeError(name)


TINY = model.ModelConfig(vocab_size=6, n_layer=1, n_head=2, d_model=16, rope_theta=3.0, mask_id=5, eos_id=4, pad_id=4)
SECONDS = dict(max_prompt_len=3, max_new_tokens=5, batch_size=4, eval_size=4, diffusion_steps=2,
               warmup_iters=0, lr_schedule="constant", max_iters=1, eval_interval=1, log_interval=1)  # fmt: skip


def close(a, b, tol=1e-4, rtol=0.0):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=tol, rtol=rtol)


def far(params, by):
    """Move all params, without compiling a program for each shape."""
    moved = lambda w: np.asarray(w) + np.float32(by) * np.asarray(jax.random.normal(jax.random.key(0), w.shape))
    return jax.tree.map(lambda w: jax.numpy.asarray(moved(w)), params)


def but_mask(logits, mask_id=308):
    """Leave out the logits of the mask, which each program bans in its own way."""
    return np.delete(np.asarray(logits), mask_id, -1)


def sharp(cfg, seed, sure=25):
    """Params whose distributions are far from uniform, and differ with the position and what stands around it."""
    params = init(jax.random.key(seed), cfg)
    blocks = [w | {"q": w["q"] * 3, "k": w["k"] * 3, "o": w["o"] * 8} for w in params["blocks"]]
    return params | {"head": params["head"] * sure, "embed": params["embed"] * 8, "blocks": blocks}


def random_torch(kind, **shape):
    """A small model of transformers, far from its initialization, where scores are too small for a cap and biases 0."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = dict(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, tie_word_embeddings=False)  # fmt: skip
    config = transformers.AutoConfig.for_model(kind, **small | shape)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p += 0.2 * torch.randn_like(p)
    return theirs


@functools.cache
def fixture(name):
    """Open a small model of another program's code -> its params, its ModelConfig, what that code makes of it."""
    folder = f"tests/fixtures/{name}"
    return *checkpoint.load(folder), np.load(f"{folder}/expected.npz")


def torch_logits(theirs, z, seen=None, **more):
    """Logits (B, T, V) of a model of transformers. seen (B or 1, T, T): who sees whom; None: as its code has it."""
    torch = pytest.importorskip("torch")
    if seen is not None:
        mask = np.where(np.broadcast_to(seen, (len(z), *seen.shape[1:])), 0, -1e30).astype(np.float32)
        more["attention_mask"] = torch.tensor(mask[:, None])
    with torch.no_grad():
        return theirs(torch.tensor(np.asarray(z)), **more).logits.numpy()


def jsonl(path, rows):
    """Write rows to a .jsonl file and return its path as text."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_splits(folder, train, val):
    """Write a data set and return its folder as text."""
    for split, rows in (("train", train), ("val", val)):
        jsonl(folder / f"{split}.jsonl", rows)
    return str(folder)


def write_rows(folder, more=lambda prompt: {}, order=range(100)):
    """Write train.jsonl, 80 rows "37" -> "73", and val.jsonl, 20."""
    rows = [{"prompt": p, "completion": p[::-1]} | more(p) for p in map("{:02d}".format, order)]
    write_splits(folder, rows[:80], rows[80:])


def byte_model(folder, dtype="float32", n_out=None, **switches):
    """Write a small random model with our tokenizer of bytes -> its params, its ModelConfig."""
    tok = data.Tokenizer.bytes()
    ids = dict(vocab_size=tok.vocab_size, mask_id=tok.mask_id, eos_id=tok.eos_id, pad_id=tok.pad_id)
    cfg = shape(**dict(n_layer=1, n_head=2, d_model=16) | ids | switches)
    params = model.cast(model.init(jax.random.key(0), cfg, n_out), dtype)
    huggingface.save(folder, params, cfg)
    tok.save(folder)
    return params, cfg


def known(f):
    """Return a key that is equal for functions of one name, and for partials of one function with equal arguments."""
    return (f.func, f.args, *f.keywords.items()) if isinstance(f, functools.partial) else f.__qualname__


def kept_in_16_bits(params):
    """True if all params are bfloat16 but the gains of norms, which stay float32."""
    return all(str(x.dtype) == ("float32" if path[-1].key.endswith("norm") else "bfloat16")
               for path, x in jax.tree_util.tree_leaves_with_path(params))  # fmt: skip


def advantages(table, cfg):
    """The advantages that an iteration gives to a table of rewards (R, N, G)."""
    return grpo.advantages(table, **rewards.advantage_settings(table, cfg))


def flat(tree):
    """List the arrays of a tree by path, on the host."""
    return {path: np.asarray(x) for path, x in checkpoint.leaves(tree).items()}


def lines(out_dir, name="metrics.jsonl"):
    """Read a log of a run."""
    with open(os.path.join(out_dir, name)) as f:
        return [json.loads(line, parse_constant=pytest.fail) for line in f]  # NaN and Infinity are not JSON


def page_data(path):
    """Read the JSON in a page."""
    with open(path, encoding="utf-8") as f:
        return json.loads(f.read().split('type="application/json">')[1].split("</script>")[0])


def on_devices(n, **more):
    """The environment of a process with n devices of a CPU. The long timeout is for a busy machine. Collectives of a
    program wait for each other, each in a thread: NPROC gives them enough threads."""
    flags = (f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={n} "
             "--xla_cpu_collective_call_terminate_timeout_seconds=600")  # fmt: skip
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "NPROC": "64"} | more


def elsewhere(n, program, *arguments):
    """Run a program of Python with n devices and return its output."""
    done = subprocess.run([sys.executable, program, *map(str, arguments)], capture_output=True, text=True, timeout=900,
                          env=on_devices(n, PYTHONPATH=os.getcwd()))  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def completed(capsys, *arguments):
    """Run sample.py in this process -> its exit code, stdout, stderr."""
    from tools import complete  # which imports variants, that other tests want to see imported when they are needed

    code = complete.main([*arguments])
    return code, *capsys.readouterr()


def python(*arguments, cwd=None, **env):
    """Run Python with these changes of the environment (None: without) -> the process that has ended."""
    env = {k: v for k, v in (os.environ | env).items() if v is not None}
    return subprocess.run([sys.executable, *map(str, arguments)], env=env, cwd=cwd, capture_output=True, text=True)


def without(hidden, *arguments):
    """Run Python where these packages or modules cannot be imported -> the process that has ended."""
    return python(*arguments, UNMASK_ORACLES=None, UNMASK_HIDDEN=hidden, PYTHONPATH="tests/hidden")


def left(out_dir):
    """Return what a run leaves, but for times: {file: bytes} of its last checkpoint, its run.json, its logs."""
    folder = checkpoint.find(out_dir)
    files = {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}
    run = json.loads(files.pop("run.json"))
    logs = [[{k: v for k, v in row.items() if "time" not in k} for row in lines(out_dir, name)]
            for name in checkpoint.LOGS]  # fmt: skip
    return files, {k: v for k, v in run.items() if k != "config"}, logs


@functools.partial(jax.jit, static_argnames=("cfg", "norm", "paired"))
def noise_of(key, batch, cfg, norm="token", paired=False):
    """Draw the masks of a batch as a run with these keys does."""
    draw = pairs.noise if paired else diffusion.noise
    return draw(key, batch, cfg, norm)


def batches_of(task, policy, key, **more):
    """Run an iteration of a Task without its updates -> [(minibatch, numbers to log)], the numbers with the first; the
    minibatch is None if there is no update."""
    made = []
    notes = task.iterate(policy, key, made.append, **more)
    return [(b, {} if i else notes) for i, b in enumerate(made)] or [(None, notes)]


def watch(monkeypatch, objective, each):
    """Call each(start, state, batch) at every minibatch of a run, and learn from the batch that it returns, if any."""
    made = rl.OBJECTIVES[objective]

    def watched(cfg, tok, start):
        task = made(cfg, tok, start)
        return task._replace(iterate=lambda state, key, update, **more: task.iterate(
            state, key, lambda batch: update(each(start, state, batch) or batch), **more))  # fmt: skip

    monkeypatch.setitem(rl.OBJECTIVES, objective, watched)


def chatty(*more):
    """Make a tokenizer of bytes with the special tokens of ChatML, and these."""
    specials = "<|mask|>", "<|pad|>", "<|eos|>", "<|im_start|>", "<|im_end|>", *more
    roles = {"mask": "<|mask|>", "pad": "<|pad|>", "eos": "<|eos|>"}
    return data.Tokenizer(data.Tokenizer.bytes().vocab, {text: 256 + i for i, text in enumerate(specials)}, roles)


def facts(tok):
    """What two tokenizers have in common that give all texts the same ids, and the same ids the same roles."""
    return tok.roles, tok.bos_ids, tok.content()


@contextlib.contextmanager
def compiled_once():
    """Let runs that differ only in keys of FREE share their update and their jitted partials; no curves are drawn."""
    jit, make_update, made = jax.jit, rl.make_update, {}

    def shared_jit(*args, **options):
        if options or not isinstance(args[0], functools.partial):
            return jit(*args, **options)
        return made.setdefault(known(args[0]), jit(*args))

    def shared_update(loss, tx, cfg, gradient=None):
        if gradient:
            return make_update(loss, tx, cfg, gradient)
        key = (known(loss), *((k, v) for k, v in vars(cfg).items() if k not in (*FREE, "use")),
               tuple(s for s in cfg.use if config.variant_of(s) not in FREE_FILES))
        return made.setdefault(key, make_update(loss, tx, cfg))

    with pytest.MonkeyPatch.context() as m:
        m.setattr(jax, "jit", shared_jit)
        m.setattr(rl, "make_update", shared_update)
        yield


def all_paths(choice, mask, length=3):
    """List all n ways to fill L = `length` masks with three tokens -> x, step (n, L), chance (n,).

    chance: the probability of the choices of places, without that of the tokens
    choice(z, n): what may be filled at step n in the state z (L,), a list of (probability, (L,) bool)"""
    done = []

    def go(z, step, chance, n):
        if mask not in z:
            done.append((z, step, chance))
            return
        for share, chosen in choice(z, n):
            for tokens in itertools.product(range(3), repeat=chosen.sum()):
                filled = z.copy()
                filled[chosen] = tokens
                go(filled, np.where(chosen, n, step), chance * share, n + 1)

    go(np.full(length, mask), np.full(length, -1), 1.0, 0)
    return (np.array(a) for a in zip(*done, strict=True))


def equations(program, in_loop=False):
    """Yield (equation, is it in a loop) of a jaxpr and of all within it."""
    for equation in program.eqns:
        yield equation, in_loop
        for part in jax.tree.leaves([*equation.params.values()], is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(part, "eqns"):
                yield from equations(part, in_loop or equation.primitive.name in ("while", "scan"))
