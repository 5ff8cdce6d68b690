"""The features of a frozen backbone, batch by batch; a network is the same after it."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int8, Int64
from torch import Tensor, nn

from fullrank.errors import Notify, UserError, silent
from fullrank.images import DecodeErrors, Device, Images, MemoryImages, Preprocess, as_images, iterate_batches
from fullrank.models.model import resolve_device
from fullrank.models.weights import hash_weights
from fullrank.recipes.forecast import duration

CPU = Device(accelerator="cpu", batch_size=512)
# Seconds of work before its progress is told, and between two lines about it.
BETWEEN = 20


@dataclass(frozen=True)
class Features:
    """The features of images, on the CPU, with the labels and names of the images.

    Attributes:
        labels: -1 for images without a label.
        rows: Which images these are: those that could be read.
        classes: The names of the labels, () if they are unknown.
        multi_labels: Several labels per image, see `Images.multi_labels`; None for one label per image.
    """

    X: Float[Tensor, "n D"]
    labels: Int64[Tensor, " n"]
    names: list[str]
    rows: Int64[Tensor, " n"]
    classes: tuple[str, ...] = ()
    multi_labels: Int8[Tensor, "n K"] | None = None

    @property
    def labelled(self) -> Bool[Tensor, " n"]:
        """Which images have labels."""
        return self.labels >= 0 if self.multi_labels is None else self.multi_labels[:, 0] >= 0


def extract_features(
    backbone: nn.Module,
    images: Images | MemoryImages,
    preprocess: Preprocess,
    device: Device = CPU,
    errors: DecodeErrors | None = None,
    notify: Notify = silent,
) -> Features:
    """Return the float32 features of all readable images, in order; arguments and errors are those of
    `embedded_batches`.

    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"]
    >>> extract_features(nn.Flatten(), digits, Preprocess(1, 8, (0.5,), (0.5,))).X.shape
    torch.Size([1797, 64])
    """
    return join(embedded_batches(backbone, images, preprocess, device, errors, notify), images)


def join(batches: Iterable[tuple[MemoryImages, Tensor]], images: Images | MemoryImages) -> Features:
    """Return the features of all batches of these images, at least one batch."""
    parts = [(batch, X.cpu()) for batch, X in batches]
    rows = torch.cat([batch.indices for batch, _ in parts])
    return Features(
        X=torch.cat([X for _, X in parts]),
        labels=torch.cat([batch.labels.cpu() for batch, _ in parts]),
        names=[name for batch, _ in parts for name in batch.names],
        rows=rows,
        classes=tuple(images.classes),
        multi_labels=None if images.multi_labels is None else torch.as_tensor(images.multi_labels)[rows],
    )


def embedded_batches(
    backbone: nn.Module,
    images: Images | MemoryImages,
    preprocess: Preprocess,
    device: Device = CPU,
    errors: DecodeErrors | None = None,
    notify: Notify = silent,
) -> Iterator[tuple[MemoryImages, Float[Tensor, "n D"]]]:
    """Yield each batch of readable images with its float32 features, in order.

    The backbone is moved to the device and runs in eval mode without gradient. Afterwards, the function verifies that
    parameters and buffers did not change, and restores the mode of every submodule.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D).
        images: images of a source, or in memory.
        preprocess: resizes and normalises the images.
        device: where the backbone runs, and how images come to it.
        errors: records images that cannot be read; by default only their share is limited, as `device` says.
        notify: receives the progress of work that takes longer than some seconds.

    Raises:
        AssertionError: the backbone changed during the extraction.
        UserError: too many images are unreadable.
    """
    where, empty = resolve_device(device.accelerator), True
    with verify_frozen(backbone.to(where)):
        batches = preprocessed_batches(images, preprocess, device, errors)
        for batch in with_progress(batches, len(images), "images", notify):
            empty = False
            with torch.inference_mode():  # without the yield, or the caller would be in inference mode too
                X = backbone(preprocess.normalize(batch.pixels.to(where))).float()
            yield batch, X
    if empty:
        raise UserError(f"none of the {len(images)} images can be read; see the reasons in the list of skipped files")


def preprocessed_batches(
    images: Images | MemoryImages, preprocess: Preprocess, device: Device, errors: DecodeErrors | None = None
) -> Iterator[MemoryImages]:
    """Yield batches of preprocessed pixels; images in memory that fit the network as they are stay on their device."""
    C = preprocess.channels
    if isinstance(images, Images) or images.pixels.shape[1] != C or not preprocess.keeps(*images.pixels.shape[2:]):
        decoding = preprocess.decoding(device, errors)
        yield from iterate_batches(as_images(images), preprocess, batch_size=device.batch_size, decoding=decoding)
        return
    for rows in torch.arange(len(images)).split(device.batch_size):
        yield images.subset(rows.numpy())


def with_progress(parts: Iterable[Any], total: int, what: str, notify: Notify) -> Iterator[Any]:
    """Yield the parts of some work, and tell now and then how much of it is done and how long the rest takes.

    Args:
        parts: the parts; each counts as its length, or as one.
        total: the number of everything.
        what: what is counted, such as "images".
        notify: receives a line after a part, at most one in `BETWEEN` seconds.

    >>> list(with_progress("ab", 2, "letters", print))
    ['a', 'b']
    """
    done, began = 0, (said := time.perf_counter())
    for part in parts:
        yield part
        done, now = done + (len(part) if hasattr(part, "__len__") else 1), time.perf_counter()
        if now - said >= BETWEEN and done < total:
            said = now
            notify(f"{done:,} of {total:,} {what}, about {duration((now - began) * (total / done - 1))} left")


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Set eval mode inside the context, and restore the mode of every submodule at its end."""
    modes = {submodule: submodule.training for submodule in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for submodule, training in modes.items():
            submodule.training = training


@contextmanager
def verify_frozen(module: nn.Module) -> Iterator[None]:
    """Put `module` in eval mode during the context, and verify at the end that no parameter or buffer changed, not even
    one that is not in the state dict.

    Raises:
        AssertionError: a parameter or buffer changed.
    """

    def state() -> str:
        return hash_weights(dict(module.named_parameters()) | dict(module.named_buffers()))

    before = state()
    with eval_mode(module):
        yield
    if state() != before:  # no `assert`, which `python -O` would skip
        raise AssertionError(f"{type(module).__name__} changed its parameters or buffers during evaluation")
