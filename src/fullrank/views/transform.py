"""Multi-view augmentation. Crops run on the device or in DataLoader workers; all other operations run batched on the
device.

Every process draws the random numbers of the whole batch and uses those of its own samples.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import torch
from jaxtyping import Float32, Int64, Real
from torch import Tensor

from fullrank.errors import UserError
from fullrank.seeding import mix, seeded
from fullrank.views import operations
from fullrank.views.augmentation_params import AugmentationParams, get_column, make_params
from fullrank.views.config import ViewConfig
from fullrank.views.filters import normalize_
from fullrank.views.geometry import crop_boxes, resized_crop, resized_crop_of_one

CustomTransform = Callable[[Tensor, torch.Generator], Tensor]


def each_view(transform: Callable[[Tensor], Tensor]) -> CustomTransform:
    """Return the custom transform that calls a transform of one image, such as one of torchvision, for each view.

    The transform maps a view (C, s, s) in [0, 1] to another one. It draws from torch's global CPU generator, which is
    seeded with a number of the sample's generator: its views are functions of (seed, step, sample).

    >>> brighter = each_view(lambda view: view + torch.rand(()))
    >>> x = torch.zeros(2, 1, 3, 8, 8)
    >>> torch.equal(*(brighter(x, torch.Generator().manual_seed(5)) for _ in range(2)))
    True
    """

    def apply(x: Tensor, generator: torch.Generator) -> Tensor:
        with seeded(int(torch.randint(2**32, (), generator=generator))):
            found = [_checked(transform, transform(view), view) for view in x.flatten(0, 1)]
        return torch.stack(found).unflatten(0, x.shape[:2])

    return apply


CPU_CHUNK_BYTES = 2**20  # size of the float32 pixels that a CPU processes together: about the cache of one core
DEVICE_CHUNK_BYTES = 2**31  # the same for other devices: few kernel launches, with enough memory for temporary results


@dataclass(frozen=True)
class ViewGroup:
    """All views of one size; they are processed together."""

    size: int
    index: list[int]  # positions among all views
    configs: list[ViewConfig]  # one config per view

    @property
    def blur_radius(self) -> int:
        """Radius of the blur's kernel in pixels: four times the largest sigma, at most half the side of the view."""
        return min(self.size // 2, max(ceil(4 * config.blur.sigma[1]) for config in self.configs))


Chunk = tuple[slice, slice]  # views, samples
CropFunction = Callable[[Chunk], Tensor]  # returns the crops of a chunk, in [0, 1]
MakeCropFunction = Callable[[ViewGroup, AugmentationParams, Tensor], CropFunction]


class MultiViewTransform:
    """Augmented views of images, as batched tensor functions with the distributions of torchvision's transforms.

    Images are uint8, or floats in [0, 1]; colours are computed in float32 in [0, 1]. All random numbers of the global
    batch are drawn from (seed, step) on the CPU, so the views do not depend on the number of processes or on the
    device.

    Args:
        configs: One or more `ViewConfig`. Each describes `count` views with one distribution; their sizes may differ.
        mean: Mean of each channel, for the normalisation.
        std: Standard deviation of each channel, for the normalisation.
        channels: Number of channels of the images.
        custom_transforms: Additional transforms `f(x, generator) -> x` before the normalisation, with the views x (V_k,
            1, C, s, s) of one sample in [0, 1] and its CPU generator, a function of (seed, step, sample).
        compile: Compile the operations with torch.compile; compilation takes time, so use this for long runs only.

    Raises:
        UserError: a colour operation does not support this number of channels, or `mean` or `std` has the wrong length.

    >>> transform = MultiViewTransform(ViewConfig(size=8), mean=(0.5,), std=(0.25,), channels=1)
    >>> images = torch.zeros(4, 1, 10, 12, dtype=torch.uint8)
    >>> [x.shape for x in transform(images, transform.make_params(0, 0, 4))]
    [torch.Size([2, 4, 1, 8, 8])]
    """

    def __init__(
        self,
        configs: ViewConfig | Sequence[ViewConfig],
        *,
        mean: Sequence[float],
        std: Sequence[float],
        channels: int,
        custom_transforms: Sequence[CustomTransform] = (),
        compile: bool = False,
    ):
        self.configs = (configs,) if isinstance(configs, ViewConfig) else tuple(configs)
        self.channels, self.custom_transforms = channels, tuple(custom_transforms)
        self.mean, self.std = (torch.tensor(t, dtype=torch.float32) for t in (mean, std))
        _check(self.configs, mean=len(self.mean), std=len(self.std), channels=channels)
        views = [config for config in self.configs for _ in range(config.count)]
        self.count = len(views)
        self.sizes = sorted({config.size for config in views}, reverse=True)
        self.groups = []
        for size in self.sizes:
            index = [v for v, config in enumerate(views) if config.size == size]
            self.groups.append(ViewGroup(size=size, index=index, configs=[views[v] for v in index]))
        compiled = torch.compile(fullgraph=True, dynamic=True) if compile else lambda function: function
        functions = {"resized_crop": resized_crop, "normalize_": normalize_, **operations.EAGER}
        self.functions = {name: compiled(function) for name, function in functions.items()}

    def make_params(self, seed: int, step: int, n: int) -> AugmentationParams:
        """Draw the random numbers of a global batch of n samples."""
        return make_params(self.count, n, seed=seed, step=step)

    def __call__(
        self, images: Real[Tensor, "n C H W"], params: AugmentationParams
    ) -> list[Float32[Tensor, "_ n C _ _"]]:
        """Return the views of images of one size, on the device of the images.

        Returns:
            For each view size, largest first, the normalised views (V_k, n, C, s, s), in the order of the configs.
        """

        def make_crop_function(group: ViewGroup, params: AugmentationParams, table: Tensor) -> CropFunction:
            box = crop_boxes(params, group.configs, *images.shape[-2:]).float()
            box, flips = operations.to_device(box, images.device), get_column(table, operations.COLUMNS, "flips")
            crop = self.functions["resized_crop"]
            return lambda part: crop(images[part[1]], box[part].contiguous(), flips[part].contiguous(), size=group.size)

        return self._augment(images.device, params, make_crop_function)

    def get_crop_boxes(self, params: AugmentationParams, height: int, width: int) -> list[Int64[Tensor, "_ 4"]]:
        """Return the crop boxes (V_k, 4) of one image for each view size; `params` must hold exactly one sample."""
        views = [(params.select_views(group.index), group.configs) for group in self.groups]
        return [crop_boxes(*each, height, width)[:, 0] for each in views]

    def crop_image(
        self, image: Real[Tensor, "H W C"], boxes: list[Int64[Tensor, "_ 4"]], params: AugmentationParams
    ) -> list[Real[Tensor, "_ C _ _"]]:
        """Return the resized and flipped crops (V_k, C, s, s) of one image for each view size; `params` must hold
        exactly one sample.
        """
        flips = [
            operations.flips_and_transpose(params.select_views(group.index), group.configs)[0][:, 0]
            for group in self.groups
        ]
        crops = zip(boxes, flips, self.sizes, strict=True)
        return [resized_crop_of_one(image, box, flip, size=size) for box, flip, size in crops]

    def augment(
        self, crops: list[Real[Tensor, "_ n C _ _"]], params: AugmentationParams
    ) -> list[Float32[Tensor, "_ n C _ _"]]:
        """Apply all operations after the crop to batched results (V_k, n, C, s, s) of `crop_image`; return the views
        like `__call__`.
        """
        crops_by_size = dict(zip(self.sizes, crops, strict=True))

        def make_crop_function(group: ViewGroup, params: AugmentationParams, table: Tensor) -> CropFunction:
            crops = crops_by_size[group.size]
            scale = 1 if crops.is_floating_point() else 1 / 255
            return lambda part: crops[part].to(torch.float32, copy=True).mul_(scale)  # a copy, augmented in place

        return self._augment(crops[0].device, params, make_crop_function)

    @torch.no_grad()
    def _augment(
        self, device: torch.device, params: AugmentationParams, make_crop_function: MakeCropFunction
    ) -> list[Tensor]:
        mean, std = operations.to_device(self.mean, device), operations.to_device(self.std, device)
        out = []
        with torch.autocast(device.type, enabled=False):
            for k, group in enumerate(self.groups):
                group_params = params.select_views(group.index)
                host_table = operations.build_operation_table(group_params, group.configs)
                table = operations.to_device(host_table, device)
                crop = make_crop_function(group, group_params, table)
                shape = (len(group.configs), len(params), self.channels, group.size, group.size)
                views = torch.empty(shape, dtype=torch.float32, device=device)
                for chunk in _chunks(views):
                    x = crop(chunk).reshape(-1, *views.shape[2:]).contiguous()  # (V·n, C, s, s)
                    tables = (host_table[chunk].flatten(0, 1), table[chunk].flatten(0, 1))
                    operations.apply_operations_(x, *tables, blur_radius=group.blur_radius, functions=self.functions)
                    if not self.custom_transforms:
                        self.functions["normalize_"](x, mean, std)
                    views[chunk] = x.view_as(views[chunk])
                if self.custom_transforms:
                    for i in range(len(params)):
                        x = views[:, i : i + 1].contiguous()
                        generator = torch.Generator().manual_seed(mix(params.seed, params.offset + i, k, params.step))
                        for custom_transform in self.custom_transforms:
                            x = _checked(custom_transform, custom_transform(x, generator), x)
                        views[:, i : i + 1] = x
                    normalize_(views, mean, std)
                out.append(views)
        return out


def _checked(transform: Callable[..., Tensor], result: object, views: Tensor) -> Tensor:
    """Return the result of a custom transform, which has to have the form of its argument.

    Raises:
        UserError: the result is not a tensor, or has another shape, type or device.
    """
    wanted = (views.dtype, tuple(views.shape), views.device)
    if isinstance(result, Tensor) and (received := (result.dtype, tuple(result.shape), result.device)) == wanted:
        return result
    name = getattr(transform, "__name__", type(transform).__name__)
    what = received if isinstance(result, Tensor) else type(result).__name__
    expected = f"expected a tensor {wanted} like its argument; a transform of one image needs fullrank.views.each_view"
    raise UserError(f"the custom transform '{name}' returns {what}, {expected}")


def _chunks(x: Tensor) -> Iterator[Chunk]:
    """Split the samples into equal chunks; if one sample is too large for a chunk, split its views as well."""
    V, n = x.shape[:2]
    chunks = ceil(x.numel() * x.element_size() / (CPU_CHUNK_BYTES if x.device.type == "cpu" else DEVICE_CHUNK_BYTES))
    views, samples = (1, max(1, n * V // chunks)) if chunks > n else (V, ceil(n / max(1, chunks)))
    for sample in range(0, n, samples):
        for view in range(0, V, views):
            yield slice(view, view + views), slice(sample, sample + samples)


def _check(configs: Sequence[ViewConfig], *, mean: int, std: int, channels: int):
    for name, length in (("mean", mean), ("std", std)):
        if length != channels:
            raise UserError(f"{name} has {length} values, but the images have {channels} channels; give one each")
    if channels in (1, 3):
        return
    for config in configs:
        colour = config.jitter.probability > 0 and (config.jitter.saturation or config.jitter.hue)
        if colour or config.grayscale:
            raise UserError(
                f"the views use saturation, hue or grayscale, which images of {channels} channels do not support; "
                "set jitter.saturation, jitter.hue and grayscale of the views to 0"
            )
