"""A callback for the Trainer of transformers: at the end, writes the mean of the last checkpoints as a model."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainingArguments

from treefold.averaging import average_checkpoints


class AverageLast(TrainerCallback):
    """Writes the mean of the last ``n`` checkpoints of a run to ``<output_dir>/mean``, for ``from_pretrained``."""

    def __init__(self, n: int = 5) -> None:
        self.n = n

    def on_train_end(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Average on the process that writes."""
        if state.is_world_process_zero:
            folders = list(Path(args.output_dir).glob("checkpoint-*"))
            average_checkpoints(folders, Path(args.output_dir) / "mean", last=min(self.n, len(folders)))
