"""`fullrank spectrum`: the eigenvalues of a model's embeddings of a set of images, and what they say."""

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fullrank.atomic import draft_of
from fullrank.cli.flags import Model, call
from fullrank.cli.sources import Reading, ReadingFlags, device_of, images_of
from fullrank.errors import UserError
from fullrank.evaluation import extract
from fullrank.images import Skipped
from fullrank.loading import load
from fullrank.spectrum import Spectrum
from fullrank.terminal import stderr

LEADING = 10


def run(arguments: Sequence[str]) -> None:
    """Parse and measure."""
    call(spectrum, arguments, verb="spectrum")


def spectrum(
    model: Model,
    /,
    *,
    split: str | None = None,
    out: Path | None = None,
    reading: ReadingFlags = Reading(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Measure the eigenvalues of the centred covariance of a model's embeddings: backbone, and the projector of a run.

    Args:
        model: a run directory, RUN@STEP, timm:NAME or file:PATH.
        split: name of the split; by default the held-out one.
        out: write the eigenvalues to FILE.npz, or everything to FILE.json.
        overwrite: replace the file.
        reading: how images are read, and where the backbone runs.
    """
    if out is not None and out.suffix not in (".npz", ".json"):
        raise UserError(f"--out {out} ends in '{out.suffix}', expected .npz or .json")
    loaded = load(model)
    images, device = images_of(loaded, reading.data, split), device_of(reading.accelerator)
    with draft_of(out, overwrite=overwrite) if out else nullcontext() as draft:
        features = extract(
            loaded.backbone.to(device),
            images,
            loaded.preprocess,
            device=device,
            workers=reading.workers,
            skipped=Skipped(tolerate=reading.tolerate),
        )
        spectra = {"backbone": Spectrum.from_embeddings(features.X)}
        if loaded.projector is not None and len(list(loaded.projector.children())):
            with torch.inference_mode():
                spectra["projector"] = Spectrum.from_embeddings(loaded.projector.to(device)(features.X.to(device)))
        if out and draft:
            (write_npz if out.suffix == ".npz" else write_json)(draft, spectra)
    Console().print(table_of(spectra))
    console = stderr()
    console.print(f"{len(features.X):,} images of {images.source}; eigenvalues of the centred covariance, divided by n")
    for name, found in spectra.items():
        if not found.enough_samples():
            console.print(f"{name}: {found.n} images for {found.D} dimensions; ranks read low below {10 * found.D}", style="yellow")


def measures_of(found: Spectrum) -> dict[str, float | int]:
    """Return every measure of a spectrum by its name."""
    return {
        "effective rank": found.effective_rank(),
        "participation ratio": found.participation_ratio(),
        "stable rank": found.stable_rank(),
        "entropy (nats)": found.entropy(),
        "condition number": found.condition_number(),
        "dead dimensions": found.dead_dimensions(),
        "dimensions": found.D,
    }


def table_of(spectra: dict[str, Spectrum]) -> Table:
    """Lay measures and leading eigenvalues out for a terminal."""
    table = Table("", *spectra)
    measures = {name: measures_of(found) for name, found in spectra.items()}
    for measure in next(iter(measures.values())):
        table.add_row(measure, *(f"{values[measure]:,.4g}" for values in measures.values()))
    table.add_section()
    for j in range(min(LEADING, max(found.D for found in spectra.values()))):
        table.add_row(f"λ{j + 1}", *(f"{found.eigenvalues[j]:.4g}" if j < found.D else "" for found in spectra.values()))
    return table


def write_npz(path: Path, spectra: dict[str, Spectrum]) -> None:
    """Write the eigenvalues, an array each."""
    with path.open("wb") as file:  # opened here, because numpy would append its own ending to a name
        np.savez(file, **{name: found.eigenvalues.numpy() for name, found in spectra.items()})  # pyright: ignore[reportArgumentType]


def write_json(path: Path, spectra: dict[str, Spectrum]) -> None:
    """Write measures and eigenvalues; as JSON has no infinity, a measure that is not finite is null."""
    values = {
        name: {measure: value if math.isfinite(value) else None for measure, value in measures_of(found).items()}
        | {"samples": found.n, "eigenvalues": found.eigenvalues.tolist()}
        for name, found in spectra.items()
    }
    path.write_text(json.dumps(values, indent=2) + "\n")
