"""The feature sets on which probes are compared: the backbone, other networks, raw pixels and the untrained network."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from fullrank.errors import UserError
from fullrank.evaluation.augmented import Augmentation, augmented_features, keep_decoded
from fullrank.evaluation.baselines import calibrate_batchnorm, raw_pixels
from fullrank.evaluation.features import Features, extract_features, format_slice, standardize
from fullrank.evaluation.linear import Passes
from fullrank.evaluation.protocol import GradientProtocol
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess


@dataclass(frozen=True)
class FeatureSet:
    """The features of the training and the test images, with a name such as 'raw pixels'."""

    name: str
    train: Features
    test: Features
    augmented: Callable[[Augmentation, int], torch.Tensor]
    """(augmentation, number of the pass) → features of the augmented training images."""

    def tensors(self, device: torch.device | str, *, standardized: bool = False) -> tuple[torch.Tensor, ...]:
        """Return X, y, X_test, y_test on the device, on request standardised by the statistics of all training images,
        labelled or not.
        """
        X, y, X_test, y_test = (
            tensor.to(device) for split in (self.train, self.test) for tensor in (split.X, split.labels)
        )
        if standardized:
            X, X_test = standardize(X, X_test)
        return X, y, X_test, y_test

    def several(self, device: torch.device | str, *, standardized: bool = False) -> tuple[torch.Tensor, ...]:
        """Return X, the labels of the classes (n, K) and X_test for images with several labels, on request
        standardised.
        """
        assert self.train.multi_labels is not None
        X, _, X_test, _ = self.tensors(device, standardized=standardized)
        return X, self.train.multi_labels.to(device), X_test

    def passes(self, protocol: GradientProtocol, device: torch.device | str) -> Passes | None:
        """Return the function epoch → features of augmented training images, None without augmentation.

        Each pass over the images is computed when its first epoch begins, and is kept if it has several epochs. The
        statistics of the images without augmentation standardise all passes.
        """
        if not protocol.views:
            return None
        augmentation, kept = Augmentation(protocol.crop, protocol.flip), {}

        def features(epoch: int) -> torch.Tensor:
            number = epoch % protocol.views
            X = kept[number] if number in kept else self.augmented(augmentation, number)
            if len(X) != len(self.train.X):
                raise UserError(
                    f"{len(X)} of {len(self.train.X)} images could be read again; the images changed during the evaluation"
                )
            if protocol.views < protocol.epochs:
                kept[number] = X
            return (standardize(self.train.X, X)[1] if protocol.standardize else X).to(device)

        return features


def feature_sets(
    backbone: nn.Module,
    untrained: nn.Module | None,
    preprocess: Preprocess,
    train: Images | MemoryImages,
    test: Images | MemoryImages,
    *,
    baselines: bool,
    references: Mapping[str, tuple[nn.Module, Preprocess]],
    dimensions: slice,
    device: torch.device | str,
    seed: int,
    progress: Callable[[str], Any] = lambda line: None,
    **extract_options: Any,
) -> Iterator[FeatureSet]:
    """Yield the feature sets on which probes are compared; `extract_features` receives `extract_options`."""
    decoded: list[Images | MemoryImages] = []  # the training images for passes with augmentation, once they are needed

    def augmented(
        name: str, network: nn.Module, preprocess: Preprocess, augmentation: Augmentation, number: int, **options: Any
    ) -> torch.Tensor:
        again = {
            "workers": extract_options.get("workers", 0),
            "decode_errors": fresh_errors(extract_options.get("decode_errors")),
        }
        if not decoded:
            decoded.append(keep_decoded(train, preprocess, **again))
        progress(f"features of augmented images: {name}, pass {number + 1}")
        options |= again | {"batch_size": extract_options.get("batch_size", 512), "device": device, "seed": seed}
        return augmented_features(network, decoded[0], preprocess, augmentation, number, **options)

    backbone_options = {"preprocess": preprocess, "dimensions": dimensions, "device": device, **extract_options}
    suffix = "" if dimensions == slice(None) else f"[{format_slice(dimensions)}]"

    def features_of(network: nn.Module, name: str, **other: Any) -> FeatureSet:
        options = backbone_options | other
        X, X_test = (extract_features(network, images, **options) for images in (train, test))
        return FeatureSet(
            name, X, X_test, partial(augmented, name, network, options["preprocess"], dimensions=options["dimensions"])
        )

    yield features_of(backbone, f"backbone{suffix}")
    for name, (network, own) in references.items():
        yield features_of(network, name, preprocess=own, dimensions=slice(None))
    if not baselines:
        return
    X, X_test = (raw_pixels(images, preprocess, **extract_options) for images in (train, test))
    side = math.isqrt(X.X.shape[1] // preprocess.channels)
    name = "raw pixels" if side == preprocess.size else f"raw pixels ({side} px)"
    yield FeatureSet(name, X, X_test, partial(augmented, name, nn.Flatten(), preprocess.at_most(side)))
    if untrained is not None:
        generator = torch.Generator().manual_seed(seed)
        calibrate_batchnorm(untrained, train, preprocess, device=device, generator=generator, **extract_options)
        yield features_of(untrained, f"untrained backbone{suffix}")


def fresh_errors(decode_errors: DecodeErrors | None) -> DecodeErrors:
    """Return a new count of unreadable images, because a second pass over the images does not make more of them."""
    return (
        DecodeErrors() if decode_errors is None else DecodeErrors(max_error_fraction=decode_errors.max_error_fraction)
    )
