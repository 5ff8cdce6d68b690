"""`fullrank evaluate`: score a frozen backbone, beside raw pixels and the untrained network."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from rich.console import Console

from fullrank.atomic import atomic_write
from fullrank.cli.flags import Model, call
from fullrank.cli.sources import Reading, ReadingFlags, device_of, source_of
from fullrank.errors import UserError
from fullrank.evaluation import evaluate as judge
from fullrank.evaluation import table
from fullrank.images import DecodeErrors, train_and_test
from fullrank.loading import load
from fullrank.terminal import stderr


def run(arguments: Sequence[str]) -> None:
    """Parse and evaluate."""
    call(evaluate, arguments, verb="evaluate")


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
    reading: ReadingFlags = Reading(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Probe a frozen backbone; for a run, write RUN/evaluation.json and its report.

    Args:
        model: a run directory, RUN@STEP, timm:NAME or file:PATH.
        train: name of the split that the probes learn from.
        test: name of the split that they are scored on.
        probes: full-batch linear probe, the papers' SGD protocol, weighted kNN, two labels a class.
        baselines: score raw pixels and the untrained backbone too.
        dimensions: part of the features that is scored, such as :360 or 360: (raw pixels are not parted); not written into the run.
        seed: of every draw; the split of images without named splits is that of the run.
        out: file for the scores; by default RUN/evaluation.json, and none for other models.
        overwrite: replace the file of --out; RUN/evaluation.json is replaced anyway.
        reading: how images are read, and where the backbone runs.
    """
    console, part = stderr(), slice_of(dimensions)
    loaded = load(model)
    source, of_run = source_of(loaded, reading.data)
    seed_of_split = loaded.recipe.seed if loaded.recipe else seed
    splits = train_and_test(source, train=train or of_run.train, test=test or of_run.test, seed=seed_of_split)
    device = device_of(reading.accelerator)
    own = Path(model) / "evaluation.json" if Path(model).is_dir() and part == slice(None) else None
    target = out or own
    with atomic_write(target, overwrite=overwrite or out is None) if target else nullcontext() as draft:
        console.print(splits.statement)
        with console.status("") as status:
            result = judge(
                loaded.backbone.to(device),
                loaded.untrained() if baselines else None,
                loaded.preprocess,
                splits.train,
                splits.test,
                device=device,
                seed=seed,
                probes=probes,
                baselines=baselines,
                dimensions=part,
                model=model,
                statement=splits.statement,
                workers=reading.workers,
                decode_errors=DecodeErrors(max_error_fraction=reading.max_error_fraction),
                progress=status.update,
            )
        if draft:
            draft.write_text(json.dumps(result.to_json(), indent=2) + "\n")
    if result.scores:
        Console().print(table(result))
    for note in result.left_out:
        console.print(f"left out: {note}")
    if target:
        console.print(f"scores: {target}")
    if own and own == target:
        from fullrank.report import write_report

        console.print(f"report: {write_report([own.parent], own.with_name('report.html'))}")


def slice_of(text: str) -> slice:
    """Read a slice as Python writes it, of numbers that are not negative.

    Raises:
        UserError: it is none.

    >>> slice_of(":360"), slice_of("360:")
    (slice(None, 360, None), slice(360, None, None))
    """
    start, colon, stop = text.partition(":")
    if not colon or not all(bound.isdecimal() for bound in (start, stop) if bound):
        raise UserError(f"--dimensions {text} is no part of a vector, expected START:STOP, such as :360 or 360:")
    return slice(int(start) if start else None, int(stop) if stop else None)
