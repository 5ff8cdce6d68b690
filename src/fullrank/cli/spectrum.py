"""`fullrank spectrum`: measure the spectra of a model and their metrics, and show the spectra over training."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

from fullrank.arguments import SPECTRUM_SUFFIXES
from fullrank.cli.flags import Model, call
from fullrank.cli.heavy import heavy_imports
from fullrank.cli.model_flags import ModelFlags, ModelOptions, load_model
from fullrank.cli.sources import ReadFlags, ReadOptions
from fullrank.files import atomic_write, check_suffix
from fullrank.models import parse_model
from fullrank.terminal import stderr


def spectrum(
    model: Model,
    /,
    *,
    against: str | None = None,
    split: str | None = None,
    out: Path | None = None,
    read: ReadFlags = ReadOptions(),  # noqa: B008  frozen
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Measure the spectra of a model: eigenvalues of the centred covariance of its backbone and, for a run, of its
    projector.

    For a single run directory, the command also shows the spectra over training.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        against: a second MODEL, measured on the same images and shown next to the first.
        split: name of the split; by default the held-out images.
        out: write eigenvalues to FILE.npz, metrics to FILE.json, or a figure to FILE.png.
        overwrite: replace the file.
        read: how images are read, and where the backbone runs.
        network: the network of a file that another library wrote.
    """
    suffix = "" if out is None else check_suffix(out, SPECTRUM_SUFFIXES)
    read.check(model)
    if against is not None:
        parse_model(against)
    with heavy_imports():
        from rich.console import Console

        from fullrank.cli.spectrum_output import WRITERS, ModelSpectra, labelled, load_history, sample_warning, show
        from fullrank.evaluation.judging import measure_spectrum
        from fullrank.images import DecodeErrors
        from fullrank.models import load
        from fullrank.models.model_images import held_out_images
        from fullrank.spectrum import METRICS
        from fullrank.spectrum.metrics import BETTER, CENTRED

    models = [load_model(model, network), *([load(against)] if against is not None else [])]
    images = held_out_images(models[0], read.images(models[0]), split)
    with atomic_write(out, overwrite=overwrite) if out else nullcontext() as draft:
        measured = []
        for each in models:
            decode_errors = DecodeErrors(max_error_fraction=read.max_error_fraction)
            spectra = measure_spectrum(
                each, images, device=read.accelerator, workers=read.workers, decode_errors=decode_errors
            )
            measured.append(ModelSpectra(each.name, spectra, load_history(each.name)))
        if out and draft:
            WRITERS[suffix](draft, measured)
    show(measured, Console())
    console = stderr()
    n = next(iter(measured[0].spectra.values())).n
    source = getattr(images, "source", "memory")
    console.print(f"{n:,} images of {source}; {CENTRED}; RankMe: {METRICS['rank_me'].convention}; better: {BETTER}")
    if warning := sample_warning(list(labelled(measured).values())):
        console.print(warning, style="yellow")
    if out:
        console.print(f"written: {out}")


run = partial(call, spectrum, command="spectrum")
