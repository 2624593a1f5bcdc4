"""An estimator of the KL for samples of an old policy:  --kl_est=k3_ratio"""
import grpo


def k3_ratio(logr, ratio, batch):
    """k3 times the ratio to the old policy, per token; its gradient is that of the reverse KL, also on old samples."""
    return ratio * grpo.k3(logr, ratio, batch)


grpo.KLS["k3_ratio"] = k3_ratio
