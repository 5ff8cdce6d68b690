"""Table 3: the online linear classifier during training, and whether FroSSL is ahead early.

The runs are those of Table 2. "Early" is compared by one number per run: the area under the accuracy-epoch curve over
the first epochs (`early_area`), 30 as in the paper or half of a shorter run, divided by their number. The paper's
statements are judged only at its size; statements of ours say what the runs show.
"""

import statistics
from collections.abc import Mapping
from functools import partial

from fullrank.recipes.scores import MARKS, TABLE3
from fullrank.report.plot_style import subplots
from fullrank.sweep.paired import PairedDifference
from fullrank_papers.figures.figure import Campaign, ClaimResult, MplFigure, Rows, mark, our_comparison, paper_claim
from fullrank_papers.figures.frossl.comparison import (
    EARLY,
    NO_PAIR,
    Runs,
    compare,
    count_diverged,
    describe_accuracies,
    describe_runs,
    early_area,
    early_end,
    markdown_table,
    marks_of,
    mean_and_deviation,
    online_accuracy,
    plan,
    reach,
    read_runs,
    seconds_to,
    values_of,
)
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.frossl.sizes import SIZES, STL10_SIZE
from fullrank_papers.figures.frossl.table2 import DATASETS, format_gap, paper_column
from fullrank_papers.figures.seeds import holds_for_all

PAPER_MARKS, PAPER = MARKS, TABLE3
"""Top-1 accuracy of the online classifier on STL-10 in % after `PAPER_MARKS` epochs (Skean et al. 2024, Table 3; no
spread is given)."""
DIMENSION_CONTRASTIVE = ("vicreg", "barlow_twins", "wmse", "nologs")
"""The other dimension-contrastive methods of the paper's Table 3."""
COMPARED = tuple(name for name in PAPER if name not in ("frossl", "nologs"))
OTHERS = tuple(name for name in CONTENDERS if name not in PAPER)
MILESTONES = (0.80, 0.85, 0.90)
"""Accuracies whose time is a column of the table, if any run reaches them."""


def leads(runs: Runs, epoch: float | None = None) -> dict[str, PairedDifference]:
    """Return FroSSL's lead over each other method, after `epoch` epochs, or without it in the early area."""
    end = early_end(runs)
    values = values_of(runs, (lambda row: early_area(row, end)) if epoch is None else online_accuracy(epoch))
    found = {name: compare(runs, values, "frossl", name) for name in runs if name != "frossl"}
    return {name: gap for name, gap in found.items() if gap is not None}


def markdown(rows: Rows) -> str:
    """Return the table: method, accuracy at each mark, early area, FroSSL's lead in it and whether it is above 0, and
    the paper.
    """
    runs, diverged = read_runs(rows), count_diverged(rows)
    marks, areas = marks_of(runs), values_of(runs, lambda row: early_area(row, early_end(runs)))
    gaps = leads(runs)
    milestones = {each: found for each in MILESTONES if (found := values_of(runs, partial(seconds_to, accuracy=each)))}
    lines = []
    for name, contender in CONTENDERS.items():
        if name not in runs and name not in diverged:
            continue
        line = [contender.label]
        for epoch in marks:
            values = values_of(runs, online_accuracy(epoch)).get(name, {})
            line.append(describe_accuracies(values, diverged.get(name, 0) if epoch == marks[0] else 0))
        line.append(mean_and_deviation(areas[name]) if name in areas else "")
        line += [format_gap(gaps[name]), mark(gaps[name].is_positive())] if name in gaps else ["", ""]
        line += [
            mean_and_deviation(found[name], scale=1.0, digits=0) if name in found else ""
            for found in milestones.values()
        ]
        lines.append([*line, " ".join(map(str, PAPER.get(name, ())))])
    header = [
        "method",
        *(f"epoch {epoch:g}, %" for epoch in marks),
        f"area to epoch {early_end(runs) if runs else 0:g}, %",
    ]
    paper = f"paper, STL-10, epochs {' '.join(f'{epoch:g}' for epoch in PAPER_MARKS)}"
    seconds = [f"seconds to {100 * each:.0f} %" for each in milestones]
    return markdown_table([*header, "FroSSL − method", "FroSSL ahead", *seconds, paper], lines)


