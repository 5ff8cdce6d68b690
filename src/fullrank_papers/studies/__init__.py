"""Experiments whose answer is known: `python -m fullrank_papers.studies.NAME` measures the numbers of the docs again.

Each module has one function `measure`, whose arguments are the flags. What it returns goes to
`benchmarks/results/NAME.json`, with settings, versions, hardware and commit.
"""

import functools
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import tyro

from fullrank.run import write_json
from fullrank.run.environment import platform_info

RESULTS = Path("benchmarks/results")


def run(measure: Callable[..., dict[str, Any]], name: str) -> None:
    """Call `measure` with the flags of the command line, and write what it returns."""
    settings: dict[str, Any] = {}

    @functools.wraps(measure)
    def recorded(**arguments: Any) -> dict[str, Any]:
        settings.update({key: value for key, value in arguments.items() if not isinstance(value, (Path, list))})
        return measure(**arguments)

    torch.set_num_threads(1)
    found = tyro.cli(recorded, description=measure.__doc__)
    environment = platform_info() | {"date": date.today().isoformat(), "settings": settings}
    write_json(RESULTS / f"{name}.json", {"environment": environment} | found)
