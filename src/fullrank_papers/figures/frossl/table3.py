"""Table 3: the online linear classifier during training, and whether FroSSL is ahead early.

The runs are those of Table 2. "Early" is compared by one number per run: the area under the accuracy-epoch curve over
the first epochs (`early_area`), 30 as in the paper or half of a shorter run, divided by their number. The paper's
statements are judged only at its size.
"""

from collections.abc import Mapping, Sequence
from typing import get_args

from fullrank.evaluation.paired import PairedDifference
from fullrank_papers.figures.figure import MARKS, MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.frossl import comparison as c
from fullrank_papers.figures.frossl import sizes
from fullrank_papers.figures.frossl.comparison import Runs, early_end, format_gap, online_accuracy, values_of
from fullrank_papers.figures.frossl.comparison import plan as plan
from fullrank_papers.figures.frossl.contenders import CONTENDERS, Family
from fullrank_papers.figures.frossl.printed import printed_in
from fullrank_papers.figures.numerics import holds_for_all
from fullrank_papers.plot_style import COLORS, label_ends, plot_band, subplots

SIZES = {name: size for name, size in sizes.SIZES.items() if not name.startswith("paper")} | {"paper": sizes.STL10_SIZE}
METHODS = tuple(CONTENDERS)
# PAPER has the top-1 accuracy of the online classifier on STL-10 in % after `PAPER_MARKS` epochs (Skean et al. 2023,
# Table 3; no spread is given).
PRINTED = printed_in("Skean et al. 2023, Table 3")
PAPER = {method: tuple(numbers.values()) for method, numbers in PRINTED.items()}
PAPER_MARKS = tuple(epochs for _, epochs in PRINTED["frossl"])
OTHERS = tuple(name for name in PAPER if name != "frossl")
# The other dimension-contrastive methods of the paper's Table 3.
DIMENSION_CONTRASTIVE = ("vicreg", "barlow_twins", "wmse", "nologs")
Gaps = Mapping[str, PairedDifference]


def leads(runs: Runs, epoch: float | None = None) -> dict[str, PairedDifference]:
    """Return FroSSL's lead over each other method, after `epoch` epochs, or without it in the early area."""
    end = early_end(runs)
    values = values_of(runs, (lambda row: c.early_area(row, end)) if epoch is None else online_accuracy(epoch))
    return c.leads(runs, values)


def markdown(rows: Rows) -> str:
    """Return the table: method, accuracy at each mark, early area, FroSSL's lead in it and whether it is above 0, and
    the paper.
    """
    runs, diverged = c.read_runs(rows), c.count_diverged(rows)
    marks, end, gaps = c.marks_of(runs), early_end(runs), leads(runs)
    areas = values_of(runs, lambda row: c.early_area(row, end))
    lines = []
    for name in [name for name in CONTENDERS if name in runs or name in diverged]:
        line = {"method": CONTENDERS[name].label}
        for k, epoch in enumerate(marks):
            values = values_of(runs, online_accuracy(epoch)).get(name, {})
            line[f"epoch {epoch:g}, %"] = c.describe_accuracies(values, 0 if k else diverged.get(name, 0))
        line[f"area to epoch {end:g}, %"] = c.mean_and_deviation(areas.get(name, {}))
        line["FroSSL − method"] = format_gap(gaps.get(name))
        line["FroSSL ahead"] = MARKS[gaps[name].exceeds(0.0)] if name in gaps else ""
        papers = f"paper, STL-10, epochs {' '.join(f'{epoch:g}' for epoch in PAPER_MARKS)}"
        lines.append(line | {papers: " ".join(map(str, PAPER.get(name, ())))})
    return c.markdown_table(list(lines[0]) if lines else ["method"], [list(line.values()) for line in lines])


def plot(rows: Rows) -> MplFigure:
    runs = c.read_runs(rows)
    gaps, marks, end = leads(runs), c.marks_of(runs), early_end(runs)
    figure, axes = subplots(2, 3, width=11.0, height=6.4)
    *panels, right = axes.flat
    curves = c.curves(runs, online_accuracy)
    for axis, family in zip(panels, get_args(Family), strict=True):
        for x, values in curves.values():
            axis.plot(x, values.mean(0), color="0.85", linewidth=0.8)
        names = [name for name in runs if CONTENDERS[name].family == family and name != "frossl"]
        colors = dict(zip(names, COLORS, strict=False)) | ({"frossl": "black"} if "frossl" in runs else {})
        for marker, (name, color) in zip("osD^v<>p", colors.items(), strict=False):
            plot_band(axis, *curves[name], color=color, marker=marker, markersize=3, label=CONTENDERS[name].label)
        axis.set(xscale="log", title=family, xlabel="epoch", ylabel="online classifier, %")
        axis.set_xticks(marks, [f"{epoch:g}" for epoch in marks])
        axis.minorticks_off()
    for place, gap in enumerate(gaps.values()):
        error = 0.0 if gap.sd is None else 100 * gap.half_width
        right.errorbar([100 * gap.mean], [place], xerr=[error], fmt="o", color="C0", markersize=4, capsize=2)
    right.axvline(0, color="black", linewidth=0.8)
    right.set_yticks(range(len(gaps)), [CONTENDERS[name].label for name in gaps])
    right.yaxis.tick_right()
    right.set_ylim(max(len(gaps), 1) - 0.5, -0.5)
    right.set(
        xlabel=f"FroSSL − method, mean over epochs 1 to {end:g},\npoints, 95 % intervals", title=c.describe_runs(runs)
    )
    label_ends(*panels)
    return figure


def check_at_marks(at_marks: Mapping[float, Gaps], among: Sequence[str]) -> tuple[str, bool | None]:
    """Return `check_leads` at each epoch of the paper's table, joined."""
    checks = [(epoch, *c.check_leads(gaps, among)) for epoch, gaps in at_marks.items()]
    if not checks:
        return "no run reaches an epoch of the paper's table", None
    return "; ".join(f"epoch {epoch:g}: {text}" for epoch, text, _ in checks), holds_for_all(each[2] for each in checks)


def evaluate_claims(rows: Rows) -> Verdicts:
    runs = c.read_runs(rows)
    areas = leads(runs)
    at_marks = {mark: leads(runs, mark) for mark in c.marks_of(runs) if mark in map(float, PAPER_MARKS)}
    early = {mark: gaps for mark, gaps in at_marks.items() if mark <= c.EARLY}
    area = f"area under the accuracy-epoch curve to epoch {early_end(runs):g}"
    return {
        "early": verdict(*check_at_marks(early, OTHERS)),
        "throughout": verdict(*check_at_marks(at_marks, DIMENSION_CONTRASTIVE)),
        "area": verdict(*c.check_leads(areas, OTHERS), area=area),
        "logs": verdict(*c.check_leads(areas, ["nologs"]), area=area),
    }
