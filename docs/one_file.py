"""
GRPO for a masked diffusion language model, all of it in one file:  python docs/one_file.py [seed [steps [iterations]]]

A small denoiser learns 4x4 sudokus by predicting masked cells. Then rewards, one bit for each finished grid, teach it
to fill several cells at once and still be right. It takes two minutes on two cores, and needs jax, numpy and optax.

Read it from top to bottom:

    the task        puzzles, and the reward                      data/, rewards.py
    the model       a transformer that sees both sides           model.py
    diffusion       mask a share of the cells, predict them      diffusion.py
    sampling        fill the surest cells first                  sample.py
    GRPO            groups, advantages, log-probs, the loss      grpo.py, rl.py
    training        the same loop for both losses                train.py

The files on the right do the same for real models and tasks; a test compares the formulas here with theirs. Left out,
and in grpo.py: ratios to an old policy, a KL to a reference, negative advantages. So an update is REINFORCE in form,
with a bound for log p. The second to fourth update reuse completions of an older policy, uncorrected.

Shapes: B rows, T = 16 cells, D width, H heads, V = 5 tokens. Tokens 0 to 3 are the digits 1 to 4, token 4 is the mask.
"""

import itertools
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

T, V, MASK = 16, 5, 4
D, H, F, LAYERS = 64, 4, 176, 3  # width, heads, width of the mlp, layers
EMPTY, STEPS = 12, 4  # cells of a puzzle, and passes that fill them: three cells at a time

# ---- the task --------------------------------------------------------------------------------------------------------


def is_right(x):
    """Return the reward (B,): True for each grid x (B, T) in which every row, column and square has all four digits."""
    rows = np.asarray(x).reshape(-1, 4, 4)
    columns = rows.swapaxes(1, 2)
    squares = rows.reshape(-1, 2, 2, 2, 2).swapaxes(2, 3).reshape(-1, 4, 4)
    return (np.sort(np.concatenate([rows, columns, squares], 1)) == np.arange(4)).all((1, 2))


def all_grids():
    """Return the 288 right grids (288, T) in a random order."""
    grids = np.array([*itertools.product(itertools.permutations(range(4)), repeat=4)]).reshape(-1, T)
    return np.random.default_rng(0).permutation(grids[is_right(grids)])


def puzzles(key, grids, n):
    """Draw n puzzles (n, T): grids in which EMPTY cells are masks. 95% have several answers, and each is rewarded."""
    which, where = jax.random.split(key)
    x = grids[jax.random.randint(which, (n,), 0, len(grids))]
    rank = jnp.argsort(jax.random.uniform(where, (n, T)))
    return jnp.where(rank < EMPTY, MASK, x)


# ---- the model -------------------------------------------------------------------------------------------------------


def init(key):
    """Draw the parameters: a dict of arrays, and a list of such dicts, one for each layer."""
    matrices = dict.fromkeys("qkvo", (D, D)) | {"gate": (D, F), "up": (D, F), "down": (F, D)}
    blocks = [{"attn_norm": jnp.ones(D), "mlp_norm": jnp.ones(D)}] * LAYERS
    for n, (name, shape) in enumerate(matrices.items()):
        std = shape[0] ** -0.5 * ((2 * LAYERS) ** -0.5 if name in ("o", "down") else 1)
        drawn = std * jax.random.normal(jax.random.fold_in(key, n), (LAYERS, *shape))
        blocks = [w | {name: matrix} for w, matrix in zip(blocks, drawn, strict=True)]
    embed = 0.5 * jax.random.normal(jax.random.fold_in(key, 8), (V, D))
    head = 0.02 * jax.random.normal(jax.random.fold_in(key, 9), (D, V))
    return {"embed": embed, "blocks": blocks, "norm": jnp.ones(D), "head": head}


