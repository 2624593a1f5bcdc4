"""The network of model.py, its training step and LLaDA's sampler in PyTorch, for tests/bench.py to compare with."""
import functools

import numpy as np
import torch
import torch.nn.functional as F


def tensors(params, cfg):
    """Our params -> the same as tensors, a flat dict; PyTorch's matrices are (out, in)."""
    tensor = lambda x: torch.from_numpy(np.array(x.T if x.ndim == 2 else x, order="C"))
    weights = {"embed": tensor(params["embed"].T), "norm": tensor(params["norm"]), "head": tensor(params["head"])}
    return weights | {f"{name}{i}": tensor(x) for i, w in enumerate(params["blocks"]) for name, x in w.items()}


def logits(p, z, cfg):
    """Tensors, z (B, T) -> (B, T, V), as one writes it in PyTorch."""
    B, T = z.shape
    norm = lambda x, gain: F.rms_norm(x, (cfg.d_model,), gain, cfg.norm_eps)
    count = functools.partial(torch.arange, device=z.device)
    angle = count(T)[:, None] * cfg.rope_theta ** (-count(0, cfg.head_dim, 2) / cfg.head_dim)
    cos, sin = angle.cos(), angle.sin()
    rotate = lambda a, b: torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    x = p["embed"][z]
    for i in range(cfg.n_layer):
        h = norm(x, p[f"attn_norm{i}"])
        q, k, v = (F.linear(h, p[f"{n}{i}"]).view(B, T, cfg.n_head, -1).transpose(1, 2) for n in "qkv")
        a = F.scaled_dot_product_attention(rotate(*q.chunk(2, -1)), rotate(*k.chunk(2, -1)), v)  # (B, H, T, K)
        x = x + F.linear(a.transpose(1, 2).reshape(B, T, -1), p[f"o{i}"])
        h = norm(x, p[f"mlp_norm{i}"])
        x = x + F.linear(F.silu(F.linear(h, p[f"gate{i}"])) * F.linear(h, p[f"up{i}"]), p[f"down{i}"])
    out = F.linear(norm(x, p["norm"]), p["head"])
    return torch.where(count(cfg.vocab_size) == cfg.mask_id, -1e30, out)


def training(weights, x, cfg, compiled):
    """-> loss(batch), grad(batch) and step(): the noise, the clipping and the optimizer of train.py on tokens x."""
    (B, T), random = x.shape, functools.partial(torch.rand, device=x.device)
    leaves = [w.requires_grad_() for w in weights.values()]
    adamw = torch.optim.AdamW(leaves, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)  # the fastest kind

    def loss(batch):
        l = logits(weights, batch["z"], cfg).flatten(0, 1)
        return (F.cross_entropy(l, batch["x"].flatten(), reduction="none") * batch["weight"].flatten()).sum()

    loss = torch.compile(loss) if compiled else loss

    def grad(batch):
        adamw.zero_grad()
        loss(batch).backward()

    def step():
        each = torch.arange(B, device=x.device) / B
        t = (torch.ceil((1 - (random(()) + each) % 1) * T).clamp(1) / T)[:, None]
        hole = random(B, T).argsort(1).argsort(1) < torch.round(t * T)
        grad({"x": x, "z": torch.where(hole, cfg.mask_id, x), "weight": hole / t / (B * T)})
        torch.nn.utils.clip_grad_norm_(leaves, 1.0)
        adamw.step()

    return loss, grad, step


def tuning(params, cfg, run):
    """-> weights, and of a batch of completions logp, loss and step() of GRPO, as one writes it: all views in one batch
    and logits of all positions, of which the log-probs of the completion are taken (d1, DiffuCoder)."""
    weights, start = tensors(params, cfg), run.max_prompt_len
    leaves = [w.requires_grad_() for w in weights.values()]
    adamw = torch.optim.AdamW(leaves, run.learning_rate, (run.beta1, run.beta2), run.adam_eps, run.weight_decay,
                              fused=True)  # fmt: skip

    def logp(b):  # x (B, T), M and w (B, K, T), K views -> (B, new)
        z = torch.where(b["M"], cfg.mask_id, b["x"][:, None])
        l = logits(weights, z.flatten(0, 1), cfg)[:, start:]
        token = b["x"].repeat_interleave(z.shape[1], 0)[:, start:, None]
        each = l.log_softmax(-1).gather(-1, token).view(*z.shape[:2], -1)
        return (b["w"][..., start:] * each).sum(1)

    def loss(b):  # old, mask (B, new), adv (B,)
        rho, A = torch.exp(logp(b) - b["old"]), b["adv"][:, None]
        each = -torch.min(rho * A, rho.clamp(1 - run.clip_low, 1 + run.clip_high) * A)
        return (b["mask"] * each).sum() / b["mask"].sum()

    def step(b):
        adamw.zero_grad()
        loss(b).backward()
        torch.nn.utils.clip_grad_norm_(leaves, run.grad_clip)
        adamw.step()

    return weights, torch.no_grad()(logp), loss, step


@torch.inference_mode()
def llada(weights, x, cfg, start, steps, block_len, temperature=0.0):
    """LLaDA's generate.py in own words, but for noise of float64: all positions and the whole vocabulary each step."""
    share = steps * block_len // (x.shape[1] - start)
    for low in range(start, x.shape[1], block_len):
        n = (x[:, low : low + block_len] == cfg.mask_id).sum(1, keepdim=True)
        first = torch.arange(share, device=x.device) < n % share  # balanced: the first steps get one more
        quota = n // share + first  # (B, share)
        for i in range(share):
            l = logits(weights, x, cfg)
            noisy = l.exp() / (-torch.rand_like(l).log()) ** temperature if temperature else l
            token = noisy.argmax(-1)
            p = l.softmax(-1).gather(-1, token[..., None])[..., 0]
            p[:, low + block_len :] = -torch.inf
            confidence = torch.where(x == cfg.mask_id, p, -torch.inf)
            commit = torch.zeros_like(x, dtype=torch.bool)
            for row in range(len(x)):
                commit[row, confidence[row].topk(int(quota[row, i])).indices] = True
            x = torch.where(commit, token, x)
    return x
