"""The configuration of a view: the distribution of one augmented image, as plain values for a file or a command line."""

from dataclasses import dataclass, field, fields, is_dataclass

from fullrank.errors import UserError


@dataclass(frozen=True, kw_only=True)
class CropConfig:
    """A random box of the image, resized to the size of the view (torchvision's RandomResizedCrop)."""

    probability: float = 1.0
    """Probability of a random box; otherwise the whole image is resized."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest area of the box, as a share of the image's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest width / height of the box; the logarithm of the ratio is uniform."""


@dataclass(frozen=True, kw_only=True)
class AffineConfig:
    """Rotation, translation, zoom and shear about the centre, bilinear, black outside (torchvision's RandomAffine)."""

    probability: float = 0.0
    """Probability of the operation."""
    degrees: float = 0.0
    """Largest rotation, in degrees, in either direction."""
    translate: tuple[float, float] = (0.0, 0.0)
    """Largest shift along x and y, as a share of the view's side, rounded to whole pixels."""
    scale: tuple[float, float] = (1.0, 1.0)
    """Smallest and largest zoom."""
    shear: tuple[float, float] = (0.0, 0.0)
    """Largest shear along x and y, in degrees, in either direction."""


@dataclass(frozen=True, kw_only=True)
class JitterConfig:
    """Brightness, contrast, saturation and hue, in a random order for each view (torchvision's ColorJitter)."""

    probability: float = 0.8
    """Probability of the operation."""
    brightness: float = 0.4
    """The factor is uniform in [max(0, 1 - brightness), 1 + brightness]."""
    contrast: float = 0.4
    """The factor is uniform in [max(0, 1 - contrast), 1 + contrast]."""
    saturation: float = 0.4
    """The factor is uniform in [max(0, 1 - saturation), 1 + saturation]. Grayscale images do not change."""
    hue: float = 0.1
    """The shift is uniform in [-hue, hue], a fraction of the colour circle (at most 0.5). Grayscale images do not change."""


@dataclass(frozen=True, kw_only=True)
class BlurConfig:
    """Gaussian blur (torchvision's GaussianBlur, reflected border, kernel cut at four times the largest sigma)."""

    probability: float = 0.0
    """Probability of the operation."""
    sigma: tuple[float, float] = (0.1, 2.0)
    """Smallest and largest standard deviation, in pixels of the view."""


@dataclass(frozen=True, kw_only=True)
class SolarizeConfig:
    """Inversion of the values at or above a threshold (torchvision's RandomSolarize)."""

    probability: float = 0.0
    """Probability of the operation."""
    threshold: float = 0.5
    """Threshold in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """Gaussian noise, independent for each value, followed by clamping to [0, 1] (torchvision's GaussianNoise)."""

    probability: float = 0.0
    """Probability of the operation."""
    std: float = 0.1
    """Standard deviation, for images in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """The distribution of one view; the default is the usual symmetric recipe for small images.

    The order is fixed: crop, affine, quarter turns, flips, jitter, grayscale, blur, solarize, noise, normalisation.
    A probability of 0 switches an operation off. Saturation, hue and grayscale must be 0 for images with neither 1 nor 3 channels.

    >>> ViewConfig(size=96, blur=BlurConfig(probability=0.5)).crop.scale
    (0.08, 1.0)
    """

    count: int = 2
    """Number of views drawn from this distribution."""
    size: int = 32
    """Side of the view in pixels."""
    crop: CropConfig = field(default_factory=CropConfig)
    """Random resized crop."""
    affine: AffineConfig = field(default_factory=AffineConfig)
    """Rotation, translation, zoom, shear."""
    quarter_turns: float = 0.0
    """Probability of a rotation by 90, 180 or 270 degrees, all equally likely."""
    flip: float = 0.5
    """Probability of a flip left to right."""
    vertical_flip: float = 0.0
    """Probability of a flip top to bottom."""
    jitter: JitterConfig = field(default_factory=JitterConfig)
    """Brightness, contrast, saturation, hue."""
    grayscale: float = 0.2
    """Probability that the colours are removed. Grayscale images do not change."""
    blur: BlurConfig = field(default_factory=BlurConfig)
    """Gaussian blur."""
    solarize: SolarizeConfig = field(default_factory=SolarizeConfig)
    """Inversion of bright values."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    """Gaussian noise."""

    def __post_init__(self):
        for name in ("count", "size"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name, value in leaves(self):
            if name.split(".")[-1] in ("probability", "quarter_turns", "flip", "vertical_flip", "grayscale", "threshold"):
                _check(0 <= value <= 1, name, value, "between 0 and 1")
            elif name == "jitter.hue":
                _check(0 <= value <= 0.5, name, value, "between 0 and 0.5")
            elif name.endswith(("sigma", "scale", "ratio")):
                _check(0 < value[0] <= value[1], name, value, "two positive numbers, the smaller one first")
            elif name == "affine.translate":
                _check(min(value) >= 0 and max(value) <= 1, name, value, "two numbers between 0 and 1")
            elif not isinstance(value, tuple):
                _check(value >= 0, name, value, "0 or more")


def leaves(config, prefix: str = ""):
    """Yield the dotted name and the value of each leaf of a nested dataclass.

    >>> dict(leaves(ViewConfig()))["blur.sigma"]
    (0.1, 2.0)
    """
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{f.name}.")
        else:
            yield prefix + f.name, value


def _check(valid: bool, name: str, value: object, expected: str):
    if not valid:
        raise UserError(f"view.{name} is {value}, but has to be {expected}")
