"""neighbours.json: a few test images of a run with their nearest neighbours, as small pictures."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fullrank.files import atomic_write, read_json
from fullrank.structure import Count, structure

FILE = "neighbours.json"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One picture of a row."""

    name: str
    label: str = ""
    similarity: float | None = None
    """Cosine similarity to the first image of the row; None for the first image itself."""
    picture: str
    """The address of the picture, with its content."""


@dataclass(frozen=True, kw_only=True)
class NeighbourRows:
    """The rows of one run."""

    source: str
    step: Count | None = None
    """The step of the checkpoint."""
    searched: Count
    """Number of images among which neighbours were sought."""
    rows: tuple[tuple[Tile, ...], ...] = ()

    @classmethod
    def read(cls, path: Path) -> "NeighbourRows":
        """Read neighbours.json.

        Raises:
            UserError: the file is damaged.
        """
        return structure(read_json(path), cls, str(path))

    def write(self, path: Path) -> None:
        """Write neighbours.json; an existing file is replaced."""
        with atomic_write(path, overwrite=True) as draft:
            draft.write_text(json.dumps(asdict(self)) + "\n", "utf-8", errors="backslashreplace")
