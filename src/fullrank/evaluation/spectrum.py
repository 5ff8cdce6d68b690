"""The spectra of a model's representations and embeddings on a set of images, with the tables and files of them."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from rich.console import Console, ConsoleOptions
from rich.table import Table
from torch import Tensor, nn

from fullrank.files import atomic_write, check_suffix
from fullrank.images.reading import Device, Reading
from fullrank.models import load, resolve_device
from fullrank.models.features import embedded_batches
from fullrank.models.model import ModelLike, with_depth
from fullrank.models.model_images import Data, held_out_images
from fullrank.plot_style import color_scale, label_ends, styled, subplots
from fullrank.spectrum import METRICS, Spectrum, StreamingSpectrum, compute_metrics, functional, saturation
from fullrank.spectrum.metrics import BETTER, CENTRED, SAMPLES_PER_DIMENSION

SUFFIXES = (".npz", ".json", ".png")  # of the file of `Spectra.save`
# Number of eigenvalues in the table.
LEADING = 10
# Indices of the eigenvalues in the table over training; Skean et al. 2023 show the 14th.
SHOWN = (1, 4, 14, 64)
# Steps in the table over training, and eigenvalues in a figure.
ROWS, LINES = 8, 24
# Smaller eigenvalues, relative to the first of the same step, are rounding errors and are not drawn.
ROUNDING = 1e-10


class Spectra(dict[str, Spectrum]):
    """The spectra of one or two models on the same images: "backbone", "projector", "against_backbone" …

    `print` of rich shows the metrics, and `save` writes eigenvalues (.npz), metrics (.json) or a figure (.png).

    Attributes:
        source: The images.
        history: The `SpectrumHistory` of a run, which is shown and saved too.
    """

    source: str = ""
    history: Any = None

    @property
    def warning(self) -> str:
        """A warning that there are too few images, with the bias of each metric; empty if there are enough."""
        biased: dict[str, dict[str, None]] = {}  # names of metrics by bias, in the order of the table
        for spectrum in self.values():
            for key, metric in compute_metrics(spectrum).items():
                if metric.warning:
                    biased.setdefault(METRICS[key].small_sample_bias, {})[METRICS[key].name] = None
        n, D = next(iter(self.values())).n, max(spectrum.D for spectrum in self.values())
        biases = "; ".join(f"{bias}: {', '.join(names)}" for bias, names in biased.items())
        few = f"{n:,} images are few for {D:,} dimensions (expected {SAMPLES_PER_DIMENSION * D:,}): {biases}"
        return few if biased else ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        table = Table("", *self, "healthier")
        values = [compute_metrics(spectrum) for spectrum in self.values()]
        for key, metric in METRICS.items():
            cells = (f"{metrics[key].value:,.4g}" for metrics in values)
            table.add_row(metric.name, *cells, metric.better.replace("none", "–"))
        table.add_row("dimensions", *(str(spectrum.D) for spectrum in self.values()))
        table.add_row("images", *(f"{spectrum.n:,}" for spectrum in self.values()))
        table.add_section()
        for j in range(min(LEADING, max(spectrum.D for spectrum in self.values()))):
            cells = (f"{each.eigenvalues[j]:.4g}" if j < each.D else "" for each in self.values())
            table.add_row(f"λ{j + 1}", *cells)
        yield table
        for part in self.history.eigenvalues if self.history else ():
            yield _history_table(self.history, part)
        n = next(iter(self.values())).n
        yield f"{n:,} images of {self.source}; {CENTRED}; RankMe: {METRICS['rank_me'].convention}; healthier: {BETTER}"
        if self.warning:
            yield self.warning

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Write eigenvalues to FILE.npz, metrics and eigenvalues to FILE.json, or a figure to FILE.png.

        Raises:
            UserError: the suffix is another one, or the file exists or cannot be written.
        """
        write = (self._write_npz, self._write_json, self._draw)[SUFFIXES.index(check_suffix(path, SUFFIXES))]
        with atomic_write(Path(path), overwrite=overwrite) as draft, draft.open("wb") as file:
            write(file)

    def _write_npz(self, file: Any) -> None:
        arrays: dict[str, Any] = {name: spectrum.eigenvalues.numpy() for name, spectrum in self.items()}
        if self.history:
            arrays |= {"steps": self.history.steps, "samples": self.history.samples}
            arrays |= {f"{part}_over_training": values for part, values in self.history.eigenvalues.items()}
        np.savez(file, **arrays)

    def _write_json(self, file: Any) -> None:
        """Write metrics and eigenvalues; a metric that is not finite becomes null, because JSON has no infinity."""
        content: dict[str, Any] = {}
        for name, spectrum in self.items():
            metrics = compute_metrics(spectrum)
            content[name] = {key: m.value if math.isfinite(m.value) else None for key, m in metrics.items()} | {
                "dimensions": spectrum.D,
                "samples": spectrum.n,
                "conventions": {key: metric.convention for key, metric in metrics.items()},
                "warnings": {key: metric.warning for key, metric in metrics.items() if metric.warning},
                "eigenvalues": spectrum.eigenvalues.tolist(),
            }
        if self.history:
            ranks = {part: effective_ranks(self.history, part).tolist() for part in self.history.eigenvalues}
            content["training"] = {"steps": self.history.steps.tolist(), "effective_rank": ranks}
        file.write((json.dumps(content, indent=2) + "\n").encode())

    @styled
    def _draw(self, file: Any) -> None:
        """Draw the measured eigenvalues, and beside them effective rank and eigenvalues over training."""
        figure, ((now, *over),) = subplots(1, 3 if self.history else 1, width=11.0 if self.history else 4.5)
        for name, spectrum in self.items():
            values = spectrum.eigenvalues.double().numpy()
            floor = np.finfo(np.float32).eps * values.max(initial=0)  # below it, rounding errors
            now.loglog(np.arange(1, len(values) + 1), np.where(values > floor, values, np.nan), label=name)
        now.set(xlabel=f"index of the eigenvalue\n{Path(self.source).name}", title="Eigenvalues")
        for part in self.history.eigenvalues if self.history else ():
            over[0].plot(self.history.steps, effective_ranks(self.history, part), label=part)
        if self.history:
            over[0].set(title="Effective rank", xlabel="step", ylim=(0, None))
            plot_eigenvalues(over[1], self.history, next(iter(self.history.eigenvalues)))
        label_ends(now, *over[:1])
        figure.savefig(file, format="png", bbox_inches="tight")


