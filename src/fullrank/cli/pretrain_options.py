"""The options of `fullrank pretrain` that are not part of a recipe."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro


@dataclass(frozen=True)
class RunOptions:
    """The options of a new or a resumed run that are not part of its recipe."""

    devices: int | None = None
    """Short for --machine.devices: the number of processes, one per device. Batch size and steps do not change."""
    trust: bool = False
    """Import the code that a recipe.json or the run of --resume names. Read the code first: it runs with all your
    rights."""
    wandb: bool = False
    """Log to Weights & Biases too."""
    wandb_project: str | None = None
    """Log to this project of Weights & Biases; the default is fullrank."""
    wandb_name: str | None = None
    """Name of the run at Weights & Biases; the default is the name of the run directory."""

    @property
    def wandb_options(self) -> bool | dict[str, Any]:
        """The value of `wandb` for `fullrank.pretrain`."""
        options = {
            name: value
            for name, value in (("project", self.wandb_project), ("name", self.wandb_name))
            if value is not None
        }
        return options or self.wandb


@dataclass(frozen=True)
class Options(RunOptions):
    """The options of a new run."""

    data: str | None = None
    """Short for --data.source: the source of the images."""
    init: str | None = None
    """MODEL whose weights the backbone starts with: timm:NAME, hf-hub:OWNER/NAME, RUN, RUN@STEP or file:PATH. The
    network, its channels and its normalisation are those of the model, and the learning rate is a tenth."""
    labelled: str | None = None
    """Short for --probe.labelled: source of labelled images. A linear probe is trained and scored on them during
    training; no label reaches the backbone."""
    split: str | None = None
    """Short for --data.train: the name of the split to train on."""
    hours: float | None = None
    """Time of training in hours, instead of --epochs: a few steps are measured, and the epochs that fit are chosen and
    printed."""
    out: Path | None = None
    """Run directory, or with --preview the PNG file. The default is the next free runs/NAME, or views.png."""
    overwrite: bool = False
    """Replace the run or the file in --out."""
    resume_or_start: bool = False
    """Continue the run in --out if there is one, which must have the same recipe; else start. For jobs that are queued
    again."""
    preview: bool = False
    """Write a picture of images and their views, and do not train."""


@dataclass(frozen=True)
class ResumeOptions(RunOptions):
    """The options of a resumed run, which otherwise uses its stored recipe."""

    data: str | None = None
    """Source of the images, if they have moved."""
    labelled: str | None = None
    """Source of the labelled images, if they have moved."""
    epochs: int | None = None
    """Another number of epochs. The learning rate follows the schedule of that number from there on."""
    log_every: int | None = None
    """Steps between two lines of metrics.jsonl."""
    keep_checkpoints: int | None = None
    """Number of checkpoints that remain, the newest ones. -1: all."""
    workers: Annotated[int | None, tyro.conf.arg(name="data.workers")] = None
    """Number of processes that decode images."""
    micro_batch: Annotated[int | None, tyro.conf.arg(name="machine.micro_batch")] = None
    """Images per forward pass on a device."""
