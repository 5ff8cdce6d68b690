"""neighbours.json: a few test images of a run and their nearest neighbours as small pictures, for its report."""

import base64
import io
from dataclasses import asdict, replace
from typing import Annotated, Any

import torch
from PIL import Image
from pydantic import Field
from torchvision.transforms.v2.functional import to_pil_image

from fullrank.config import Count, config
from fullrank.errors import Notify, UserError, utf8
from fullrank.evaluation.neighbours import Neighbours, neighbours
from fullrank.files import write_json
from fullrank.images import Device, as_images
from fullrank.images.dataset_info import evenly_spaced
from fullrank.images.preprocess import to_8_bits
from fullrank.models import Model
from fullrank.models.model_images import choose_splits

NEIGHBOURS = "neighbours.json"
# Number of test images that are searched, evenly spread over all.
SEARCHED = 1000
# Rows, and neighbours in each.
ROWS, SHOWN = 6, 7
# Longest side of a picture, in pixels.
SIDE = 96


@config
class Tile:
    """One picture of a row.

    Attributes:
        similarity: Cosine similarity to the first image of the row; None for the first image itself.
        picture: The address of the picture: its content, and no other place.
    """

    name: str
    label: str = ""
    similarity: float | None = None
    picture: Annotated[str, Field(pattern=r"^data:image/(png|jpeg);base64,[A-Za-z0-9+/=]*$")]


@config
class NeighbourRows:
    """The rows of one run.

    Attributes:
        step: The step of the checkpoint.
        searched: Number of images among which neighbours were sought.
    """

    source: str
    step: Count | None = None
    searched: Count
    rows: tuple[tuple[Tile, ...], ...] = ()


def update_neighbours(model: Model, data: Any, splits: dict[str, Any], *, device: Device, notify: Notify) -> None:
    """Write the neighbours.json of a run that `evaluate` scored on the same images; a problem is a line, as the scores
    are stored.

    Args:
        model: a loaded model of a run.
        data: the images, as in `fullrank.evaluate`.
        splits: `reading` and `train_subset` of `choose_splits`.
        device: as in `fullrank.neighbours`.
        notify: receives the reason if no neighbours are stored.
    """
    assert model.path
    assert model.recipe
    try:
        chosen = choose_splits(model, data, seed=model.recipe.split_seed, **splits)
        rows = find_rows(model, chosen.test, source=chosen.data, device=device)
    except UserError as error:
        notify(f"the report has no nearest neighbours: {error}")
        return
    write_json(model.path / NEIGHBOURS, asdict(rows))


def find_rows(model: Model, test: Any, *, source: str, device: Device | None = None) -> NeighbourRows:
    """Embed at most `SEARCHED` test images, and return the neighbours of `ROWS` of them."""
    images, device = as_images(test), replace(device or Device(), max_error_fraction=1.0)
    part = images.subset(evenly_spaced(len(images), SEARCHED))
    found = neighbours(model, {"test": part}, k=SHOWN, duplicates=1.0, device=device)
    rows = []
    for row in evenly_spaced(len(found), ROWS):
        nearest = zip(found.indices[row].tolist(), found.similarities[row].round(4).tolist(), strict=True)
        rows.append(tuple(_tile(found, i, similarity) for i, similarity in ((row, None), *nearest)))
    return NeighbourRows(source=source, step=model.step, searched=len(found), rows=tuple(rows))


def _tile(found: Neighbours, row: int, similarity: float | None) -> Tile:
    """Return a picture; of other channels than 1 or 3, the first is shown."""
    name = utf8(found.names[row])
    pixels = to_8_bits(torch.from_numpy(found.picture(row)))
    image = to_pil_image(pixels if len(pixels) == 3 else pixels[:1])
    image.thumbnail((SIDE, SIDE))
    picture = address(image, "png" if image.width <= 32 else "jpeg")
    return Tile(name=name, label=found.labels[row] or "", similarity=similarity, picture=picture)


def address(image: Image.Image, kind: str) -> str:
    """Return an image as the address of a picture: its content.

    >>> address(Image.new("L", (1, 1)), "png")[:30]
    'data:image/png;base64,iVBORw0K'
    """
    stream = io.BytesIO()
    image.save(stream, kind, quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
