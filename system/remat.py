"""
Compute again in the backward pass what would else be kept in memory.
"""

import jax

from system import sharding


def after(first, tree):
    """Return a tree of arrays in a form that XLA cannot compute before the array `first` is there: behind a barrier. A
    CPU's XLA drops barriers: there 0 times a number of `first` is added, which XLA cannot know to be 0, as the number
    may be infinite."""
    first = jax.lax.stop_gradient(first)
    if not sharding.on_cpu():
        return jax.lax.optimization_barrier((first, tree))[1]
    zero = 0 * first.reshape(-1)[0].astype("float32")
    return jax.tree.map(lambda a: a + zero.astype(a.dtype), tree)


def recomputed(run, x, *others):
    """Return run(x, *others). The backward pass keeps only these inputs, and computes run a second time. run must not
    read other arrays.

    jax.checkpoint does the same with barriers, which XLA drops on a CPU. Then it finds that both computations are one,
    and keeps the first in memory. Here the second one waits for g, the gradient of the result, so it is another."""

    @jax.custom_vjp
    def once(*inputs):
        return run(*inputs)

    def again(inputs, g):
        x, *others = inputs
        return jax.vjp(run, after(g, x), *others)[1](g)

    once.defvjp(lambda *inputs: (run(*inputs), inputs), again)
    return once(x, *others)
