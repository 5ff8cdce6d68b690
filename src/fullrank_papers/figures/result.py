"""The result of a figure: its rows, their origin, its file, and its drawing."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.errors import UserError, pick
from fullrank.files import atomic_write
from fullrank_papers.figures.figure import Campaign, Claim, Rows, load_figure
from fullrank_papers.figures.plotting import draw_with_caption

if TYPE_CHECKING:
    import matplotlib.figure

DIGITS = (
    6  # significant digits of stored numbers; figures need three of them, and claims of exactness need the exponent
)


@dataclass(frozen=True)
class Result:
    """The rows of a figure at one size, and the settings that they were computed with."""

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
        """The paper's claims, with their verdicts on these rows."""
        return load_figure(self.name).claims(self.rows)

    def draw(self) -> matplotlib.figure.Figure:
        """Return the drawing, with the claims as its caption, and the number of runs if some are missing."""
        figure = load_figure(self.name)
        lines = [claim.line() for claim in self.claims]
        if isinstance(figure, Campaign) and len(self.rows["rows"]) < self.rows["cells"]:
            lines.insert(0, f"Partial: {len(self.rows['rows'])} of {self.rows['cells']} runs.")
        return draw_with_caption(figure.plot, self.rows, title=figure.title, lines=lines)

    def write(self, path: Path) -> None:
        """Write the result as JSON."""
        path.write_text(json.dumps(asdict(self), ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> Result:
        """Return the result that `write` wrote.

        Raises:
            UserError: the file does not exist, or is not a result.
        """
        try:
            return Result(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise UserError(f"{path} does not exist; compute it with fullrank reproduce, without --redraw") from None
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{path} does not contain the rows of a figure; compute them with fullrank reproduce … --overwrite"
            ) from error


def result_path(name: str, size: str) -> Path:
    """Return the path of a result in its folder, PAPER/FIGURE-SIZE, without the file extension."""
    return Path(f"{name}-{size}")


def reproduce(name: str, *, size: str = "small", data: str | None = None, seed: int = 0) -> Result:
    """Compute a figure of a paper.

    Args:
        name: PAPER/FIGURE, one of `FIGURES`.
        size: smoke (seconds), small (minutes; up to half an hour if networks are trained), paper (the paper's values,
            if it gives them).
        data: source URI of the images, for figures that use images; the default is that of the size's recipe, or else
            the embedded digits.
        seed: seed of all random numbers.

    Raises:
        UserError: unknown name or size, negative seed, data for a figure without images, or a source that cannot be
            read.

    >>> result = reproduce("dynamics/theorem3", size="smoke")
    >>> result.claims[0].holds
    True
    """
    from fullrank.run.environment import platform_info  # imported here: slow

    figure = load_figure(name)
    if isinstance(figure, Campaign):
        raise UserError(
            f"{name} is a campaign of runs; call fullrank_papers.figures.run_campaign('{name}'), or fullrank reproduce {name}"
        )
    settings = pick(size, figure.sizes, "size")
    if data is not None and not figure.images:
        raise UserError(f"{name} uses no images, but --data is {data}; omit --data")
    if seed < 0:
        raise UserError(f"seed {seed} is negative, expected 0 or more")
    start = time.perf_counter()
    rows = round_numbers(figure.compute(settings, data=data, seed=seed))
    seconds = round(time.perf_counter() - start, 1)
    environment = {**platform_info(), **{package: version(package) for package in ("scipy", "matplotlib")}}
    return Result(name, size, seed, data, seconds, asdict(settings), environment, rows)


def round_numbers(value: Any) -> Any:
    """Return rows with all floats rounded to `DIGITS` significant digits.

    Raises:
        AssertionError: a value that JSON cannot represent, for example infinity; rows contain None instead.

    >>> round_numbers({"t": [1 / 3, 2], "name": "a"})
    {'t': [0.333333, 2], 'name': 'a'}
    """
    if isinstance(value, dict):
        return {key: round_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [round_numbers(item) for item in value]
    if isinstance(value, float):
        assert abs(value) < float("inf"), value
        return float(f"{value:.{DIGITS}g}")
    assert value is None or isinstance(value, (str, int)), type(value)  # bool is an int
    return value


def save_drawing(result: Result, folder: Path) -> list[Path]:
    """Write FOLDER/PAPER/FIGURE-SIZE.svg and .png, replacing existing files, and return the two paths.

    Raises:
        UserError: the folder cannot be written.
    """
    drawing = result.draw()
    paths = [folder / result_path(result.name, result.size).with_suffix(suffix) for suffix in (".svg", ".png")]
    for path in paths:
        with atomic_write(path, overwrite=True) as draft:
            drawing.savefig(
                draft,
                format=path.suffix[1:],
                bbox_inches="tight",
                metadata={"Date": None} if path.suffix == ".svg" else None,
            )
    return paths


def load_committed(name: str, size: str = "small") -> Result | None:
    """Return the result that comes with the library, or None."""
    package = Path(__file__).parents[1]
    folders = (package / "results", package.parents[1] / "results")  # of an installed package, of a source checkout
    return next(
        (
            Result.read(path)
            for folder in folders
            if (path := folder / result_path(name, size).with_suffix(".json")).exists()
        ),
        None,
    )
