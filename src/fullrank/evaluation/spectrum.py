"""The spectra of a model's representations and embeddings on a set of images."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.evaluation.features import stream_features
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess
from fullrank.spectrum import Spectrum, StreamingSpectrum


@runtime_checkable
class EncoderModel(Protocol):
    """A model with backbone, preprocessing and optional projector, such as the result of `fullrank.load`."""

    @property
    def backbone(self) -> nn.Module: ...
    @property
    def projector(self) -> nn.Module | None: ...
    @property
    def preprocess(self) -> Preprocess: ...


class StreamingEncoderSpectrum:
    """The spectra of representations and of their projections, computed in batches.

    Args:
        projector: maps representations to embeddings; None for the backbone alone.
    """

    def __init__(self, projector: nn.Module | None) -> None:
        self._projector = projector
        self._spectra = {"backbone": StreamingSpectrum()} | (
            {} if projector is None else {"projector": StreamingSpectrum()}
        )

    def update(self, R: Float[Tensor, "n D_b"]) -> None:
        """Add a batch of representations."""
        self._spectra["backbone"].update(R)
        if self._projector is not None:
            self._spectra["projector"].update(self._projector(R))

    def compute(self) -> dict[str, Spectrum]:
        """Return the spectra of "backbone" and "projector" so far."""
        return {location: streaming.compute() for location, streaming in self._spectra.items()}


def encoder_spectrum(
    model: EncoderModel,
    images: Images | MemoryImages,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> dict[str, Spectrum]:
    """Return the spectra of backbone and projector on a set of images, batch by batch: memory does not limit the number
    of images.

    Args:
        model: `fullrank.load(…)`, or another object with `backbone`, `projector` and `preprocess`.
        images: a source such as `open_images("digits")["all"]`, or images in memory.
        batch_size: images per forward pass.
        device: device of the forward passes.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read; the default stops the function if more than 10 % are
            unreadable.

    Returns:
        A `Spectrum` by location: "backbone", and "projector" if the model has a projector with layers.

    Raises:
        AssertionError: the backbone changed during the evaluation.
        UserError: too many images are unreadable, or an embedding is not finite.

    >>> from types import SimpleNamespace
    >>> from fullrank.images import open_images
    >>> model = SimpleNamespace(backbone=nn.Flatten(), projector=None, preprocess=Preprocess(1, 8, (0.5,), (0.5,)))
    >>> encoder_spectrum(model, open_images("digits")["all"])["backbone"].collapsed_dimensions()  # three pixels are always black
    3
    """
    empty = model.projector is None or not list(model.projector.children())
    projector = None if empty or model.projector is None else model.projector.to(device)
    spectra = StreamingEncoderSpectrum(projector)
    options = {"batch_size": batch_size, "device": device, "workers": workers, "decode_errors": decode_errors}
    for features in stream_features(model.backbone, images, model.preprocess, **options):
        with torch.inference_mode():
            spectra.update(features.X.to(device))
    return spectra.compute()
