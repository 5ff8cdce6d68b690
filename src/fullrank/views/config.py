"""The configuration of a view: the distribution of one augmented image, as plain values for a file or a command
line.
"""

from typing import Annotated

from pydantic import AfterValidator, Field

from fullrank.config import Share, config

Strength = Annotated[float, Field(ge=0, le=100)]
Factor = Annotated[float, Field(ge=0.01, le=100)]
Area = Annotated[float, Field(ge=1e-6, le=1)]
Degrees = Annotated[float, Field(ge=0, le=89)]
Pixels = Annotated[float, Field(ge=0.001, le=100)]


def ascending(pair: tuple[float, float]) -> tuple[float, float]:
    """Check that a pair is a range: the smaller value first."""
    if pair[0] > pair[1]:
        raise ValueError(f"got {pair}, expected the smaller value first")
    return pair


Ascending = AfterValidator(ascending)


@config
class CropConfig:
    """A random box of the image, resized to the size of the view (torchvision's RandomResizedCrop).

    Attributes:
        probability: Probability of a random box; otherwise the whole image is resized.
        scale: Smallest and largest area of the box, as a share of the image's area.
        ratio: Smallest and largest width / height of the box; the logarithm of the ratio is uniform.
    """

    probability: Share = 1.0
    scale: Annotated[tuple[Area, Area], Ascending] = (0.08, 1.0)
    ratio: Annotated[tuple[Factor, Factor], Ascending] = (3 / 4, 4 / 3)


@config
class AffineConfig:
    """Rotation, translation, zoom and shear about the centre, bilinear, black outside (torchvision's RandomAffine).

    Attributes:
        probability: Probability of the operation.
        degrees: Largest rotation, in degrees, in either direction.
        translate: Largest shift along x and y, as a share of the view's side, rounded to whole pixels.
        scale: Smallest and largest zoom.
        shear: Largest shear along x and y, in degrees, in either direction.
    """

    probability: Share = 0.0
    degrees: Annotated[float, Field(ge=0, le=360)] = 0.0
    translate: tuple[Share, Share] = (0.0, 0.0)
    scale: Annotated[tuple[Factor, Factor], Ascending] = (1.0, 1.0)
    shear: tuple[Degrees, Degrees] = (0.0, 0.0)


@config
class JitterConfig:
    """Brightness, contrast, saturation and hue, in a random order for each view (torchvision's ColorJitter).

    Attributes:
        probability: Probability of the operation.
        brightness: The factor is uniform in [max(0, 1 - brightness), 1 + brightness].
        contrast: The factor is uniform in [max(0, 1 - contrast), 1 + contrast].
        saturation: The factor is uniform in [max(0, 1 - saturation), 1 + saturation]. Grayscale images do not change.
        hue: The shift is uniform in [-hue, hue], a fraction of the colour circle (at most 0.5). Grayscale images do not
            change.
    """

    probability: Share = 0.8
    brightness: Strength = 0.4
    contrast: Strength = 0.4
    saturation: Strength = 0.4
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.1


@config
class BlurConfig:
    """Gaussian blur (torchvision's GaussianBlur, reflected border, kernel cut at four times the largest sigma).

    Attributes:
        probability: Probability of the operation.
        sigma: Smallest and largest standard deviation, in pixels of the view.
    """

    probability: Share = 0.0
    sigma: Annotated[tuple[Pixels, Pixels], Ascending] = (0.1, 2.0)


@config
class SolarizeConfig:
    """Inversion of the values at or above a threshold (torchvision's RandomSolarize).

    Attributes:
        probability: Probability of the operation.
        threshold: Threshold in [0, 1].
    """

    probability: Share = 0.0
    threshold: Share = 0.5


@config
class NoiseConfig:
    """Gaussian noise, independent for each value, followed by clamping to [0, 1] (torchvision's GaussianNoise).

    Attributes:
        probability: Probability of the operation.
        std: Standard deviation, for images in [0, 1].
    """

    probability: Share = 0.0
    std: Strength = 0.1


@config
class ViewConfig:
    """The distribution of one view; the default is the usual symmetric recipe for small images.

    The order is fixed: crop, affine, quarter turns, flips, jitter, grayscale, blur, solarize, noise, normalisation.
    A probability of 0 switches an operation off. Saturation, hue and grayscale must be 0 for images with neither 1 nor
    3 channels.

    Attributes:
        count: Number of views drawn from this distribution.
        size: Side of the view in pixels.
        crop: Random resized crop.
        affine: Rotation, translation, zoom, shear.
        quarter_turns: Probability of a rotation by 90, 180 or 270 degrees, all equally likely.
        flip: Probability of a flip left to right.
        vertical_flip: Probability of a flip top to bottom.
        jitter: Brightness, contrast, saturation, hue.
        grayscale: Probability that the colours are removed. Grayscale images do not change.
        blur: Gaussian blur.
        solarize: Inversion of bright values.
        noise: Gaussian noise.

    >>> ViewConfig(size=96, blur=BlurConfig(probability=0.5)).crop.scale
    (0.08, 1.0)
    """

    count: Annotated[int, Field(ge=1, le=256)] = 2
    size: Annotated[int, Field(ge=1, le=4096)] = 32
    crop: CropConfig = CropConfig()
    affine: AffineConfig = AffineConfig()
    quarter_turns: Share = 0.0
    flip: Share = 0.5
    vertical_flip: Share = 0.0
    jitter: JitterConfig = JitterConfig()
    grayscale: Share = 0.2
    blur: BlurConfig = BlurConfig()
    solarize: SolarizeConfig = SolarizeConfig()
    noise: NoiseConfig = NoiseConfig()
