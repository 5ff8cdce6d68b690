"""The report of one or several runs: one HTML page, which needs no network and no other file."""

import base64
import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from PIL import Image
from plotly.offline import get_plotlyjs

from fullrank.errors import UserError
from fullrank.files import atomic_write
from fullrank.report import answers, figures, tables
from fullrank.report.neighbour_rows import NeighbourRows, address
from fullrank.report.recipes import make_labels_unique
from fullrank.report.summary import RunSummary, read_run_summary, short

# Size of the pictures of views together; larger pictures are reduced.
PICTURE_BYTES = 400_000
# Rows of neighbours of all runs together; each has at least one.
NEIGHBOUR_ROWS = 24


def write_report(runs: Sequence[Path], out: Path, *, images: bool = True, overwrite: bool = True) -> Path:
    """Write one HTML page about one run, or about several runs in comparison.

    The page needs no network and no other file. It names the files that are missing or damaged, and shows the rest.

    Args:
        runs: run directories of `fullrank pretrain`; several are compared.
        out: the page to write. Its folder is created if it is missing.
        images: show images and their views; without them the page contains no pixel of the data.
        overwrite: replace an existing page.

    Returns:
        `out`.

    Raises:
        UserError: There is no run, a path is not a run directory, a recipe or a log is damaged, or `out` is a
            directory, cannot be written, or exists and `overwrite` is False.

    >>> import tempfile
    >>> run = Path(tempfile.mkdtemp(), "first-try")
    >>> run.mkdir()
    >>> _ = (run / "recipe.json").write_text('{"name": "digits", "objective": "frossl"}')
    >>> page = write_report([run], run / "report.html")
    >>> "<h1>first-try</h1>" in page.read_text(encoding="utf-8")
    True
    """
    if not runs:
        raise UserError("no run was given, expected at least one directory that `fullrank pretrain` wrote; name a run")
    with atomic_write(out, overwrite=overwrite) as draft:
        found = make_labels_unique([read_run_summary(Path(run)) for run in runs])
        draft.write_text(render(found, images=images), "utf-8", errors="backslashreplace")
    return out


def render(runs: Sequence[RunSummary], *, images: bool = True) -> str:
    """Return the page as text, a pure function of the runs."""
    plotly, script = get_plotlyjs(), files("fullrank.report").joinpath("templates/page.js").read_text(encoding="utf-8")
    scripts = f"script-src {_hash(script)} {_hash(plotly)}; base-uri 'none'; form-action 'none'"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; {scripts}"
    template = _environment().get_template("page.html.j2")
    return template.render(
        runs=runs,
        title=" and ".join(run.label for run in runs) if len(runs) < 3 else f"{len(runs)} runs",
        data=figures.all_figures(runs),
        verdicts=_verdicts(runs),
        neighbours=_neighbours(runs) if images else [],
        pictures=_pictures(runs) if images else [],
        logged=any(run.train or run.spectrum for run in runs),
        tested=any(run.online for run in runs),
        contents=[],
        policy=Markup(policy),
        plotly=Markup(_compress(plotly)),
        script=Markup(script),
    )


def _environment() -> Environment:
    options: Any = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "extensions": ["jinja2.ext.do"]}
    environment = Environment(loader=PackageLoader("fullrank.report"), **options)
    environment.policies["json.dumps_kwargs"] = {}  # the figures in their order
    environment.globals |= {"answers": answers, "tables": tables, "short": short}
    environment.globals["indented"] = lambda tree: json.dumps(tree, indent=2, ensure_ascii=False)
    return environment


def _verdicts(runs: Sequence[RunSummary]) -> list[tables.Table]:
    """Return the answers of each run in a word."""
    word = Markup('<span class="answer {}">{}</span>').format
    rows = {run.mark: {q: word(each.level, each.word) for q, each in answers.answers(run).items()} for run in runs}
    return tables.by_row("run", rows)


def _neighbours(runs: Sequence[RunSummary]) -> list[tuple[str, NeighbourRows]]:
    """Return the label and the rows of neighbours of each run that has them; many runs show fewer rows each."""
    found = [(run.mark, run.neighbours) for run in runs if run.neighbours]
    most = max(NEIGHBOUR_ROWS // max(len(found), 1), 1)
    return [(label, replace(neighbours, rows=neighbours.rows[:most])) for label, neighbours in found]


def _pictures(runs: Sequence[RunSummary]) -> list[tuple[list[str], str, str]]:
    """Return each picture of views once: the labels of its runs, its data and its address."""
    of: dict[bytes, list[RunSummary]] = {}
    for run in runs:
        if run.views is not None:
            of.setdefault(run.views, []).append(run)
    size = PICTURE_BYTES // max(len(of), 1)
    return [
        ([run.mark for run in shown], short(shown[0].data) or "the data", _small_address(picture, size))
        for picture, shown in of.items()
    ]


def _small_address(picture: bytes, max_bytes: int) -> str:
    """Return a PNG unchanged if it is small enough, otherwise as a JPEG that is reduced until it is."""
    if len(picture) <= max_bytes:
        return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    while len(found := address(image, "jpeg")) > 4 / 3 * max_bytes:
        image = image.reduce(2)
    return found


@cache
def _compress(script: str) -> str:
    return base64.b64encode(gzip.compress(script.encode(), compresslevel=9, mtime=0)).decode()


def _hash(script: str) -> str:
    """Return the hash of a script for the content security policy, which allows no other script to run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
