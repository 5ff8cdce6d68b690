"""The ablations of FroSSL: logarithms, invariance weight, projector dimension, batch size, number of views; and
CorInfoMax's ε.

Each ablation changes one setting of the comparison's recipe and keeps the learning rate that was chosen for the method
there, so the runs at the unchanged settings are those of Table 2; at size gpu only those of 100 epochs are. A batch of
another size changes the learning rate as `resolve` says.

The paper uses no trade-off hyperparameter, so FroSSL's invariance weight stays the same unless it is the setting. But
N, D and the number of views V change the balance of the two terms (docs/derivations/balance.md). So each of these
settings has a second curve, with the weight that keeps the balance of the paper's N = 256, D = 1024, V = 2
(`balanced_weights`). The stored curve of V has 4N/(D(V − 1)), an earlier rule.

CorInfoMax did not converge on STL-10 in the paper, which found ε critical. With the authors' public STL-10
configuration, N = D = 256, the covariance of a batch has a rank of at most N − 1 < D, and earlier batches have a weight
of 1 % in the running covariance. So its smallest eigenvalues are small, and ε can matter. With D = 64, as on CIFAR-10,
the covariance of a batch has full rank.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from fullrank.errors import pick
from fullrank.evaluation.paired import PairedDifference, paired_by_seed
from fullrank.recipes import Recipe, balanced_weights, resolve
from fullrank.sweep import Cell, Plan, Row
from fullrank_papers.figures.figure import MplFigure, Rows, Verdict, Verdicts, verdict
from fullrank_papers.figures.frossl import comparison as c
from fullrank_papers.figures.frossl import sizes
from fullrank_papers.figures.frossl.comparison import RATE, format_gap
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.frossl.table2 import COMPETITIVE
from fullrank_papers.figures.numerics import holds_for_all
from fullrank_papers.plot_style import subplots

Change = Callable[[Recipe, Any], Recipe]


@dataclass(frozen=True)
class Ablation:
    """One setting: which methods it is varied for, and how the recipe follows from its value.

    Attributes:
        base: The value that the unchanged recipe has; the runs of the comparison are then a point of the ablation.
            None: they are not.
        balanced: Whether FroSSL is also trained with the weight of `with_balance`.
    """

    label: str
    change: Change
    methods: tuple[str, ...] = ("frossl",)
    base: Callable[[Recipe], int | float] | None = None
    balanced: bool = False

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
    """Return FroSSL's recipe with the balanced invariance weight; the recipes of the comparison have it."""
    return with_hyper(recipe, invariance=balanced_weights(recipe)["invariance"])


def with_batch_of_dimension(recipe: Recipe, epsilon: float, N: int = 256) -> Recipe:
    """Return CorInfoMax's recipe with N = D = 256 and α = 500, as in the public STL-10 configuration of FroSSL's
    authors, and another ε.
    """
    recipe = with_dimension(resolve(recipe, {"batch_size": N}), N)
    return with_hyper(recipe, epsilon=epsilon, invariance=500.0)


# Name of a setting → its ablation. The ablation of the logarithms has no values: its runs are those of Table 2.
ABLATIONS: dict[str, Ablation] = {
    "invariance": Ablation(
        "invariance weight", lambda r, w: with_hyper(r, invariance=w), base=lambda r: r.hyper["invariance"]
    ),
    "dimension": Ablation(
        "projector dimension D", with_dimension, base=lambda r: r.projector.dimensions(0), balanced=True
    ),
    "batch": Ablation(
        "batch size N", lambda r, n: resolve(r, {"batch_size": n}), ("frossl", "simclr"), lambda r: r.batch_size, True
    ),
    "views": Ablation("number of views V", with_views, base=lambda r: sum(v.count for v in r.views), balanced=True),
    "epsilon": Ablation("CorInfoMax's ε at N = D", with_batch_of_dimension, methods=("corinfomax",)),
}
LOGS = "logs"


