"""The feature sets on which probes are compared: the backbone, other networks, raw pixels and the untrained network;
also on augmented training images, in passes with other random crops and flips.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, cycle
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from fullrank.errors import UserError
from fullrank.evaluation.outcomes import Target
from fullrank.evaluation.protocol import GradientProtocol, SupervisedProtocol
from fullrank.evaluation.task import AnyImages, Task
from fullrank.images import MemoryImages, MixedSizesError, Preprocess, as_images, dataset_info, load_images
from fullrank.images.dataloaders import Steps, dataloader
from fullrank.images.decode_errors import DecodeErrors, Decoding
from fullrank.images.reading import Device
from fullrank.models import resolve_device
from fullrank.models.features import CPU, Features, eval_mode, extract_features, preprocessed_batches, verify_frozen
from fullrank.views import AugmentationParams, MultiViewTransform
from fullrank.views.config import CropConfig, JitterConfig, ViewConfig

# Raw pixels have at most this side.
PIXELS = 32
# Images that share one draw of random numbers; the crops do not depend on the size of a forward pass.
BLOCK = 512
# Bytes of decoded images that are kept for the next pass.
MEMORY = 2**31


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
    """The features of a network on the training and the test images of a task.

    Attributes:
        seed: Seed of augmented passes.
    """

    network: Network
    task: Task
    train: Features
    test: Features
    seed: int = 0

    @property
    def name(self) -> str:
        """The name of the network, such as 'raw pixels'."""
        return self.network.name

    @property
    def device(self) -> torch.device:
        """The device of the probes."""
        return resolve_device(self.task.device.accelerator)

    @cached_property
    def target(self) -> Target:
        """The labels of the labelled test images."""
        return Target.of(self.task.splits.test, self.test.rows[self.test.labelled])

    @property
    def groups(self) -> Int64[Tensor, " n"]:
        """The groups of the labelled training images, -1 for none."""
        return torch.as_tensor(self.task.splits.train.groups)[self.train.rows[self.train.labelled]]

    def arrays(self, *, standardized: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return features and labels of the labelled training images, and the features of the labelled test images.

        Labels are class numbers (n,), or for multi-label images 1 for each class that it has (n, K). On request,
        the features are standardised by the statistics of all training images, labelled or not.
        """
        X, X_test = self.train.X.to(self.device), self.test.X.to(self.device)
        X, X_test = standardize(X, X_test) if standardized else (X, X_test)
        y = self.train.labels if self.train.multi_labels is None else self.train.multi_labels.long()
        known = self.train.labelled
        return X[known], y[known].to(self.device), X_test[self.test.labelled]

    def passes(self, protocol: GradientProtocol) -> Iterator[Tensor]:
        """Yield the features of the labelled training images, augmented, of each epoch; the passes take turns.

        The statistics of the images without augmentation standardise all passes.
        """
        return cycle(self._augmented(protocol)) if protocol.views < protocol.epochs else self._augmented(protocol)

    def _augmented(self, protocol: GradientProtocol) -> Iterator[Tensor]:
        images, network = self.task.splits.train, self.network
        readable = images if isinstance(images, MemoryImages) else images.subset(self.train.rows.numpy())
        passes = passes_of(network.module, readable, network.preprocess, protocol, self.seed, self.task.device)
        for number in range(protocol.views):
            self.task.progress(f"{network.name}: features of augmented images, pass {number + 1}")
            X = next(passes)[:, network.dimensions]
            X = standardize(self.train.X, X)[1] if protocol.standardize else X
            yield X[self.train.labelled].to(self.device)


def feature_sets(networks: Iterable[Network], task: Task, *, seed: int) -> Iterator[FeatureSet]:
    """Yield the features of each network on the training and the test images; `seed` is that of augmented passes."""
    for network in networks:
        task.progress(f"{network.name}: features")
        train, test = (
            extract_features(network.module, images, network.preprocess, task.device, task.errors, task.notify)
            for images in (task.splits.train, task.splits.test)
        )
        train, test = (select_dimensions(features, network.dimensions) for features in (train, test))
        yield FeatureSet(network, task, train, test, seed)


def crop_and_flip(preprocess: Preprocess, protocol: GradientProtocol | SupervisedProtocol) -> MultiViewTransform:
    """Return the transform of one view: the random resized crop and the flip of a protocol, at the size of the
    network.
    """
    none, crop = JitterConfig(probability=0.0), CropConfig(scale=protocol.crop)
    view = ViewConfig(count=1, size=preprocess.size, crop=crop, flip=protocol.flip, jitter=none, grayscale=0.0)
    return MultiViewTransform(view, mean=preprocess.mean, std=preprocess.std, channels=preprocess.channels)


