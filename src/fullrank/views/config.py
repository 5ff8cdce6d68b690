"""The configuration of a view: the distribution of one augmented image, as plain values for a file or a command
line.
"""

from dataclasses import dataclass, field
from typing import Annotated

from fullrank.structure import ASCENDING, Share, between, validate

Strength = Annotated[float, between(0, 100)]
Factor = Annotated[float, between(0.01, 100)]
Area = Annotated[float, between(1e-6, 1)]
Pixels = Annotated[float, between(0.001, 100)]


@dataclass(frozen=True, kw_only=True)
class CropConfig:
    """A random box of the image, resized to the size of the view (torchvision's RandomResizedCrop)."""

    probability: Share = 1.0
    """Probability of a random box; otherwise the whole image is resized."""
    scale: Annotated[tuple[Area, Area], ASCENDING] = (0.08, 1.0)
    """Smallest and largest area of the box, as a share of the image's area."""
    ratio: Annotated[tuple[Factor, Factor], ASCENDING] = (3 / 4, 4 / 3)
    """Smallest and largest width / height of the box; the logarithm of the ratio is uniform."""


@dataclass(frozen=True, kw_only=True)
class AffineConfig:
    """Rotation, translation, zoom and shear about the centre, bilinear, black outside (torchvision's RandomAffine)."""

    probability: Share = 0.0
    """Probability of the operation."""
    degrees: Annotated[float, between(0, 360)] = 0.0
    """Largest rotation, in degrees, in either direction."""
    translate: tuple[Share, Share] = (0.0, 0.0)
    """Largest shift along x and y, as a share of the view's side, rounded to whole pixels."""
    scale: Annotated[tuple[Factor, Factor], ASCENDING] = (1.0, 1.0)
    """Smallest and largest zoom."""
    shear: tuple[Annotated[float, between(0, 89)], Annotated[float, between(0, 89)]] = (0.0, 0.0)
    """Largest shear along x and y, in degrees, in either direction."""


@dataclass(frozen=True, kw_only=True)
class JitterConfig:
    """Brightness, contrast, saturation and hue, in a random order for each view (torchvision's ColorJitter)."""

    probability: Share = 0.8
    """Probability of the operation."""
    brightness: Strength = 0.4
    """The factor is uniform in [max(0, 1 - brightness), 1 + brightness]."""
    contrast: Strength = 0.4
    """The factor is uniform in [max(0, 1 - contrast), 1 + contrast]."""
    saturation: Strength = 0.4
    """The factor is uniform in [max(0, 1 - saturation), 1 + saturation]. Grayscale images do not change."""
    hue: Annotated[float, between(0, 0.5)] = 0.1
    """The shift is uniform in [-hue, hue], a fraction of the colour circle (at most 0.5). Grayscale images do not
    change."""


@dataclass(frozen=True, kw_only=True)
class BlurConfig:
    """Gaussian blur (torchvision's GaussianBlur, reflected border, kernel cut at four times the largest sigma)."""

    probability: Share = 0.0
    """Probability of the operation."""
    sigma: Annotated[tuple[Pixels, Pixels], ASCENDING] = (0.1, 2.0)
    """Smallest and largest standard deviation, in pixels of the view."""


@dataclass(frozen=True, kw_only=True)
class SolarizeConfig:
    """Inversion of the values at or above a threshold (torchvision's RandomSolarize)."""

    probability: Share = 0.0
    """Probability of the operation."""
    threshold: Share = 0.5
    """Threshold in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """Gaussian noise, independent for each value, followed by clamping to [0, 1] (torchvision's GaussianNoise)."""

    probability: Share = 0.0
    """Probability of the operation."""
    std: Strength = 0.1
    """Standard deviation, for images in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """The distribution of one view; the default is the usual symmetric recipe for small images.

    The order is fixed: crop, affine, quarter turns, flips, jitter, grayscale, blur, solarize, noise, normalisation.
    A probability of 0 switches an operation off. Saturation, hue and grayscale must be 0 for images with neither 1 nor
    3 channels.

    >>> ViewConfig(size=96, blur=BlurConfig(probability=0.5)).crop.scale
    (0.08, 1.0)
    """

    count: Annotated[int, between(1, 256)] = 2
    """Number of views drawn from this distribution."""
    size: Annotated[int, between(1, 4096)] = 32
    """Side of the view in pixels."""
    crop: CropConfig = field(default_factory=CropConfig)
    """Random resized crop."""
    affine: AffineConfig = field(default_factory=AffineConfig)
    """Rotation, translation, zoom, shear."""
    quarter_turns: Share = 0.0
    """Probability of a rotation by 90, 180 or 270 degrees, all equally likely."""
    flip: Share = 0.5
    """Probability of a flip left to right."""
    vertical_flip: Share = 0.0
    """Probability of a flip top to bottom."""
    jitter: JitterConfig = field(default_factory=JitterConfig)
    """Brightness, contrast, saturation, hue."""
    grayscale: Share = 0.2
    """Probability that the colours are removed. Grayscale images do not change."""
    blur: BlurConfig = field(default_factory=BlurConfig)
    """Gaussian blur."""
    solarize: SolarizeConfig = field(default_factory=SolarizeConfig)
    """Inversion of bright values."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    """Gaussian noise."""

    def __post_init__(self):
        validate(self, "view.")
