"""Fig. 4: FroSSL and Barlow Twins in the first epochs on ImageNet, top-1 and top-5 accuracy of the online classifier.

Both have the same recipe but for the objective. At the other sizes the runs are those of Table 2. With ten classes,
top-5 accuracy says little, and the library does not compute it; the panel is empty then.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace

from fullrank.recipes import RECIPES
from fullrank.report.plot_style import subplots
from fullrank.sweep import Row
from fullrank_papers.figures.figure import Campaign, ClaimResult, MplFigure, Rows, our_comparison, paper_claim
from fullrank_papers.figures.frossl.comparison import (
    NO_PAIR,
    Size,
    compare,
    describe_accuracies,
    describe_runs,
    markdown_table,
    marks_of,
    mean_and_deviation,
    online_accuracy,
    plan,
    probe_accuracy,
    reach,
    read_runs,
    values_of,
)
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.frossl.sizes import SIZES
from fullrank_papers.figures.frossl.table2 import format_gap
from fullrank_papers.figures.plotting import plot_runs

METHODS = ("frossl", "barlow_twins")
EPOCHS = 30
"""The paper shows the first 30 of 100 epochs."""
PAPER_LEAD = 0.122  # after the first epoch
PAPER_FINAL = {"frossl": (53.4, 77.7), "barlow_twins": (52.5, 77.5)}
"""Final top-1 and top-5 accuracy in % on ImageNet after 100 epochs (Skean et al. 2024, Section 6.2)."""
IMAGES, ALL_EPOCHS = 1_281_167, 100  # of the paper's runs
SIMILAR = 0.02  # "similar performances", a margin of ours: the paper's differ by 0.9 points


def online_top5(mark: float) -> Callable[[Row], float | None]:
    """Return a function that returns the top-5 accuracy of the online classifier of a run at an epoch."""
    return lambda row: next((score.top5 for score in row.online if abs(score.epoch - mark) < 1e-6), None)


def markdown(rows: Rows) -> str:
    """Return the table: epoch, top-1 and top-5 of both, the difference of their top-1; last the linear probe after
    training.
    """
    runs, lines = read_runs(rows), []
    for mark in marks_of(runs):
        top1, top5 = values_of(runs, online_accuracy(mark)), values_of(runs, online_top5(mark))
        gap = compare(runs, top1, *METHODS)
        cells = [
            mean_and_deviation(values[name]) if name in values else "" for values in (top1, top5) for name in METHODS
        ]
        lines.append([f"{mark:g}", *cells, format_gap(gap) if gap else ""])
    finals = values_of(runs, probe_accuracy)
    if gap := compare(runs, finals, *METHODS):
        lines.append(
            ["end, linear probe", *(describe_accuracies(finals[name]) for name in METHODS), "", "", format_gap(gap)]
        )
    labels = [CONTENDERS[name].label for name in METHODS]
    return markdown_table(
        ["epoch", *(f"{label}, {top}, %" for top in ("top-1", "top-5") for label in labels), "top-1 difference"], lines
    )


def plot(rows: Rows) -> MplFigure:
    every = read_runs(rows)
    runs = {name: every[name] for name in METHODS if name in every}
    figure, (axes,) = subplots(1, 2, width=9.0, height=3.2)
    for axis, top, score in zip(axes, ("top-1", "top-5"), (online_accuracy, online_top5), strict=True):
        for color, (name, by_seed) in zip(("C1", "C0"), runs.items(), strict=False):
            marks = [mark for mark in marks_of(runs) if all(score(mark)(row) is not None for row in by_seed.values())]
            curves = [[100 * (score(mark)(row) or 0.0) for mark in marks] for row in by_seed.values()]
            plot_runs(axis, marks, curves, color=color, marker=".", label=CONTENDERS[name].label)
        axis.set(xlabel="epoch", ylabel=f"{top} accuracy of the online classifier, %")
        if axis.has_data() and axis.lines[0].get_xdata().size:  # pyright: ignore[reportAttributeAccessIssue]
            axis.legend()
        else:
            axis.text(
                0.5,
                0.5,
                "not measured: top-5 says little\nwith ten classes",
                transform=axis.transAxes,
                ha="center",
                va="center",
            )
            axis.set(xticks=[], yticks=[])
    axes[0].set_title(describe_runs(runs))
    return figure


def evaluate_claims(rows: Rows) -> Mapping[str, ClaimResult]:
    runs = {name: by_seed for name, by_seed in read_runs(rows).items() if name in METHODS}
    size, marks = describe_runs(runs), marks_of(runs)
    gaps = {mark: compare(runs, values_of(runs, online_accuracy(mark)), *METHODS) for mark in marks}
    first, last = gaps.get(1.0), compare(runs, values_of(runs, probe_accuracy), *METHODS)
    finals = values_of(runs, probe_accuracy)
    accuracies = " and ".join(
        f"{100 * statistics.fmean(finals[name].values()):.1f}" for name in METHODS if name in finals
    )
    ahead = (first.format(" points", scale=100.0), first.is_positive()) if first else (NO_PAIR, None)
    similar = (
        (f"{last.format(' points', scale=100.0)}; {accuracies}", last.is_within(SIMILAR)) if last else (NO_PAIR, None)
    )
    names = {row.data.lower() for by_seed in runs.values() for row in by_seed.values()}
    decidable = all("imagenet" in name for name in names) and reach(runs, IMAGES, ALL_EPOCHS)
    limit = f"decidable only at the paper's size, ImageNet, {ALL_EPOCHS} epochs; these runs: {size}"
    within = f"linear probe, 95 % interval within ±{100 * SIMILAR:.0f} points (our margin)"
    top1 = " and ".join(f"{PAPER_FINAL[name][0]}" for name in METHODS)
    return {
        "after the first epoch FroSSL is ahead of Barlow Twins in top-1 accuracy": paper_claim(
            f"95 % interval above 0; {limit}; paper: {100 * PAPER_LEAD:+.1f} points",
            ahead[0],
            ahead[1] if decidable else None,
        ),
        "at the end both perform similarly": paper_claim(
            f"{within}; {limit}; paper: top-1 {top1}", similar[0], similar[1] if decidable else None
        ),
        "in these runs, FroSSL is ahead of Barlow Twins after the first epoch": our_comparison(
            f"95 % interval above 0; {size}", *ahead
        ),
        "in these runs, both perform similarly at the end": our_comparison(f"{within}; {size}", *similar),
    }


IMAGENET_SIZE = Size(
    RECIPES["imagenet"],
    seeds=1,
    marks=tuple(float(epoch) for epoch in (*range(1, EPOCHS + 1), 50, 75, 100)),
    methods=METHODS,
    probes=("linear-imagenet",),
    same_recipe=True,
)

FIGURE = Campaign(
    title="Fig. 4 of Skean et al. 2024, FroSSL",
    claim="Even after the first epoch FroSSL is 12.2 points ahead of Barlow Twins on ImageNet; afterwards Barlow Twins catches up.",
    sizes={
        **{name: replace(SIZES[name], methods=METHODS) for name in ("smoke", "mnist", "small", "gpu")},
        "paper": IMAGENET_SIZE,
    },
    plan=plan,
    plot=plot,
    evaluate_claims=evaluate_claims,
    methods=METHODS,
    images="CIFAR-10 at sizes small and gpu, MNIST at size mnist, ImageNet as in the paper",
    markdown=markdown,
)
