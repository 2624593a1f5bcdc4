"""
Log to Weights & Biases as well:  --wandb=True
"""
import contextlib
import dataclasses
import importlib.util
import os

import config


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    project: str = config.key("unmask", "also log to Weights & Biases: its project")
    run_name: str | None = config.key(None, "its name for the run; None: the name of out_dir")
    entity: str | None = config.key(None, "its account; None: your own")

    def between_keys(self, c):
        yield not importlib.util.find_spec("wandb"), "wandb=True needs the package wandb: pip install wandb"

    @contextlib.contextmanager
    def logger(self, cfg):
        """Begin a run there, which ends with ours -> an object with log(values, step)."""
        import wandb

        there = wandb.init(project=self.project, entity=self.entity, config=config.flatten(cfg),
                           name=self.run_name or os.path.basename(cfg.out_dir))  # fmt: skip
        failed = True
        try:
            yield there
            failed = False
        finally:
            there.finish(exit_code=int(failed))
