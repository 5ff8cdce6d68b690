"""Table 2: linear probes of all objectives after pretraining, with kNN, effective rank and seconds.

Each method is compared with FroSSL by the paired difference of their accuracies. The paper's statements and its order
of the methods are judged only at its size; at other sizes they are undecidable, and statements of ours say what the
runs show.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fullrank.recipes.scores import TABLE2
from fullrank.report.plot_style import subplots
from fullrank.sweep import Row
from fullrank.sweep.paired import PairedDifference
from fullrank_papers.figures.figure import Campaign, ClaimResult, MplFigure, Rows, mark, our_comparison, paper_claim
from fullrank_papers.figures.frossl.comparison import (
    NO_PAIR,
    Runs,
    Values,
    compare,
    count_diverged,
    describe_accuracies,
    describe_rate,
    describe_runs,
    markdown_table,
    mean_and_deviation,
    plan,
    probe_accuracy,
    reach,
    read_rows,
    read_runs,
    values_of,
)
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.frossl.sizes import SIZES
from fullrank_papers.figures.seeds import holds_for_all

PAPER: dict[str, dict[str, float]] = {
    method: {
        column: number
        for column, number in zip(("cifar10", "cifar100", "stl10"), numbers, strict=True)
        if number is not None
    }
    for method, numbers in TABLE2.items()
}
"""Top-1 accuracy of a linear probe in %, after 1000 epochs on CIFAR and 500 on STL-10 (Skean et al. 2024, Table 2; no
spread is given).

On CIFAR, the numbers of the methods but FroSSL and CorInfoMax are those of da Costa et al. 2022 and Ermolov et al.
2021.
"""
COMPETITIVE = 0.02
"""Competitive: at most two points below, a margin of ours. In the paper's Table 2 FroSSL is at most 1.4 points below
the best method."""
DATASETS = {
    "cifar10": ("CIFAR-10", 50_000, 1000),
    "cifar100": ("CIFAR-100", 50_000, 1000),
    "stl10": ("STL-10", 105_000, 500),
}
"""Column of the paper's table → name, number of training images, and epochs."""


def paper_column(runs: Runs) -> str | None:
    """Return the paper's column of the data set of the runs; None if the paper has no such column, as for MNIST."""
    names = {row.data.lower().replace("-", "") for by_seed in runs.values() for row in by_seed.values()}
    return next((column for column in ("cifar100", "stl10", "cifar10") if any(column in name for name in names)), None)


def paper_number(column: str | None, name: str) -> float | None:
    """Return the paper's accuracy of a method in a column, None if it has none."""
    return None if column is None else PAPER.get(name, {}).get(column)


def paper_gap(column: str | None, name: str) -> float | None:
    """Return FroSSL's lead over a method in the paper's column, in points; None if the paper has no number."""
    ours, number = paper_number(column, "frossl"), paper_number(column, name)
    return None if ours is None or number is None or name == "frossl" else ours - number


def at_papers_size(runs: Runs) -> bool:
    """Return whether the runs are on a data set of the paper's table, with as many images and epochs."""
    column = paper_column(runs)
    return column is not None and reach(runs, *DATASETS[column][1:])


def same_order(gap: PairedDifference | None, paper: float | None) -> bool | None:
    """Return whether the paired difference has the sign of the paper's; None if its interval contains 0 or one of the
    two is missing.
    """
    positive = gap.is_positive() if gap else None
    return None if positive is None or paper is None else positive == (paper > 0)


