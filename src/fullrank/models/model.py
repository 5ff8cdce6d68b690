"""A loaded MODEL: a frozen backbone with its preprocessing, and where it came from."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.errors import UserError
from fullrank.images import Images, MemoryImages, Preprocess, find_bit_depth
from fullrank.images.memory import given_images, read_pixels
from fullrank.images.preprocess import same_form
from fullrank.methods import BackboneConfig
from fullrank.methods.backbones import build_backbone, feature_dim
from fullrank.models.weights import load_weights, read_weights
from fullrank.recipes import Recipe
from fullrank.recipes.assembling import check_normalization
from fullrank.seeding import seeded


@dataclass(frozen=True, repr=False)
class Model:
    """A backbone in eval mode with its preprocessing: `model.features(["a.jpg", "b.jpg"])`.

    Attributes:
        name: The MODEL, as the user wrote it.
        backbone: Maps normalised float32 images (n, C, S, S) to features (n, D).
        spec: The arguments with which timm builds the backbone.
        projector: The projector of a run.
        recipe: The recipe of a run.
        step: The step of the checkpoint of a run.
        path: The run directory, if the model is the newest checkpoint of a run; scores of others are not stored in it.
        classes: The names of the classes of the images that a run was trained on, () if they are unknown.
        note: Which weights of another library were found, under which names, and which were not used.
        init: The file of the weights with which the backbone of a run began, if its recipe has an `init`.
    """

    name: str
    backbone: nn.Module
    preprocess: Preprocess
    spec: BackboneConfig
    projector: nn.Module | None = None
    recipe: Recipe | None = None
    step: int | None = None
    path: Path | None = None
    classes: tuple[str, ...] = ()
    note: str = ""
    init: Path | None = None

    def __repr__(self) -> str:
        return f"Model {self.name}: {self.spec.name}, {feature_dim(self.backbone)} features, {self.preprocess.size} px"

    @torch.no_grad()
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
        device, parts, images = device_of(self.backbone), [], given_images(images)
        for start in range(0, len(images), batch_size):
            some = range(start, min(start + batch_size, len(images)))
            pixels = same_form([read_pixels(images, index, self.preprocess) for index in some])
            parts.append(self.backbone(self.preprocess.normalize(torch.stack(pixels).to(device))))
        return torch.cat(parts)

    def untrained(self, seed: int | None = None) -> nn.Module:
        """Build the same network with random weights; by default those from which a run without `init` starts."""
        own = self.recipe.seed if self.recipe else 0
        return build_untrained(self.spec, self.preprocess.channels, own if seed is None else seed)

    def initial(self) -> nn.Module:
        """Build the same network with the weights of `init`."""
        assert self.init is not None, "the model is of a run with an init"
        backbone = self.untrained()
        load_weights(backbone, read_weights(self.init)[0], f"{self.init} does not match the recipe of its run")
        return backbone

    @property
    def is_plain(self) -> bool:
        """Whether `timm.create_model` alone builds the network."""
        return self.spec.stem == "standard" and self.spec.last_residual

    @property
    def metadata(self) -> dict[str, str]:
        """The texts by which a file of weights names its network and its preprocessing."""
        spec = {name: json.dumps(getattr(self.spec, name)) for name in ("arguments", "last_residual")}
        preprocess = {"preprocess": json.dumps(vars(self.preprocess)), "classes": json.dumps(self.classes)}
        return {"name": self.spec.name, "stem": self.spec.stem, **spec, **preprocess}


# A MODEL (see `load`), the path of a run or a `Run`, or a loaded model.
ModelLike = str | os.PathLike | Model


def with_depth(model: Model, *images: Images | MemoryImages) -> Model:
    """Return the model with the bits that the values of 16-bit images use: else 12-bit images are nearly black.

    A run, and a file of `fullrank export`, keep the bits of their training. All images are read with one range, the
    largest. For scores, give the training images alone, so that nothing depends on the test images.
    """
    if model.recipe is not None or (model.name.startswith("file:") and not model.note):
        return model
    opened = [part for part in images if isinstance(part, Images)]
    bits = max((find_bit_depth(part, channels=model.preprocess.channels).bits for part in opened), default=0)
    return replace(model, preprocess=replace(model.preprocess, bits=bits)) if bits else model


def resolve_device(accelerator: str | torch.device = "auto") -> torch.device:
    """Return the device with this name; 'auto' is a GPU if there is a GPU.

    Raises:
        UserError: the device is not available.
    """
    if isinstance(accelerator, torch.device):
        return accelerator
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [name for name, is_available in found.items() if is_available]
    if accelerator != "auto" and accelerator.partition(":")[0] not in available:
        raise UserError(f"device '{accelerator}' is not available; choose from auto, {', '.join(available)}")
    return torch.device(available[0] if accelerator == "auto" else accelerator)


def device_of(network: nn.Module) -> torch.device:
    """Return the device of the parameters of a network."""
    return next((tensor.device for tensor in network.parameters()), torch.device("cpu"))


def build_untrained(spec: BackboneConfig, channels: int, seed: int = 0) -> nn.Module:
    """Build the network with random weights, a function of the seed; torch's global generator is unchanged."""
    with seeded(seed):
        return build_backbone(spec, channels=channels)


def timm_preprocess(data: Mapping[str, Any]) -> Preprocess:
    """Return the preprocessing with the size, resize, mean and standard deviation of timm's data configuration.

    The filter is bilinear; timm's evaluation may use another one.

    Raises:
        UserError: a value does not fit.
    """
    channels, size, _ = data["input_size"]
    resize = math.floor(size / data["crop_pct"]) if data["crop_mode"] == "center" else size
    mean, std = (tuple(map(float, data[name])) for name in ("mean", "std"))
    return checked(Preprocess(int(channels), int(size), mean, std, resize=resize if resize > size else 0), "timm")


def checked(preprocess: Preprocess, what: str) -> Preprocess:
    """Return a preprocessing of an untrusted file unchanged.

    Raises:
        UserError: its size or its statistics do not fit.
    """
    C, size, resize = preprocess.channels, preprocess.size, preprocess.resize
    if not (1 <= C <= 2**12 and 1 <= size <= 2**14 and (resize == 0 or size <= resize <= 2**15)):
        expected = "1 to 4096 channels, a size of 1 to 16384 px, and a resize of 0 or at least the size"
        raise UserError(f"{what}: channels is {C}, size is {size} and resize is {resize}, expected {expected}")
    check_normalization(C, preprocess.mean, preprocess.std, what)
    return preprocess


def first_convolutions(network: nn.Module) -> list[str]:
    """Return the names of the weights that take the channels of the image, as timm describes the network.

    >>> import timm
    >>> first_convolutions(timm.create_model("test_resnet"))
    ['conv1.0.weight']
    """
    names = (getattr(network, "pretrained_cfg", None) or {}).get("first_conv") or ()
    return [f"{name}.weight" for name in ([names] if isinstance(names, str) else names)]
