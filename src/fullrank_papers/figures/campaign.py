"""Run the cells of a campaign, and turn their rows into a result: also a partial one, after an interruption or with
cells missing.
"""

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from fullrank.errors import UserError, pick
from fullrank.sweep import Jobs, Plan, Row, collect_rows, run_sweep
from fullrank_papers.figures.figure import Campaign, load_figure
from fullrank_papers.figures.result import Result, round_numbers


def load_campaign(name: str) -> Campaign:
    """Return the campaign PAPER/FIGURE.

    Raises:
        UserError: unknown name, or a figure that is computed without runs.
    """
    campaign = load_figure(name)
    if not isinstance(campaign, Campaign):
        raise UserError(f"{name} is computed without run directories; call reproduce('{name}')")
    return campaign


def campaign_plan(
    name: str,
    size: str,
    *,
    data: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    transfer: Sequence[str] = (),
) -> Plan:
    """Return the plan of a campaign at one size.

    Args:
        name: PAPER/FIGURE.
        size: one of its sizes.
        data: source of the images; None: those of the size.
        seeds: number of seeds; None: those of the size.
        only: names of methods; empty: all of the size.
        transfer: sources of other labelled images, on which the same probes are scored.

    Raises:
        UserError: an argument is wrong.
    """
    campaign = load_campaign(name)
    settings = pick(size, campaign.sizes, f"size of {name}")
    if data is not None and not campaign.images:
        raise UserError(f"{name} brings its own images, but --data is {data}; omit --data")
    if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= 1000):
        raise UserError(f"--seeds is {seeds!r}, expected the number of seeds, from 1 to 1000")
    for method in only:
        pick(method, dict.fromkeys(campaign.methods), f"method of {name}")
    more = {"transfer": tuple(transfer)} if transfer else {}
    return campaign.plan(settings, data=data, seeds=seeds, only=tuple(only), **more)


def runs_folder(name: str, size: str, runs: Path | None = None) -> Path:
    """Return the folder of a campaign's runs. The figures of a paper share their runs; sizes share them if only what
    follows "-" differs.

    >>> runs_folder("frossl/table2", "small"), runs_folder("frossl/table2", "paper-stl10")
    (PosixPath('runs/frossl/small'), PosixPath('runs/frossl/paper'))
    """
    return (runs or Path("runs") / name.partition("/")[0]) / size.partition("-")[0]


def run_campaign(
    name: str,
    *,
    size: str = "small",
    data: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    transfer: Sequence[str] = (),
    parallel: int = 0,
    runs: Path | None = None,
    console: Console | None = None,
) -> tuple[Result, list[Row]]:
    """Run what is missing of a campaign, and return its result and the rows of all cells, also of those that failed.

    Args:
        name: PAPER/FIGURE.
        size: one of its sizes.
        data: source of the images; None: those of the size.
        seeds: number of seeds; None: those of the size.
        only: names of methods; empty: all of the size.
        transfer: sources of other labelled images, on which the same probes are scored.
        parallel: number of runs at the same time; 0: one for each GPU, or one on a CPU.
        runs: folder of the runs; None: runs/PAPER.
        console: where to print.

    Raises:
        UserError: an argument is wrong.
        Interrupted: the runs have stopped with checkpoints; `collect_campaign` returns what is done.
    """
    plan = campaign_plan(name, size, data=data, seeds=seeds, only=only, transfer=transfer)
    rows = run_sweep(plan, runs_folder(name, size, runs), Jobs(parallel=parallel), console=console)
    return campaign_result(name, size, rows, len(rows)), rows


def collect_campaign(
    name: str,
    *,
    size: str = "small",
    data: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    transfer: Sequence[str] = (),
    runs: Path | None = None,
) -> Result:
    """Return the result of the rows that exist, without running anything; the arguments are those of `run_campaign`."""
    plan = campaign_plan(name, size, data=data, seeds=seeds, only=only, transfer=transfer)
    rows, cells = collect_rows(plan, runs_folder(name, size, runs))
    return campaign_result(name, size, rows, len(cells))


def campaign_result(name: str, size: str, rows: Sequence[Row], cells: int) -> Result:
    """Return the result of the rows that are final, with the versions, hardware and commits of their runs.

    Args:
        name: PAPER/FIGURE.
        size: one of its sizes.
        rows: rows, of which those of failed cells are left out.
        cells: number of cells of the campaign that are known.

    Raises:
        UserError: rows have the same name of a data set, but other images.
    """
    from fullrank.run.environment import platform_info  # imported here: slow

    rows = [row for row in rows if row.is_final]
    require_one_digest(rows)
    settings = load_campaign(name).sizes[size]
    return Result(
        name=name,
        size=size,
        seed=0,
        data=", ".join(sorted({row.data for row in rows})) or None,
        seconds=round(sum(row.seconds for row in rows), 1),
        settings=asdict(settings),
        environment={
            **platform_info(),
            **merge([row.environment for row in rows]),
            **{package: version(package) for package in ("scipy", "matplotlib")},
        },
        rows=round_numbers({"rows": [row.to_json() for row in rows], "cells": cells}),
    )


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


def require_one_digest(rows: Sequence[Row]) -> None:
    """Check that rows with the same name of a data set have the same images.

    Raises:
        UserError: they do not.
    """
    digests: dict[str, str] = {}
    for row in rows:
        if digests.setdefault(row.data, row.images) != row.images:
            raise UserError(
                f"runs of '{row.data}' have different images ({digests[row.data]} and {row.images}), so they cannot stand in one table; "
                "keep the runs of each data set in another folder (--runs)"
            )


def count_runs(rows: Any) -> str:
    """Return how many of the runs a result has.

    >>> count_runs({"rows": [{}], "cells": 3}), count_runs({"rows": [{}], "cells": 1})
    ('1 of 3 runs', '1 run')
    """
    done, cells = len(rows["rows"]), rows["cells"]
    return f"{done} of {cells} runs" if done < cells else f"{done} run{'s' * (done != 1)}"
