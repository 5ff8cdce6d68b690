"""Variants of FroSSL: batch sizes at equal epochs and at equal steps, views at equal compute, dimensions, the trade-off
at the paper's sizes, normalisations, logarithms, one encoder for each view, SimCLR added or before or after, and
CorInfoMax's ε.

Each variant changes one setting of the best draw of the comparison (frossl/benchmark). The learning rate follows the
batch size as `resolve` says. FroSSL's weight follows N, D and V by the balanced rule, or is 1 as in the paper
(`frossl-paper`). A score is the mean of linear probe and kNN on the test images.

CorInfoMax did not converge on STL-10 in the paper, which found ε critical. With the authors' public STL-10
configuration, N = D = 256, the covariance of a batch has a rank of at most N − 1 < D, and earlier batches have a weight
of 1 % in the running covariance. So its smallest eigenvalues are small, and ε can matter.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from fullrank.evaluation.paired import PairedDifference, paired_by_seed
from fullrank.recipes import DataConfig, Recipe, resolve, with_objective
from fullrank.recipes.cifar import without_logarithms
from fullrank.sweep import Cell, EvaluationPlan, Plan, Row
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.frossl import benchmark
from fullrank_papers.figures.frossl import comparison as c
from fullrank_papers.figures.frossl.benchmark import COLUMNS, DRAWS, LABELS, late
from fullrank_papers.figures.frossl.comparison import format_gap, markdown_table, mean_and_deviation, numbers_of
from fullrank_papers.figures.numerics import holds_for_all
from fullrank_papers.plot_style import plot_dots, subplots

N, D = 256, 1024  # of the paper
TEMPERATURE = 0.095  # of SimCLR in this draw
MARGIN = 0.02  # a loss of at most two points counts as small
Value = int | float | str
ADDED = "FroSSL + SimCLR", "FroSSL, then SimCLR", "SimCLR, then FroSSL"


@dataclass(frozen=True)
class Variant:
    """A setting, its values, and for which methods it is varied.

    Attributes:
        change: Function of a recipe and a value to the changed recipe.
        base: The value that the others are compared with, or a function of the unchanged recipe that returns it.
        changed: Whether this value is a change too, and not that of the unchanged recipe.
    """

    label: str
    values: tuple[Value, ...]
    change: Callable[[Recipe, Any], Recipe]
    base: Any
    methods: tuple[str, ...] = ("frossl",)
    changed: bool = False


def stretched(recipe: Recipe, factor: float) -> Recipe:
    """Return the recipe with its epochs and its schedule times a factor."""
    schedule = recipe.schedule
    milestones = tuple(factor * each for each in schedule.milestones)
    schedule = replace(schedule, warmup=factor * schedule.warmup, milestones=milestones)
    return replace(recipe, epochs=max(1, round(factor * recipe.epochs)), schedule=schedule)


def with_views(recipe: Recipe, count: int) -> Recipe:
    """Return the recipe with another number of views, and as many views in all."""
    return stretched(resolve(recipe, {"views.0.count": count}), recipe.views[0].count / count)


def with_weight(recipe: Recipe, weight: float) -> Recipe:
    """Return the recipe at the paper's N and D, where the balanced weight is the paper's, 1."""
    return resolve(with_dimension(recipe, D), {"batch_size": N, "hyper.invariance": weight})


def with_dimension(recipe: Recipe, dimension: int) -> Recipe:
    return resolve(recipe, {"projector.widths": (*recipe.projector.widths[:-1], dimension)})


def with_epsilon(recipe: Recipe, epsilon: float) -> Recipe:
    """Return CorInfoMax's recipe with N = D and α = 500, as in the public STL-10 configuration of FroSSL's authors."""
    return resolve(with_dimension(recipe, N), {"batch_size": N, "hyper.invariance": 500.0, "hyper.epsilon": epsilon})


def with_normalization(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe with another normalisation, and the weight with which the loss of the embeddings divided by
    their Frobenius norm stays the same: ‖Z‖_F² is D for columns and for the matrix, and N for rows.
    """
    factor = recipe.projector.dimensions(0) / recipe.batch_size if name == "rows" else 1.0
    return resolve(recipe, {"hyper.normalize": name, "hyper.invariance": factor * recipe.hyper["invariance"]})


def with_simclr(recipe: Recipe, how: str) -> Recipe:
    """Return the recipe with SimCLR added, or one after the other for half of the epochs each."""
    half = recipe.epochs / 2
    first, second = {
        ADDED[0]: ("", ""),
        ADDED[1]: (f", end={half}", f", start={half}"),
        ADDED[2]: (f", start={half}", f", end={half}"),
    }[how]
    frossl = f"frossl(invariance={recipe.hyper['invariance']}{first})"
    return with_objective(recipe, f"{frossl} + simclr(temperature={TEMPERATURE}{second})")


