"""A loaded MODEL: a frozen backbone with its preprocessing, and where it came from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.errors import UserError
from fullrank.images import Preprocess
from fullrank.images.pixel_values import same_form
from fullrank.images.user_images import read_pixels, split_images
from fullrank.methods import BackboneConfig
from fullrank.recipes import Recipe


@dataclass(frozen=True)
class Model:
    """A backbone in eval mode with its preprocessing: `model.features(["a.jpg", "b.jpg"])`."""

    name: str
    """The MODEL, as the user wrote it."""
    backbone: nn.Module
    """Maps normalised float32 images (n, C, S, S) to features (n, D)."""
    preprocess: Preprocess
    spec: BackboneConfig
    """The arguments with which timm builds the backbone."""
    untrained: Callable[[], nn.Module]
    """Builds the same network with random weights; for a run, with the initial weights of the run."""
    projector: nn.Module | None = None
    """The projector of a run."""
    recipe: Recipe | None = None
    """The recipe of a run."""
    step: int | None = None
    """The step of the checkpoint of a run."""
    path: Path | None = None
    """The run directory, if the model is the newest checkpoint of a run; scores of others are not stored in it."""
    classes: tuple[str, ...] = ()
    """The names of the classes of the images that a run was trained on, () if they are unknown."""
    note: str = ""
    """What is known about the weights of another library: their names in the file, and the tensors that were not
    used."""
    initial: Callable[[], nn.Module] | None = None
    """Builds the same network with the weights that a run began with; None if these were random, or if the model is no
    run."""

    @torch.inference_mode()
    def features(self, images: Any, *, batch_size: int = 256) -> Float[Tensor, "n D"]:
        """Return the features (n, D) of n ≥ 1 images, in order, on the device of the backbone.

        Args:
            images: one image or several: paths of image files, Pillow images, arrays (H, W) or (H, W, C), tensors (C,
                H, W), a batch (n, H, W, C) or (n, C, H, W), or opened images such as `open_images("photos")["all"]`.
                Arrays and tensors have uint8 values, or floats in [0, 1]; the model normalises them.
            batch_size: images per forward pass.

        Raises:
            UserError: there is no image, or an image cannot be read.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise UserError(f"batch_size is {batch_size!r:.60}, expected a positive integer")
        device = next((tensor.device for tensor in self.backbone.parameters()), torch.device("cpu"))
        parts, pixels, images = [], [], split_images(images)
        for number, image in enumerate(images, start=1):
            pixels.append(read_pixels(image, self.preprocess, number=number - 1))
            if len(pixels) == batch_size or number == len(images):
                parts.append(self.backbone(self.preprocess.normalize(torch.stack(same_form(pixels)).to(device))))
                pixels = []
        return torch.cat(parts)


@runtime_checkable
class HasPath(Protocol):
    """A `Run`."""

    @property
    def path(self) -> Path: ...


ModelLike = str | Path | HasPath | Model
"""A MODEL (see `load`), a `Run`, or a loaded model."""
