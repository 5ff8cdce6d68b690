"""The ablations of FroSSL: logarithms, invariance weight, projector dimension, batch size, number of views; and
CorInfoMax's ε.

Each ablation changes one setting of the comparison's recipe and keeps the learning rate that was chosen for the method
there, so the runs at the unchanged settings are those of Table 2; at size gpu only those of 100 epochs are. A batch of
another size changes the learning rate as `with_choices` says.

The paper uses no trade-off hyperparameter, so FroSSL's invariance weight stays the same unless it is the setting. But
N, D and the number of views V change the balance of the two terms. The invariance term sums D unit columns over V(V −
1)/2 pairs and divides by N; the variance term sums V views, and D enters it only in the logarithm. So each of these
settings has a second curve, with the weight 4N/(D(V − 1)), which keeps the balance of the paper's N = 256, D = 1024, V
= 2.

CorInfoMax did not converge on STL-10 in the paper, which found ε critical. With the authors' public STL-10
configuration, N = D = 256, the covariance of a batch has a rank of at most N − 1 < D, and the running covariance
forgets its start within a few steps. So its smallest eigenvalue is 0, its log-determinant is finite only by ε, and the
gradient in this direction is as large as 1/ε. With D = 64, as on CIFAR-10, it has full rank.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fullrank.errors import pick
from fullrank.recipes import Recipe, with_choices
from fullrank.report.plot_style import subplots
from fullrank.sweep import Cell, Plan, Row
from fullrank.sweep.paired import paired_by_seed
from fullrank_papers.figures.figure import Campaign, ClaimResult, MplFigure, Rows, our_comparison, paper_claim
from fullrank_papers.figures.frossl.comparison import (
    NO_PAIR,
    RATE,
    Size,
    cell_name,
    chosen_rates,
    compared_cell,
    describe_runs,
    markdown_table,
    mean_and_deviation,
    probe_accuracy,
    read_rows,
    runs_of,
)
from fullrank_papers.figures.frossl.comparison import plan as comparison_plan
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.frossl.sizes import CIFAR10_SIZE, GPU_SIZE, SMALL_SIZE, SMOKE_SIZE
from fullrank_papers.figures.frossl.table2 import COMPETITIVE, format_gap
from fullrank_papers.figures.seeds import holds_for_all

Change = Callable[[Recipe, Any], Recipe]


@dataclass(frozen=True)
class Ablation:
    """One setting: which methods it is varied for, and how the recipe follows from its value."""

    label: str
    change: Change
    methods: tuple[str, ...] = ("frossl",)
    base: Callable[[Recipe], int | float] | None = None
    """The value that the unchanged recipe has; the runs of the comparison are then a point of the ablation. None: they
    are not."""
    balanced: bool = False
    """Whether FroSSL is also trained with the weight of `with_balance`."""

    @property
    def curves(self) -> list[tuple[str, bool]]:
        """Return each method, and whether its weight is that of `with_balance`."""
        return [*((method, False) for method in self.methods), *([("frossl", True)] if self.balanced else [])]


def with_hyper(recipe: Recipe, **values: Any) -> Recipe:
    return replace(recipe, hyper=recipe.hyper | values)


def with_dimension(recipe: Recipe, D: int) -> Recipe:
    return replace(recipe, projector=replace(recipe.projector, widths=(*recipe.projector.widths[:-1], D)))


def with_views(recipe: Recipe, count: int) -> Recipe:
    """Return the recipe with `count` views of one distribution, the first."""
    return replace(recipe, views=(replace(recipe.views[0], count=count),))


def with_balance(recipe: Recipe) -> Recipe:
    """Return FroSSL's recipe with the invariance weight 4N/(D(V − 1)); the recipes of the comparison have it."""
    N, D, V = recipe.batch_size, recipe.projector.widths[-1], sum(view.count for view in recipe.views)
    return with_hyper(recipe, invariance=4 * N / (D * (V - 1)))


def with_batch_of_dimension(recipe: Recipe, epsilon: float, N: int = 256) -> Recipe:
    """Return CorInfoMax's recipe with N = D = 256 and α = 500, as in the public STL-10 configuration of FroSSL's
    authors, and another ε.
    """
    recipe = with_dimension(with_choices(recipe, batch_size=N), N)
    return with_hyper(recipe, epsilon=epsilon, invariance=500.0)