def plot_eigenvalues(axis: Any, history: Any, part: str) -> None:
    """Draw some eigenvalues λ_j/λ₁ of a history over training, from dark (j = 1) to light."""
    values = history.eigenvalues[part]
    shown = np.unique(np.geomspace(1, values.shape[1], LINES).round().astype(int))
    for j, color in zip(shown, color_scale(len(shown)), strict=True):
        relative = values[:, j - 1] / np.maximum(values[:, 0], np.finfo(values.dtype).tiny)
        axis.semilogy(history.steps, np.where(relative > ROUNDING, relative, np.nan), color=color)
    axis.set(title=f"Eigenvalues, {part}", xlabel="step", ylabel="$λ_j / λ_1$, $j$ from dark to light")


def effective_ranks(history: Any, part: str) -> Float[np.ndarray, " T"]:
    """Return the effective rank at each step of a history."""
    return functional.effective_rank(torch.from_numpy(history.eigenvalues[part]).double()).numpy()


def saturation_step(history: Any, part: str, j: int) -> int | None:
    """Return the step at which the j-th eigenvalue is first within 5 % of the mean of its last fifth; or None.

    The step is defined only if the eigenvalue rose: it started below 95 % of its last value and never exceeded twice
    that value.

    >>> from types import SimpleNamespace
    >>> values = np.array([[9.0, 0.1, 1.0], [1e6, 1.2, 1.0], [9.0, 1.0, 0.0]])
    >>> history = SimpleNamespace(steps=np.array([0, 5, 9]), eigenvalues={"backbone": values})
    >>> [saturation_step(history, "backbone", j) for j in (1, 2, 3)]
    [None, 9, None]
    """
    curve = history.eigenvalues[part][:, j - 1]
    rose = curve[0] < 0.95 * curve[-1] and curve.max() <= 2 * curve[-1]
    return int(history.steps[int(saturation(torch.from_numpy(curve)))]) if rose else None