BATCHES, THREE = (32, 64, 128, 256, 512), ("frossl", "frossl-paper", "simclr")
# Name → variant.
VARIANTS: dict[str, Variant] = {
    "epochs": Variant(
        "N, equal epochs", BATCHES, lambda r, n: resolve(r, {"batch_size": n}), lambda r: r.batch_size, THREE
    ),
    "steps": Variant(
        "N, equal steps",
        BATCHES,
        lambda r, n: stretched(resolve(r, {"batch_size": n}), n / r.batch_size),
        lambda r: r.batch_size,
        THREE,
    ),
    "views": Variant("V, equal compute", (2, 4, 8), with_views, lambda r: r.views[0].count, THREE),
    "dimension": Variant("D", (64, 1024), with_dimension, lambda r: r.projector.dimensions(0), THREE[:2]),
    "weight": Variant(
        f"weight at N = {N}, D = {D}", (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0), with_weight, 1.0, changed=True
    ),
    "normalization": Variant("normalisation", ("matrix", "rows"), with_normalization, "columns"),
    "logarithms": Variant("logarithms", ("no",), lambda r, _: without_logarithms(r), "yes"),
    "encoders": Variant("encoders", ("one a view",), lambda r, _: resolve(r, {"method.shared": False}), "one"),
    "objective": Variant("objective", ADDED, with_simclr, "FroSSL"),
    "epsilon": Variant(f"ε at N = D = {N}", (1e-8, 1e-6, 1e-4), with_epsilon, 1e-6, ("corinfomax",), changed=True),
}
METHODS = tuple(VARIANTS)


@dataclass(frozen=True)
class Size:
    """What is trained: the size of the comparison, the number of seeds, the variants, and other values of them."""

    comparison: benchmark.Size
    seeds: int
    methods: tuple[str, ...] = METHODS
    values: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def base(self, method: str) -> Recipe:
        """Return the recipe of the best draw of a method."""
        return benchmark.draw(self.comparison, method, DRAWS[method])[0]

    def recipe(self, name: str, method: str, value: Value) -> Recipe:
        """Return the recipe of a variant."""
        recipe = VARIANTS[name].change(self.base(method), value)
        return resolve(recipe, {"hyper.invariance": 1.0}) if method == "frossl-paper" else recipe


def plan(size: Size, *, data: str | None = None, transfer: Sequence[str] = ()) -> Plan:
    """Return the plan of the runs: the unchanged ones and the variants."""
    source = data or size.comparison.recipe.data.source
    evaluate = EvaluationPlan(transfer=tuple(transfer))
    unchanged = {method for name in size.methods for method in VARIANTS[name].methods if not VARIANTS[name].changed}

    def cell(name: str, recipe: Recipe, seed: int, **settings: Any) -> Cell:
        subset = size.comparison.recipe.data.subset
        data = DataConfig(source=source, subset=subset, subset_seed=seed, channels=recipe.data.channels)
        return Cell(f"{name}-seed{seed}", replace(recipe, data=data, seed=seed), settings, evaluate)

    def cells(_: Sequence[Row]) -> list[Cell]:
        found = []
        for seed in range(size.seeds):
            for method in sorted(unchanged):
                recipe = replace(size.base(method), probe=benchmark.online_probe(size.base(method)))
                found.append(cell(f"unchanged-{method}", recipe, seed, method=method, variant=""))
            for name in size.methods:
                variant = VARIANTS[name]
                for method in variant.methods:
                    base = variant.base(size.base(method)) if callable(variant.base) else variant.base
                    for k, value in enumerate(size.values.get(name, variant.values)):
                        settings = {"method": method, "variant": name, "value": value, "base": base}
                        if variant.changed or value != base:
                            recipe = size.recipe(name, method, value)
                            found.append(cell(f"{name}-{k}-{method}", recipe, seed, **settings))
        return found

    return cells


# Value of a variant → seed → row.
Points = dict[Value, dict[int, Row]]


def read_points(rows: Sequence[Row], name: str, method: str) -> tuple[Points, Any]:
    """Return the rows of a variant of a method that are done or diverged, with those of the unchanged recipe, and the
    value that the others are compared with.
    """
    own = [row for row in rows if row.is_final and row.settings["method"] == method]
    changed = [row for row in own if row.settings["variant"] == name]
    if not changed:
        return {}, None
    base: Any = changed[0].settings["base"]
    unchanged = {} if VARIANTS[name].changed else {row.seed: row for row in own if not row.settings["variant"]}
    found: Points = {base: unchanged}
    for row in changed:
        value: Any = row.settings["value"]
        found.setdefault(value, {})[row.seed] = row
    return (found if isinstance(base, str) else dict(sorted(found.items()))), base


def gaps(rows: Sequence[Row], name: str, method: str) -> dict[Value, PairedDifference | None]:
    """Return the difference of each value of a variant from its base; None if one of its runs has diverged."""
    points, base = read_points(rows, name, method)
    known, found = numbers_of(points.pop(base, {}), late), {}
    for value, by_seed in points.items():
        diverged = any(row.diverged for row in by_seed.values())
        gap = None if diverged else paired_by_seed(numbers_of(by_seed, late), known)
        if gap or diverged:
            found[value] = gap
    return found


