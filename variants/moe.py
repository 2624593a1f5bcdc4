"""
Mixtures of experts (SDAR-MoE, LLaDA2): a layer has many small mlps, the experts, and each token goes through
a few of them, which a router picks.

Leaves of a layer: `router`, `expert_*`, and where a family has them `router_bias` (it counts only when experts are
picked) and `shared_*` (the experts of every token, as one mlp). The first layers of LLaDA2 have one wide mlp instead.
"""
import dataclasses
import functools

import jax
import jax.numpy as jnp

import model
from system import kernels, placement, sections, sharding
from system.sections import NON_NEGATIVE, POSITIVE_INT, Section, key


@dataclasses.dataclass(frozen=True)
class Shape(Section):
    """The fields of a ModelConfig that describe its experts."""

    n_experts: int = key(8, "E, experts per layer, of which each token takes a few", POSITIVE_INT)
    experts_per_token: int = key(2, "experts that each token goes through", POSITIVE_INT)
    d_expert: int = key(64, "the width inside an expert", POSITIVE_INT)
    routing: str = key("softmax", "how scores are made: softmax (SDAR-MoE), or sigmoid, with a bias (LLaDA2)",
                       choices=("softmax", "sigmoid"))  # fmt: skip
    norm_routing: bool = False  # the weights of a token's experts are divided by their sum
    routing_scale: float = 1.0  # the weights of a token's experts are multiplied by this
    expert_groups: int = key(1, "the number of groups that the experts form", POSITIVE_INT)
    groups_per_token: int = key(1, "groups that a token's experts come from, by their two best", POSITIVE_INT)
    n_shared: int = key(0, "experts that every token goes through as well", NON_NEGATIVE)
    first_dense: int = 0  # how many of the first layers have one mlp of width d_ff instead of experts
    brings = {"mlp": "moe"}

    def between_keys(self, c):
        E, groups, taken = self.n_experts, self.expert_groups, self.groups_per_token
        reach = E // groups * taken
        yield not 0 <= self.first_dense < c.n_layer, (
            f"moe.first_dense={self.first_dense}: expected 0 to {c.n_layer - 1}, for n_layer={c.n_layer}")
        yield E % groups or groups > 1 and E < 2 * groups, (
            f"moe.n_experts={E} must be a multiple of moe.expert_groups={groups}, of which each has two or more")
        yield taken > groups, f"moe.groups_per_token={taken}: expected 1 to moe.expert_groups={groups}"
        yield self.experts_per_token > reach, (
            f"moe.experts_per_token={self.experts_per_token}: expected 1 to {reach}, the experts in reach")


def shapes(cfg, i) -> dict:
    """List the leaves that stand in place of the mlp of layer i as {name: shape}."""
    own = Shape.of(cfg)
    if i < own.first_dense:
        return model.dense_shapes(cfg, i)
    D, E, F = cfg.d_model, own.n_experts, own.d_expert
    found = {
        "router": (D, E),
        "expert_gate": (E, D, F),
        "expert_up": (E, D, F),
        "expert_down": (E, F, D),
    }
    if own.routing == "sigmoid":
        found["router_bias"] = (E,)
    if own.n_shared:
        F *= own.n_shared
        found |= {"shared_gate": (D, F), "shared_up": (D, F), "shared_down": (F, D)}
    return found


def apply(h, w, cfg):
    """Apply what a layer has: the experts, or one mlp: h (B, S, D) -> (B, S, D)."""
    return mixture(h, w, cfg) if "router" in w else model.dense(h, w, cfg)


def mixture(h, w, cfg):
    """Send each token through its experts, and through the shared ones: h (B, S, D) -> (B, S, D)."""
    expert, weight = route(h, w, cfg)
    matrices = (w[f"expert_{name}"] for name in ("gate", "up", "down"))
    out = placement.split_inside(weighted_sum, (h.astype(cfg.dtype), expert, weight), *matrices)
    out = out.astype(h.dtype)
    if Shape.of(cfg).n_shared:
        gate = kernels.matmul(h, w["shared_gate"])
        inner = jax.nn.silu(gate) * kernels.matmul(h, w["shared_up"])
        out += kernels.matmul(inner, w["shared_down"])
    return out


