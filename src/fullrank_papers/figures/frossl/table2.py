"""Table 2: linear probes of all objectives after pretraining, with kNN, effective rank and seconds.

Each method is compared with FroSSL by the paired difference of their accuracies. The paper's statements are judged only
at its size; at other sizes they are inconclusive.
"""

from collections.abc import Callable
from functools import partial

from fullrank.sweep import Row
from fullrank_papers.figures.figure import MARKS, MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.frossl import comparison as c
from fullrank_papers.figures.frossl.comparison import Runs, Values, compare, format_gap, values_of
from fullrank_papers.figures.frossl.comparison import plan as plan
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.frossl.printed import printed_in
from fullrank_papers.figures.frossl.sizes import SIZES as SIZES
from fullrank_papers.plot_style import plot_dots, subplots

METHODS = tuple(CONTENDERS)
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "stl10": "STL-10"}
# Top-1 accuracy of a linear probe in %, after 1000 epochs on CIFAR and 500 on STL-10 (Skean et al. 2023, Table 2; no
# spread is given).  On CIFAR, the numbers of the methods but FroSSL and CorInfoMax are those of da Costa et al. 2022
# and Ermolov et al. 2021.
PAPER = {
    method: {data_set: number for (data_set, _), number in numbers.items()}
    for method, numbers in printed_in("Skean et al. 2023, Table 2").items()
}
# Competitive: at most two points below, a margin of ours. In the paper's Table 2 FroSSL is at most 1.4 points below the
# best method.
COMPETITIVE = 0.02
# Heading → value of a run that is done, its scale and digits.
COLUMNS: dict[str, tuple[Callable[[Row], float | None], float, int]] = {
    "kNN, %": (lambda row: row.score("knn"), 100.0, 1),
    "effective rank, backbone": (lambda row: row.effective_rank.get("backbone"), 1.0, 1),
    "effective rank, projector": (lambda row: row.effective_rank.get("projector"), 1.0, 1),
    "seconds": (lambda row: row.seconds or None, 1.0, 0),
    "CPU seconds": (lambda row: row.cpu_seconds or None, 1.0, 0),
}


def paper_column(runs: Runs) -> str | None:
    """Return the paper's column of the data set of the runs; None if the paper has no such column, as for MNIST."""
    names = {row.data.lower().replace("-", "") for row in c.all_rows(runs)}
    return next((column for column in ("cifar100", "stl10", "cifar10") if any(column in name for name in names)), None)


def markdown(rows: Rows) -> str:
    """Return the table: method, paper, ours ± sd (n), FroSSL's lead with its interval and sign, and what else was
    measured.
    """
    runs, diverged = c.read_runs(rows), c.count_diverged(rows)
    column, accuracy = paper_column(runs), values_of(runs, c.probe_accuracy)
    others = sorted({name for row in c.all_rows(runs) for name in row.scores if name != row.data})
    recipes = {name: ", ".join(sorted({row.recipe for row in by_seed.values()})) for name, by_seed in runs.items()}
    published = len(set(recipes.values())) > 1
    lines = []
    for name in [name for name in CONTENDERS if name in runs or name in diverged]:
        gap = compare(runs, accuracy, "frossl", name) if name != "frossl" else None
        line = {
            "method": CONTENDERS[name].label,
            f"paper, {DATASETS[column]}, %" if column else "paper, %": str(PAPER.get(name, {}).get(column or "", "")),
            "ours, linear, %": c.describe_accuracies(accuracy.get(name, {}), diverged.get(name, 0)),
            "FroSSL − method": format_gap(gap),
            "FroSSL ahead": MARKS[gap.exceeds(0.0)] if gap else "",
        }
        for heading, (value, scale, digits) in COLUMNS.items():
            line[heading] = c.mean_and_deviation(values_of(runs, value).get(name, {}), scale=scale, digits=digits)
        line |= {"recipe": recipes.get(name, "")} if published else {}
        for data in others:
            transfer = values_of(runs, partial(c.probe_accuracy, data=data)).get(name, {})
            line[f"transfer to {data}, %"] = c.mean_and_deviation(transfer)
        lines.append(line)
    return c.markdown_table(list(lines[0]) if lines else ["method"], [list(line.values()) for line in lines])


def plot(rows: Rows) -> MplFigure:
    runs = c.read_runs(rows)
    height = 1.6 + 0.2 * len(runs)
    figure, ((left, middle, right),) = subplots(1, 3, width=11.0, height=height, width_ratios=(2.2, 1, 1))
    accuracy, column = values_of(runs, c.probe_accuracy), paper_column(runs)

    def dots(values: Values, scale: float) -> list[tuple[str, list[float]]]:
        return [(CONTENDERS[name].label, [scale * x for x in values.get(name, {}).values()]) for name in runs]

    plot_dots(
        left, dots(accuracy, 100.0), notes=[f"paper {PAPER.get(name, {}).get(column or '', '–')}" for name in runs]
    )
    plot_dots(middle, dots(values_of(runs, COLUMNS["effective rank, backbone"][0]), 1.0))
    plot_dots(right, dots(values_of(runs, COLUMNS["seconds"][0]), 1.0))
    left.set_xlabel(f"accuracy of a linear probe, % (dots: seeds, bars: means); {c.describe_runs(runs)}", fontsize=8)
    middle.set(xlabel="effective rank, backbone", yticks=[])
    right.set(xlabel="seconds of training", yticks=[])
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    runs = c.read_runs(rows)
    accuracy, column = values_of(runs, c.probe_accuracy), paper_column(runs) or "cifar10"
    shown = [name for name, numbers in PAPER.items() if name not in ("frossl", "nologs") and column in numbers]
    leads = c.leads(runs, accuracy) if paper_column(runs) else {}  # on the paper's data sets
    logs = leads.get("nologs")
    noticeable, positive = (logs.format(" points", scale=100.0), logs.exceeds(0.0)) if logs else (c.NO_PAIR, None)
    best = max(number[column] for name, number in PAPER.items() if name != "frossl" and column in number)
    competitive = c.check_leads(leads, shown, -COMPETITIVE)
    return {
        "competitive": verdict(*competitive, lead=PAPER["frossl"][column] - best),
        "logs": verdict(noticeable, positive, lead=PAPER["frossl"][column] - PAPER["nologs"][column]),
    }