def plot(rows: Rows) -> MplFigure:
    runs = read_runs(rows)
    gaps = leads(runs) if runs else {}
    figure, ((left, right),) = subplots(1, 2, width=11.0, height=2.0 + 0.19 * len(runs), width_ratios=(1.4, 1))
    for number, (name, by_seed) in enumerate(runs.items()):
        means = {
            epoch: values_of({name: by_seed}, online_accuracy(epoch)).get(name) for epoch in marks_of({name: by_seed})
        }
        style = {"frossl": ("black", "-", 2.0), "nologs": ("black", "--", 1.2)}
        color, line, width = style.get(name, (f"C{number % 10}", ("-", "--", ":")[number // 10], 0.9))
        percentages = [100 * statistics.fmean(values.values()) for values in means.values() if values]
        left.plot(
            list(means),
            percentages,
            color=color,
            linestyle=line,
            linewidth=width,
            marker=".",
            label=CONTENDERS[name].label,
        )
    left.set(xlabel="epoch", ylabel="online classifier, %, mean over seeds", xscale="log", title=describe_runs(runs))
    if runs:
        left.set_xticks(marks_of(runs), [f"{epoch:g}" for epoch in marks_of(runs)])
        left.minorticks_off()
        left.legend(ncols=2, fontsize=6)
    for place, gap in enumerate(gaps.values()):
        error = 0.0 if gap.sd is None else 100 * gap.half_width
        right.errorbar([100 * gap.mean], [place], xerr=[error], fmt="o", color="C0", markersize=4, capsize=2)
    right.axvline(0, color="black", linewidth=0.8)
    right.set_yticks(range(len(gaps)), [CONTENDERS[name].label for name in gaps])
    right.set_ylim(max(len(gaps), 1) - 0.5, -0.5)
    right.set(
        xlabel="FroSSL − method, points, with 95 % intervals", title=f"area to epoch {early_end(runs) if runs else 0:g}"
    )
    return figure


def check_leads(
    gaps: Mapping[str, PairedDifference], among: Mapping[str, object] | tuple[str, ...]
) -> tuple[str, bool | None]:
    """Return the smallest lead as text, and whether all leads are positive."""
    others = [name for name in among if name != "frossl"]
    found = {name: gaps[name] for name in others if name in gaps}
    if not found:
        return NO_PAIR, None
    name = min(found, key=lambda each: found[each].mean)
    ahead = sum(gap.is_positive() is True for gap in found.values())
    behind = sum(gap.is_positive() is False for gap in found.values())
    text = f"ahead of {ahead} of {len(others)}, behind {behind}; least lead, over {CONTENDERS[name].label}: {format_gap(found[name])}"
    return text, holds_for_all(gaps[name].is_positive() if name in gaps else None for name in others)


def evaluate_claims(rows: Rows) -> Mapping[str, ClaimResult]:
    runs = read_runs(rows)
    end = early_end(runs) if runs else 0.0
    shared = [epoch for epoch in marks_of(runs) if epoch in map(float, PAPER_MARKS)]
    early = [epoch for epoch in shared if epoch <= EARLY]
    at_marks, areas = {epoch: leads(runs, epoch) for epoch in shared}, leads(runs) if runs else {}
    dataset, images, epochs = DATASETS["stl10"]
    decidable = paper_column(runs) == "stl10" and reach(runs, images, epochs)
    interval, area = (
        "95 % intervals of the paired differences above 0",
        f"area under the accuracy-epoch curve to epoch {end:g}",
    )
    limit = f"decidable only at the paper's size, {dataset}, {images:,} images, {epochs} epochs; these runs: {describe_runs(runs)}"

    def join(epochs: list[float], among: Mapping[str, object] | tuple[str, ...]) -> tuple[str, bool | None]:
        checks = [(epoch, *check_leads(at_marks[epoch], among)) for epoch in epochs]
        text = "; ".join(f"epoch {epoch:g}: {text}" for epoch, text, _ in checks)
        return text or "no run reaches an epoch of the paper's table", holds_for_all(
            verdict for *_, verdict in checks
        ) if checks else None

    def claim(expected: str, check: tuple[str, bool | None]) -> ClaimResult:
        measured, verdict = check
        return paper_claim(f"{interval}, {expected}; {limit}", measured, verdict if decidable else None)

    def comparison(among: Mapping[str, object] | tuple[str, ...]) -> ClaimResult:
        return our_comparison(f"{interval}, {area}; {describe_runs(runs)}", *check_leads(areas, among))

    throughout = "at each epoch of the paper's table, in which VICReg is 0.4 points above FroSSL at epoch 50"
    return {
        "early in training (the paper: for the first 30 epochs), FroSSL outperforms all other methods of the table": claim(
            f"at each epoch of the paper's table up to {EARLY:g}", join(early, PAPER)
        ),
        "FroSSL outperforms all other dimension-contrastive methods of the table": claim(
            throughout, join(shared, DIMENSION_CONTRASTIVE)
        ),
        "FroSSL is stronger than the other methods of the table when trained for a small number of epochs": claim(
            area, check_leads(areas, PAPER)
        ),
        "FroSSL without logarithms is noticeably worse in the table": claim(area, check_leads(areas, ("nologs",))),
        "in these runs, FroSSL is ahead early of each other objective of the paper's table": comparison(COMPARED),
        "in these runs, FroSSL is ahead early of each objective that the paper's table does not have": comparison(
            OTHERS
        ),
        "in these runs, FroSSL with logarithms is ahead early of FroSSL without": comparison(("nologs",)),
    }


FIGURE = Campaign(
    title="Table 3 of Skean et al. 2024, FroSSL",
    claim="For the first 30 epochs FroSSL outperforms all other methods, and all other dimension-contrastive methods throughout.",
    sizes={**{name: size for name, size in SIZES.items() if not name.startswith("paper")}, "paper": STL10_SIZE},
    plan=plan,
    plot=plot,
    evaluate_claims=evaluate_claims,
    methods=tuple(CONTENDERS),
    images="CIFAR-10 at sizes small and gpu, MNIST at size mnist, STL-10 with its unlabelled images as in the paper",
    markdown=markdown,
)
