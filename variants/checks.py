"""
Settings that a plan of sampling must not have. Every check raises a ValueError that says what is wrong and what to do
instead.

These checks stand here, and not beside the classes, so that a reader of the sampler need not read them.
"""
import dataclasses


def plan(plan, orders, rules, caches):
    """Check the fields of a sample.Plan. orders, rules, caches: the names that there are."""
    least = dict(steps=1, block_len=1, top_k=1, threshold=0, factor=0, budget=0, temperature=0)
    values = dataclasses.asdict(plan)
    expected = {name: (values[name] is None or values[name] >= x, f"at least {x}") for name, x in least.items()} | {
        "order": (plan.order in orders, "one of " + ", ".join(orders)),
        "rule": (plan.rule in rules, "one of " + ", ".join(rules)),
        "cache": (plan.cache in caches, "one of " + ", ".join(caches)),
        "top_p": (plan.top_p is None or 0 < plan.top_p <= 1, "None, or a number above 0 and up to 1"),
        "repetition_penalty": (plan.repetition_penalty > 0, "above 0; 1 changes nothing")}
    for name, (holds, wanted) in expected.items():
        if not holds:
            raise ValueError(f"{name}={values[name]!r}: expected {wanted}")


def model_and_plan(cfg, plan):
    """Raise ValueError if a model cannot be sampled from by a plan."""
    if cfg.mask_id is None:
        raise ValueError("this model has no mask token, so nothing in z can be masked: set mask_id in its config")
    if cfg.causal and plan.order != "left":
        raise ValueError(f"order={plan.order!r}: a causal model sees only what is left of a mask; use order='left'")
    if cfg.causal and plan.cache != "none":
        raise ValueError(f"cache={plan.cache!r}: a causal model has a cache of its own, an exact one; leave it out")
    if cfg.noise == "uniform" and plan.cache != "none":
        raise ValueError(f"cache={plan.cache!r} would keep keys of noise, which a model with noise='uniform' redraws "
                         "at every step: leave it out")
    if plan.rule == "drafts":
        for_drafts(cfg, plan)
    if cfg.block_causal and cfg.block_causal % min(plan.block_len or cfg.block_causal, cfg.block_causal):
        raise ValueError(f"block_len={plan.block_len}: expected a divisor of block_causal={cfg.block_causal}, whose "
                         "blocks are filled in parts of this length, or a larger number, which changes nothing")


def for_drafts(cfg, plan):
    """Raise ValueError if a model or a plan cannot be used with rule="drafts"."""
    if not cfg.causal_text or cfg.block_causal < 2:
        raise ValueError("rule='drafts' needs a model that is autoregressive and a denoiser at once: causal_text=True "
                         f"with blocks of 2 or more, now causal_text={cfg.causal_text}, "
                         f"block_causal={cfg.block_causal}; for other models take another rule, such as quota")
    needed = {"order": "left", "cache": "none", "block_len": None, "repetition_penalty": 1}
    for name, value in needed.items():
        if getattr(plan, name) != value:
            raise ValueError(f"{name}={getattr(plan, name)!r}: rule='drafts' writes from left to right, with a cache "
                             f"of its own, what the causal model would write; it needs {name}={value!r}")