def markdown(rows: Rows) -> str:
    """Return the table: method, paper, ours ± sd (n), FroSSL's lead with its interval and sign, and what else was
    measured. At the paper's size there is also a verdict on the paper's order.
    """
    every, runs, diverged = read_rows(rows), read_runs(rows), count_diverged(rows)
    column, ordered = paper_column(runs), at_papers_size(runs)
    accuracy = values_of(runs, probe_accuracy)
    measured = {heading: values_of(runs, value) for heading, (value, _, _) in COLUMNS.items()}
    others = sorted(
        {name for by_seed in runs.values() for row in by_seed.values() for name in row.scores if name != row.data}
    )
    transfers = {data: values_of(runs, partial(probe_accuracy, data=data)) for data in others}
    recipes = {name: ", ".join(sorted({row.recipe for row in by_seed.values()})) for name, by_seed in runs.items()}
    published = len(set(recipes.values())) > 1
    lines = []
    for name, contender in CONTENDERS.items():
        if name not in runs and name not in diverged:
            continue
        gap, paper = compare(runs, accuracy, "frossl", name), paper_gap(column, name)
        number = paper_number(column, name)
        line = [
            contender.label,
            "" if number is None else f"{number}",
            describe_accuracies(accuracy.get(name, {}), diverged.get(name, 0)),
        ]
        line += ["", ""] if name == "frossl" or gap is None else [format_gap(gap), mark(gap.is_positive())]
        line += ["" if paper is None else mark(same_order(gap, paper))] if ordered else []
        for heading, (_, scale, digits) in COLUMNS.items():
            values = measured[heading].get(name)
            line.append(mean_and_deviation(values, scale=scale, digits=digits) if values else "")
        line += [describe_rate(every, name), *([recipes.get(name, "")] if published else [])]
        lines.append([*line, *(describe_accuracies(values.get(name, {})) for values in transfers.values())])
    header = [
        "method",
        f"paper, {DATASETS[column][0]}, %" if column else "paper, %",
        "ours, linear, %",
        "FroSSL − method",
        "FroSSL ahead",
        *(("order as in the paper",) if ordered else ()),
        *COLUMNS,
        "learning rate",
        *(("recipe",) if published else ()),
    ]
    return markdown_table([*header, *(f"transfer to {data}, %" for data in transfers)], lines)


def format_gap(gap: PairedDifference) -> str:
    """Return a difference of accuracies and its 95 % interval in points."""
    return f"{100 * gap.mean:+.1f}" if gap.sd is None else f"{100 * gap.mean:+.1f} ± {100 * gap.half_width:.1f}"


COLUMNS: dict[str, tuple[Callable[[Row], float | None], float, int]] = {
    "kNN, %": (lambda row: row.score("knn"), 100.0, 1),
    "effective rank, backbone": (lambda row: row.effective_rank.get("backbone"), 1.0, 1),
    "effective rank, projector": (lambda row: row.effective_rank.get("projector"), 1.0, 1),
    "seconds": (lambda row: row.seconds or None, 1.0, 0),
    "CPU seconds": (lambda row: row.cpu_seconds or None, 1.0, 0),
}
"""Heading → value of a run, its scale and digits."""


def plot(rows: Rows) -> MplFigure:
    runs = read_runs(rows)
    names = list(runs)
    figure, ((left, middle, right),) = subplots(
        1, 3, width=11.0, height=1.6 + 0.2 * len(names), width_ratios=(2.2, 1, 1)
    )
    accuracy, column = values_of(runs, probe_accuracy), paper_column(runs)
    plot_dots(left, names, accuracy, 100.0)
    left.set_xlabel(f"accuracy of a linear probe, % (dots: seeds, bars: means); {describe_runs(runs)}", fontsize=8)
    left.set_yticks(range(len(names)), [CONTENDERS[name].label for name in names])
    other = left.secondary_yaxis("right")
    other.set_yticks(range(len(names)), [describe_row(runs, accuracy, column, name) for name in names])
    other.tick_params(length=0, labelsize=7, labelcolor="dimgray")
    other.spines["right"].set_visible(False)
    plot_dots(middle, names, values_of(runs, lambda row: row.effective_rank.get("backbone")), 1.0)
    middle.set_xlabel("effective rank, backbone")
    title, value = training_time(runs)
    plot_dots(right, names, values_of(runs, value), 1.0)
    right.set_xlabel(title)
    for axis in (middle, right):
        axis.set_yticks(range(len(names)), [])
    return figure


def training_time(runs: Runs) -> tuple[str, Callable[[Row], float | None]]:
    """Return what measures the training time of the runs, and its value: CPU time, or the duration if a GPU may have
    trained.
    """
    hardware = [row.environment.get("hardware", {}) for by_seed in runs.values() for row in by_seed.values()]
    name = "seconds" if any(each.get("gpus") for each in hardware) else "CPU seconds"
    return f"{name} of training", COLUMNS[name][0]


