"""
Log to Weights & Biases as well:  --wandb_log=True
"""
import dataclasses
import os

import config


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    wandb_log: bool = config.key(False, "also log to Weights & Biases")
    wandb_project: str = config.key("unmask", "its project")
    wandb_run_name: str | None = config.key(None, "its name for the run; None: the name of out_dir")
    wandb_entity: str | None = config.key(None, "its account; None: your own")

    def between_keys(self, c):
        try:
            import wandb  # noqa: F401
        except ImportError:
            yield self.wandb_log, "wandb_log=True needs the package wandb: pip install wandb"

    def logger(self, cfg):
        """Begin a run there -> an object with log(values, step); None without wandb_log."""
        if not self.wandb_log:
            return None
        import wandb

        name = self.wandb_run_name or os.path.basename(cfg.out_dir)
        return wandb.init(project=self.wandb_project, entity=self.wandb_entity, config=config.flatten(cfg), name=name)
