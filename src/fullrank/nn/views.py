"""Augmented views in anyone's data pipeline."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from fullrank.errors import UserError
from fullrank.views import MultiViewTransform, ViewConfig
from fullrank.views.augmentation_params import AugmentationParams

MARGIN = 0.5  # images that were resized may leave [0, 1] a little
IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class Views:
    """The augmentations of this library, where a data pipeline of your own needs them.

        views = Views(ViewConfig(size=224))
        x0, x1 = views(images)                            # a batch (n, C, H, W) on any device, also a GPU
        ImageFolder(path, views)                          # one image of Pillow; also within torchvision's Compose
        DataLoader(ImageFolder(path), collate_fn=views.collate)    # crops image by image, all else batched

    All three give the same distributions, those of torchvision's transforms (`MultiViewTransform`). Random numbers come
    from torch's global generator, which a DataLoader seeds in each worker.

    Args:
        configs: one or more `ViewConfig`.
        channels: number of channels of the images.
        options: `mean` and `std` of each channel, by default ImageNet's; `custom_transforms`.

    Raises:
        UserError: a colour operation does not support this number of channels, or `mean` or `std` has the wrong length.

    >>> views = Views(ViewConfig(size=8))
    >>> [x.shape for x in views(torch.zeros(4, 3, 10, 12, dtype=torch.uint8))]
    [torch.Size([4, 3, 8, 8]), torch.Size([4, 3, 8, 8])]
    """

    def __init__(self, configs: ViewConfig | Sequence[ViewConfig], *, channels: int = 3, **options: Any) -> None:
        self.transform = MultiViewTransform(configs, channels=channels, **(IMAGENET | options))

    def __call__(self, images: Any) -> list[Tensor]:
        """Return the views, those of the largest size first: of a batch each is (n, C, s, s), of one image (C, s, s).

        Args:
            images: a batch (n, C, H, W), uint8 or floats in [0, 1]; or one image: of Pillow, an array (H, W, C), or a
                tensor (C, H, W).

        Raises:
            UserError: a tensor has another form or type, or on a CPU other values; another image cannot be decoded.
        """
        if isinstance(images, (list, tuple)):
            raise UserError("got samples, expected images; call views.collate, or give a DataLoader it as collate_fn")
        if not isinstance(images, Tensor):
            return [view[0] for view in self._augment([images])]
        batch = images[None] if images.ndim == 3 else images
        known = images.dtype == torch.uint8 or images.is_floating_point()
        if batch.ndim != 4 or batch.shape[1] != self.transform.channels or not batch.numel() or not known:
            expected = f"({self.transform.channels}, H, W), or a batch of them, uint8 or floats in [0, 1]"
            grey = batch.ndim == 4 and batch.shape[1] == 1 != self.transform.channels
            expected += "; grey images need Views(…, channels=1, mean=(0.5,), std=(0.25,))" * grey
            raise UserError(f"images are {images.dtype} of shape {tuple(images.shape)}, expected {expected}")
        if images.is_floating_point() and images.device.type == "cpu":  # a GPU would have to wait
            low, high = images.aminmax()
            if low < -MARGIN or high > 1 + MARGIN:
                found = f"images have values from {low:.3g} to {high:.3g}"
                raise UserError(f"{found}, expected floats in [0, 1]; Views normalises them")
        views = [view for group in self.transform(batch, self._draw(len(batch))) for view in group]
        return [view[0] for view in views] if images.ndim == 3 else views

    def collate(self, samples: Sequence[Any]) -> Any:
        """Return the views of images of any size: a `collate_fn`. Of samples (image, label, …) also the labels and all
        else, as a DataLoader collates them; of dicts, as of the datasets library, a dict with the views for the image.

        Raises:
            UserError: a dict has no image, or an image cannot be decoded.
        """
        if isinstance(samples[0], Mapping):
            # An image of Pillow comes before an array, and (C, H, W) before a table of boxes.
            axes = {key: 4 if hasattr(x, "getbands") else getattr(x, "ndim", 0) for key, x in samples[0].items()}
            image = max(axes, key=axes.__getitem__, default="")
            if axes.get(image, 0) < 2:
                raise UserError(f"a sample has {', '.join(map(str, samples[0]))}, expected an image among them")
            columns = {key: [sample[key] for sample in samples] for key in samples[0]}
            return {key: (self._augment if key == image else default_collate)(x) for key, x in columns.items()}
        if not isinstance(samples[0], (tuple, list)):
            return self._augment(samples)
        images, *others = zip(*samples, strict=True)
        return self._augment(images), *(default_collate([*other]) for other in others)

    def _augment(self, images: Sequence[Any]) -> list[Tensor]:
        """Crop each image by itself, and augment the crops together."""
        if isinstance(images[0], Tensor):
            return [torch.stack(view) for view in zip(*[self(image) for image in images], strict=True)]
        from fullrank.images.dataloaders import decode_and_crop, same_form  # imports all that reads a data set
        from fullrank.images.decode_errors import ImageDecodeError

        params = self._draw(len(images))
        try:
            crops = [
                decode_and_crop(image, self.transform, params.select_samples(slice(k, k + 1)))
                for k, image in enumerate(images)
            ]
        except ImageDecodeError as error:
            raise UserError(f"{error}; give images of Pillow, arrays (H, W, C) or tensors (C, H, W)") from error
        groups = [torch.stack(same_form(size), dim=1) for size in zip(*crops, strict=True)]
        return [view for group in self.transform.augment(groups, params) for view in group]

    def _draw(self, n: int) -> AugmentationParams:
        return self.transform.make_params(int(torch.randint(2**62, ())), 0, n)