def norm(x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * gain


def rotate(x):
    """Rotate the heads x (B, T, H, D / H) by angles that grow with the cell's number: attention knows distances."""
    half = x.shape[-1] // 2
    angle = jnp.arange(T)[:, None, None] * 100.0 ** (-jnp.arange(half) / half)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def block(x, w):
    """Apply one layer: x (B, T, D), w its weights -> (B, T, D). Every cell attends to every cell."""
    h = norm(x, w["attn_norm"])
    q, k, v = ((h @ w[name]).reshape(*x.shape[:2], H, -1) for name in "qkv")
    scores = jnp.einsum("bthk,bshk->bhts", rotate(q), rotate(k)) / (D // H) ** 0.5
    mixed = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), v).reshape(x.shape)
    x = x + mixed @ w["o"]
    h = norm(x, w["mlp_norm"])
    return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]


def log_probs(params, z):
    """Predict every cell of z (B, T), which has masks -> log-probs (B, T, V); that of the mask is almost -inf."""
    x = params["embed"][z]
    for w in params["blocks"]:
        x = block(x, w)
    logits = norm(x, params["norm"]) @ params["head"]
    return jax.nn.log_softmax(logits.at[..., MASK].set(-1e30))


def logp_of(params, x, masked):
    """Hide the cells masked (B, T) of x (B, T), and return log p of each hidden cell -> (B, T), 0 elsewhere."""
    out = log_probs(params, jnp.where(masked, MASK, x))
    return jnp.where(masked, jnp.take_along_axis(out, x[..., None], -1)[..., 0], 0)


# ---- masked diffusion ------------------------------------------------------------------------------------------------


def random_masks(key, among, count):
    """Mask `count` (B,) random cells of those in `among` (B, T) -> (B, T) bool."""
    noise = jnp.where(among, jax.random.uniform(key, among.shape), 2.0)
    return among & (jnp.argsort(jnp.argsort(noise)) < count[:, None])


def pretrain_loss(params, key, x):
    """Mask 1 to T random cells of right grids x (B, T), and predict them -> scalar, a bound of -log p(x) per cell.

    A cell of a row with l masks counts T / l times, so every number of masks counts the same (LLaDA, 2502.09992)."""
    count_key, mask_key = jax.random.split(key)
    count = jax.random.randint(count_key, (len(x),), 1, T + 1)
    logp = logp_of(params, x, random_masks(mask_key, x >= 0, count))  # x >= 0: all cells
    return -(T / count[:, None] * logp).sum() / x.size


