"""The report of one or several runs."""

import base64
import io
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from PIL import Image

from fullrank.errors import UserError
from fullrank.files import atomic_write
from fullrank.report import tables
from fullrank.report.answers import answers_html
from fullrank.report.classes import class_section
from fullrank.report.document import figure_block, html_document, json_details, label_html
from fullrank.report.few_shot import few_shot_figure
from fullrank.report.figures import Figure
from fullrank.report.metrics import FEW_RUNS, metrics_table
from fullrank.report.neighbour_rows import neighbour_section
from fullrank.report.online_accuracy import online_caption, online_figure
from fullrank.report.recipe_differences import describe_differences
from fullrank.report.run_summary import RunSummary, look_up, read_run_summary
from fullrank.report.scores import accuracy_comparison, evaluation_table
from fullrank.report.spectrum import slider_positions, spectrum_figure
from fullrank.report.training_curves import (
    eigenvalue_figure,
    loss_caption,
    loss_figure,
    points_of_curve,
    progress_figure,
)
from fullrank.run.spectrum_history import LOCATIONS

PICTURE_BYTES = 400_000
"""Size of all pictures together; larger pictures are reduced."""

CAPTIONS = {
    "losses": "The weighted terms of the objective. Their sum is the loss that is minimised (faint). The curve with points is the same "
    "objective in eval mode, on views of held-out images that are the same at every evaluation.",
    "progress": "Agreement of the views: share of the variance of a batch's representations that is between images, not between views of "
    "one image; higher is better. Effective rank: exp(−Σ p log p), where p are the singular values of the centred embeddings divided by "
    "their sum (Roy and Vetterli 2007). The rank often rises first and falls while features improve: it finds collapse, but a higher rank "
    "does not mean better features. Faint: the same on the training batch, where the rank cannot exceed the number of samples.",
    "backbone": "Eigenvalues of the centred covariance of the representations (output of the backbone). Faint: the first spectrum of the "
    "run. A collapsed dimension falls below the frame; n images have at most n − 1 eigenvalues above zero.",
    "projector": "Eigenvalues of the centred covariance of the embeddings (output of the projector), which the objective receives. Faint: "
    "the first spectrum of the run.",
    "eigenvalues": "Some eigenvalues over training; the largest have the strongest colour. Values below 10⁻¹⁰ of the largest are rounding "
    "errors and are not drawn. Click on a curve over the steps to move the slider above to that step.",
}


