"""The bits of 16-bit images for models whose preprocessing was made for images of 8 bits, such as those of timm."""

from dataclasses import replace

from fullrank.images import Images, MemoryImages, find_bit_depth
from fullrank.models import Model


def with_depth(model: Model, *images: Images | MemoryImages) -> Model:
    """Return the model with the bits that the values of 16-bit images use, so that 12-bit images in 16-bit files are
    not nearly black.

    A run, and a file of `fullrank export`, keep the bits of their training. All images are read with one range, the
    largest.

    Args:
        model: The model.
        images: The images that it sees; for scores the training images alone, so that nothing depends on the test
            images.
    """
    if model.recipe is not None or (model.name.startswith("file:") and not model.note):
        return model
    found = [
        find_bit_depth(part, channels=model.preprocess.channels).bits for part in images if isinstance(part, Images)
    ]
    bits = max(found, default=0)
    return replace(model, preprocess=replace(model.preprocess, bits=bits)) if bits else model
