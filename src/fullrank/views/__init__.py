"""Batched augmentations of images as tensors, with the distribution of torchvision's transforms."""

from fullrank.views.draw import Draws
from fullrank.views.preview import preview
from fullrank.views.spec import Affine, Blur, Crop, Jitter, Noise, Solarize, View
from fullrank.views.views import Views

__all__ = ["Affine", "Blur", "Crop", "Draws", "Jitter", "Noise", "Solarize", "View", "Views", "preview"]
