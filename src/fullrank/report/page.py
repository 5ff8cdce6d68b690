"""The page of runs: its sections, from records."""

import base64
import io
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from PIL import Image

from fullrank.atomic import atomic_write
from fullrank.errors import UserError
from fullrank.report import tables
from fullrank.report.compare import comparison
from fullrank.report.curves import eigenvalues, losses, progress
from fullrank.report.differ import telling
from fullrank.report.document import document, figure_block
from fullrank.report.measured import metrics_table
from fullrank.report.read import PARTS, Record, look_up, read_run
from fullrank.report.spectrum import spectrum, stops

PICTURE_BYTES = 400_000
"""What the pictures of all runs may weigh together; larger ones are made smaller."""

CAPTIONS = {
    "losses": "The weighted terms as the objective returns them; their sum is the loss that is minimised.",
    "progress": "Effective rank: exp(−Σ p log p) with p the singular values of the centred embeddings divided by their sum (Roy and "
    "Vetterli 2007). Faint: the same number on the training batch, which is too small to show more dimensions than it has samples.",
    "backbone": "Eigenvalues of the centred covariance of the backbone's features. Faint: the first spectrum of the run. "
    "A dimension that dies falls out of the frame; of n images, all beyond the first n − 1 do.",
    "projector": "Eigenvalues of the centred covariance of the projector's embeddings, on which the objective acts. Faint: the first "
    "spectrum of the run.",
    "eigenvalues": "Some eigenvalues over training, the larger the stronger. What lies ten powers of ten below the largest is rounding "
    "and not drawn. A click on any curve over the steps takes the slider above to the spectrum of that step.",
}


def write_report(runs: Sequence[Path], out: Path, *, images: bool = True, overwrite: bool = True) -> Path:
    """Write one HTML page about one run, or about several beside each other.

    The page needs no network and no other file. Files that a run does not have are named on the page, which shows the rest.

    Args:
        runs: Run directories, as `fullrank pretrain` writes them.
        out: The file to write; its directory is made where it is missing.
        images: Whether the page shows the pictures of images and their views; without them it holds no pixel of the data.
        overwrite: Whether a page that is there is replaced.

    Returns:
        `out`.

    Raises:
        UserError: no run, not a run directory, a damaged file in it, or an `out` that is a directory, cannot be written, or is there
            and not to be replaced.

    >>> import tempfile
    >>> run = Path(tempfile.mkdtemp(), "first-try")
    >>> run.mkdir()
    >>> _ = (run / "recipe.json").write_text('{"name": "digits", "objective": "frossl"}')
    >>> page = write_report([run], run / "report.html")
    >>> "<h1>first-try</h1>" in page.read_text(encoding="utf-8")
    True
    """
    if not runs:
        raise UserError("received no run, expected at least one run directory; give the directory that `fullrank pretrain` wrote")
    with atomic_write(out, overwrite=overwrite) as draft:
        draft.write_text(render(_distinct([read_run(run) for run in runs]), images=images), encoding="utf-8")
    return out


def _distinct(records: list[Record]) -> list[Record]:
    """Runs of one name are told apart by what differs between their recipes, and those of one recipe by their numbers."""
    of_name = {record.label: [other.recipe for other in records if other.label == record.label] for record in records}
    words = {name: iter(telling(recipes)) for name, recipes in of_name.items()}
    labels = [": ".join(filter(None, (record.label, next(words[record.label])))) for record in records]
    numbered = [f"{label} ({labels[: i + 1].count(label)})" if labels.count(label) > 1 else label for i, label in enumerate(labels)]
    return [replace(record, label=label) for record, label in zip(records, numbered, strict=True)]


def render(runs: Sequence[Record], *, images: bool) -> str:
    """The page as text: a pure function of the records."""
    drawn = {"progress": progress(runs), "losses": losses(runs), "eigenvalues": eigenvalues(runs)}
    drawn |= {part: spectrum(runs, part) for part in PARTS}
    shown = {name: figure for name, figure in drawn.items() if figure}
    blocks = {name: figure_block(name, figure, CAPTIONS[name]) for name, figure in shown.items()}
    positions = stops(runs)
    sections = {
        "Summary": tables.summary_table(runs) + tables.limits(runs),
        "Comparison": comparison(runs),
        "Accuracy and rank": blocks.get("progress", ""),
        "Alarms": tables.warnings(runs),
        "Spectrum": (_slider(len(positions)) if positions else "") + "".join(blocks.get(part, "") for part in (*PARTS, "eigenvalues")),
        "Measures": metrics_table(runs),
        "Loss": blocks.get("losses", ""),
        "Evaluation": tables.evaluation_table(runs) + tables.statements(runs),
        "Images": _pictures(runs) if images else "",
        "Recipe": tables.differences(runs) + "".join(tables.folded(f"Complete recipe of {run.label}", run.recipe) for run in runs),
        "Environment": "".join(tables.folded(f"Environment of {run.label}", run.environment) for run in runs if run.environment),
    }
    title = " and ".join(run.label for run in runs) if len(runs) < 3 else f"{len(runs)} runs"
    legend = _legend(runs) if len(runs) > 1 and shown else ""
    return document(title=title, verdicts=tables.verdicts(runs), sections=sections, figures=shown, positions=positions, legend=legend)


def _legend(runs: Sequence[Record]) -> str:
    buttons = (
        f'<li><button type="button" aria-pressed="true" data-run="{i}">{tables.named(i, run)}</button></li>' for i, run in enumerate(runs)
    )
    return f'<ul class="runs" aria-label="Runs that the figures show">{"".join(buttons)}</ul>'


def _slider(positions: int) -> str:
    last = positions - 1
    return (
        f'<div class="slider"><label for="position">Training</label>'
        f'<input type="range" id="position" min="0" max="{last}" value="{last}" step="1">'
        '<button type="button" id="play">Play</button>'
        '<label><input type="checkbox" id="relative"> divided by the largest</label>'
        '<output for="position" id="where"></output></div>'
    )


def _pictures(runs: Sequence[Record]) -> str:
    """Each picture once, with the runs that it is of."""
    runs_of: dict[bytes, list[int]] = {}
    for i, run in enumerate(runs):
        if run.views is not None:
            runs_of.setdefault(run.views, []).append(i)
    blocks = []
    for picture, of in runs_of.items():
        data = look_up(runs[of[0]].recipe, "data", "source") or "the data"
        text = escape(f"Images of {data} with their augmented views, as the network sees them")
        names = "" if len(of) == len(runs) else ", ".join(tables.named(i, runs[i]) for i in of) + ". "
        source = _data_uri(picture, PICTURE_BYTES // len(runs_of))
        blocks.append(f'<figure><img alt="{text}" src="{source}"><figcaption>{names}{text}.</figcaption></figure>')
    return "".join(blocks)


def _data_uri(picture: bytes, budget: int) -> str:
    """The picture as it is where it is small enough, otherwise as a JPEG, made smaller until that is."""
    kind, image = "png", Image.open(io.BytesIO(picture)).convert("RGB")
    while len(picture) > budget:
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=85)
        kind, picture = "jpeg", stream.getvalue()
        image = image.reduce(2)
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