def route(h, w, cfg):
    """Pick the experts of each token: h (B, S, D) -> their numbers and weights (B, S, experts_per_token).

    In float32, also if the model computes in 16 bits: a rounded score can pick another expert."""
    own = Shape.of(cfg)
    h, router = h.astype(jnp.float32), w["router"].astype(jnp.float32)
    logits = jnp.matmul(h, router, precision="highest")
    scores = jax.nn.softmax(logits) if own.routing == "softmax" else jax.nn.sigmoid(logits)  # (B, S, E)
    rank = jax.lax.stop_gradient(scores)
    if "router_bias" in w:
        rank += w["router_bias"]
    if own.expert_groups > 1:
        by_group = rank.reshape(*rank.shape[:-1], own.expert_groups, -1)
        best_two = jax.lax.top_k(by_group, 2)[0].sum(-1)
        _, groups = jax.lax.top_k(best_two, own.groups_per_token)
        in_reach = (groups[..., None] == jnp.arange(own.expert_groups)).any(-2)
        rank = jnp.where(in_reach[..., None], by_group, -jnp.inf).reshape(rank.shape)
    _, expert = jax.lax.top_k(rank, own.experts_per_token)
    weight = jnp.take_along_axis(scores, expert, -1)
    if own.norm_routing:
        weight /= weight.sum(-1, keepdims=True) + 1e-20
    return expert, weight * own.routing_scale


def weighted_sum(h, expert, weight, gate, up, down):
    """Add up the weighted outputs of each token's experts: h (B, S, D), expert and weight (B, S, n), gate and up
    (E, D, F), down (E, F, D) -> (B, S, D) float32."""
    n, D, E = expert.shape[-1], h.shape[-1], len(gate)
    group = expert.reshape(-1)  # of each choice (R,), R = B * S * n
    choice = jnp.argsort(group)  # sorted by expert
    sizes = jnp.zeros(E, int).at[group].add(1)
    x = h.reshape(-1, D)
    if sharding.platform() == "tpu":
        # Elsewhere XLA computes every expert for every row, in jax 0.10.2 on CPUs and on NVIDIA's GPUs.
        place = jnp.arange(len(group))
        multiply = functools.partial(jax.lax.ragged_dot, group_sizes=sizes)
        rows = x[choice // n]
    else:
        place, tile_expert, height = make_tiles(group[choice], sizes)
        multiply = functools.partial(multiply_tiles, expert=tile_expert)
        source = jnp.full(len(tile_expert) * height, len(x)).at[place].set(choice // n)
        rows = x.at[source].get(mode="fill", fill_value=0).reshape(-1, height, D)
    inner = jax.nn.silu(multiply(rows, gate)) * multiply(rows, up)
    out = multiply(inner, down).reshape(-1, D)
    chosen = out[jnp.zeros_like(place).at[choice].set(place)]  # in the order of tokens again
    return (chosen.reshape(*expert.shape, D) * weight[..., None]).sum(-2)


def make_tiles(group, sizes):
    """Cut rows that are sorted by expert into tiles of one expert each; the last tile of an expert may be partly empty.

    group (R,): the expert of each row; sizes (E,): rows per expert. Returns the place of each row in the tiles (R,),
    the expert of each tile (M,), and the height of a tile: the mean rows per expert, so that tiles are at most 2 E.
    """
    R, E = len(group), len(sizes)
    height = -(-R // E)
    tiles = -(-sizes // height)
    M = (R + min(E, R) * (height - 1)) // height
    first_row, first_tile = jnp.cumsum(sizes) - sizes, jnp.cumsum(tiles) - tiles
    place = first_tile[group] * height + jnp.arange(R) - first_row[group]
    expert = jnp.searchsorted(jnp.cumsum(tiles), jnp.arange(M), side="right")
    return place, jnp.minimum(expert, E - 1), height


@jax.checkpoint
def multiply_tiles(x, w, expert):
    """Multiply tiles x (M, rows, I) by the matrices w (E, I, O) of their experts (M,) -> (M, rows, O). The gradient
    reads the matrices anew, rather than to keep a copy per tile."""
    return jnp.einsum("mri,mio->mro", x, w[expert])


sections.add(model.MLPS, moe=model.Mlp(shapes, apply))
