"""Baselines for a backbone: raw pixels, and the same network with untrained weights."""

from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fullrank.evaluation.features import Features, extract_features, preprocessed_batches
from fullrank.evaluation.frozen import restore_modes
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess


def raw_pixels(
    images: Images | MemoryImages,
    preprocess: Preprocess,
    *,
    side: int = 32,
    batch_size: int = 512,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
) -> Features:
    """Return the normalised pixels of images of at most `side` × `side` pixels, as features.

    >>> from fullrank.images import open_images
    >>> raw_pixels(open_images("digits")["all"], Preprocess(1, 64, (0.5,), (0.5,)), side=4).X.shape
    torch.Size([1797, 16])
    """
    return extract_features(
        nn.Flatten(),
        images,
        preprocess.at_most(side),
        batch_size=batch_size,
        workers=workers,
        decode_errors=decode_errors,
    )


def calibrate_batchnorm(
    backbone: nn.Module,
    images: Images | MemoryImages,
    preprocess: Preprocess,
    *,
    sample: int = 4096,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    generator: torch.Generator,
) -> nn.Module:
    """Estimate the statistics of every BatchNorm on training images, in place, and return the backbone.

    In an untrained network, the running mean and variance are still 0 and 1. In eval mode, BatchNorm would then
    normalise nothing, and the network would be too weak a baseline. Here each BatchNorm averages the statistics of its
    batches (momentum None) while all other layers are in eval mode; afterwards, momentum and modes are restored.
    Weights do not change.

    Args:
        backbone: the untrained network.
        images: training images.
        preprocess: the preprocessing of the trained backbone.
        sample: number of images, drawn at random, because each batch from a sorted folder would contain only one class.
        batch_size: images per forward pass. A batch that is at most half full is skipped, because all batches have the
            same weight.
        device: device of the backbone.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read.
        generator: a CPU generator that draws the images.
    """
    layers = [layer for layer in backbone.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    if not layers:
        return backbone
    rows = torch.randperm(len(images), generator=generator)[:sample]
    batch_size = min(batch_size, len(rows))
    momenta = [layer.momentum for layer in layers]
    with restore_modes(backbone):
        backbone.to(device).eval()
        for layer in layers:
            layer.train()
            layer.reset_running_stats()
            layer.momentum = None
        for part in preprocessed_batches(
            subset(images, rows), preprocess, batch_size=batch_size, workers=workers, decode_errors=decode_errors
        ):
            if 2 * len(part.pixels) > batch_size:  # not ==, because one unreadable image must not exclude the batch
                with torch.no_grad():
                    backbone(preprocess.normalize(part.pixels.to(device)))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    return backbone


def subset(images: Images | MemoryImages, rows: torch.Tensor) -> Images | MemoryImages:
    """Return the images at `rows`, in that order."""
    if isinstance(images, Images):
        return images.subset(rows.numpy())
    index = rows.to(images.pixels.device)
    names = tuple(images.names[row] for row in rows.tolist())
    multi = None if images.multi_labels is None else images.multi_labels[index.cpu()]
    kept = {"names": names, "groups": images.groups[index.cpu()], "multi_labels": multi}
    return replace(images, pixels=images.pixels[index], labels=images.labels[index], **kept)