def _history_table(history: Any, part: str) -> Table:
    """Build a table of effective rank, collapsed dimensions and eigenvalues at some steps, with their saturation."""
    values, ranks = history.eigenvalues[part], effective_ranks(history, part)
    shown = [j for j in SHOWN if j <= values.shape[1]]
    table = Table("step", "eff. rank", "collapsed", *(f"λ{j}" for j in shown))
    table.title, table.title_justify = f"{part} over training, {history.samples[-1]:,} images each", "left"
    for t in np.unique(np.linspace(0, len(values) - 1, ROWS).round().astype(int)):
        collapsed = functional.collapsed_dimensions(torch.from_numpy(values[t]).double(), n=int(history.samples[t]))
        cells = (f"{values[t, j - 1]:.3g}" for j in shown)
        table.add_row(f"{history.steps[t]:,}", f"{ranks[t]:.3g}", str(int(collapsed)), *cells)
    table.add_section()
    steps = (saturation_step(history, part, j) for j in shown)
    table.add_row("saturated at", "", "", *("–" if step is None else f"{step:,}" for step in steps))
    return table


@torch.no_grad()
def encoder_spectrum(
    representations: Iterable[Float[Tensor, "_ D_b"]], projector: nn.Module | None, *, synchronize: bool = False
) -> dict[str, Spectrum]:
    """Return the spectra of the representations of this process, or with `synchronize` of all, and of their projections
    if there is a projector; batch by batch, so that memory does not limit their number.

    >>> round(encoder_spectrum(torch.eye(4).split(2), None)["backbone"].effective_rank(), 6)
    3.0
    """
    spectra = {part: StreamingSpectrum() for part in ("backbone", "projector")[: 1 + (projector is not None)]}
    for R in representations:
        spectra["backbone"].update(R)
        if projector is not None:
            spectra["projector"].update(projector(R))
    return {part: streaming.compute(synchronize=synchronize) for part, streaming in spectra.items()}


def measure_spectrum(
    model: ModelLike,
    data: Data | None = None,
    *,
    against: ModelLike | None = None,
    split: str | None = None,
    reading: Reading | None = None,
    device: Device | None = None,
) -> Spectra:
    """Return the spectra of backbone and projector on a set of images: eigenvalues of the centred covariance.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model.
        data: source of the images, or opened images; by default the held-out images of the run.
        against: a second model, which is measured on the same images.
        split: name of the split; by default the held-out images of the source.
        reading: how the images are read; by default as the run read them.
        device: where the networks run.

    Returns:
        A `Spectrum` by location: "backbone", and "projector" if the model has a projector with layers; those of the
        second model as "against_backbone" and "against_projector".

    Raises:
        AssertionError: the backbone changed during the evaluation.
        UserError: the model or the images do not exist, too many images are unreadable, or an embedding is not finite.

    >>> measure_spectrum("timm-untrained:test_resnet", torch.zeros(8, 3, 16, 16, dtype=torch.uint8))["backbone"].D
    96
    """
    models = [load(each) for each in (model, against) if each is not None]
    images, found, device = held_out_images(models[0], data, split, reading), Spectra(), device or Device()
    found.source = getattr(images, "source", "memory")
    for prefix, each in zip(("", "against_"), models, strict=False):
        each, projector = with_depth(each, images), each.projector
        projector = (
            projector.to(resolve_device(device.accelerator)) if projector and list(projector.children()) else None
        )
        batches = embedded_batches(each.backbone, images, each.preprocess, device)
        spectra = encoder_spectrum((R for _, R in batches), projector)
        found |= {f"{prefix}{part}": spectrum for part, spectrum in spectra.items()}
    return found