@dataclass(frozen=True)
class AblationSize:
    """The size of the comparison, and the values of each setting."""

    comparison: c.Size
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
    names = [pick(name, dict.fromkeys(METHODS, name), "ablation") for name in only] or [LOGS, *size.values]
    varied = [name for name in names if size.values.get(name)]
    methods = {"frossl", *(("nologs",) if LOGS in names else ())}
    methods |= {method for name in varied for method in ABLATIONS[name].methods}
    base = c.plan(size.comparison, data=data, seeds=seeds, only=[name for name in CONTENDERS if name in methods])

    def cells(rows: Sequence[Row]) -> list[Cell]:
        found, rates = list(base(rows)), c.chosen_rates(rows, size.comparison.rates)
        for name in varied:
            for method, balanced in ABLATIONS[name].curves:
                for value in size.values[name] if method in rates or not size.comparison.rates else ():
                    for seed in range(seeds or size.comparison.seeds):
                        start = c.compared_cell(size.comparison, method, rates.get(method), seed, data)
                        found.append(ablated_cell(size, start, name, value, balanced=balanced))
        return found

    return cells


def ablated_cell(size: AblationSize, start: Cell, name: str, value: int | float, *, balanced: bool) -> Cell:
    """Return the cell of a run with one setting changed, and with the weight of `with_balance` if it is `balanced`."""
    recipe, method = ABLATIONS[name].change(start.recipe, value), start.settings["method"]
    settings = {"method": method, RATE: recipe.optimizer.lr, "stage": "ablation", "ablation": name, "value": value}
    if balanced:
        recipe, settings["balanced"] = with_balance(recipe), True
    if (unchanged := ABLATIONS[name].base) is not None:
        settings["unchanged"] = unchanged(start.recipe)
    changed = f"{name}{value:g}" + ("balanced" if balanced else "")
    cell = c.cell_name(size.comparison, str(method), recipe, changed, f"seed{recipe.seed}")
    return Cell(cell, recipe, settings, start.evaluate)


# Value of a setting → seed → row.
Points = dict[float, dict[int, Row]]
# Value of a setting → seed → accuracy, without the runs that diverged.
Accuracies = dict[float, dict[int, float]]
# Value of a setting → its difference from another value.
Gaps = dict[float, PairedDifference]


def read_points(rows: Sequence[Row], name: str, method: str = "frossl", *, balanced: bool = False) -> Points:
    """Return the rows of one curve of an ablation, done or diverged, with those of the unchanged recipe, in the order
    of the values.
    """
    found: Points = {}
    for row in rows:
        curve = (row.settings.get("ablation"), row.settings["method"], row.settings.get("balanced", False))
        if curve == (name, method, balanced) and row.is_final:
            found.setdefault(float(row.settings["value"]), {})[row.seed] = row
    if found and (unchanged := unchanged_value(rows, name)) is not None:
        found.setdefault(unchanged, {}).update(c.read_runs(rows).get(method, {}))
    return dict(sorted((value, by_seed) for value, by_seed in found.items() if by_seed))


def unchanged_value(rows: Sequence[Row], name: str) -> float | None:
    """Return the value of a setting in the unchanged recipe, or None if no run of its ablation knows it."""
    found = (row.settings for row in rows if row.settings.get("ablation") == name)
    return next((float(settings["unchanged"]) for settings in found if "unchanged" in settings), None)


def read_accuracies(rows: Sequence[Row], name: str, method: str = "frossl", *, balanced: bool = False) -> Accuracies:
    """Return the accuracies of one curve of an ablation."""
    points = read_points(rows, name, method, balanced=balanced)
    found = {value: values(by_seed, c.probe_accuracy) for value, by_seed in points.items()}
    return {value: by_seed for value, by_seed in found.items() if by_seed}


def values(by_seed: Mapping[int, Row], number: Callable[[Row], float | None]) -> dict[int, float]:
    """Return a number of each run that has it."""
    return dict(c.values_of({"": by_seed}, number).get("", {}))


def label_curve(method: str, balanced: bool) -> str:
    """Return the name of a curve of an ablation."""
    return CONTENDERS[method].label + (", weight 4N/(D(V−1))" if balanced else "")


