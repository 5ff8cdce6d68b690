"""The figures of a report as data: panels of curves, which the script of the page draws with plotly.js.

A figure has the title of its horizontal axis, `x`, and its panels. A panel has a title, the kind of its vertical axis
(`number`, `count`, `percent`, `log`) and curves. A curve has the index of its run, and `points` if it is not dense or
`faint` if it is less important than the others. `images` are the numbers of images of its points;
of a `share` of them, the standard error is drawn.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from textwrap import wrap
from typing import Any

import numpy as np
from jaxtyping import Float

from fullrank.evaluation.score import MAIN_METRICS, Evaluation, Score
from fullrank.images.dataset_info import evenly_spaced
from fullrank.plot_style import COLORS
from fullrank.report.summary import RunSummary, series, short
from fullrank.run.spectrum_history import LOCATIONS

Curve = dict[str, Any]
Panel = dict[str, Any]
Figure = dict[str, Any]

# Number of points of one quantity, over all runs; a longer curve is drawn by its smallest and largest values.
MAX_POINTS = 5_000
# Number of points of one curve: two for each pixel of the width.
MAX_POINTS_OF_CURVE = 2_000
# Limits that keep the page small: positions of the slider, eigenvalues of a spectrum, eigenvalues of all runs together.
MAX_POSITIONS, MAX_EIGENVALUES, MAX_NUMBERS = 60, 1024, 60_000
# Eigenvalues below 10^−DECADES of the largest are rounding errors.
DECADES = 10
# Eigenvalues shown over training; the 14th is the last in the figures of Skean et al. 2023. Several runs show every
# fourth.
EIGENVALUE_INDICES = (1, 2, 4, 8, 14, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def all_figures(runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Return all figures by their names in the template, with what they share: the runs with their alarms by step, the
    last step, and the colours.
    """
    drawn = {draw.__name__: draw(runs) for draw in (progress, spectrum, eigenvalues, losses, few_shot)}
    return {
        "figures": {name: figure for name, figure in drawn.items() if figure},
        "runs": [{"label": run.label, "alarms": _alarms(run)} for run in runs],
        "last_step": max([1, *(run.last_step for run in runs)]),
        "colors": COLORS,
    }


def _alarms(run: RunSummary) -> dict[int, list[str]]:
    lines: dict[int, list[str]] = {}
    for alarm in run.alarms:
        lines.setdefault(alarm.step, []).extend(wrap(alarm.message, 90))
    return lines


def losses(runs: Sequence[RunSummary]) -> Figure | None:
    """Return the loss and each of its weighted terms over the steps, one panel each."""
    held_out = _curves(runs, "spectrum", "loss, held-out images", attrgetter("held_out_loss"), points=True)
    trained = _curves(runs, "train", "loss", attrgetter("loss"), faint=bool(held_out))
    panels = [_panel("loss (the sum of its terms)", "number", held_out + trained)]
    for term in dict.fromkeys(term for run in runs for row in run.train for term in row.terms):
        panels.append(_panel(term, "number", _curves(runs, "train", term, lambda row, term=term: row.terms.get(term))))
    return _figure("step", panels)


def progress(runs: Sequence[RunSummary]) -> Figure | None:
    """Return accuracies of the probes, agreement of views, effective ranks and collapsed dimensions over the steps."""
    share: dict[str, Any] = {"points": True, "share": True, "images": "probe_images"}
    held_out = _curves(runs, "spectrum", "held-out images", attrgetter("probe_accuracy"), **share)
    share["images"] = "images"
    batch = _curves(runs, "train", "training batch", attrgetter("probe_train_accuracy"), faint=True)
    test = _curves(runs, "online", "top 1", attrgetter("accuracy"), **share)
    test += _curves(runs, "online", "top 5", attrgetter("top5"), **share, faint=True)
    agreement = _curves(runs, "spectrum", "agreement", attrgetter("intraclass_correlation"), points=True)
    panels = [
        _panel("accuracy of the online linear probe", "percent", held_out + batch),
        _panel("accuracy on all test images", "percent", test),
        _panel("agreement of the views", "percent", agreement),
    ]
    for metric in ("effective_rank", "collapsed_dimensions"):
        for location in LOCATIONS:
            name = f"{metric.replace('_', ' ')}, {location}"
            of, images = attrgetter(f"{location}.{metric}"), f"{location}.samples"
            curves = _curves(runs, "spectrum", name, of, images=images, points=True)
            if metric == "effective_rank" and location == "projector":
                curves += _curves(runs, "train", f"{name}, training batch", attrgetter(metric), faint=True)
            if metric == "effective_rank" or any(any(curve["y"]) for curve in curves):
                panels.append(_panel(name, "count", curves))
    return _figure("step", panels)