@dataclass(frozen=True)
class InOrder(Steps):
    """Steps that take the images in their order, pass after pass; the last one of a pass is smaller.

    Attributes:
        count: Number of images.
    """

    count: int = 0

    def indices(self, step: int, n: int) -> Int64[Tensor, " n"]:
        """Return the indices of the images of a step, among n images."""
        start = step * self.batch_size % (math.ceil(n / self.batch_size) * self.batch_size)
        return torch.arange(start, min(start + self.batch_size, n))

    def params(self, transform: MultiViewTransform, step: int) -> AugmentationParams:
        """Return the augmentation parameters of the images of a step."""
        return transform.make_params(self.seed, step, len(self.indices(step, self.count)))


def passes_of(
    backbone: nn.Module,
    images: AnyImages,
    preprocess: Preprocess,
    protocol: GradientProtocol,
    seed: int,
    device: Device = CPU,
) -> Iterator[Tensor]:
    """Yield the features of the augmented images, pass after pass: rows in the order of the images, on the CPU.

    The crops are a function of the seed, the number of the pass and the position of the image; the device, the batch
    size and the number of workers do not change them.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D); it is verified that it does not change.
        images: readable training images; they are not resized before the crop.
        preprocess: the preprocessing of the backbone.
        protocol: the distribution of crops and flips.
        seed: seed of the crops and flips.
        device: where the backbone runs, and how images come to it.

    >>> from fullrank.evaluation.protocol import SgdProtocol
    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"].subset(range(8))
    >>> next(passes_of(nn.Flatten(), digits, Preprocess(1, 8, (0.5,), (0.5,)), SgdProtocol(), 0)).shape
    torch.Size([8, 64])
    """
    where, decoding = resolve_device(device.accelerator), preprocess.decoding(device)
    images, transform = keep_decoded(images, preprocess, decoding), crop_and_flip(preprocess, protocol)
    blocks = math.ceil(len(images) / BLOCK)
    for start in count(0, blocks):
        steps = InOrder(seed, BLOCK, start, start + blocks, count=len(images))
        batches = dataloader(images, transform, steps, device=where, decoding=decoding)
        with verify_frozen(backbone.to(where)), torch.inference_mode():
            parts = (part for (views,), _ in batches for part in views[0].split(device.batch_size))
            X = torch.cat([backbone(part).float().cpu() for part in parts])
        yield X


def keep_decoded(images: AnyImages, preprocess: Preprocess, decoding: Decoding) -> AnyImages:
    """Return the images decoded, with the channels of the network, if they have one size and fit into 2 GiB; else
    unchanged. Passes over decoded images crop on the device of the backbone, and decode nothing.
    """
    if isinstance(images, MemoryImages) and images.pixels.shape[1] == preprocess.channels:
        return images
    images = as_images(images)
    info = dataset_info(images)
    try:
        if info.uniform and info.bytes_in_memory() <= MEMORY:
            return load_images(images, channels=preprocess.channels, decoding=decoding)
    except MixedSizesError:  # of images that were not in the sample
        pass
    return images


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
    device: Device = CPU,
    errors: DecodeErrors | None = None,
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
        device: where the backbone runs, and how images come to it. A batch that is at most half full is skipped,
            because all batches have the same weight.
        errors: records images that cannot be read.
    """
    chosen = images.subset(torch.randperm(len(images), generator=generator)[:sample].numpy())
    where, batch_size = resolve_device(device.accelerator), min(device.batch_size, len(chosen))
    batches = preprocessed_batches(chosen, preprocess, replace(device, batch_size=batch_size), errors)
    # not ==, because one unreadable image must not exclude the batch
    full = (preprocess.normalize(part.pixels.to(where)) for part in batches if 2 * len(part.pixels) > batch_size)
    with eval_mode(backbone), torch.random.fork_rng():  # dropout draws
        update_bn(full, backbone.to(where))
    return backbone


def select_dimensions(features: Features, dimensions: slice) -> Features:
    """Return the given dimensions of the features: `slice(360)` for the first 360, `slice(360, None)` for the rest.

    Raises:
        UserError: the slice is empty, or exceeds the dimensions of the features.

    >>> features = Features(torch.arange(4.0)[None], torch.tensor([-1]), ["a.jpg"], torch.tensor([0]))
    >>> select_dimensions(features, slice(1, 3)).X
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
