"""The feature sets on which probes are compared: the backbone, other networks, raw pixels and the untrained network."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from fullrank.errors import UserError
from fullrank.evaluation.augmented import passes_of
from fullrank.evaluation.outcomes import Target
from fullrank.evaluation.protocol import GradientProtocol
from fullrank.evaluation.task import AnyImages, Task
from fullrank.images import Images, Preprocess
from fullrank.models.features import Features, extract_features, preprocessed_batches, restore_modes

# Raw pixels have at most this side.
PIXELS = 32


class Network(NamedTuple):
    """A network whose features are scored.

    Attributes:
        module: Maps float32 images (n, C, S, S) to features (n, D).
    """

    name: str
    module: nn.Module
    preprocess: Preprocess
    dimensions: slice = slice(None)


@dataclass(frozen=True)
class FeatureSet:
    """The features of the training and the test images, with a name such as 'raw pixels'.

    Attributes:
        target: The labels of the labelled test images.
        device: The device of the probes.
        augmented: protocol → (number of a pass → features of the augmented training images).
    """

    name: str
    train: Features
    test: Features
    target: Target
    device: torch.device | str = "cpu"
    augmented: Callable[[GradientProtocol], Callable[[int], Tensor]] | None = None

    def arrays(self, *, standardized: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return features and labels of the labelled training images, and the features of the labelled test images.

        On request they are standardised by the statistics of all training images, labelled or not.
        """
        X, X_test = self.train.X.to(self.device), self.test.X.to(self.device)
        X, X_test = standardize(X, X_test) if standardized else (X, X_test)
        known = self.train.labelled
        return X[known], labels_of(self.train)[known].to(self.device), X_test[self.test.labelled]

    def passes(self, protocol: GradientProtocol) -> Callable[[int], Tensor] | None:
        """Return the function epoch → features of augmented labelled training images, None without augmentation.

        Each pass over the images is computed when its first epoch begins, and is kept if it has several epochs. The
        statistics of the images without augmentation standardise all passes.
        """
        if not protocol.views or self.augmented is None:
            return None
        one_pass = lru_cache(None if protocol.views < protocol.epochs else 0)(self.augmented(protocol))

        def features(epoch: int) -> Tensor:
            X = one_pass(epoch % protocol.views)
            return (standardize(self.train.X, X)[1] if protocol.standardize else X)[self.train.labelled].to(self.device)

        return features


def labels_of(features: Features) -> Tensor:
    """Return the class numbers (n,), or for several labels an image 1 for each class that it has (n, K)."""
    return features.labels if features.multi_labels is None else features.multi_labels.long()


def feature_sets(networks: Iterable[Network], task: Task, *, seed: int) -> Iterator[FeatureSet]:
    """Yield the features of each network on the training and the test images; `seed` is that of augmented passes."""
    for network in networks:
        task.notify(f"features: {network.name}")
        train, test = (
            select_dimensions(
                extract_features(network.module, images, network.preprocess, **task.options), network.dimensions
            )
            for images in (task.splits.train, task.splits.test)
        )

        def augmented(protocol: GradientProtocol, network: Network = network) -> Callable[[int], Tensor]:
            again = task.again()
            one_pass = passes_of(network.module, task.splits.train, network.preprocess, protocol, seed, **again.options)

            def features(number: int) -> Tensor:
                task.notify(f"features of augmented images: {network.name}, pass {number + 1}")
                return one_pass(number)[:, network.dimensions]

            return features

        labels = labels_of(test)[test.labelled].numpy()
        labels = labels if test.multi_labels is None else labels == 1
        target = Target(labels, groups_of(task.splits.test, test), test.classes)
        yield FeatureSet(network.name, train, test, target, task.options["device"], augmented)


def groups_of(images: AnyImages, features: Features) -> np.ndarray:
    """Return the groups of the labelled images whose features are known, -1 for images without a group."""
    groups = torch.as_tensor(images.groups).cpu().numpy()
    if len(groups) != len(features.names):  # some images were unreadable
        names = [images.name(row) for row in range(len(images))] if isinstance(images, Images) else images.names
        known = dict(zip(names, groups.tolist(), strict=True))
        groups = np.array([known[name] for name in features.names])
    return groups[features.labelled.cpu().numpy()]


def raw_pixels(preprocess: Preprocess) -> Network:
    """Return the network whose features are the normalised pixels, of at most 32 × 32 pixels.

    >>> network = raw_pixels(Preprocess(1, 64, (0.5,), (0.5,)))
    >>> network.name, network.preprocess.size
    ('raw pixels (32 px)', 32)
    """
    small = preprocess.at_most(PIXELS)
    name = "raw pixels" if small.size == preprocess.size else f"raw pixels ({small.size} px)"
    return Network(name, nn.Flatten(), small)


def calibrate_batchnorm(
    backbone: nn.Module,
    images: AnyImages,
    preprocess: Preprocess,
    *,
    sample: int = 4096,
    generator: torch.Generator,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    **options: Any,
) -> nn.Module:
    """Estimate the statistics of every BatchNorm on training images, in place, and return the backbone.

    In an untrained network, the running mean and variance are still 0 and 1. In eval mode, BatchNorm would then
    normalise nothing, and the network would be too weak a baseline. Here each BatchNorm averages the statistics of its
    batches. Weights and modes do not change.

    Args:
        backbone: the untrained network.
        images: training images.
        preprocess: the preprocessing of the trained backbone.
        sample: number of images, drawn at random, because each batch from a sorted folder would contain only one class.
        generator: a CPU generator that draws the images.
        batch_size: images per forward pass. A batch that is at most half full is skipped, because all batches have the
            same weight.
        device: device of the backbone.
        **options: as of `extract_features`.
    """
    chosen = images.subset(torch.randperm(len(images), generator=generator)[:sample].numpy())
    batch_size = min(batch_size, len(chosen))
    batches = preprocessed_batches(chosen, preprocess, batch_size=batch_size, **options)
    # not ==, because one unreadable image must not exclude the batch
    full = (preprocess.normalize(part.pixels.to(device)) for part in batches if 2 * len(part.pixels) > batch_size)
    with restore_modes(backbone), torch.random.fork_rng():  # dropout draws
        update_bn(full, backbone.to(device))
    return backbone


def select_dimensions(features: Features, dimensions: slice) -> Features:
    """Return the given dimensions of the features: `slice(360)` for the first 360, `slice(360, None)` for the rest.

    Raises:
        UserError: the slice is empty, or exceeds the dimensions of the features.

    >>> select_dimensions(Features(torch.arange(4.0)[None], torch.tensor([-1]), ["a.jpg"]), slice(1, 3)).X
    tensor([[1., 2.]])
    """
    D = features.X.shape[1]
    start, stop = dimensions.start or 0, D if dimensions.stop is None else dimensions.stop
    if not 0 <= start < stop <= D:
        raise UserError(f"dimensions is {start}:{stop}, expected a range within 0:{D}, such as :{max(D // 4, 1)}")
    return replace(features, X=features.X[:, dimensions])


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