# ---- sampling --------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="temperature")
def fill(params, key, z, temperature):
    """Fill the masks of z (B, T) in STEPS passes. Each pass predicts all masks and fills those whose likeliest digit is
    most probable: the masks left, divided by the passes left. Cells of one pass do not see each other, so they may
    disagree: a pass for each cell would be right more often, and slower."""
    for i in range(STEPS):
        masked = z == MASK
        out = log_probs(params, z)
        drawn = jax.random.categorical(jax.random.fold_in(key, i), out / temperature) if temperature else out.argmax(-1)
        confidence = jnp.where(masked, out.max(-1), -jnp.inf)
        rank = jnp.argsort(jnp.argsort(-confidence))
        share = -(-masked.sum(1, keepdims=True) // (STEPS - i))  # rounded up
        z = jnp.where(masked & (rank < share), drawn, z)
    return z


# ---- GRPO ------------------------------------------------------------------------------------------------------------


def advantages(rewards):
    """Compare each reward with the mean of its group, in standard deviations: (N, G) -> (N, G), 0 if all are equal."""
    spread = rewards.std(1, ddof=1, keepdims=True)
    return (rewards - rewards.mean(1, keepdims=True)) / (spread + 1e-4)


def completion_logp(params, x, completion, part):
    """Estimate a lower bound of log p of completions: x (B, T); completion, part (B, T) bool -> (B,).

    No single pass gives log p of a whole completion. One copy of x hides `part` of it, a second copy the rest, so
    together they score every cell once. If the size of `part` is uniform on 0 to L, the weighted sum is on average the
    ELBO of filling one cell at a time in random order (ESPO, 2512.03759)."""
    L, total = completion.sum(1), 0
    for masked in (part, completion & ~part):
        weight = (L + 1) / (2 * jnp.maximum(masked.sum(1), 1))
        total += weight * logp_of(params, x, masked).sum(1)
    return total


def policy_loss(params, key, x, completion, adv):
    """Make completions with a positive advantage likelier: x, completion (B, T), adv (B,) -> scalar, per cell."""
    count_key, mask_key = jax.random.split(key)
    count = jax.random.randint(count_key, (len(x),), 0, EMPTY + 1)
    part = random_masks(mask_key, completion, count)
    return -(adv * completion_logp(params, x, completion, part)).sum() / completion.sum()


def rollout(params, key, grids, n_prompts=128, group=4, n_update=96):
    """Write completions of new puzzles, and keep the best -> (x, completion, adv) of `policy_loss`, the mean reward.

    Completions below the average of their group get weight 0: pushing a lower bound of log p down need not lower p."""
    puzzle_key, fill_key = jax.random.split(key)
    z = jnp.repeat(puzzles(puzzle_key, grids, n_prompts), group, 0)
    x = fill(params, fill_key, z, 1.0)
    rewards = is_right(x).astype(np.float32).reshape(n_prompts, group)
    adv = advantages(rewards).reshape(-1)
    best = np.argsort(-adv)[:n_update]
    return (x[best], z[best] == MASK, jnp.array(adv[best].clip(0))), rewards.mean()


# ---- training --------------------------------------------------------------------------------------------------------


def train(loss, params, learning_rate, key, iterations, next_batch, updates, show):
    """Take `updates` steps of AdamW, with new masks, on each batch of next_batch(params, key) -> the trained params."""
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(learning_rate, 0.9, 0.99))

    @jax.jit
    def update(params, state, *batch):
        change, state = tx.update(jax.grad(loss)(params, *batch), state, params)
        return optax.apply_updates(params, change), state

    state = tx.init(params)
    for i in range(iterations):
        *update_keys, batch_key = jax.random.split(jax.random.fold_in(key, i), updates + 1)
        batch, reward = next_batch(params, batch_key)
        for update_key in update_keys:
            params, state = update(params, state, update_key, *batch)
        if (i + 1) % (100 // updates) == 0:
            show(i + 1, params, reward)
    return params


def main(seed=0, steps=400, iterations=125):
    """Pre-train for `steps`, tune for `iterations`, and print how many puzzles of held-out grids are filled right."""
    begun, grids = time.time(), jnp.array(all_grids())
    known, held_out = grids[:200], puzzles(jax.random.key(1), grids[200:], 512)
    init_key, pretrain_key, tune_key = jax.random.split(jax.random.key(seed), 3)

    def right_grids(params, key):
        return (known[jax.random.randint(key, (128,), 0, len(known))],), None

    def show(step, params, reward):
        greedy, sampled = (is_right(fill(params, tune_key, held_out, t)).mean() for t in (0.0, 1.0))
        earned = "" if reward is None else f"reward {reward:4.0%}, "
        print(f"{time.time() - begun:4.0f} s  step {step:3}  {earned}held out: greedy {greedy:4.0%}, "
              f"sampled {sampled:4.0%}  {'#' * round(30 * sampled)}", flush=True)  # fmt: skip

    print("Pre-training: predict masked cells of right grids")
    base = train(pretrain_loss, init(init_key), 3e-3, pretrain_key, steps, right_grids, 1, show)
    print("GRPO: one bit of reward for each grid")
    rate = optax.cosine_decay_schedule(1e-3, 4 * max(iterations, 1), 0.05)
    tuned = train(policy_loss, base, rate, tune_key, iterations, partial(rollout, grids=known), 4, show)
    before, after = (fill(params, tune_key, held_out, 0.0) for params in (base, tuned))
    for n in np.flatnonzero(~is_right(before) & is_right(after))[:1]:  # none, if nothing was learnt
        print("The first held-out puzzle that was wrong before GRPO and is right after")
        for cells in zip(*(np.reshape(grid, (4, 4)) for grid in (held_out[n], before[n], after[n])), strict=True):
            print("   ", "    ".join(" ".join("1234."[c] for c in row) for row in cells))


if __name__ == "__main__":
    if len(sys.argv) > 4 or not all(map(str.isdecimal, sys.argv[1:])):
        sys.exit(__doc__)
    main(*map(int, sys.argv[1:]))