ABLATIONS: dict[str, Ablation] = {
    "invariance": Ablation(
        "invariance weight", lambda r, w: with_hyper(r, invariance=w), base=lambda r: r.hyper["invariance"]
    ),
    "dimension": Ablation(
        "projector dimension D", with_dimension, base=lambda r: r.projector.dimensions(0), balanced=True
    ),
    "batch": Ablation(
        "batch size N",
        lambda r, n: with_choices(r, batch_size=n),
        methods=("frossl", "simclr"),
        base=lambda r: r.batch_size,
        balanced=True,
    ),
    "views": Ablation(
        "number of views V", with_views, base=lambda r: sum(view.count for view in r.views), balanced=True
    ),
    "epsilon": Ablation("CorInfoMax's ε at N = D", with_batch_of_dimension, methods=("corinfomax",)),
}
"""Name of a setting → its ablation. The ablation of the logarithms has no values: its runs are those of Table 2."""
LOGS = "logs"


@dataclass(frozen=True)
class AblationSize:
    """The size of the comparison, and the values of each setting."""

    comparison: Size
    values: Mapping[str, tuple[int | float, ...]]


def plan(
    size: AblationSize,
    *,
    data: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    transfer: Sequence[str] = (),
) -> Plan:
    """Return the plan: the runs of the comparison that the ablations start from, then the changed ones. `only` names
    ablations.
    """
    size = replace(size, comparison=replace(size.comparison, transfer=tuple(transfer) or size.comparison.transfer))
    names = [pick(name, dict.fromkeys((*ABLATIONS, LOGS), name), "ablation") for name in only] or [LOGS, *size.values]
    methods = {"frossl", *(("nologs",) if LOGS in names else ())}
    methods |= {
        method for name in names if name != LOGS and size.values.get(name) for method in ABLATIONS[name].methods
    }
    ordered = [method for method in CONTENDERS if method in methods]
    base = comparison_plan(size.comparison, data=data, seeds=seeds, only=ordered)

    def cells(rows: Sequence[Row]) -> list[Cell]:
        found, rates = list(base(rows)), chosen_rates(rows, size.comparison.rates)
        for name in names:
            for method, balanced in ABLATIONS[name].curves if name != LOGS else ():
                if not size.comparison.rates or method in rates:
                    found += [
                        ablated_cell(size, name, method, value, rates.get(method), seed, data, balanced=balanced)
                        for value in size.values.get(name, ())
                        for seed in range(seeds or size.comparison.seeds)
                    ]
        return found

    return cells


def ablated_cell(
    size: AblationSize,
    name: str,
    method: str,
    value: int | float,
    rate: float | None,
    seed: int,
    data: str | None,
    *,
    balanced: bool,
) -> Cell:
    """Return the cell of a run with one setting changed, and with the weight of `with_balance` if it is `balanced`."""
    base = compared_cell(size.comparison, method, rate, seed, data)
    recipe = ABLATIONS[name].change(base.recipe, value)
    settings = {"method": method, RATE: recipe.optimizer.lr, "stage": "ablation", "ablation": name, "value": value}
    if balanced:
        recipe, settings["balanced"] = with_balance(recipe), True
    if (unchanged := ABLATIONS[name].base) is not None:
        settings["unchanged"] = unchanged(base.recipe)
    changed = f"{name}{value:g}" + ("balanced" if balanced else "")
    return Cell(cell_name(size.comparison, method, recipe, changed, f"seed{seed}"), recipe, settings, base.evaluate)


Points = dict[float, dict[int, Row]]
"""Value of a setting → seed → row."""


def read_points(rows: Sequence[Row], name: str, method: str, *, balanced: bool = False) -> Points:
    """Return the rows of one curve of an ablation, done or diverged, with those of the unchanged recipe, in the order
    of the values.
    """
    found: Points = {}
    unchanged = None
    for row in rows:
        settings = row.settings
        curve = (settings.get("ablation"), settings["method"], settings.get("balanced", False))
        if curve == (name, method, balanced) and row.is_final:
            found.setdefault(float(settings["value"]), {})[row.seed] = row
            unchanged = settings.get("unchanged")
    if unchanged is not None:
        found.setdefault(float(unchanged), {}).update(runs_of(rows).get(method, {}))
    return dict(sorted((value, by_seed) for value, by_seed in found.items() if by_seed))


