"""Features of a frozen backbone, computed once for all probes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int8, Int64
from torch import Tensor, nn

from fullrank.errors import UserError
from fullrank.evaluation.frozen import verify_frozen
from fullrank.images import Batch, DecodeErrors, Images, MemoryImages, Preprocess, iterate_batches


@dataclass(frozen=True)
class Features:
    """The features of images, on the CPU, with the labels and names of the images."""

    X: Float[Tensor, "n D"]
    labels: Int64[Tensor, " n"]
    """-1 for images without a label."""
    names: list[str]
    classes: tuple[str, ...] = ()
    """The names of the labels, () if they are unknown."""
    multi_labels: Int8[Tensor, "n K"] | None = None
    """Several labels an image, see `Images.multi_labels`; None for one label an image."""

    @property
    def labelled(self) -> Bool[Tensor, " n"]:
        """Which images have labels."""
        return self.labels >= 0 if self.multi_labels is None else self.multi_labels[:, 0] >= 0


def extract_features(
    backbone: nn.Module,
    images: Images | MemoryImages,
    preprocess: Preprocess,
    *,
    dimensions: slice = slice(None),
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> Features:
    """Return the float32 features of all readable images, in order.

    The backbone is moved to `device` and runs in eval mode without gradient. Afterwards, the function verifies that
    parameters and buffers did not change, and restores the mode of every submodule.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D).
        images: images of a source, or in memory.
        preprocess: resizes and normalises the images.
        dimensions: dimensions to return: `slice(360)` for the first 360, `slice(360, None)` for the rest.
        batch_size: images per forward pass.
        device: device of the backbone.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read; the default stops the extraction if more than 10 % are
            unreadable.

    Raises:
        AssertionError: the backbone changed during the extraction.
        UserError: too many images are unreadable, or the features do not have these dimensions.

    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"]
    >>> extract_features(nn.Flatten(), digits, Preprocess(1, 8, (0.5,), (0.5,))).X.shape
    torch.Size([1797, 64])
    """
    batches = stream_features(
        backbone, images, preprocess, batch_size=batch_size, device=device, workers=workers, decode_errors=decode_errors
    )
    parts = [select_dimensions(features, dimensions) for features in batches]
    names = [name for part in parts for name in part.names]
    rows = [part.multi_labels for part in parts if part.multi_labels is not None]
    labels = torch.cat([part.labels for part in parts])
    return Features(
        torch.cat([part.X for part in parts]), labels, names, parts[0].classes, torch.cat(rows) if rows else None
    )


def stream_features(
    backbone: nn.Module,
    images: Images | MemoryImages,
    preprocess: Preprocess,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> Iterator[Features]:
    """Yield the features of each batch; arguments, errors and verification are the same as in `extract_features`."""
    empty = True
    with verify_frozen(backbone.to(device)):
        for part in preprocessed_batches(
            images, preprocess, batch_size=batch_size, workers=workers, decode_errors=decode_errors
        ):
            empty = False
            with (
                torch.inference_mode()
            ):  # does not contain the yield, otherwise the caller would be in inference mode too
                X = backbone(preprocess.normalize(part.pixels.to(device))).float().cpu()
            yield Features(X, part.labels.cpu(), part.names, tuple(images.classes), multi_labels_of(images, part))
    if empty:
        raise UserError(f"none of the {len(images)} images can be read; see the reasons in the list of skipped files")


def multi_labels_of(images: Images | MemoryImages, batch: Batch) -> Int8[Tensor, "n K"] | None:
    """Return several labels an image of the images of a batch, None if the images have one label each."""
    return None if images.multi_labels is None else torch.as_tensor(images.multi_labels)[batch.indices]


def preprocessed_batches(
    images: Images | MemoryImages,
    preprocess: Preprocess,
    *,
    batch_size: int,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> Iterator[Batch]:
    """Yield batches of preprocessed pixels, from a source or from memory."""
    if isinstance(images, Images):
        yield from iterate_batches(
            images, preprocess, batch_size=batch_size, workers=workers, decode_errors=decode_errors
        )
        return
    for rows in torch.arange(len(images)).split(batch_size):
        batch_slice = slice(int(rows[0]), int(rows[-1]) + 1)
        pixels = images.pixels[batch_slice]
        if pixels.shape[1] != preprocess.channels or not preprocess.keeps(*pixels.shape[2:]):
            pixels = torch.stack([preprocess.pixels(image.permute(1, 2, 0).numpy()) for image in pixels.cpu()])
        yield Batch(pixels, images.labels[batch_slice], list(images.names[batch_slice]), rows)


def select_dimensions(features: Features, dimensions: slice) -> Features:
    """Return the given dimensions of the features: `slice(360)` for the first 360, `slice(360, None)` for the rest.

    Raises:
        UserError: the slice is empty, has a step, or exceeds the dimensions of the features.

    >>> select_dimensions(Features(torch.arange(4.0)[None], torch.tensor([-1]), ["a.jpg"]), slice(1, 3)).X
    tensor([[1., 2.]])
    """
    D = features.X.shape[1]
    start, stop = dimensions.start or 0, D if dimensions.stop is None else dimensions.stop
    if not (0 <= start < stop <= D and dimensions.step in (None, 1)):
        raise UserError(
            f"dimensions is {format_slice(dimensions)}, expected a range within 0:{D}, such as :{max(D // 4, 1)}"
        )
    return replace(features, X=features.X[:, dimensions])


def format_slice(dimensions: slice) -> str:
    """Return a slice in Python notation.

    >>> format_slice(slice(360)), format_slice(slice(360, None)), format_slice(slice(None))
    (':360', '360:', ':')
    """
    bounds = ["" if bound is None else str(bound) for bound in (dimensions.start, dimensions.stop, dimensions.step)]
    return ":".join(bounds if bounds[2] else bounds[:2])


def standardize(X: Float[Tensor, "n D"], *others: Float[Tensor, "_ D"]) -> tuple[Float[Tensor, "_ D"], ...]:
    """Return (x − μ) / σ for each argument, with the mean μ and the standard deviation σ of the first.

    A column that is constant in the first argument becomes zero in all arguments: a probe cannot learn from a constant,
    and other values in the test set must not change the result. Without standardisation, the scales of features
    influence a probe.

    >>> standardize(torch.tensor([[1.0, 5], [3, 5]]), torch.tensor([[5.0, 7]]))
    (tensor([[-1.,  0.],
            [ 1.,  0.]]), tensor([[3., 0.]]))
    """
    deviation, mean = torch.std_mean(X, dim=0, correction=0)
    # The deviation of a constant column is a rounding error: at most ε·|μ|, up to a small factor.
    scale = torch.where(deviation > 8 * torch.finfo(X.dtype).eps * mean.abs(), 1 / deviation, 0)
    return tuple((Y - mean) * scale for Y in (X, *others))
