"""`fullrank evaluate`: score a frozen backbone, and compare it with raw pixels and the untrained network."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from fullrank.atomic import atomic_write
from fullrank.cli.flags import Model, call
from fullrank.cli.sources import ReadFlags, ReadOptions, resolve_device, resolve_source
from fullrank.errors import UserError
from fullrank.evaluation import evaluate as evaluate_backbone
from fullrank.evaluation import table
from fullrank.images import DecodeErrors, train_and_test
from fullrank.loading import load
from fullrank.run.evaluations import merge_evaluation, read_evaluations, write_evaluations
from fullrank.terminal import stderr


def evaluate(
    model: Model,
    /,
    *,
    train: str | None = None,
    test: str | None = None,
    probes: tuple[Literal["linear", "linear-sgd", "knn", "few-shot"], ...] = ("linear", "linear-sgd", "knn", "few-shot"),
    baselines: bool = True,
    dimensions: str = ":",
    seed: int = 0,
    out: Path | None = None,
    read: ReadFlags = ReadOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Score a frozen backbone by linear probes and kNN, and compare it with raw pixels and the untrained backbone.

    For a run directory, this writes RUN/evaluation.json and updates the report of the run.

    Args:
        model: a run directory, RUN@STEP, timm:NAME or file:PATH.
        train: name of the split that the probes are trained on; by default the training split of the run, or 'train'.
        test: name of the split that the probes are scored on; by default the test split of the run, or 'test' or 'validation'.
        probes: linear (full-batch logistic regression), linear-sgd (SGD as in the papers), knn, few-shot (two labels per class).
        baselines: also score raw pixels and the untrained backbone.
        dimensions: range of feature dimensions to score, e.g. :360 or 360: (not for raw pixels); evaluation.json is then not written.
        seed: seed of all random draws; if the images have no named splits, the seed of the run splits them.
        out: file for the scores; by default RUN/evaluation.json for a run directory, and no file for other models.
        overwrite: replace the file of --out if it exists; RUN/evaluation.json is always replaced.
        read: how images are read, and where the backbone runs.
    """
    console, selected = stderr(), parse_slice(dimensions)
    loaded = load(model)
    source, data = resolve_source(loaded, read.data)
    split_seed = loaded.recipe.seed if loaded.recipe else seed
    splits = train_and_test(source, train=train or data.train, test=test or data.test, seed=split_seed)
    device = resolve_device(read.accelerator)
    run_file = Path(model) / "evaluation.json" if Path(model).is_dir() and selected == slice(None) else None
    target = out or run_file
    stored = read_evaluations(run_file) if run_file and run_file == target else []
    with atomic_write(target, overwrite=overwrite or out is None) if target else nullcontext() as temporary:
        console.print(splits.statement)
        with console.status("") as status:
            evaluation = evaluate_backbone(
                loaded.backbone.to(device),
                loaded.untrained() if baselines else None,
                loaded.preprocess,
                splits.train,
                splits.test,
                device=device,
                seed=seed,
                probes=probes,
                baselines=baselines,
                dimensions=selected,
                model=model,
                step=loaded.step,
                statement=splits.statement,
                workers=read.workers,
                decode_errors=DecodeErrors(max_error_fraction=read.max_error_fraction),
                progress=status.update,
            )
        replaced = []
        if temporary:
            evaluations, replaced = merge_evaluation(stored, evaluation)
            write_evaluations(temporary, evaluations)
    if evaluation.scores:
        Console().print(table(evaluation))
    for line in evaluation.left_out:
        console.print(f"left out: {line}")
    for score in replaced:
        console.print(f"replaced: {score.features}, {score.probe}: {score.accuracy:.1%}")
    if target:
        console.print(f"scores: {target}")
    if run_file and run_file == target:
        from fullrank.report import write_report

        console.print(f"report: {write_report([run_file.parent], run_file.with_name('report.html'))}")


def parse_slice(text: str) -> slice:
    """Parse a slice START:STOP of non-negative integers.

    Raises:
        UserError: the text is not a slice.

    >>> parse_slice(":360"), parse_slice("360:")
    (slice(None, 360, None), slice(360, None, None))
    """
    start, colon, stop = text.partition(":")
    if not colon or not all(bound.isdecimal() for bound in (start, stop) if bound):
        raise UserError(f"--dimensions {text} is not a range, expected START:STOP, e.g. :360 or 360:")
    return slice(int(start) if start else None, int(stop) if stop else None)


run = partial(call, evaluate, command="evaluate")