def markdown(result: Rows) -> str:
    """Return one line for each setting, method and value: accuracy, effective rank, seconds and CPU seconds."""
    rows, points, columns = c.read_rows(result), [], {"linear, %": (c.probe_accuracy, 100.0, 1)} | c.COLUMNS
    for name, ablation in ABLATIONS.items():
        for method, balanced in ablation.curves:
            for value, by_seed in read_points(rows, name, method, balanced=balanced).items():
                points.append((ablation.label, label_curve(method, balanced), f"{value:g}", by_seed))
    runs = c.read_runs(rows)
    for method, logs in (("frossl", "yes"), ("nologs", "no")):
        points += [("logarithms", CONTENDERS[method].label, logs, runs[method])] if method in runs else []
    lines = []
    for *labels, by_seed in points:
        done = {seed: row for seed, row in by_seed.items() if row.is_done}
        texts = [
            c.mean_and_deviation(values(done, number), scale=scale, digits=digits)
            for number, scale, digits in columns.values()
        ]
        lines.append([*labels, *texts, f"{sum(row.diverged for row in by_seed.values())} of {len(by_seed)}"])
    return c.markdown_table(["setting", "method", "value", *columns, "diverged"], lines)


def plot(result: Rows) -> MplFigure:
    rows = c.read_rows(result)
    figure, axes = subplots(2, 3, width=11.0, height=5.6)
    *panels, last = axes.flat
    for axis, (name, ablation) in zip(panels, ABLATIONS.items(), strict=True):
        ticks = set()
        for method, balanced in ablation.curves:
            color = "C2" if balanced else "C0" if method == "simclr" else "C1"
            found = read_accuracies(rows, name, method, balanced=balanced)
            ticks |= set(found) if not balanced else set()
            axis.plot(list(found), [100 * fmean(by_seed.values()) for by_seed in found.values()], color=color)
            for value, by_seed in found.items():
                percentages = [100 * accuracy for accuracy in by_seed.values()]
                axis.plot([value] * len(by_seed), percentages, "o", color=color, markersize=3)
            axis.plot([], [], "o-", color=color, label=label_curve(method, balanced))
        if (unchanged := unchanged_value(rows, name)) is not None:
            axis.axvline(unchanged, color="gray", linestyle=":", linewidth=0.9)
        axis.set(xscale="log", xlabel=ablation.label)
        if ticks:
            axis.set_xticks(sorted(ticks), [f"{value:g}" for value in sorted(ticks)])
            axis.minorticks_off()
        else:
            axis.text(0.5, 0.5, "no runs", transform=axis.transAxes, ha="center", va="center")
        axis.legend(fontsize=7)
    runs = {name: by_seed for name, by_seed in c.read_runs(rows).items() if name in ("frossl", "nologs")}
    for place, by_seed in enumerate(runs.values()):
        found = [100 * accuracy for accuracy in values(by_seed, c.probe_accuracy).values()]
        last.plot([place] * len(found), found, "o", color="C1", markersize=3)
    last.set_xticks(range(len(runs)), [CONTENDERS[name].label for name in runs])
    last.margins(x=0.5)
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy of a linear probe, %")
    axes[0, 0].set_title(f"{c.describe_runs(c.read_runs(rows))}; dotted: unchanged", fontsize=8)
    return figure


def evaluate_claims(result: Rows) -> Verdicts:
    rows = c.read_rows(result)
    checks = {"batches": check_batches, "epsilon": check_epsilon, "weights": check_weights}
    checks |= {"papers_weight": check_papers_weight, "balance": check_balance}
    return {name: check(rows) for name, check in checks.items()}


def gaps_to(rows: Sequence[Row], name: str, base: float | None, method: str = "frossl", **curve: bool) -> Gaps:
    """Return the difference of each other value of a setting from the value `base`, on one curve of an ablation."""
    found = read_accuracies(rows, name, method, **curve)
    unchanged = found.pop(base, {}) if base is not None else {}
    return {value: gap for value, by_seed in found.items() if (gap := paired_by_seed(by_seed, unchanged))}


def judged(
    rows: Sequence[Row], texts: Sequence[str], gaps: Iterable[PairedDifference], unchanged: float | None
) -> Verdict:
    """Return the verdict on the claim that no difference is below −`COMPETITIVE`."""
    holds = holds_for_all(found) if (found := [gap.exceeds(-COMPETITIVE) for gap in gaps]) else None
    size = c.describe_runs(c.read_runs(rows))
    return verdict("; ".join(texts) or c.NO_PAIR, holds, size=size, margin=100 * COMPETITIVE, unchanged=unchanged or 0)