def unchanged_value(rows: Sequence[Row], name: str) -> float | None:
    """Return the value of a setting in the unchanged recipe, or None if no run of its ablation knows it."""
    found = (row.settings for row in rows if row.settings.get("ablation") == name)
    return next((float(settings["unchanged"]) for settings in found if "unchanged" in settings), None)


def accuracies(points: Points) -> dict[float, dict[int, float]]:
    """Return value → seed → accuracy, without the runs that diverged."""
    found = {
        value: {seed: accuracy for seed, row in by_seed.items() if (accuracy := probe_accuracy(row)) is not None}
        for value, by_seed in points.items()
    }
    return {value: by_seed for value, by_seed in found.items() if by_seed}


def markdown(result: Rows) -> str:
    """Return one line for each setting, method and value: accuracy, effective rank, seconds and CPU seconds."""
    rows, lines = read_rows(result), []
    for name, ablation in ABLATIONS.items():
        for method, balanced in ablation.curves:
            points = read_points(rows, name, method, balanced=balanced)
            for value, by_seed in points.items():
                lines.append([ablation.label, label_curve(method, balanced), f"{value:g}", *describe_point(by_seed)])
    for method in ("frossl", "nologs"):
        if by_seed := runs_of(rows).get(method):
            lines.append(
                [
                    "logarithms",
                    CONTENDERS[method].label,
                    "yes" if method == "frossl" else "no",
                    *describe_point(by_seed),
                ]
            )
    ranks = ("effective rank, backbone", "effective rank, projector")
    return markdown_table(
        ["setting", "method", "value", "linear, %", *ranks, "seconds", "CPU seconds", "diverged"], lines
    )


def label_curve(method: str, balanced: bool) -> str:
    """Return the name of a curve of an ablation."""
    return CONTENDERS[method].label + (", weight 4N/(D(V−1))" if balanced else "")


def describe_point(by_seed: Mapping[int, Row]) -> list[str]:
    """Return accuracy, effective ranks, seconds and CPU seconds as text, and how many runs diverged."""
    done = {seed: row for seed, row in by_seed.items() if row.is_done}
    columns = (
        ({seed: value for seed, row in done.items() if (value := probe_accuracy(row)) is not None}, 100.0, 1),
        (
            {seed: row.effective_rank["backbone"] for seed, row in done.items() if "backbone" in row.effective_rank},
            1.0,
            1,
        ),
        (
            {seed: row.effective_rank["projector"] for seed, row in done.items() if "projector" in row.effective_rank},
            1.0,
            1,
        ),
        ({seed: row.seconds for seed, row in done.items()}, 1.0, 0),
        ({seed: row.cpu_seconds for seed, row in done.items() if row.cpu_seconds}, 1.0, 0),
    )
    texts = [
        mean_and_deviation(values, scale=scale, digits=digits) if values else "" for values, scale, digits in columns
    ]
    return [*texts, f"{sum(row.diverged for row in by_seed.values())} of {len(by_seed)}"]


def plot(result: Rows) -> MplFigure:
    rows = read_rows(result)
    figure, axes = subplots(2, 3, width=11.0, height=5.6)
    *panels, last = axes.flat
    for axis, (name, ablation) in zip(panels, ABLATIONS.items(), strict=True):
        for method, balanced in ablation.curves:
            color = "C2" if balanced else "C0" if method == "simclr" else "C1"
            found = accuracies(read_points(rows, name, method, balanced=balanced))
            axis.plot(
                list(found), [100 * statistics.fmean(by_seed.values()) for by_seed in found.values()], color=color
            )
            for value, by_seed in found.items():
                axis.plot(
                    [value] * len(by_seed),
                    [100 * accuracy for accuracy in by_seed.values()],
                    "o",
                    color=color,
                    markersize=3,
                )
            axis.plot([], [], "o-", color=color, label=label_curve(method, balanced))
        if (unchanged := unchanged_value(rows, name)) is not None:
            axis.axvline(unchanged, color="gray", linestyle=":", linewidth=0.9)
        axis.set(xscale="log", xlabel=ablation.label)
        if values := sorted(
            {value for method in ablation.methods for value in accuracies(read_points(rows, name, method))}
        ):
            axis.set_xticks(values, [f"{value:g}" for value in values])
            axis.minorticks_off()
        else:
            axis.text(0.5, 0.5, "no runs", transform=axis.transAxes, ha="center", va="center")
        axis.legend(fontsize=7)
    runs = {name: by_seed for name, by_seed in runs_of(rows).items() if name in ("frossl", "nologs")}
    for place, by_seed in enumerate(runs.values()):
        found = [100 * accuracy for row in by_seed.values() if (accuracy := probe_accuracy(row)) is not None]
        last.plot([place] * len(found), found, "o", color="C1", markersize=3)
    last.set_xticks(range(len(runs)), [CONTENDERS[name].label for name in runs])
    last.margins(x=0.5)
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy of a linear probe, %")
    axes[0, 0].set_title(f"{describe_runs(runs_of(rows))}; dotted: unchanged", fontsize=8)
    return figure


