"""GDPO's estimator of log-probs: shares of masks that are not random."""
import jax
import jax.numpy as jnp
import numpy as np

import diffusion


def quadrature(key, completion, inputs):
    """GDPO: n views whose shares of masks t are the points of Gauss-Legendre quadrature, with its weights, instead of
    random shares. The count t L + 1/2 (`elbo` masks ceil(t L)) is rounded up or down at random, right on average."""
    round_key, mask_key = jax.random.split(key)
    L = completion.sum(1)
    points, weights = np.polynomial.legendre.leggauss(inputs.n)  # on -1..1, with weights that sum to 2
    t = (1 + points[:, None]) / 2
    u = jax.random.uniform(round_key, (inputs.n, len(L)))
    count = jnp.clip(jnp.floor(t * L + 0.5 + u), 1, jnp.maximum(L, 1))
    masked = diffusion.random_subsets(mask_key, completion, count)
    each = weights[:, None] / 2 * L / count
    return diffusion.split_weight(masked, masked * each[..., None])


diffusion.ESTIMATORS["quadrature"] = quadrature
