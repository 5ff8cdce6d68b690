"""The figure of a sweep: accuracy of the online classifier over the epochs, one curve for each combination of
settings.
"""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fullrank.report.plot_style import COLORS, DASHES, subplots
from fullrank.sweep.row import Row, require_same_images
from fullrank.sweep.tables import final_rows, group_rows

if TYPE_CHECKING:
    import matplotlib.figure

LINE_STYLES = dict(zip(DASHES, ("-", "--", ":", "-."), strict=True))


def accuracy_figure(rows: Sequence[Row], title: str = "") -> "matplotlib.figure.Figure | None":
    """Return the figure, or None if no run has scores of the online classifier. A band is ± the standard deviation over
    the seeds.

    Raises:
        UserError: the rows are of several data sets.
    """
    rows = [row for row in final_rows(rows) if row.is_done and row.online]
    if not rows:
        return None
    require_same_images(rows, "the figure")
    groups = group_rows(rows)
    figure, axes = subplots(width=7.5, height=4.2)
    ax = axes[0, 0]
    for i, (combination, found) in enumerate(groups.items()):
        points: dict[float, list[float]] = {}
        for row in found:
            for score in row.online:
                points.setdefault(score.epoch, []).append(100 * score.accuracy)
        epochs = [epoch for epoch in sorted(points) if len(points[epoch]) == len(found)]
        means = [statistics.fmean(points[epoch]) for epoch in epochs]
        sds = [statistics.stdev(points[epoch]) if len(found) > 1 else 0.0 for epoch in epochs]
        color, style = COLORS[i % len(COLORS)], LINE_STYLES[DASHES[i // len(COLORS) % len(DASHES)]]
        label = ", ".join(str(value) for _, value in combination) or rows[0].recipe
        ax.plot(epochs, means, color=color, linestyle=style, marker="o", markersize=2.5, label=label)
        ax.fill_between(
            epochs,
            *zip(*((m - s, m + s) for m, s in zip(means, sds, strict=True)), strict=True),
            color=color,
            alpha=0.12,
            lw=0,
        )
    most = max(len(found) for found in groups.values())
    spread = f", mean ± sd of {most} seeds" if most > 1 else ""
    ax.set(xlabel="epoch", ylabel="accuracy of the online classifier (%)", title=f"{title}{spread}" if title else "")
    ax.xaxis.get_major_locator().set_params(integer=True)
    names = ", ".join(name for name, _ in next(iter(groups)))
    ax.legend(title=names or None, title_fontsize=8, ncols=1 + (len(groups) > 12), fontsize=7 if len(groups) > 8 else 8)
    return figure
