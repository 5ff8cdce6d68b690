"""Features of a frozen backbone, computed once for all probes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fullrank.errors import UserError
from fullrank.evaluation.frozen import frozen
from fullrank.images import Batch, DecodeErrors, Images, MemoryImages, Preprocess, iterate_batches


@dataclass(frozen=True)
class Features:
    """What a backbone makes of images, on the CPU."""

    X: Float[Tensor, "n D"]
    labels: Int64[Tensor, " n"]
    """-1 means none."""
    names: list[str]


def extract(
    backbone: nn.Module,
    images: Images | MemoryImages,
    preprocess: Preprocess,
    *,
    dimensions: slice = slice(None),
    batch: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> Features:
    """Return the float32 features of all readable images, in order.

    The backbone is moved to `device`, runs in eval mode without gradient, and is proved frozen: its parameters and buffers have the
    same bytes afterwards, and every submodule is back in the mode it had.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D).
        images: a source, or images in memory.
        preprocess: makes the pixels, and normalises them.
        dimensions: those that are kept: `slice(360)` the first 360, `slice(360, None)` the rest.
        batch: images a forward pass.
        device: where the backbone runs.
        workers: processes that decode; 0 is this one.
        decode_errors: records images that cannot be read; by default a new one, which stops past a tenth.

    Raises:
        AssertionError: the backbone changed itself.
        UserError: too many images cannot be read, or none can; the backbone has not all of the dimensions, which its first batch tells.

    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"]
    >>> extract(nn.Flatten(), digits, Preprocess(1, 8, (0.5,), (0.5,))).X.shape
    torch.Size([1797, 64])
    """
    streamed = stream(backbone, images, preprocess, batch=batch, device=device, workers=workers, decode_errors=decode_errors)
    parts = [part_of(features, dimensions) for features in streamed]
    names = [name for part in parts for name in part.names]
    return Features(torch.cat([part.X for part in parts]), torch.cat([part.labels for part in parts]), names)


def stream(
    backbone: nn.Module,
    images: Images | MemoryImages,
    preprocess: Preprocess,
    *,
    batch: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> Iterator[Features]:
    """Yield the features of one batch after another; arguments, errors and proof are those of `extract`."""
    empty = True
    with frozen(backbone.to(device)):
        for part in batches(images, preprocess, batch=batch, workers=workers, decode_errors=decode_errors):
            empty = False
            with torch.inference_mode():  # not around the yield, or it would leak into whoever iterates
                X = backbone(preprocess.normalize(part.pixels.to(device))).float().cpu()
            yield Features(X, part.labels.cpu(), part.names)
    if empty:
        raise UserError(f"none of the {len(images)} images can be read; see the reasons of the skipped files")


def batches(
    images: Images | MemoryImages, preprocess: Preprocess, *, batch: int, workers: int = 0, decode_errors: DecodeErrors | None = None
) -> Iterator[Batch]:
    """Yield pixels of the preprocessed size, from a source or from memory."""
    if isinstance(images, Images):
        yield from iterate_batches(images, preprocess, batch_size=batch, workers=workers, decode_errors=decode_errors)
        return
    size = (preprocess.channels, preprocess.size, preprocess.size)
    for rows in torch.arange(len(images)).split(batch):
        window = slice(int(rows[0]), int(rows[-1]) + 1)
        pixels = images.pixels[window]
        if pixels.shape[1:] != size:
            pixels = torch.stack([preprocess.pixels(image.permute(1, 2, 0).numpy()) for image in pixels.cpu()])
        yield Batch(pixels, images.labels[window], list(images.names[window]), rows)


def part_of(features: Features, dimensions: slice) -> Features:
    """Return some dimensions of the features: `slice(360)` the first 360, `slice(360, None)` the rest.

    Raises:
        UserError: the features have not all of them, or there is none.

    >>> part_of(Features(torch.arange(4.0)[None], torch.tensor([-1]), ["a.jpg"]), slice(1, 3)).X
    tensor([[1., 2.]])
    """
    D = features.X.shape[1]
    start, stop = dimensions.start or 0, D if dimensions.stop is None else dimensions.stop
    if not (0 <= start < stop <= D and dimensions.step in (None, 1)):
        raise UserError(f"dimensions {in_words(dimensions)} of features that have {D}; give a part of 0:{D}, such as :{max(D // 4, 1)}")
    return replace(features, X=features.X[:, dimensions])


def in_words(dimensions: slice) -> str:
    """Return a slice as it is written in Python.

    >>> in_words(slice(360)), in_words(slice(360, None)), in_words(slice(None))
    (':360', '360:', ':')
    """
    bounds = ["" if bound is None else str(bound) for bound in (dimensions.start, dimensions.stop, dimensions.step)]
    return ":".join(bounds if bounds[2] else bounds[:2])


def standardize(X: Float[Tensor, "n D"], *others: Float[Tensor, "_ D"]) -> tuple[Float[Tensor, "_ D"], ...]:
    """Return (x − μ) / σ for each argument, with the mean μ and the deviation σ of the first.

    A column that does not vary in the first becomes zero in all: it says nothing there, and an unseen value of it must not either.
    Without this step, a probe compares the scales of features and not what they tell.

    >>> standardize(torch.tensor([[1.0, 5], [3, 5]]), torch.tensor([[5.0, 7]]))
    (tensor([[-1.,  0.],
            [ 1.,  0.]]), tensor([[3., 0.]]))
    """
    deviation, mean = torch.std_mean(X, dim=0, correction=0)
    # A constant column has a deviation of rounding errors: at most ε·|μ|, up to a small factor.
    scale = torch.where(deviation > 8 * torch.finfo(X.dtype).eps * mean.abs(), 1 / deviation, 0)
    return tuple((Y - mean) * scale for Y in (X, *others))