def write_report(runs: Sequence[Path], out: Path, *, images: bool = True, overwrite: bool = True) -> Path:
    """Write one HTML page about one run, or about several runs in comparison.

    The page needs no network and no other file. It names the files that are missing or damaged, and shows the rest.

    Args:
        runs: Run directories of `fullrank pretrain`.
        out: The file to write. Its directory is created if it is missing.
        images: Whether the page shows images and their views; without them it contains no pixel of the data.
        overwrite: Whether to replace an existing page.

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
        raise UserError(
            "no run was given, expected at least one run directory; give a directory that `fullrank pretrain` wrote"
        )
    with atomic_write(out, overwrite=overwrite) as draft:
        draft.write_text(
            render(_make_labels_unique([read_run_summary(run) for run in runs]), images=images),
            "utf-8",
            errors="backslashreplace",
        )
    return out


def _make_labels_unique(runs: list[RunSummary]) -> list[RunSummary]:
    """Append the differences between the recipes to equal labels, and a number to the labels of equal recipes."""
    recipes = {run.label: [other.recipe for other in runs if other.label == run.label] for run in runs}
    descriptions = {label: iter(describe_differences(group)) for label, group in recipes.items()}
    labels = [": ".join(filter(None, (run.label, next(descriptions[run.label])))) for run in runs]
    numbered = [
        f"{label} ({labels[: i + 1].count(label)})" if labels.count(label) > 1 else label
        for i, label in enumerate(labels)
    ]
    return [replace(run, label=label) for run, label in zip(runs, numbered, strict=True)]


def render(runs: Sequence[RunSummary], *, images: bool) -> str:
    """Return the page as text, a pure function of the runs."""
    few_shot, few_shot_caption = few_shot_figure(runs)
    figures = {"online": online_figure(runs), "progress": progress_figure(runs)}
    figures |= {"losses": loss_figure(runs), "eigenvalues": eigenvalue_figure(runs)}
    figures |= {location: spectrum_figure(runs, location) for location in LOCATIONS}
    figures["few-shot"] = few_shot
    shown = {name: figure for name, figure in figures.items() if figure}
    captions = CAPTIONS | {
        "losses": CAPTIONS["losses"] + loss_caption(runs),
        "online": online_caption(runs),
        "few-shot": few_shot_caption,
    }
    blocks = {
        name: figure_block(name, figure, captions[name] + _thinning(figure, len(runs)))
        for name, figure in shown.items()
    }
    positions = slider_positions(runs)
    spectra = "".join(blocks.get(name, "") for name in (*LOCATIONS, "eigenvalues"))
    sections = {
        "Summary": tables.summary_table(runs) + tables.notes_list(runs),
        "Comparison": tables.comparison_table(runs) + accuracy_comparison(runs),
        "Accuracy, agreement and rank": blocks.get("online", "") + blocks.get("progress", ""),
        "Alarms": tables.alarm_table(runs),
        "Spectrum": (_slider(len(positions)) if positions else "") + spectra,
        "Metrics": metrics_table(runs),
        "Loss": blocks.get("losses", ""),
        "Evaluation": _evaluation(runs, blocks.get("few-shot", "")),
        "Nearest neighbours": neighbour_section(runs) if images else "",
        "Images": _pictures(runs) if images else "",
        "Recipe": tables.recipe_table(runs)
        + "".join(json_details(f"Complete recipe of {run.label}", run.recipe) for run in runs),
        "Environment": "".join(
            json_details(f"Environment of {run.label}", run.environment) for run in runs if run.environment
        ),
    }
    title = " and ".join(run.label for run in runs) if len(runs) < 3 else f"{len(runs)} runs"
    return html_document(
        title=title,
        verdicts=answers_html(runs),
        sections=sections,
        figures=shown,
        positions=positions,
        legend=_legend(runs) if len(runs) > 1 and shown else "",
    )


def _evaluation(runs: Sequence[RunSummary], few_shot: str) -> str:
    """Return the scores with their baselines, the few-shot curve, the results by class, and the notes."""
    scores = evaluation_table(runs)
    if scores and len(runs) > FEW_RUNS:
        scores = f"<details><summary>Scores of all feature sets</summary>{scores}</details>"
    return scores + few_shot + class_section(runs) + tables.evaluation_list(runs)


def _thinning(figure: Figure, runs: int) -> str:
    """Return the sentence of a caption that says which points a figure shows; empty if it shows all."""
    longest = figure["layout"].get("meta", {}).get("thinned")
    if not longest:
        return ""
    stretches = points_of_curve(runs) // 2 - 1
    return f" Of a curve of up to {longest} points, the figure shows the smallest and the largest value in each of {stretches:,} stretches."


def _legend(runs: Sequence[RunSummary]) -> str:
    buttons = (
        f'<li><button type="button" aria-pressed="true" data-run="{i}">{label_html(i, run.label)}</button></li>'
        for i, run in enumerate(runs)
    )
    return f'<ul class="runs" aria-label="Runs in the figures">{"".join(buttons)}</ul>'


def _slider(positions: int) -> str:
    last = positions - 1
    return (
        f'<div class="slider"><label for="position">Training</label>'
        f'<input type="range" id="position" min="0" max="{last}" value="{last}" step="1">'
        '<button type="button" id="play">Play</button>'
        '<label><input type="checkbox" id="relative"> divided by the largest</label>'
        '<output for="position" id="position-caption"></output></div>'
    )


def _pictures(runs: Sequence[RunSummary]) -> str:
    """Return each picture once, with the labels of its runs."""
    runs_of: dict[bytes, list[int]] = {}
    for i, run in enumerate(runs):
        if run.views is not None:
            runs_of.setdefault(run.views, []).append(i)
    blocks = []
    for picture, indices in runs_of.items():
        data = look_up(runs[indices[0]].recipe, "data", "source") or "the data"
        text = escape(f"Images of {data} with their augmented views, as the network receives them")
        labels = "" if len(indices) == len(runs) else ", ".join(label_html(i, runs[i].label) for i in indices) + ". "
        source = _data_uri(picture, PICTURE_BYTES // len(runs_of))
        blocks.append(f'<figure><img alt="{text}" src="{source}"><figcaption>{labels}{text}.</figcaption></figure>')
    return "".join(blocks)


def _data_uri(picture: bytes, max_bytes: int) -> str:
    """Return the picture unchanged if it is small enough, otherwise as a JPEG that is reduced until it is small
    enough.
    """
    kind, image = "png", Image.open(io.BytesIO(picture)).convert("RGB")
    while len(picture) > max_bytes:
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=85)
        kind, picture = "jpeg", stream.getvalue()
        image = image.reduce(2)
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