def plot_dots(axis, names: list[str], values: Values, scale: float) -> None:
    """Draw one line for each method: a dot per seed and a bar for the mean."""
    for place, name in enumerate(names):
        numbers = [scale * value for value in values.get(name, {}).values()]
        color = "C1" if name == "frossl" else "C0"
        if numbers:
            axis.plot([statistics.fmean(numbers)] * 2, [place - 0.35, place + 0.35], color=color, linewidth=1.5)
        axis.plot(numbers, [place] * len(numbers), "o", color=color, markersize=3, alpha=0.6)
    axis.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axis.grid(axis="x", alpha=0.3)


def describe_row(runs: Runs, accuracy: Values, column: str | None, name: str) -> str:
    """Return paper | ours ± sd (n) | whether FroSSL is ahead as text."""
    number = paper_number(column, name)
    parts = [
        f"paper {number}" if number else "paper –",
        mean_and_deviation(accuracy[name]) if name in accuracy else "–",
    ]
    if gap := compare(runs, accuracy, "frossl", name) if name != "frossl" else None:
        parts.append({True: "FroSSL ahead", False: "FroSSL behind", None: "undecided"}[gap.is_positive()])
    return " | ".join(parts)


def evaluate_claims(rows: Rows) -> Mapping[str, ClaimResult]:
    runs = read_runs(rows)
    accuracy, column, size = values_of(runs, probe_accuracy), paper_column(runs) or "cifar10", describe_runs(runs)
    shown = [name for name, numbers in PAPER.items() if name not in ("frossl", "nologs") and column in numbers]
    logs = compare(runs, accuracy, "frossl", "nologs")
    noticeable = logs.format(" points", scale=100.0) if logs else NO_PAIR
    positive = logs.is_positive() if logs else None
    best = max(number[column] for name, number in PAPER.items() if name != "frossl" and column in number)
    dataset, images, epochs = DATASETS[column]
    decidable = at_papers_size(runs)
    limit = f"decidable only at the paper's size, {dataset}, {images:,} images, {epochs} epochs; these runs: {size}"
    competitive, verdict = check_competitive(runs, accuracy, shown)
    return {
        "FroSSL learns competitive representations: its linear probe is at most 2 points below that of each other method": paper_claim(
            f"95 % intervals of the paired differences above −2 points (our margin); {limit}; "
            f"paper: {PAPER['frossl'][column] - best:+.1f} points from the best",
            competitive,
            verdict if decidable else None,
        ),
        "FroSSL without logarithms is noticeably worse": paper_claim(
            f"95 % interval above 0; {limit}; paper: {paper_gap(column, 'nologs'):+.1f} points",
            noticeable,
            positive if decidable else None,
        ),
        "in these runs, FroSSL's linear probe is at most 2 points below that of each other objective": our_comparison(
            f"95 % intervals of the paired differences above −2 points; {size}",
            *check_competitive(runs, accuracy, [name for name in CONTENDERS if name not in ("frossl", "nologs")]),
        ),
        "in these runs, FroSSL is better with logarithms than without": our_comparison(
            f"95 % interval above 0; {size}", noticeable, positive
        ),
    }


def check_competitive(runs: Runs, accuracy: Values, others: Sequence[str]) -> tuple[str, bool | None]:
    """Return FroSSL's least lead as text, and whether no lead is below −`COMPETITIVE`."""
    gaps = {name: gap for name in others if (gap := compare(runs, accuracy, "frossl", name))}
    if not gaps:
        return NO_PAIR, None
    name = min(gaps, key=lambda each: gaps[each].mean)
    text = f"least difference, from {CONTENDERS[name].label}: {format_gap(gaps[name])} points, n = {gaps[name].n}"
    verdict = holds_for_all(gaps[name].exceeds(-COMPETITIVE) if name in gaps else None for name in others)
    return f"{text}; {len(gaps)} of {len(others)} methods have runs", verdict


FIGURE = Campaign(
    title="Table 2 of Skean et al. 2024, FroSSL",
    claim="FroSSL learns representations that are competitive with those of other methods; without logarithms they are noticeably worse.",
    sizes=SIZES,
    plan=plan,
    plot=plot,
    evaluate_claims=evaluate_claims,
    methods=tuple(CONTENDERS),
    images="CIFAR-10 at sizes small and gpu, MNIST at size mnist, CIFAR-10, CIFAR-100 or STL-10 as in the paper",
    markdown=markdown,
)
