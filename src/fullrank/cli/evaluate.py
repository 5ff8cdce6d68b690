"""`fullrank evaluate`: score a frozen backbone, and compare it with raw pixels and the untrained network."""

import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fullrank.arguments import check_source, parse_slice
from fullrank.cli.flags import Model, call
from fullrank.cli.heavy import heavy_imports
from fullrank.cli.model_flags import ModelFlags, ModelOptions, load_model
from fullrank.cli.sources import ReadFlags, ReadOptions, of_any
from fullrank.errors import UserError
from fullrank.evaluation.protocol import DEFAULT_PROBES, Protocols
from fullrank.files import atomic_write
from fullrank.terminal import stderr

ProbeName = Literal["linear", "linear-sgd", "linear-imagenet", "knn", "svm", "few-shot", "fractions"]
ProtocolFlags = Annotated[Protocols, tyro.conf.arg(name="")]
"""The protocols as flags with the name of their probe: --linear-sgd.lr."""
OtherModels = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL ...]")]
"""The models after the first one."""


def evaluate(
    model: Model,
    others: OtherModels = (),
    /,
    *,
    labelled: str | None = None,
    supervised: bool = False,
    supervised_epochs: int = 100,
    train: str | None = None,
    test: str | None = None,
    train_subset: bool = False,
    probes: tuple[ProbeName, ...] = DEFAULT_PROBES,
    transfer: tuple[str, ...] = (),
    resize: int | None = None,
    baselines: bool = True,
    dimensions: str = ":",
    seed: int = 0,
    out: Path | None = None,
    read: ReadFlags = ReadOptions(),  # noqa: B008  frozen
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
    protocols: ProtocolFlags = Protocols(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Score a frozen backbone by linear probes and kNN, and compare it with raw pixels and the untrained backbone.

    For a run directory, this adds the scores to RUN/evaluation.json and updates the report of the run. Scores of other
    data sets, probes, protocols and checkpoints stay; a score of the same images, checkpoint, probe and protocol is
    replaced.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        others: further models, which are scored on the same images and compared with the first one.
        labelled: source of labelled images from another place than the images of pretraining: as --data, but test
            images that are also images of pretraining are counted, and few-shot has 1, 2, 5 and 10 labels per class.
        supervised: also train the network of the model from scratch with the labels alone, and compare.
        supervised_epochs: epochs of this training.
        train: name of the split that the probes are trained on; by default the training split of the run, or 'train'.
        test: name of the split that the probes are scored on; by default the test split of the run, or 'test' or
            'validation'. A run with data.validation is scored on its validation images, unless --data or --test is
            given.
        train_subset: train the probes on the images of the run's data.subset, instead of all training images.
        probes: linear (full-batch logistic regression), linear-sgd (SGD as in the papers), linear-imagenet (Adam as in
            FroSSL's paper), knn, svm, few-shot (two labels per class), fractions (1 % and 10 % of the labels). The
            flags of each probe are its numbers.
        transfer: sources of further data sets, each with its own scores, beside the images of the run or of --data.
        resize: shorter side of the images before the central square is cropped, e.g. 256 for a network of 224 px; by
            default that of the model.
        baselines: also score raw pixels and the untrained backbone.
        dimensions: range of feature dimensions to score, e.g. :360 or 360: (not for raw pixels); evaluation.json is
            then not written.
        seed: seed of all random draws; if the images have no named splits, the seed of the run splits them.
        out: file for the scores, instead of RUN/evaluation.json.
        overwrite: replace the file of --out if it exists.
        read: how images are read, and where the backbone runs.
        network: the network of a file that another library wrote.
        protocols: the numbers of the probes.
    """
    console, selected = stderr(), parse_slice(dimensions)
    if labelled is not None:
        if read.data is not None or transfer:
            raise UserError("--labelled names the labelled images; leave out --data and --transfer")
        read = replace(read, data=labelled)
    for each in (model, *others):
        read.check(each)
    for source in transfer:
        check_source(source)
    with heavy_imports():
        from rich.console import Console

        from fullrank.evaluation import score_tables
        from fullrank.evaluation.judging import check_scorable
        from fullrank.evaluation.judging import evaluate as evaluate_model
        from fullrank.images import DecodeErrors
        from fullrank.run.evaluations import to_json

    loaded, against = load_model(model, network), [load_model(other, ModelOptions()) for other in others]
    own = [read] if read.data is not None or loaded.recipe is not None or not transfer else []
    usual = replace(read, reading=of_any(read.reading))  # the other flags describe the images of the run or of --data
    sets = [(options.images(loaded), {"train": train, "test": test, "train_subset": train_subset}) for options in own]
    sets += [(replace(usual, data=source).images(loaded), {}) for source in transfer]
    if len(sets) > 1:
        for data, splits in sets:  # before the work
            check_scorable(loaded, data, seed=seed, **splits)
    evaluations = []
    with atomic_write(out, overwrite=overwrite) if out else nullcontext() as draft:
        for data, splits in sets:
            with console.status("") as status:
                evaluation = evaluate_model(
                    loaded,
                    **({"data": data} if labelled is None else {"labelled": data}),
                    against=against,
                    supervised=supervised,
                    supervised_epochs=supervised_epochs,
                    **splits,
                    probes=probes,
                    protocols=protocols,
                    resize=resize,
                    baselines=baselines,
                    dimensions=selected,
                    seed=seed,
                    store=out is None,
                    device=read.accelerator,
                    workers=read.workers,
                    decode_errors=DecodeErrors(max_error_fraction=read.max_error_fraction),
                    notify=partial(console.print, markup=False, soft_wrap=True),
                    progress=status.update,
                )
            evaluations.append(evaluation)
            stdout = Console()
            for grid in score_tables(evaluation, stdout.width):
                stdout.print(grid)
            for score in evaluation.scores:
                if score.note:
                    console.print(f"{score.probe}, {score.features}: {score.note}", markup=False, soft_wrap=True)
            for line in evaluation.left_out:
                console.print(f"left out: {line}", markup=False)
            if evaluation.verdict:
                stdout.print(evaluation.verdict, markup=False, highlight=False, soft_wrap=True)
            if evaluation.finetuned:
                stdout.print(
                    f"After fine-tuning: {evaluation.finetuned}", markup=False, highlight=False, soft_wrap=True
                )
        if draft:
            draft.write_text(json.dumps(to_json(evaluations), indent=2) + "\n")
    if out:
        console.print(f"scores: {out}", markup=False, soft_wrap=True)
    elif loaded.path and selected == slice(None):
        from fullrank.report import write_report
        from fullrank.report.neighbour_rows import update_neighbours

        with console.status("nearest neighbours"):
            update_neighbours(
                loaded, sets[0][0], sets[0][1], device=read.accelerator, workers=read.workers, notify=console.print
            )
        console.print(f"scores: {loaded.path / 'evaluation.json'}", markup=False, soft_wrap=True)
        console.print(
            f"report: {write_report([loaded.path], loaded.path / 'report.html')}", markup=False, soft_wrap=True
        )


run = partial(call, evaluate, command="evaluate")
