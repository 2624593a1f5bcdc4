"""DACA-GRPO's estimator of log-probs: the tokens are divided, and each part is scored given the others."""
import jax
import jax.numpy as jnp

import diffusion


def pseudo_likelihood(key, completion, inputs):
    """Divide the tokens of the completion at random into n strata of equal size; each view masks one, so
    that every token is scored once, given all other strata. n=1 is `one_step` without its masks in the prompt."""
    noise = jnp.where(completion, jax.random.uniform(key, completion.shape), 2.0)
    stratum = jnp.argsort(jnp.argsort(noise, 1), 1) % inputs.n
    masked = completion & (stratum == jnp.arange(inputs.n)[:, None, None])
    return diffusion.Views(masked, masked, completion)


diffusion.ESTIMATORS["strata"] = pseudo_likelihood
