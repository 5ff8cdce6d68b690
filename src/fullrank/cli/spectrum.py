"""`fullrank spectrum`: the eigenvalues of a model's embeddings of a set of images, over its training too, and what they say."""

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fullrank.atomic import atomic_write
from fullrank.cli import spectrum_history
from fullrank.cli.flags import Model, call
from fullrank.cli.sources import ReadFlags, ReadOptions, open_split, resolve_device
from fullrank.errors import UserError
from fullrank.evaluation.features import stream_features
from fullrank.images import DecodeErrors, Images
from fullrank.loading import Model as Loaded
from fullrank.loading import load
from fullrank.run import Run, SpectrumHistory
from fullrank.spectrum import MEASURES, Accumulator, Spectrum, readings
from fullrank.spectrum.readings import FEW
from fullrank.terminal import stderr

LEADING = 10
LETTERS = "AB"
"""What two models are called above their columns, where names would not fit."""


def run(arguments: Sequence[str]) -> None:
    """Parse and measure."""
    call(spectrum, arguments, verb="spectrum")


@dataclass(frozen=True)
class Measured:
    """A model's spectra: of its embeddings now, by part, and those that it took while it trained."""

    name: str
    spectra: dict[str, Spectrum]
    training: SpectrumHistory | None = None


def spectrum(
    model: Model,
    /,
    *,
    against: str | None = None,
    split: str | None = None,
    out: Path | None = None,
    read: ReadFlags = ReadOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Measure the eigenvalues of the centred covariance of a model's embeddings: backbone, and the projector of a run.

    Of a run directory, where there is no second model, it also shows how both spectra came about over training.

    Args:
        model: a run directory, RUN@STEP, timm:NAME or file:PATH.
        against: a second MODEL, measured on the same images and shown beside the first.
        split: name of the split; by default the held-out one.
        out: write the eigenvalues to FILE.npz, everything but the eigenvalues over training to FILE.json, or a drawing to FILE.png.
        overwrite: replace the file.
        read: how images are read, and where the backbone runs.
    """
    if out is not None and out.suffix not in WRITERS:
        raise UserError(f"--out {out} ends in '{out.suffix}', expected .npz or .json for numbers, .png for a drawing")
    models = [load(name) for name in (model, against) if name is not None]
    images = open_split(models[0], read.data, split)
    with atomic_write(out, overwrite=overwrite) if out else nullcontext() as draft:
        found = [Measured(loaded.name, measure(loaded, images, read), training_of(loaded.name)) for loaded in models]
        if out and draft:
            WRITERS[out.suffix](draft, found)
    show(found, Console())
    console = stderr()
    n = next(iter(found[0].spectra.values())).n
    console.print(
        f"{n:,} images of {images.source}; eigenvalues of the centred covariance, divided by n; RankMe: {MEASURES['RankMe'].convention}"
    )
    if few := few_samples(list(labelled(found).values())):
        console.print(few, style="yellow")
    if out:
        console.print(f"written: {out}")


def measure(loaded: Loaded, images: Images, read: ReadOptions) -> dict[str, Spectrum]:
    """Return the spectra of backbone and projector on these images, which are streamed: any number of them fits into memory."""
    device = resolve_device(read.accelerator)
    parts: dict[str, nn.Module] = {"backbone": nn.Identity()}
    if loaded.projector is not None and len(list(loaded.projector.children())):
        parts["projector"] = loaded.projector.to(device)
    found = {part: Accumulator() for part in parts}
    decode_errors = DecodeErrors(max_error_fraction=read.max_error_fraction)
    for features in stream_features(
        loaded.backbone, images, loaded.preprocess, device=device, workers=read.workers, decode_errors=decode_errors
    ):
        R = features.X.to(device)
        for part, project in parts.items():
            with torch.inference_mode():
                found[part].update(project(R))
    return {part: accumulator.spectrum() for part, accumulator in found.items()}


def training_of(model: str) -> SpectrumHistory | None:
    """Return the spectra that a run took while it trained; where they cannot be read, say so and go on without."""
    if not Path(model).is_dir():
        return None
    try:
        return Run(Path(model)).spectra
    except UserError as error:
        stderr().print(f"without the spectra over training: {error}", style="yellow")
        return None


def labelled(found: Sequence[Measured]) -> dict[str, Spectrum]:
    """Return the spectra by what they are called: the part, after the letter of the model where there are two."""
    letters = [f"{letter} " for letter in LETTERS] if len(found) > 1 else [""]
    return {f"{letter}{part}": spectrum for letter, one in zip(letters, found, strict=True) for part, spectrum in one.spectra.items()}


def few_samples(spectra: Sequence[Spectrum]) -> str:
    """Return for which dimensions the images, the same of all spectra, are few, and what becomes of the measures; empty where for none.

    >>> few_samples([Spectrum.from_eigenvalues(torch.ones(2), n=19)])[:69]
    '19 images are few for 2 dimensions (expected 20): reads low: effectiv'
    >>> few_samples([Spectrum.from_eigenvalues(torch.ones(2), n=20)])
    ''
    """
    dimensions: set[int] = set()
    concerned: dict[str, dict[str, None]] = {}  # what becomes of which measures, in their order
    for found in spectra:
        for name, reading in readings(found).items():
            if reading.warning:
                dimensions.add(found.D)
                concerned.setdefault(MEASURES[name].few, {})[name] = None
    if not dimensions:
        return ""
    few = " and ".join(f"{D:,} dimensions (expected {FEW * D:,})" for D in sorted(dimensions))
    return f"{spectra[0].n:,} images are few for {few}: " + "; ".join(f"{what}: {', '.join(names)}" for what, names in concerned.items())


def show(found: Sequence[Measured], console: Console) -> None:
    """Print measures and leading eigenvalues, and the spectra over training where there is one model."""
    if len(found) > 1:
        for letter, one in zip(LETTERS, found, strict=True):
            console.print(f"{letter}: {one.name}", soft_wrap=True, markup=False, highlight=False)
    console.print(table_of(labelled(found)))
    if len(found) > 1 and any(one.training for one in found):
        console.print("over training: fullrank spectrum RUN, without --against", highlight=False)
    elif training := found[0].training:
        for part in training.eigenvalues:
            console.print(spectrum_history.table(training, part, title=f"{found[0].name}: {part} over training", width=console.width))


def table_of(spectra: dict[str, Spectrum]) -> Table:
    """Lay measures and leading eigenvalues out for a terminal."""
    table = Table("")
    for label in spectra:
        table.add_column(label, no_wrap=True)
    values = {label: readings(found) for label, found in spectra.items()}
    for measure in MEASURES:
        table.add_row(measure, *(f"{taken[measure].value:,.4g}" for taken in values.values()))
    table.add_row("dimensions", *(str(found.D) for found in spectra.values()))
    table.add_section()
    for j in range(min(LEADING, max(found.D for found in spectra.values()))):
        table.add_row(f"λ{j + 1}", *(f"{found.eigenvalues[j]:.4g}" if j < found.D else "" for found in spectra.values()))
    return table


def write_npz(path: Path, found: Sequence[Measured]) -> None:
    """Write the eigenvalues, an array each: of the parts now and over training, and the same of a second model as `against_…`."""
    arrays = {}
    for prefix, one in zip(("", "against_"), found, strict=False):
        own = {name: spectrum.eigenvalues.numpy() for name, spectrum in one.spectra.items()}
        own |= spectrum_history.arrays_of(one.training) if one.training else {}
        arrays |= {f"{prefix}{name}": values for name, values in own.items()}
    with path.open("wb") as file:  # opened here, because numpy would append its own ending to a name
        np.savez(file, **arrays)


def write_json(path: Path, found: Sequence[Measured]) -> None:
    """Write measures and eigenvalues; as JSON has no infinity, a measure that is not finite is null."""
    first, *against = map(hyperparameters, found)
    path.write_text(json.dumps(first | ({"against": against[0]} if against else {}), indent=2) + "\n")


def hyperparameters(found: Measured) -> dict[str, Any]:
    """Return the measures of each part, with their conventions and warnings, its eigenvalues, and the curves over training."""
    parts: dict[str, Any] = {"model": found.name}
    for part, spectrum in found.spectra.items():
        taken = readings(spectrum)
        parts[part] = {name: reading.value if math.isfinite(reading.value) else None for name, reading in taken.items()}
        parts[part] |= {"dimensions": spectrum.D, "samples": spectrum.n}
        parts[part] |= {"conventions": {name: reading.convention for name, reading in taken.items()}}
        parts[part] |= {"warnings": {name: reading.warning for name, reading in taken.items() if reading.warning}}
        parts[part] |= {"eigenvalues": spectrum.eigenvalues.tolist()}
    return parts | ({"training": spectrum_history.hyperparameters(found.training)} if found.training else {})


def write_png(path: Path, found: Sequence[Measured]) -> None:
    """Draw the spectra over training, and those of now."""
    from matplotlib import rc_context

    from fullrank.reproduce.draw import STYLE

    with rc_context(STYLE):
        figure = spectrum_history.draw([(one.name, one.spectra, one.training) for one in found])
        figure.savefig(path, format="png")


WRITERS = {".npz": write_npz, ".json": write_json, ".png": write_png}
