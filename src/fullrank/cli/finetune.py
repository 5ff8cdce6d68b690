"""`fullrank finetune`: train all weights with labels, beside the same network from random weights."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from fullrank.arguments import check_source
from fullrank.cli.flags import Model, call
from fullrank.cli.heavy import heavy_imports
from fullrank.cli.model_flags import ModelFlags, ModelOptions, load_model
from fullrank.cli.sources import ReadFlags, ReadOptions
from fullrank.errors import UserError, printable
from fullrank.terminal import stderr


def finetune(
    model: Model,
    /,
    *,
    labelled: str | None = None,
    out: Path | None = None,
    seeds: int = 3,
    epochs: int = 50,
    lr: float = 1e-3,
    weight_decay: float = 0.05,
    batch_size: int = 64,
    train: str | None = None,
    test: str | None = None,
    seed: int = 0,
    read: ReadFlags = ReadOptions(),  # noqa: B008  frozen
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
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
        seeds: number of trainings from each start.
        epochs: epochs of each training.
        lr: peak of the learning rate.
        weight_decay: weight decay of AdamW.
        batch_size: largest number of images of a step.
        train: name of the split to train on; by default that of the run, or 'train'.
        test: name of the split to score; by default that of the run, or 'test' or 'validation'.
        seed: the first seed.
        overwrite: replace existing files of --out.
        read: how images are read, and where the network runs.
        network: the network of a file that another library wrote.
    """
    if labelled is not None:
        if read.data is not None:
            raise UserError("--labelled names the labelled images; leave out --data")
        check_source(labelled)
        read = replace(read, data=labelled)
    read.check(model)
    for name, value, least in (
        ("seeds", seeds, 1),
        ("epochs", epochs, 1),
        ("batch-size", batch_size, 2),
        ("seed", seed, 0),
    ):
        if value < least:
            raise UserError(f"--{name} is {value}, expected at least {least}")
    with heavy_imports():
        from rich.console import Console

        from fullrank.evaluation import score_tables
        from fullrank.evaluation.finetuning import check_folder
        from fullrank.evaluation.finetuning import finetune as finetune_model
        from fullrank.images import DecodeErrors

    if out is not None:
        check_folder(out, overwrite=overwrite)
    console, loaded = stderr(), load_model(model, network)
    with console.status("") as status:
        evaluation = finetune_model(
            loaded,
            read.images(loaded),
            out=out,
            seeds=seeds,
            epochs=epochs,
            lr=lr,
            weight_decay=weight_decay,
            batch_size=batch_size,
            train=train,
            test=test,
            seed=seed,
            device=read.accelerator,
            workers=read.workers,
            decode_errors=DecodeErrors(max_error_fraction=read.max_error_fraction),
            overwrite=overwrite,
            notify=partial(console.print, markup=False, soft_wrap=True),
            progress=lambda line: status.update(printable(line)),
        )
    stdout = Console()
    for grid in score_tables(evaluation, stdout.width):
        stdout.print(grid)
    for line in evaluation.left_out:
        console.print(f"left out: {line}", markup=False)
    stdout.print(evaluation.finetuned, markup=False, highlight=False, soft_wrap=True)
    if loaded.path:
        from fullrank.report import write_report

        console.print(f"scores: {loaded.path / 'evaluation.json'}", markup=False, soft_wrap=True)
        console.print(
            f"report: {write_report([loaded.path], loaded.path / 'report.html')}", markup=False, soft_wrap=True
        )


run = partial(call, finetune, command="finetune")
