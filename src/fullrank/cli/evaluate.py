"""`fullrank evaluate`: score a frozen backbone, and compare it with raw pixels and the untrained network."""

from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from fullrank.cli.flags import Model, call
from fullrank.cli.model_flags import (
    DeviceFlags,
    ModelFlags,
    ModelOptions,
    ReadingFlags,
    check_new,
    load_model,
    update_report,
)
from fullrank.errors import UserError
from fullrank.evaluation.evaluate import evaluate as evaluate_model
from fullrank.evaluation.protocol import Scoring
from fullrank.evaluation.score import write_evaluations
from fullrank.images.reading import USUAL, Device, Reading
from fullrank.models import load
from fullrank.report.neighbour_rows import update_neighbours
from fullrank.run.terminal import stderr

# The models after the first one.
OtherModels = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL ...]")]


def evaluate(
    model: Model,
    others: OtherModels = (),
    /,
    *,
    data: str | None = None,
    labelled: str | None = None,
    transfer: tuple[str, ...] = (),
    out: Path | None = None,
    overwrite: bool = False,
    scoring: Annotated[Scoring, tyro.conf.arg(name="")] = Scoring(),  # noqa: B008  frozen
    reading: ReadingFlags = USUAL,
    device: DeviceFlags = Device(),  # noqa: B008  frozen
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
) -> None:
    """Score a frozen backbone by linear probes and kNN, and compare it with raw pixels and the untrained backbone.

    For a run directory, this adds the scores to RUN/evaluation.json and updates the report of the run. Scores of other
    data sets, probes, protocols and checkpoints stay; a score of the same images, checkpoint, probe and protocol is
    replaced.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        others: further models, which are scored on the same images and compared with the first one.
        data: source of the labelled images; by default that of the run. Without a test split, a fifth of the images is
            held out. A run with data.validation is scored on its validation images, unless --data or --data.test is
            given.
        labelled: source of labelled images from another place than the images of pretraining: as --data, but test
            images that are also images of pretraining are counted, and few-shot has 1, 2, 5 and 10 labels per class.
        transfer: sources of further data sets, each with its own scores, beside the images of the run or of --data.
        out: file for the scores, instead of RUN/evaluation.json.
        overwrite: replace the file of --out if it exists.
        scoring: what is scored, and how.
        reading: how the images are read, with the names of their splits.
        device: where the networks run.
        network: the network of a file that another library wrote.
    """
    if labelled is not None and (data is not None or transfer):
        raise UserError("--labelled names the labelled images; leave out --data and --transfer")
    check_new(out, overwrite=overwrite)
    loaded, against, console = load_model(model, network), [load(other) for other in others], stderr()
    anywhere = Reading(
        follow_links=reading.follow_links, max_pixels=reading.max_pixels, max_expansion=reading.max_expansion
    )  # names of splits and columns describe the images of the run or of --data
    own = transfer == () or data is not None or loaded.recipe is not None
    sets = [(data, reading), *((source, anywhere) for source in transfer)][0 if own else 1 :]
    evaluations = []
    for source, how in sets:
        options = {"against": against, "reading": how, "device": device, "store": out is None, **vars(scoring)}
        found = evaluate_model(loaded, source, labelled=labelled, notify=console.print, **options)
        evaluations.append(found)
        Console().print(found)
    if out:
        write_evaluations(out, evaluations, overwrite=overwrite)
        console.print(f"scores: {out}")
    elif loaded.path and scoring.dimensions == ":":
        source, how = sets[0]
        splits = {"reading": how, "train_subset": scoring.train_subset}
        update_neighbours(loaded, labelled or source, splits, device=device, notify=console.print)
        update_report(loaded.path)


run = partial(call, evaluate, command="evaluate")
