"""A callback for Lightning: at the end, writes the mean of the last checkpoints beside them."""

from pathlib import Path

import lightning.pytorch as pl

from treefold.averaging import average_checkpoints


class AverageLast(pl.Callback):
    """Writes the mean of the last ``n`` checkpoints of the run's ``ModelCheckpoint`` to ``mean.ckpt``."""

    def __init__(self, n: int = 5) -> None:
        self.n = n

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:  # noqa: ARG002 - Lightning's form
        """Average on the rank that writes."""
        if trainer.is_global_zero:
            folder = Path(trainer.checkpoint_callback.dirpath)
            files = [path for path in folder.glob("*.ckpt") if path.name not in {"last.ckpt", "mean.ckpt"}]
            average_checkpoints(files, folder / "mean.ckpt", last=min(self.n, len(files)), key="state_dict")
