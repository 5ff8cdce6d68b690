"""`fullrank spectrum`: measure the spectra of a model and their metrics, and show the spectra over training."""

from functools import partial
from pathlib import Path

from rich.console import Console

from fullrank.cli.flags import Model, call
from fullrank.cli.model_flags import DeviceFlags, ModelFlags, ModelOptions, ReadingFlags, check_new, load_model
from fullrank.evaluation.spectrum import measure_spectrum
from fullrank.images.reading import USUAL, Device
from fullrank.run import Run


def spectrum(
    model: Model,
    /,
    *,
    data: str | None = None,
    against: str | None = None,
    split: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    reading: ReadingFlags = USUAL,
    device: DeviceFlags = Device(),  # noqa: B008  frozen
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
) -> None:
    """Measure the spectra of a model: eigenvalues of the centred covariance of its backbone and, for a run, of its
    projector.

    For a single run directory, the command also shows the spectra over training.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        data: source of the images; by default that of the run.
        against: a second MODEL, measured on the same images and shown next to the first.
        split: name of the split; by default the held-out images.
        out: write eigenvalues to FILE.npz, metrics to FILE.json, or a figure to FILE.png.
        overwrite: replace the file.
        reading: how the images are read.
        device: where the networks run.
        network: the network of a file that another library wrote.
    """
    check_new(out, overwrite=overwrite)
    loaded = load_model(model, network)
    spectra = measure_spectrum(loaded, data, against=against, split=split, reading=reading, device=device)
    spectra.history = Run(loaded.path).spectra if loaded.path and against is None else None
    Console().print(spectra)
    if out is not None:
        spectra.save(out, overwrite=overwrite)


run = partial(call, spectrum, command="spectrum")
