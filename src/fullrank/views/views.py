"""Views of a batch: drawn once for all processes, then cropped here or in a worker, coloured and normalised in batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from PIL import Image
from torch import Tensor

from fullrank.errors import UserError
from fullrank.views.apply import EAGER, apply_, move
from fullrank.views.boxes import boxes
from fullrank.views.draw import AugmentationParams, draw, mix, named
from fullrank.views.parameters import PARAMETERS, parameters, turns
from fullrank.views.resample import crop
from fullrank.views.spec import ViewConfig
from fullrank.views.tone import normalize_
from fullrank.views.worker import GAP, cut, pixels, side

CustomTransform = Callable[[Tensor, torch.Generator], Tensor]
CACHE = 2**20  # bytes of float32 that a CPU works on at a time, about what a core's cache holds
MEMORY = 2**31  # the same elsewhere: few launches, and room for the temporary results


@dataclass(frozen=True)
class Group:
    """The views of one size: they are applied together."""

    size: int
    index: list[int]  # places among all views
    specs: list[ViewConfig]  # one a view

    @property
    def radius(self) -> int:
        """Of the blur's kernel: four standard deviations, at most half the view."""
        return min(self.size // 2, max(ceil(4 * spec.blur.sigma[1]) for spec in self.specs))


Chunk = tuple[slice, slice]  # of the views, of the samples
Prepare = Callable[[Group, AugmentationParams, Tensor], Callable[[Chunk], Tensor]]  # makes a function of a chunk: its crops, in [0, 1]


class MultiViewTransform:
    """Augmented versions of images, as batched tensor functions with the distribution of torchvision's transforms.

    Images are uint8; colours are computed in float32 in [0, 1]. All that is random is drawn for the global batch from
    (seed, step) on the CPU, so any number of processes makes the same views, on any device.

    Args:
        specs: the distribution of each view, or of `count` views each; sizes may differ.
        mean: of each channel, for the normalisation.
        std: of each channel, for the normalisation.
        channels: of the images.
        custom_transforms: further steps `f(x, generator) -> x` before the normalisation, with x (V_k, n, C, s, s) in [0, 1] and a CPU
            generator. A process draws for its own samples, so what is random in an extra step depends on their number.
        compile: fuse the steps with torch.compile; worth it where a run is long.

    Raises:
        UserError: a colour step that the number of channels does not allow, or a mean or std of the wrong length.

    >>> views = MultiViewTransform(ViewConfig(size=8), mean=(0.5,), std=(0.25,), channels=1)
    >>> images = torch.zeros(4, 1, 10, 12, dtype=torch.uint8)
    >>> [x.shape for x in views(images, views.draw(0, 0, 4))]
    [torch.Size([2, 4, 1, 8, 8])]
    """

    def __init__(
        self,
        specs: ViewConfig | Sequence[ViewConfig],
        *,
        mean: Sequence[float],
        std: Sequence[float],
        channels: int,
        custom_transforms: Sequence[CustomTransform] = (),
        compile: bool = False,
    ):
        self.specs = (specs,) if isinstance(specs, ViewConfig) else tuple(specs)
        self.channels, self.custom_transforms = channels, tuple(custom_transforms)
        self.mean, self.std = (torch.tensor(t, dtype=torch.float32) for t in (mean, std))
        _check(self.specs, mean=len(self.mean), std=len(self.std), channels=channels)
        each = [spec for spec in self.specs for _ in range(spec.count)]
        self.count = len(each)
        self.sizes = sorted({spec.size for spec in each}, reverse=True)
        self.groups = []
        for size in self.sizes:
            index = [v for v, spec in enumerate(each) if spec.size == size]
            self.groups.append(Group(size=size, index=index, specs=[each[v] for v in index]))
        functions = {"crop": crop, "normalize_": normalize_, **EAGER}
        self.steps = {name: torch.compile(f, fullgraph=True, dynamic=True) if compile else f for name, f in functions.items()}

    def draw(self, seed: int, step: int, n: int) -> AugmentationParams:
        """Draw every random number of the global batch of n samples."""
        return draw(self.count, n, seed=seed, step=step)

    def rows(self, draws: AugmentationParams, samples: slice) -> AugmentationParams:
        """The share of one process: some of the samples."""
        return draws.rows(samples)

    def __call__(self, images: UInt8[Tensor, "n C H W"], draws: AugmentationParams) -> list[Float32[Tensor, "_ n C _ _"]]:
        """The views of images in memory, on their device.

        Returns:
            For each size, largest first, the normalised views (V_k, n, C, s, s), in the order of the specs.
        """

        def prepare(group: Group, own: AugmentationParams, table: Tensor) -> Callable[[Chunk], Tensor]:
            box = move(boxes(own, group.specs, images.shape[-2], images.shape[-1]).float(), images.device)
            flips = named(table, PARAMETERS, "flips")
            return lambda part: self.steps["crop"](images[part[1]], box[part].contiguous(), flips[part].contiguous(), size=group.size)

        return self._run(images.device, draws, prepare)

    def crops(self, image: Image.Image | np.ndarray, draws: AugmentationParams, i: int) -> list[UInt8[Tensor, "_ C _ _"]]:
        """Sample i's crops from one image, a Pillow image (decoded or not) or an array (H, W, C) of uint8; for `finish`.

        A large JPEG is decoded at a half, a quarter or an eighth of its size where the boxes leave enough pixels; the
        boxes are then rounded to the pixels that are left.
        """
        draws = draws.rows(slice(i, i + 1))
        height, width = side(image)
        box = [boxes(draws.views(group.index), group.specs, height, width)[:, 0] for group in self.groups]
        shrink = min(b[:, 2:].min().item() / (GAP * group.size) for b, group in zip(box, self.groups, strict=True))
        decoded = pixels(image, channels=self.channels, shrink=shrink)
        scale = torch.tensor([decoded.shape[0] / height, decoded.shape[1] / width] * 2)
        out = []
        for b, group in zip(box, self.groups, strict=True):
            flips = turns(draws.views(group.index), group.specs)[0][:, 0]
            out.append(cut(decoded, (b * scale).round().long(), flips, size=group.size))
        return out

    def finish(self, crops: list[UInt8[Tensor, "_ n C _ _"]], draws: AugmentationParams) -> list[Float32[Tensor, "_ n C _ _"]]:
        """Everything after the crop, for batches of `crops`, (V_k, n, C, s, s) a size; returns what `__call__` returns."""
        left = iter(crops)

        def prepare(group: Group, own: AugmentationParams, table: Tensor) -> Callable[[Chunk], Tensor]:
            pixels = next(left)
            return lambda part: pixels[part].to(torch.float32).mul_(1 / 255)

        return self._run(crops[0].device, draws, prepare)

    @torch.no_grad()
    def _run(self, device: torch.device, draws: AugmentationParams, prepare: Prepare) -> list[Tensor]:
        mean, std = move(self.mean, device), move(self.std, device)
        out = []
        with torch.autocast(device.type, enabled=False):
            for k, group in enumerate(self.groups):
                own = draws.views(group.index)
                host = parameters(own, group.specs)
                table = move(host, device)
                crop_part = prepare(group, own, table)
                shape = (len(group.specs), len(draws), self.channels, group.size, group.size)
                views = torch.empty(shape, dtype=torch.float32, device=device)
                for part in _chunks(views):
                    x = crop_part(part).reshape(-1, *views.shape[2:]).contiguous()  # (V·n, C, s, s), small enough for the cache
                    apply_(x, host[part].flatten(0, 1), table[part].flatten(0, 1), radius=group.radius, steps=self.steps)
                    if not self.custom_transforms:
                        self.steps["normalize_"](x, mean, std)
                    views[part] = x.view_as(views[part])
                out.append(normalize_(self._extra(views, draws, k), mean, std) if self.custom_transforms else views)
        return out

    def _extra(self, x: Tensor, draws: AugmentationParams, k: int) -> Tensor:
        generator = torch.Generator().manual_seed(mix(draws.seed, draws.first, k, draws.step))
        for step in self.custom_transforms:
            x = step(x, generator)
        return x


def _chunks(x: Tensor) -> Iterator[Chunk]:
    """Cut samples into equal parts, and where a sample is too large, its views, that are worked on one after the other."""
    V, n = x.shape[:2]
    parts = ceil(x.numel() * x.element_size() / (CACHE if x.device.type == "cpu" else MEMORY))
    views, rows = (1, max(1, n * V // parts)) if parts > n else (V, ceil(n / max(1, parts)))
    for row in range(0, n, rows):
        for view in range(0, V, views):
            yield slice(view, view + views), slice(row, row + rows)


def _check(specs: Sequence[ViewConfig], *, mean: int, std: int, channels: int):
    for name, length in (("mean", mean), ("std", std)):
        if length != channels:
            raise UserError(f"{name} has {length} numbers and the images have {channels} channels; give one number a channel")
    if channels in (1, 3):
        return
    for spec in specs:
        jitter = spec.jitter if spec.jitter.probability > 0 else None
        used = {"jitter.saturation": jitter and jitter.saturation, "jitter.hue": jitter and jitter.hue, "grayscale": spec.grayscale}
        for name, value in used.items():
            if value:
                raise UserError(f"view.{name} is {value}, which needs RGB or grey images; these have {channels} channels, so set it to 0")