def eigenvalues(runs: Sequence[RunSummary]) -> Figure | None:
    """Return some eigenvalues of both locations over the steps, on equal numbers of images, on a logarithmic axis."""
    panels = []
    for location in LOCATIONS:
        comparable = ((i, run.spectra.comparable()) for i, run in enumerate(runs) if run.spectra)
        found = {i: (of.steps.tolist(), of.eigenvalues[location]) for i, of in comparable if location in of.eigenvalues}
        drawn = max((int((table > 0).any(0).sum()) for _, table in found.values()), default=0)  # n images have n − 1
        indices = [j for j in EIGENVALUE_INDICES[:: 1 if len(runs) == 1 else 4] if j <= drawn]
        opacities = np.linspace(1.0, 0.45, max(len(indices), 1)).round(2).tolist()
        curves = [
            _curve(runs, i, f"λ{j}", steps, mask_rounding_errors(table)[:, j - 1]) | {"opacity": opacity}
            for j, opacity in zip(indices, opacities, strict=False)
            for i, (steps, table) in found.items()
            if j <= table.shape[1]
        ]
        shown = (table[:, [j - 1 for j in indices if j <= table.shape[1]]] for _, table in found.values())
        title = f"eigenvalues {', '.join(map(str, indices))}, {location}"
        panels.append(_panel(title, "log", curves) | {"range": log_range(shown)})
    return _figure("step", panels)


