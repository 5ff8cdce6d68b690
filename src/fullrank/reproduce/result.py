"""A figure that was computed: its rows with where they come from, on disk and back, and its drawing."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.atomic import atomic_write
from fullrank.errors import UserError, pick
from fullrank.reproduce.catalogue import figure_named
from fullrank.reproduce.draw import captioned
from fullrank.reproduce.figure import Claim, Rows

if TYPE_CHECKING:
    import matplotlib.figure

DIGITS = 6  # of every number that is kept: figures need three, claims of exactness the exponent


@dataclass(frozen=True)
class Result:
    """The rows of a figure at one size, and on what they were computed."""

    name: str
    size: str
    seed: int
    data: str | None
    seconds: float
    settings: dict[str, Any]
    """The fields of the size."""
    environment: dict[str, Any]
    """Versions, hardware, command, commit."""
    rows: Rows

    @property
    def claims(self) -> list[Claim]:
        """What the paper says, and whether these rows bear it out."""
        return figure_named(self.name).claims(self.rows)

    def draw(self) -> matplotlib.figure.Figure:
        """Return the drawing, with the claims as its caption."""
        figure = figure_named(self.name)
        return captioned(figure.plot, self.rows, title=figure.title, lines=[claim.line() for claim in self.claims])

    def write(self, path: Path) -> None:
        """Write it as JSON, for `read`."""
        path.write_text(json.dumps(asdict(self), ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> Result:
        """Read what `write` wrote.

        Raises:
            UserError: there is no file, or another one.
        """
        try:
            return Result(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise UserError(f"{path} is not there yet; compute it with fullrank reproduce, without --redraw") from None
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{path} does not hold the rows of a figure; compute them with fullrank reproduce … --overwrite") from error


def stem(name: str, size: str) -> Path:
    """Return the place of a result within its folder, without the ending.

    >>> stem("frossl/fig2", "small").as_posix()
    'frossl/fig2-small'
    """
    return Path(f"{name}-{size}")


def reproduce(name: str, *, size: str = "small", data: str | None = None, seed: int = 0) -> Result:
    """Compute a figure of a paper.

    Args:
        name: PAPER/FIGURE, one of `FIGURES`.
        size: smoke (seconds), small (minutes; where networks are trained, up to half an hour), paper (the paper's own numbers, where it
            gives them).
        data: SOURCE of the images of figures that use some; by default that of the size's recipe, or else the embedded digits.
        seed: of every draw.

    Raises:
        UserError: unknown name or size, a negative seed, data for a figure that uses none, or a source that cannot be read.

    >>> result = reproduce("dynamics/theorem3", size="smoke")
    >>> result.claims[0].holds
    True
    """
    from fullrank.run.environment import platform_info  # here: it brings the training's libraries

    figure = figure_named(name)
    chosen = pick(size, figure.sizes, "size")
    if data is not None and not figure.images:
        raise UserError(f"{name} uses no images, but --data is {data}; leave it out")
    if seed < 0:
        raise UserError(f"seed {seed} is negative, expected 0 or more")
    start = time.perf_counter()
    rows = rounded(figure.compute(chosen, data=data, seed=seed))
    seconds = round(time.perf_counter() - start, 1)
    environment = {**platform_info(), **{package: version(package) for package in ("scipy", "matplotlib")}}
    return Result(name, size, seed, data, seconds, asdict(chosen), environment, rows)


def rounded(value: Any) -> Any:
    """Return rows whose numbers have `DIGITS` significant digits.

    Raises:
        AssertionError: a number that JSON cannot hold: rows have None for what never happens.

    >>> rounded({"t": [1 / 3, 2], "name": "a"})
    {'t': [0.333333, 2], 'name': 'a'}
    """
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        assert abs(value) < float("inf"), value
        return float(f"{value:.{DIGITS}g}")
    assert value is None or isinstance(value, (str, int)), type(value)  # bool is an int
    return value


def draw(result: Result, folder: Path) -> list[Path]:
    """Write FOLDER/PAPER/FIGURE-SIZE.svg and .png, and return the two paths. They follow from the rows, and replace what is there.

    Raises:
        UserError: the folder cannot be written.
    """
    drawing = result.draw()
    paths = [folder / stem(result.name, result.size).with_suffix(ending) for ending in (".svg", ".png")]
    for path in paths:
        with atomic_write(path, overwrite=True) as draft:
            drawing.savefig(draft, format=path.suffix[1:], bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def committed(name: str, size: str = "small") -> Result | None:
    """Return the result that comes with the library, or None."""
    package = Path(__file__).parents[1]
    folders = (package / "results", package.parents[1] / "results")  # of an installed package, of a checkout
    return next((Result.read(path) for folder in folders if (path := folder / stem(name, size).with_suffix(".json")).exists()), None)
