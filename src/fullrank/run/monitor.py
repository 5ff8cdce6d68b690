"""What is measured between two steps, in eval mode: spectra of held-out images, the loss on their views, and scores.

Nothing here changes weights, statistics or the global random state.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Real
from torch import Tensor

from fullrank.distributed import sample_axis
from fullrank.evaluation import encoder_spectrum, linear_probe, standardize
from fullrank.evaluation.online import OnlineScore
from fullrank.images import Device, Images, MemoryImages, Preprocess
from fullrank.methods import Method, at_least_float32
from fullrank.models.features import eval_mode, preprocessed_batches
from fullrank.objectives import total
from fullrank.run.steps import TrainingRun
from fullrank.seeding import mix
from fullrank.spectrum import Spectrum
from fullrank.spectrum.moments import to_float64
from fullrank.views import MultiViewTransform

CHUNK = 256  # number of images in memory at the same time, or whose views are
HELD_OUT_STREAM = 3  # extra hash input that separates these views from those of the training


def evaluate_spectra(
    method: Method, pixels: Real[Tensor, "n C S S"], preprocess: Preprocess, *, batch_size: int = 512
) -> tuple[dict[str, Spectrum], Float[Tensor, "n D_b"]]:
    """Return the spectra of "backbone" and "projector" in eval mode, and the representations of the images.

    Args:
        method: a `Method` with `backbone` and `projector`.
        pixels: uint8 or floats in [0, 1], (n, C, S, S).
        preprocess: turns pixels into the input of the backbone.
        batch_size: number of images per forward pass.
    """
    device = next(method.parameters()).device
    with torch.no_grad(), eval_mode(method):
        R = [method.backbone(preprocess.normalize(chunk.to(device))) for chunk in pixels.split(batch_size)]
        return encoder_spectrum(R, method.projector), torch.cat([at_least_float32(chunk) for chunk in R])


def full_spectra(run: TrainingRun) -> dict[str, Spectrum]:
    """Return the spectra of the first and the last evaluation of a run, on `TrainingData.full`; {} if it is empty."""
    with torch.no_grad(), eval_mode(run.method):
        batches = (R for images in run.data.full for R, _ in _representations(run, images))
        return encoder_spectrum(batches, run.method.projector) if run.data.full else {}


def variance_within_views(X: Float[Tensor, "V n D"]) -> float:
    """Return the share of the mean square of X that is variance between the images of a view: 0 if all images have the
    same output.

    Σ_v Σ_i ‖x_vi − mean_v‖² / Σ_v Σ_i ‖x_vi‖², and 0 if X is zero.

    >>> variance_within_views(torch.randn(2, 1, 3).expand(2, 8, 3)) < 1e-14, variance_within_views(torch.zeros(2, 8, 3))
    (True, 0.0)
    """
    A = to_float64(X)
    square = A.square().sum()
    return ((A - A.mean(1, keepdim=True)).square().sum() / square).item() if square > 0 else 0.0


@torch.no_grad()
def evaluate_views(
    method: Method, images: MemoryImages, transform: MultiViewTransform, *, seed: int, batch_size: int, with_loss: bool
) -> dict[str, float | None]:
    """Draw views of `batch_size` random held-out images, measure the deviations of the first 256, and evaluate the
    objective on them; return these fields of a `SpectrumRow`.

    The images and their augmentation depend on the seed alone, so they are the same at every evaluation of a run.
    Deviations are the smallest of all views: over the images, root mean square over the pixels (1 is the standard
    deviation of the data; None for a single image), and over the pixels, root mean square over the images.

    Args:
        method: the method in training.
        images: the held-out images, with labels for an objective that takes them.
        transform: draws the views.
        seed: seed of the run.
        batch_size: number of images of a training batch; the loss of most objectives depends on it.
        with_loss: whether to embed the views and to evaluate the objective.
    """
    rows = torch.randperm(len(images.pixels), generator=torch.Generator().manual_seed(seed))[:batch_size]
    parameter, pixels = next(method.parameters()), images.pixels[rows]
    params = transform.make_params(mix(seed, HELD_OUT_STREAM), 0, len(pixels))
    with torch.random.fork_rng([parameter.device] if parameter.device.type == "cuda" else []), eval_mode(method):
        deviations, embeddings = (None, 0.0), []
        for start in range(0, len(pixels), CHUNK) if with_loss else (0,):
            part = slice(start, start + CHUNK)
            views = transform(pixels[part].to(parameter.device), params.select_samples(part))
            if start == 0:
                deviations = view_deviations(views)
            if with_loss:
                embeddings.append(method.forward([group.to(parameter.dtype) for group in views]))
        loss = None
        if with_loss:
            parts = {name: [part[name] for part in embeddings] for name in embeddings[0]}
            whole = {name: torch.cat(Zs, dim=sample_axis(Zs[0])) for name, Zs in parts.items()}
            whole["labels"] = images.labels[rows].to(parameter.device)
            loss = held_out_loss(method, whole, batch_size)
    return {"image_deviation": deviations[0], "pixel_deviation": deviations[1], "held_out_loss": loss}


def view_deviations(views: list[Float[Tensor, "_ n C _ _"]]) -> tuple[float | None, float]:
    """Return the smallest deviation over the images, None for a single image, and the smallest deviation over the
    pixels.

    >>> [round(x, 6) for x in view_deviations([torch.tensor([0.0, 2.0]).reshape(1, 2, 1, 1, 1).expand(1, 2, 1, 4, 4)])]
    [1.0, 0.0]
    """
    over_images = [group.flatten(2).var(1, correction=0).mean(-1) for group in views]  # (V_k,)
    over_pixels = [group.flatten(3).var(-1, correction=0).mean((1, 2)) for group in views]
    image_deviation, pixel_deviation = (torch.cat(values).min().sqrt().item() for values in (over_images, over_pixels))
    return image_deviation if views[0].shape[1] > 1 else None, pixel_deviation


def held_out_loss(method: Method, embeddings: dict[str, Tensor], batch_size: int) -> float | None:
    """Return the loss of a batch of embeddings; None if it is not finite, or if the objective refuses a batch below
    `batch_size`.
    """
    try:
        loss = float(total(method.terms(embeddings)))
    except (RuntimeError, ValueError):  # torch's errors of linear algebra are RuntimeErrors
        if embeddings["R"].shape[1] == batch_size:
            raise
        return None
    return loss if math.isfinite(loss) else None


def score_probe(run: TrainingRun) -> OnlineScore:
    """Return the accuracies of the online probe on all test images, with its running statistics; with `probe.labelled`
    those of the linear probe of `fullrank evaluate`, trained and scored on the labelled images.
    """
    with torch.no_grad(), eval_mode(run.method):
        if not run.recipe.probe.labelled:
            return run.probe.score(_representations(run, run.data.scored[0]))
        (X, y), (X_test, y_test) = (
            map(torch.cat, zip(*_representations(run, images), strict=True)) for images in run.data.scored
        )
    X, X_test = standardize(X, X_test)
    return OnlineScore.of(linear_probe(X, y, X_test, seed=run.recipe.seed).logits, y_test)


def _representations(run: TrainingRun, images: Images | MemoryImages) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield representations (n, D_b) and labels (n,) of each batch."""
    decoding = run.data.decoding
    device = Device(workers=decoding.workers, batch_size=CHUNK)
    for batch in preprocessed_batches(images, run.preprocess, device, decoding.errors):
        with run.fabric.autocast():
            R = run.method.backbone(run.preprocess.normalize(batch.pixels.to(run.fabric.device)))
        yield at_least_float32(R), batch.labels.to(run.fabric.device)
