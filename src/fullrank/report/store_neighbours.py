"""Find the neighbours of a few test images of a run, and store them for its report."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fullrank.errors import UserError
from fullrank.evaluation.neighbourhood import Neighbours, neighbours
from fullrank.images import DecodeErrors, Images, MemoryImages, as_images
from fullrank.models import Model
from fullrank.models.model_images import choose_splits
from fullrank.report.figures import spread_indices
from fullrank.report.neighbours import picture_uri
from fullrank.run.neighbour_rows import FILE, NeighbourRows, Tile

SEARCHED = 1000
"""Number of test images that are searched, evenly spread over all."""
ROWS, SHOWN = 6, 7
"""Rows, and neighbours in each."""


def update_neighbours(
    model: Model,
    data: Any,
    splits: dict[str, Any],
    *,
    device: Any = "auto",
    workers: int = 0,
    notify: Callable[[str], Any] = lambda line: None,
) -> None:
    """Write the neighbours.json of a run that `evaluate` scored on the same images; a problem is a line, as the scores
    are stored.

    Args:
        model: a loaded model of a run.
        data: the images, as in `fullrank.evaluate`.
        splits: the names of the splits, as in `fullrank.evaluate`.
        device: as in `fullrank.neighbours`.
        workers: as in `fullrank.neighbours`.
        notify: receives the reason if no neighbours are stored.
    """
    if model.path is None or model.recipe is None:
        return
    try:
        chosen = choose_splits(model, data, seed=model.recipe.split_seed, **splits)
        store_neighbour_rows(
            model, chosen.test, model.path / FILE, source=chosen.data, device=device, workers=workers
        )
    except UserError as error:
        notify(f"the report has no nearest neighbours: {error}")


def store_neighbour_rows(
    model: Model, test: Images | MemoryImages, path: Path, *, source: str, device: Any = "auto", workers: int = 0
) -> NeighbourRows:
    """Embed at most `SEARCHED` test images, and write the neighbours of `ROWS` of them.

    Args:
        model: a loaded model.
        test: the images.
        path: the file; an existing one is replaced. It has fewer than 60 pictures of at most 96 pixels.
        source: the name of the images.
        device: as in `fullrank.neighbours`.
        workers: as in `fullrank.neighbours`.

    Raises:
        UserError: fewer than two images can be read, or the features are not finite.
    """
    images = as_images(test)
    part = images.subset(spread_indices(len(images), SEARCHED))
    errors = DecodeErrors(max_error_fraction=1.0)
    found = neighbours(
        model,
        {"test": part},
        k=SHOWN,
        duplicates=1.0,
        map_images=0,
        device=device,
        workers=workers,
        decode_errors=errors,
    )
    rows = tuple(_row(found, row) for row in spread_indices(len(found), ROWS))
    stored = NeighbourRows(source=source, step=model.step, searched=len(found), rows=rows)
    stored.write(path)
    return stored


def _row(found: Neighbours, row: int) -> tuple[Tile, ...]:
    first = _tile(found, row)
    nearest = zip(found.indices[row].tolist(), found.similarities[row].tolist(), strict=True)
    return (first, *(replace(_tile(found, i), similarity=round(similarity, 4)) for i, similarity in nearest))


def _tile(found: Neighbours, row: int) -> Tile:
    name = found.names[row].encode("utf-8", "backslashreplace").decode()  # a file's name may be no UTF-8
    return Tile(name=name, label=found.labels[row] or "", picture=picture_uri(found.picture(row)))