def markdown(result: Rows) -> str:
    """Return one line for each variant, method and value."""
    rows, lines = c.read_rows(result), []
    for name, variant in VARIANTS.items():
        for method in variant.methods:
            for value, by_seed in read_points(rows, name, method)[0].items():
                texts = [mean_and_deviation(numbers_of(by_seed, x), scale=scale) for x, scale in COLUMNS.values()]
                text = f"{value:g}" if isinstance(value, float) else str(value)
                diverged = sum(row.diverged for row in by_seed.values())
                lines.append([variant.label, LABELS[method], text, *texts, f"{diverged} of {len(by_seed)}"])
    return markdown_table(["setting", "method", "value", *COLUMNS, "diverged"], lines)


def plot(result: Rows) -> MplFigure:
    rows = c.read_rows(result)
    names = {row.settings["variant"] for row in rows}
    curves = [name for name in ("epochs", "steps", "views", "dimension", "weight") if name in names]
    dots = []
    for name in ("normalization", "logarithms", "encoders", "objective"):
        for value, by_seed in read_points(rows, name, "frossl")[0].items():
            dots.append((f"{VARIANTS[name].label}: {value}", [100 * x for x in numbers_of(by_seed, late).values()]))
    panels = max(len(curves) + bool(dots), 1)
    lines, columns = math.ceil(panels / 3), min(panels, 3)
    figure, axes = subplots(lines, columns, width=3.7 * columns, height=3.0 * lines)
    for axis in axes.flat[panels:]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, curves, strict=False):
        for method in VARIANTS[name].methods:
            points = {
                value: list(numbers_of(by_seed, late).values())
                for value, by_seed in read_points(rows, name, method)[0].items()
            }
            means = {value: 100 * fmean(each) for value, each in points.items() if each}
            axis.plot(list(means), list(means.values()), "o-", label=LABELS[method])
        axis.set(xscale="log", xlabel=VARIANTS[name].label, ylabel="mean of linear probe and kNN, %")
        axis.minorticks_off()
        values = sorted({x for method in VARIANTS[name].methods for x in read_points(rows, name, method)[0]})
        axis.set_xticks(values, [f"{x:g}" for x in values])
        axis.legend(fontsize=7)
    if dots:
        plot_dots(axes.flat[panels - 1], dots)
        axes.flat[panels - 1].set_xlabel("mean of linear probe and kNN, %")
    return figure


# Claim → variant, method, and the bounds between which the difference of each value from the base has to lie.
CLAIMS: Mapping[str, tuple[str, str, float, float]] = {
    "batches": ("epochs", "frossl-paper", -MARGIN, math.inf),
    "steps": ("steps", "frossl-paper", -MARGIN, math.inf),
    "balance": ("epochs", "frossl", -MARGIN, math.inf),
    "dimension": ("dimension", "frossl", -MARGIN, math.inf),
    "views": ("views", "frossl", 0.0, math.inf),
    "views_simclr": ("views", "simclr", 0.0, math.inf),
    "weight": ("weight", "frossl", -math.inf, MARGIN),
    "normalization": ("normalization", "frossl", -MARGIN, MARGIN),
    "logarithms": ("logarithms", "frossl", -math.inf, -MARGIN),
    "encoders": ("encoders", "frossl", -MARGIN, MARGIN),
    "objective": ("objective", "frossl", 0.0, math.inf),
    "epsilon": ("epsilon", "corinfomax", -MARGIN, MARGIN),
}


def lies_between(gap: PairedDifference | None, low: float, high: float) -> bool | None:
    """Return whether a difference lies between two bounds; None if its interval contains one of them. A run that has
    diverged is worse than any bound.

    >>> [lies_between(PairedDifference(mean, 0.001, 9), -0.02, 0.02) for mean in (0.0, 0.02, 0.1)]
    [True, None, False]
    """
    if gap is None:
        return math.isinf(low)
    above = [True if math.isinf(low) else gap.exceeds(low)]
    below = [None if (over := gap.exceeds(high)) is None else not over] if math.isfinite(high) else []
    return holds_for_all(above + below)


def evaluate_claims(result: Rows) -> Verdicts:
    rows, found = c.read_rows(result), {}
    for claim, (name, method, *bounds) in CLAIMS.items():
        differences = gaps(rows, name, method)
        if not differences:
            continue
        said = [lies_between(gap, *bounds) for gap in differences.values()]
        holds = holds_for_all(said) if len(rows) >= result["cells"] else None
        if claim == "epsilon" and holds is not None:  # it is critical if another value is not equally good
            holds = not holds
        texts = [f"{value}: {format_gap(gap) or 'diverged'}" for value, gap in differences.items()]
        found[claim] = verdict("; ".join(texts), holds, margin=100 * MARGIN)
    return found


FEW = {"steps": (16,), "views": (4,), "normalization": ("rows",), "encoders": ("one a view",), "objective": ADDED[1:2]}
SIZES = {
    "smoke": Size(benchmark.SIZES["smoke"], seeds=2, methods=tuple(FEW), values=FEW),
    "small": Size(benchmark.SIZES["small"], seeds=3),
}
