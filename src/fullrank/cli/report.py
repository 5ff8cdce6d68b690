"""`fullrank report`: write one HTML page about one or several runs."""

from functools import partial
from pathlib import Path

import tyro

from fullrank.cli.flags import call
from fullrank.report import write_report


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]], /, *, out: Path, images: bool = True, overwrite: bool = False
) -> None:
    """Write one HTML page that opens offline.

    Args:
        runs: run directories; several runs are compared.
        out: the page to write.
        images: show images and their views; use --no-images if you may not publish them.
        overwrite: replace an existing page.
    """
    print(write_report(runs, out, images=images, overwrite=overwrite))


run = partial(call, report, command="report")