def evaluate_claims(result: Rows) -> Mapping[str, ClaimResult]:
    rows = read_rows(result)
    return {
        "FroSSL does not need large batches": check_batches(rows),
        "CorInfoMax's ε is critical": check_epsilon(rows),
        "The invariance weight 4N/D is at most 2 points below any other": check_weights(rows),
        "The paper's invariance weight 1 is at most 2 points below 4N/D": check_papers_weight(rows),
        "With the weight 4N/(D(V−1)), other N, D and V cost at most 2 points": check_balance(rows),
    }


def check_batches(rows: Sequence[Row]) -> ClaimResult:
    """Return whether FroSSL loses at most `COMPETITIVE` with each smaller batch; SimCLR's loss is shown beside it."""
    unchanged, losses, texts = unchanged_value(rows, "batch"), [], []
    for method in ABLATIONS["batch"].methods:
        found = accuracies(read_points(rows, "batch", method))
        for value, by_seed in found.items():
            if (
                unchanged is not None
                and value < unchanged
                and (gap := paired_by_seed(by_seed, found.get(unchanged, {})))
            ):
                texts.append(f"{CONTENDERS[method].label} at {value:g}: {format_gap(gap)}")
                losses += [gap] if method == "frossl" else []
    return paper_claim(
        f"at smaller batches than {unchanged or 0:g} at most {100 * COMPETITIVE:.0f} points lower: 95 % intervals; "
        f"{describe_runs(runs_of(rows))}",
        f"{'; '.join(texts)} points" if texts else NO_PAIR,
        holds_for_all(gap.exceeds(-COMPETITIVE) for gap in losses) if losses else None,
    )


def check_epsilon(rows: Sequence[Row]) -> ClaimResult:
    """Return whether another ε than the published one changes the accuracy by more than `COMPETITIVE`, or all of its
    runs diverge.
    """
    points = read_points(rows, "epsilon", "corinfomax")
    found, published = accuracies(points), CONTENDERS["corinfomax"].hyper["epsilon"]
    changes = {
        value: paired_by_seed(by_seed, found.get(published, {}))
        for value, by_seed in found.items()
        if value != published
    }
    texts = [f"ε = {value:g}: {format_gap(gap)} points" for value, gap in changes.items() if gap]
    same = [gap.is_within(COMPETITIVE) if gap else None for gap in changes.values()]
    for value, by_seed in points.items():
        if count := sum(row.diverged for row in by_seed.values()):
            texts.append(f"ε = {value:g}: {count} of {len(by_seed)} diverged")
            same.append(False if count == len(by_seed) > 1 and published in found else None)
    verdict = holds_for_all(same) if same else None
    return paper_claim(
        f"another ε than {published:g} changes the accuracy by more than {100 * COMPETITIVE:.0f} points (our margin, 95 % intervals), "
        "or all of its runs diverge; N = D = 256 as in the authors' STL-10 configuration, on other images",
        "; ".join(texts) or NO_PAIR,
        None if verdict is None else not verdict,
    )