def check_batches(rows: Sequence[Row]) -> Verdict:
    """Judge whether FroSSL loses at most `COMPETITIVE` with each smaller batch; SimCLR's loss is shown beside it."""
    unchanged = unchanged_value(rows, "batch")
    smaller = {
        method: {v: gap for v, gap in gaps_to(rows, "batch", unchanged, method).items() if v < (unchanged or 0)}
        for method in ABLATIONS["batch"].methods
    }
    texts = [
        f"{CONTENDERS[method].label} at {value:g}: {format_gap(gap)} points"
        for method, gaps in smaller.items()
        for value, gap in gaps.items()
    ]
    return judged(rows, texts, smaller["frossl"].values(), unchanged)


def check_epsilon(rows: Sequence[Row]) -> Verdict:
    """Judge whether another ε than the published one changes the accuracy by more than `COMPETITIVE`, or all of its
    runs diverge.
    """
    published, found = CONTENDERS["corinfomax"].hyper["epsilon"], read_accuracies(rows, "epsilon", "corinfomax")
    gaps = gaps_to(rows, "epsilon", published, "corinfomax")
    texts, same = [f"ε = {value:g}: {format_gap(gap)} points" for value, gap in gaps.items()], []
    for value, by_seed in read_points(rows, "epsilon", "corinfomax").items():
        diverged = [row.diverged for row in by_seed.values()]
        if any(diverged):
            texts.append(f"ε = {value:g}: {sum(diverged)} of {len(diverged)} diverged")
            same.append(False if all(diverged) and len(diverged) > 1 and published in found else None)
        if value != published and value in found:
            same.append(gaps[value].is_within(COMPETITIVE) if value in gaps else None)
    different = None if not same or (holds := holds_for_all(same)) is None else not holds
    return verdict("; ".join(texts) or c.NO_PAIR, different, published=published, margin=100 * COMPETITIVE)


def check_weights(rows: Sequence[Row]) -> Verdict:
    """Judge whether no other invariance weight is more than `COMPETITIVE` better than the unchanged one."""
    unchanged = unchanged_value(rows, "invariance")
    gaps = {value: replace(gap, mean=-gap.mean) for value, gap in gaps_to(rows, "invariance", unchanged).items()}
    return judged(rows, [f"weight {w:g}: {format_gap(gap)}" for w, gap in gaps.items()], gaps.values(), unchanged)


def check_papers_weight(rows: Sequence[Row]) -> Verdict:
    """Judge whether the weight 1, which the paper uses at every size, loses at most `COMPETITIVE` against the unchanged
    weight.
    """
    unchanged = unchanged_value(rows, "invariance")
    gaps = [gap for value, gap in gaps_to(rows, "invariance", unchanged).items() if value == 1.0]
    return judged(rows, [f"{format_gap(gap)} points" for gap in gaps], gaps, unchanged)


def check_balance(rows: Sequence[Row]) -> Verdict:
    """Judge whether FroSSL loses at most `COMPETITIVE` at each other N, D and V if its weight follows them."""
    gaps, texts = [], []
    for name in (name for name, ablation in ABLATIONS.items() if ablation.balanced):
        fixed, found = (gaps_to(rows, name, unchanged_value(rows, name), balanced=b) for b in (False, True))
        for value, gap in found.items():
            beside = f" (weight not changed: {format_gap(fixed[value])})" if value in fixed else ""
            texts.append(f"{ABLATIONS[name].label} = {value:g}: {format_gap(gap)}{beside}")
        gaps += found.values()
    return judged(rows, texts, gaps, None)


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

SIZES = {
    "smoke": AblationSize(sizes.SMOKE_SIZE, SMOKE_VALUES),
    "small": AblationSize(sizes.SMALL_SIZE, SMALL_VALUES),
    "gpu": AblationSize(replace(sizes.GPU_SIZE, epochs={}), PAPER_VALUES),
    "paper": AblationSize(sizes.CIFAR10_SIZE, PAPER_VALUES),
}
METHODS = (LOGS, *ABLATIONS)