def spectrum(runs: Sequence[RunSummary]) -> Figure | None:
    """Return the eigenvalues of both locations against their index at several positions of a slider: steps of one run,
    or shares of the training of several.

    A curve is the spectrum of a run at each position; faint, its first spectrum. The positions are those of the run
    with the most spectra, and each other run shows its nearest spectrum.
    """
    shown = {i: run.spectra.fullest() for i, run in enumerate(runs) if run.spectra}
    if not shown:
        return None
    shares = {i: of.steps / max(1, of.steps[-1]) for i, of in shown.items()}
    longest = max(shares, key=lambda i: len(shares[i]))
    positions = evenly_spaced(len(shares[longest]), MAX_POSITIONS)
    at_most = min(MAX_EIGENVALUES, MAX_NUMBERS // (len(LOCATIONS) * len(positions) * len(runs)))
    panels = []
    for location in LOCATIONS:
        curves, tables = [], []
        for i, table in ((i, of.eigenvalues[location]) for i, of in shown.items() if location in of.eigenvalues):
            indices = evenly_spaced(table.shape[1], max(at_most, 2))
            table = np.maximum(table[:, indices], 0.0)  # a negative eigenvalue of a covariance is a rounding error
            table[indices >= shown[i].samples[:, None] - 1] = np.nan  # n images have n − 1 eigenvalues
            nearest = [int(np.abs(shares[i] - shares[longest][k]).argmin()) for k in positions]
            curve = {"run": i, "x": [j + 1 for j in indices]}
            curves.append(curve | {"name": "eigenvalue", "frames": [_rounded(table[k], 4) for k in nearest]})
            curves.append(curve | {"name": "first eigenvalue", "y": _rounded(table[0]), "faint": True})
            tables.append(table)
        relative = log_range(table / np.where(table[:, :1] > 0, table[:, :1], 1.0) for table in tables)
        ranges = {"range": log_range(tables), "relative_range": relative}
        panels.append(_panel(f"eigenvalues, {location}", "log", curves) | ranges)
    of, share = shown[longest], [f"{100 * each:.0f} %" for each in shares[longest]]
    texts = [share[k] if len(runs) > 1 else f"{of.steps[k]:,} (n = {of.samples[k]:,})" for k in positions]
    return _figure("index of the eigenvalue", panels, positions=texts)


def few_shot(runs: Sequence[RunSummary]) -> Figure | None:
    """Return the accuracy over the number of labels per class, with intervals: a line for each feature set of one run,
    or for the backbone of each of several runs.

    All lines are of one data set: the most relevant of the first run that has a curve of at least two points.
    """
    found = [(i, each) for i, run in enumerate(runs) for each in run.evaluations_by_relevance()]
    found = [(i, each) for i, each in found if len(_few_shot(each, "backbone")) > 1]
    if not found:
        return None
    data = found[0][1].data
    if len(runs) == 1:
        features = dict.fromkeys(score.features for score in found[0][1].scores)
        shown = [(i, name, _few_shot(found[0][1], name)) for i, name in enumerate(features)]
    else:
        of = {i: _few_shot(each, "backbone") for i, each in reversed(found) if each.data == data}
        shown = [(i, "backbone", of[i]) for i in sorted(of)]
    curves = [
        _curve(runs, i, name, list(scores), np.array([score.value for score in scores.values()]), points=True)
        | {
            end: [score.value if getattr(score, end) is None else getattr(score, end) for score in scores.values()]
            for end in ("low", "high")
        }
        for i, name, scores in shown
    ]
    panel = _panel(f"accuracy on {short(data) or 'the test images'}", "percent", curves)
    return _figure("labels per class", [panel], ticks=sorted({n for *_, scores in shown for n in scores}))


def _few_shot(evaluation: Evaluation, features: str) -> dict[int, Score]:
    """Return number of labels per class → score of one feature set, in increasing order."""
    scores = {
        n: score
        for score in evaluation.scores
        if score.probe == "few-shot" and score.metric in MAIN_METRICS and score.features == features
        if isinstance(n := score.settings.get("labels"), int)
    }
    return dict(sorted(scores.items()))


def _figure(x: str, panels: Sequence[Panel], **more: Any) -> Figure | None:
    """Return the panels that have a curve; None without any."""
    shown = [panel for panel in panels if panel["curves"]]
    return {"x": x, "panels": shown, **more} if shown else None


def _panel(title: str, kind: str, curves: Sequence[Curve]) -> Panel:
    return {"title": title, "kind": kind, "curves": curves}


def _curves(
    runs: Sequence[RunSummary], rows: str, name: str, value: Callable[[Any], float | None], **style: Any
) -> list[Curve]:
    """Return the curve of a quantity of the rows `train`, `spectrum` or `online` of each run that has it; `images` is
    the field with the number of images of each point.
    """
    images, curves = style.pop("images", ""), []
    for i, run in enumerate(runs):
        shown = [row for row in getattr(run, rows) if value(row) is not None]
        counts = {"images": [attrgetter(images)(row) for row in shown]} if images else {}
        curves += [_curve(runs, i, name, *series(shown, value), **counts, **style)] if shown else []
    return curves


def _curve(
    runs: Sequence[RunSummary], i: int, name: str, x: list[int], y: Float[np.ndarray, " n"], **style: Any
) -> Curve:
    """Return a curve of the i-th run, without the points that nobody would see; a list in `style` has a value each."""
    kept = envelope(y, min(MAX_POINTS_OF_CURVE, MAX_POINTS // len(runs)))
    style = {key: [each[k] for k in kept] if isinstance(each, list) else each for key, each in style.items()}
    return {"run": i, "name": name, "x": [x[k] for k in kept], "y": _rounded(y[kept]), **style}


def log_range(tables: Iterable[Float[np.ndarray, "_ _"]]) -> list[float]:
    """Return the powers of ten between which an axis shows all positive eigenvalues except rounding errors.

    >>> log_range([np.array([[10.0, 1e-3], [1.0, 0.0]])])
    [-3.3, 1.3]
    """
    found = [np.log10(values) for table in tables for row in table if len(values := row[np.isfinite(row) & (row > 0)])]
    if not found:
        return [-1.0, 1.0]
    bottom = min(max(values.min(), values.max() - DECADES) for values in found)
    return [round(float(bottom) - 0.3, 2), round(float(max(values.max() for values in found)) + 0.3, 2)]


def mask_rounding_errors(eigenvalues: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... D"]:
    """Replace zeros and rounding errors by NaN, relative to the largest eigenvalue, which is the first of each row.

    >>> mask_rounding_errors(np.array([[1e12, 1.0], [1.0, 1e-3], [0.0, 0.0]])).tolist()
    [[1000000000000.0, nan], [1.0, 0.001], [nan, nan]]
    """
    return np.where(eigenvalues > eigenvalues[..., :1] * 10.0**-DECADES, eigenvalues, np.nan)


def envelope(y: Float[np.ndarray, " n"], at_most: int) -> list[int]:
    """Return about `at_most` indices of a curve that keep its peaks: of each stretch, the smallest value and the
    largest, or a gap if it has one.

    >>> envelope(np.array([0.0, 9.0, 1.0, 2.0, -5.0, 2.0, 3.0, np.nan]), 4)
    [0, 1, 4, 7]
    """
    if len(y) <= max(at_most, 4):
        return list(range(len(y)))
    filled = np.where(np.isnan(y), np.inf, y)
    stretches = np.array_split(np.arange(len(y)), at_most // 2)
    return sorted({int(k) for part in stretches for k in (part[filled[part].argmin()], part[filled[part].argmax()])})


def _rounded(values: Float[np.ndarray, " n"], digits: int = 6) -> list[float | None]:
    """Return values for JSON, None for gaps; with fewer digits, a loss that falls from 5.55 to 5.54 would be stairs."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values.tolist()]
