"""How a source of images is opened."""

from typing import Literal, TypedDict

Labels = Literal["auto", "none", "folders"]

MAX_PIXELS = 89_478_485  # Pillow's own limit
MAX_EXPANSION = 100


class OpenOptions(TypedDict, total=False):
    """How a source is opened; `open_images` describes the options."""

    image: str | None
    label: str | None
    label_separator: str | None
    group: str | None
    column_of_splits: str | None
    labels: Labels
    follow_links: bool
    max_pixels: int
    max_expansion: int
