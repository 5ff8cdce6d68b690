"""The result of a figure: its rows, their origin, its file, and its drawing; and the runs of a campaign.

A result may be partial: of a campaign that was interrupted, or of which cells are missing.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from fullrank.errors import UserError, pick
from fullrank.plot_style import save_figure
from fullrank.run.environment import platform_info
from fullrank.sweep import Jobs, Plan, Row, collect_rows, require_same_images, run_sweep
from fullrank_papers.figures.figure import FIGURES, Claim, MplFigure, Rows, draw_with_caption, evaluate, is_campaign
from fullrank_papers.figures.figure import load_figure as load_figure

DIGITS = 6  # significant digits of stored numbers; figures need three, and claims of exactness need the exponent


@dataclass(frozen=True)
class Result:
    """The rows of a figure at one size, and the settings that they were computed with.

    Attributes:
        settings: The fields of the size.
        environment: Versions, hardware, command, commit.
    """

    name: str
    size: str
    seed: int
    data: str | None
    seconds: float
    settings: dict[str, Any]
    environment: dict[str, Any]
    rows: Rows

    @property
    def claims(self) -> list[Claim]:
        """The paper's claims, with their verdicts on these rows."""
        return evaluate(self.name, self.rows, self.size)

    @property
    def runs(self) -> str:
        """How many of the runs of a campaign the result has, such as "1 of 3 runs"."""
        done, cells = len(self.rows["rows"]), self.rows["cells"]
        return f"{done} of {cells} runs" if done < cells else f"{done} run{'s' * (done != 1)}"

    def draw(self) -> MplFigure:
        """Return the drawing, with the claims as its caption, and the number of runs if some are missing."""
        lines = [claim.line() for claim in self.claims]
        if is_campaign(self.name) and len(self.rows["rows"]) < self.rows["cells"]:
            lines.insert(0, f"Partial: {self.runs}.")
        return draw_with_caption(self.name, self.rows, lines)

    def path(self, folder: Path, suffix: str = ".json") -> Path:
        """Return FOLDER/PAPER/FIGURE-SIZE.json, or with another suffix."""
        return result_path(folder, self.name, self.size).with_suffix(suffix)

    def save_drawing(self, folder: Path) -> list[Path]:
        """Write FOLDER/PAPER/FIGURE-SIZE.svg, .pdf and .png, replacing existing files, and return their paths.

        Raises:
            UserError: the folder cannot be written.
        """
        return save_figure(self.draw(), self.path(folder, ""))

    def write(self, path: Path) -> None:
        """Write the result as JSON."""
        path.write_text(json.dumps(asdict(self), ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> "Result":
        """Return the result that `write` wrote.

        Raises:
            UserError: the file does not exist, or is not a result.
        """
        try:
            return Result(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise UserError(f"{path} does not exist; compute it with fullrank reproduce, without --redraw") from None
        except (OSError, ValueError, TypeError) as error:
            remedy = "compute them with fullrank reproduce … --overwrite"
            raise UserError(f"{path} does not contain the rows of a figure; {remedy}") from error


def result_path(folder: Path, name: str, size: str) -> Path:
    """Return the path of a stored result."""
    return folder / f"{name}-{size}.json"


def load_committed(name: str, size: str = "small") -> Result | None:
    """Return the result that comes with the library, or None."""
    package = Path(__file__).parents[1]
    for folder in (package / "results", package.parents[1] / "results"):  # of an installed package, of a checkout
        if (path := result_path(folder, name, size)).exists():
            return Result.read(path)
    return None


def libraries() -> dict[str, str]:
    return {package: version(package) for package in ("scipy", "matplotlib")}


def reproduce(name: str, *, size: str = "small", data: str | None = None, seed: int = 0) -> Result:
    """Compute a figure of a paper.

    Args:
        name: PAPER/FIGURE, one of `FIGURES`.
        size: smoke (seconds), small (minutes; more than an hour if networks are trained), paper (the paper's values,
            if it gives them).
        data: source URI of the images, for figures that use images; the default is that of the size's recipe, or else
            the embedded digits.
        seed: seed of all random numbers.

    Raises:
        UserError: unknown name or size, negative seed, data for a figure without images, or a source that cannot be
            read.

    >>> result = reproduce("dynamics/theorem3", size="smoke")
    >>> result.claims[0].verdict
    'holds'
    """
    if is_campaign(name):
        raise UserError(f"{name} is a list of runs; call CampaignRuns('{name}').run(), or fullrank reproduce {name}")
    settings, module = checked_size(name, size, data), load_figure(name)
    if seed < 0:
        raise UserError(f"seed {seed} is negative, expected 0 or more")
    start = time.perf_counter()
    rows = round_numbers(module.compute(settings, data=data, seed=seed))
    seconds, environment = round(time.perf_counter() - start, 1), platform_info() | libraries()
    return Result(name, size, seed, data, seconds, asdict(settings), environment, rows)


def checked_size(name: str, size: str, data: str | None) -> Any:
    """Return the settings of a size.

    Raises:
        UserError: unknown size, or data for a figure without images.
    """
    module = load_figure(name)
    if data is not None and "images" not in FIGURES[name]:
        raise UserError(f"{name} uses no images, but --data is {data}; remove --data")
    return pick(size, module.SIZES, f"size of {name}")


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


@dataclass(frozen=True)
class CampaignRuns:
    """Which runs of a campaign: its name and size, their images, seeds and methods, and their folder.

    Attributes:
        data: Source of the images; None: those of the size.
        seeds: Number of seeds; None: that of the size.
        only: Names of methods; empty: all of the size.
        transfer: Sources of other labelled images, on which the same probes are scored.
        runs: Folder of the runs; None: runs/PAPER.
        stored: Rows of a stored result; those of the same recipe, images and code are not trained again.
    """

    name: str
    size: str = "small"
    data: str | None = None
    seeds: int | None = None
    only: Sequence[str] = ()
    transfer: Sequence[str] = ()
    runs: Path | None = None
    stored: Sequence[Row] = ()

    @property
    def settings(self) -> Any:
        """The settings of the size, with these seeds and methods.

        Raises:
            UserError: a field is wrong.
        """
        module, settings = load_figure(self.name), checked_size(self.name, self.size, self.data)
        if self.seeds is not None and not 1 <= self.seeds <= 1000:
            raise UserError(f"--seeds is {self.seeds}, expected the number of seeds, from 1 to 1000")
        for method in self.only:
            pick(method, dict.fromkeys(module.METHODS), f"method of {self.name}")
        methods = tuple(self.only) or settings.methods
        return replace(settings, seeds=self.seeds or settings.seeds, methods=methods)

    def plan(self) -> Plan:
        """Return the plan of the cells.

        Raises:
            UserError: a field is wrong.
        """
        return load_figure(self.name).plan(self.settings, data=self.data, transfer=tuple(self.transfer))

    @property
    def folder(self) -> Path:
        """The folder of the runs. The figures of a paper share it; sizes share it if only what follows "-" differs.

        >>> CampaignRuns("frossl/benchmark").folder, CampaignRuns("frossl/table2", "paper-stl10").folder
        (PosixPath('runs/frossl/small'), PosixPath('runs/frossl/paper'))
        """
        return (self.runs or Path("runs") / self.name.partition("/")[0]) / self.size.partition("-")[0]

    def run(self, *, parallel: int = 0, console: Console | None = None) -> tuple[Result, list[Row]]:
        """Run what is missing, and return the result and the rows of all cells, also of those that failed.

        Raises:
            UserError: a field is wrong.
            Interrupted: the runs have stopped with checkpoints; `collect` returns what is done.
        """
        rows = run_sweep(self.plan(), self.folder, Jobs(parallel=parallel), stored=self.stored, console=console)
        return self.result(rows, len(rows)), rows

    def collect(self) -> Result:
        """Return the result of the rows that exist, without running anything."""
        rows, cells = collect_rows(self.plan(), self.folder, stored=self.stored)
        return self.result(rows, len(cells))

    def result(self, rows: Sequence[Row], cells: int) -> Result:
        """Return the result of the rows that are final, with the versions, hardware and commits of their runs.

        Raises:
            UserError: the rows are of different images.
        """
        rows = [row for row in rows if row.is_final]
        for images in {row.settings.get("images") for row in rows}:  # a campaign may have several data sets
            require_same_images([row for row in rows if row.settings.get("images") == images], "the result")
        data, seconds = rows[0].data if rows else None, round(sum(row.seconds for row in rows), 1)
        settings = asdict(self.settings)
        environment = platform_info() | merge([row.environment for row in rows]) | libraries()
        table = round_numbers({"rows": [asdict(row) for row in rows], "cells": cells})
        return Result(self.name, self.size, 0, data, seconds, settings, environment, table)


def merge(environments: Sequence[Any]) -> Any:
    """Return one object of several, in which values that differ are joined by commas: the runs may be of several
    machines and commits.

    >>> merge([{"commit": "a1", "torch": "2.0"}, {"commit": "b2", "torch": "2.0"}])
    {'commit': 'a1, b2', 'torch': '2.0'}
    """
    if all(isinstance(each, dict) for each in environments):
        names = dict.fromkeys(name for each in environments for name in each)
        return {name: merge([each[name] for each in environments if name in each]) for name in names}
    distinct = [each for i, each in enumerate(environments) if each not in environments[:i]]
    return distinct[0] if len(distinct) == 1 else ", ".join(map(str, distinct))
