"""
Settings that a model must not have. Every check raises a ValueError that says what is wrong and what to do instead.

These checks stand here, and not beside the class, so that a reader of the model need not read them.
"""
from system.fields import check_types, describe, fits  # noqa: F401 (other files find them here)


def model_config(cfg):
    """Check the fields of a model.ModelConfig and those of the variants in its `use`."""
    for owner in (cfg, *cfg.use):
        check_types(owner)
    for name in ("vocab_size", "n_layer", "n_head", "d_model", "d_head", "d_ff", "window", "block_causal"):
        if getattr(cfg, name) is not None and getattr(cfg, name) < 1:
            raise ValueError(f"{name}={getattr(cfg, name)} must be at least 1")
    if cfg.d_head is None and cfg.d_model % cfg.n_head:
        raise ValueError(f"d_model={cfg.d_model} must be divisible by n_head={cfg.n_head} (or set d_head)")
    if cfg.n_kv_head is not None and (cfg.n_kv_head < 1 or cfg.n_head % cfg.n_kv_head):
        raise ValueError(f"n_head={cfg.n_head} must be divisible by n_kv_head={cfg.n_kv_head}")
    if cfg.head_dim * cfg.rotary_share % 2 or not 0 < cfg.rotary_share <= 1:
        raise ValueError(f"rotary positions turn pairs, but here {cfg.rotary_share} of a head's {cfg.head_dim} "
                         "columns: make that an even number")
    if cfg.rope_scaling is not None:
        numbers = cfg.rope_scaling
        if len(numbers) not in (4, 5, 6) or min(numbers) <= 0 or numbers[1] >= numbers[2]:
            raise ValueError(f"rope_scaling={cfg.rope_scaling}: expected four numbers above 0, as in 8,1,4,8192: "
                             "factor, low_freq_factor < high_freq_factor, original_max_position_embeddings; or "
                             "five or six for YaRN: also attention_factor, llama_4_scaling_beta")
    if cfg.causal and not cfg.shift:
        raise ValueError("causal=True needs shift=True: a position that sees its own token cannot predict it")
    if cfg.causal and cfg.block_causal:
        raise ValueError(f"causal=True and block_causal={cfg.block_causal}: set only one of them (block_causal=1 "
                         "is another model: it predicts token i from a mask in place i)")
    if cfg.causal_text and (not cfg.block_causal or cfg.shift):
        raise ValueError(f"causal_text=True says how the blocks of a block_causal model without shift see each "
                         f"other, now block_causal={cfg.block_causal}, shift={cfg.shift}")
    if cfg.dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype={cfg.dtype!r}: one of float32, bfloat16")
    ids = [(name, getattr(cfg, name)) for name in ("mask_id", "eos_id", "pad_id", "bos_id")]
    ids += [("end_ids", i) for i in cfg.end_ids]
    for name, i in ids:
        # A causal model never reads a mask, so its id may lie beyond the vocabulary: all others are text.
        size = cfg.vocab_size + (cfg.causal and name == "mask_id")
        if i is not None and not 0 <= i < size:
            raise ValueError(f"{name}={i} is outside the vocabulary of {cfg.vocab_size} ids")
    if cfg.mask_id is not None and cfg.mask_id in (*cfg.ends, cfg.pad_id, cfg.bos_id):
        raise ValueError(f"mask_id={cfg.mask_id}, eos_id={cfg.eos_id}, end_ids={cfg.end_ids}, pad_id={cfg.pad_id}, "
                         f"bos_id={cfg.bos_id}: a mask must look like none of the tokens that can be there")
    for section in cfg.use:
        for wrong, message in section.between_fields(cfg):
            if wrong:
                raise ValueError(message)