def check_papers_weight(rows: Sequence[Row]) -> ClaimResult:
    """Return whether the weight 1, which the paper uses at every size, loses at most `COMPETITIVE` against the
    unchanged weight.
    """
    found, unchanged = accuracies(read_points(rows, "invariance", "frossl")), unchanged_value(rows, "invariance")
    gap = (
        None if unchanged is None or unchanged == 1.0 else paired_by_seed(found.get(1.0, {}), found.get(unchanged, {}))
    )
    return our_comparison(
        f"95 % interval of weight 1 − weight {unchanged or 0:g} above −{100 * COMPETITIVE:.0f} points; {describe_runs(runs_of(rows))}",
        f"{format_gap(gap)} points" if gap else NO_PAIR,
        gap.exceeds(-COMPETITIVE) if gap else None,
    )


def check_balance(rows: Sequence[Row]) -> ClaimResult:
    """Return whether FroSSL loses at most `COMPETITIVE` at each other N, D and V if its weight follows them."""
    gaps, texts = [], []
    for name, ablation in ABLATIONS.items():
        unchanged = unchanged_value(rows, name)
        if unchanged is None or not ablation.balanced:
            continue
        fixed, found = (accuracies(read_points(rows, name, "frossl", balanced=balanced)) for balanced in (False, True))
        for value, by_seed in found.items():
            if value != unchanged and (gap := paired_by_seed(by_seed, found.get(unchanged, {}))):
                same = paired_by_seed(fixed.get(value, {}), fixed.get(unchanged, {}))
                beside = f" (weight not changed: {format_gap(same)})" if same else ""
                texts.append(f"{ablation.label} = {value:g}: {format_gap(gap)}{beside}")
                gaps.append(gap)
    return our_comparison(
        f"95 % intervals of the difference to the unchanged setting above −{100 * COMPETITIVE:.0f} points; {describe_runs(runs_of(rows))}",
        "; ".join(texts) or NO_PAIR,
        holds_for_all(gap.exceeds(-COMPETITIVE) for gap in gaps) if gaps else None,
    )


def check_weights(rows: Sequence[Row]) -> ClaimResult:
    """Return whether no other invariance weight is more than `COMPETITIVE` better than the unchanged one."""
    found, unchanged = accuracies(read_points(rows, "invariance", "frossl")), unchanged_value(rows, "invariance")
    base = found.get(unchanged, {}) if unchanged is not None else {}
    gaps = {
        value: gap for value, by_seed in found.items() if value != unchanged and (gap := paired_by_seed(base, by_seed))
    }
    return our_comparison(
        f"95 % intervals of unchanged − other above −{100 * COMPETITIVE:.0f} points; {describe_runs(runs_of(rows))}",
        "; ".join(f"weight {value:g}: {format_gap(gap)}" for value, gap in gaps.items()) or NO_PAIR,
        holds_for_all(gap.exceeds(-COMPETITIVE) for gap in gaps.values()) if gaps else None,
    )


SMALL_VALUES = {
    "invariance": (0.5, 1.0, 4.0, 8.0),
    "dimension": (64, 1024),
    "batch": (32, 64, 256),
    "views": (4, 8),
    "epsilon": (1e-8, 1e-6, 1e-4, 1e-2, 1.0),
}
PAPER_VALUES = SMALL_VALUES | {
    "invariance": (0.25, 0.5, 2.0, 4.0),
    "dimension": (128, 256, 512, 2048),
    "batch": (64, 128, 512),
}
SMOKE_VALUES = {"invariance": (1.0,), "dimension": (16,), "batch": (16,), "views": (4,), "epsilon": (1e-6, 1e-1)}

FIGURE = Campaign(
    title="Section 6.3, Appendix C and CorInfoMax's ε, Skean et al. 2024, FroSSL",
    claim="FroSSL needs neither a trade-off hyperparameter nor large batches; CorInfoMax's ε is critical.",
    sizes={
        "smoke": AblationSize(SMOKE_SIZE, SMOKE_VALUES),
        "small": AblationSize(SMALL_SIZE, SMALL_VALUES),
        "gpu": AblationSize(replace(GPU_SIZE, epochs={}), PAPER_VALUES),
        "paper": AblationSize(CIFAR10_SIZE, PAPER_VALUES),
    },
    plan=plan,
    plot=plot,
    evaluate_claims=evaluate_claims,
    methods=(LOGS, *ABLATIONS),
    images="CIFAR-10",
    markdown=markdown,
)
