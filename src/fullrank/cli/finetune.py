"""`fullrank finetune`: train all weights with labels, beside the same network from random weights."""

from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from fullrank.cli.flags import Model, call
from fullrank.cli.model_flags import ModelFlags, ModelOptions, ReadingFlags, load_model, update_report
from fullrank.evaluation.finetune import finetune as finetune_model
from fullrank.evaluation.protocol import FinetuneProtocol
from fullrank.images.reading import USUAL, Device
from fullrank.run.terminal import stderr


def finetune(
    model: Model,
    /,
    *,
    labelled: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    seeds: int = 3,
    seed: int = 0,
    protocol: Annotated[FinetuneProtocol, tyro.conf.arg(name="")] = FinetuneProtocol(),  # noqa: B008  frozen
    reading: ReadingFlags = USUAL,
    accelerator: str = "auto",
    workers: int = 0,
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
) -> None:
    """Train all weights with labels, beside the same network from random weights: same recipe, several seeds, paired
    intervals.

    The recipe is that of timm where timm has a default (crops, flips, label smoothing) and that of DeiT elsewhere. No
    number is chosen on the labelled images. For a run directory, this adds the scores to RUN/evaluation.json and
    updates the report of the run.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        labelled: source of the labelled images; by default the source of the run.
        out: write the fine-tuned network of the first seed to this folder: model.safetensors, config.json, README.md
            and classifier.safetensors.
        overwrite: replace existing files of --out.
        seeds: number of trainings from each start.
        seed: the first seed.
        protocol: the numbers of the training.
        reading: how the images are read, with the names of their splits.
        accelerator: auto, cpu, cuda or mps.
        workers: number of processes that decode images.
        network: the network of a file that another library wrote.
    """
    loaded, device = load_model(model, network), Device(accelerator=accelerator, workers=workers)
    files = {"out": out, "overwrite": overwrite, "notify": stderr().print}
    numbers = {"seeds": seeds, "seed": seed, **vars(protocol)}
    Console().print(finetune_model(loaded, labelled, reading=reading, device=device, **files, **numbers))
    if loaded.path:
        update_report(loaded.path)


run = partial(call, finetune, command="finetune")
