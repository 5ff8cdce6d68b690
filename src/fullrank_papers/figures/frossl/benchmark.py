"""A comparison in which every objective gets the same care. docs/comparison-plan.md says how, and was written first.

Each method gets the same number of random draws of its learning rate, its weight or temperature, and its batch size,
scored on validation images of CIFAR-10 by the mean of linear probe and kNN. The best draw is trained with fresh seeds,
each with its own training images, on CIFAR-10 and CIFAR-100, and scored once on the test images. The learning rate is
constant for the first three quarters of a run, so that the early accuracy is not that of an annealed network.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fullrank.methods import ProjectorConfig
from fullrank.recipes import RECIPES, DataConfig, ProbeConfig, Recipe, balanced_weights, resolve, with_objective
from fullrank.recipes.cifar import FLOAT32
from fullrank.sweep import Cell, EvaluationPlan, Plan, Row
from fullrank.training.config import ScheduleConfig
from fullrank.views import JitterConfig
from fullrank_papers.figures.figure import MplFigure, Rows, Verdict, Verdicts, verdict
from fullrank_papers.figures.frossl import comparison as c
from fullrank_papers.figures.frossl import contenders
from fullrank_papers.figures.frossl.comparison import early_area, markdown_table, mean_and_deviation, read_rows
from fullrank_papers.figures.frossl.leads import Lead, Variance, decide, describe_lead, simultaneous_leads
from fullrank_papers.figures.frossl.sizes import TINY, narrow
from fullrank_papers.figures.trained import short_run
from fullrank_papers.plot_style import COLORS, label_ends, plot_dots, subplots

CONTROL = "frossl"
# Method → objective of `CONTENDERS`, the number that is drawn, and its centre; None: the balanced weight of the draw's
# batch size. FroSSL stands twice: with a drawn weight, and as in the paper, which has no trade-off hyperparameter.
METHODS: Mapping[str, tuple[str, str, float | None]] = {
    "frossl": ("frossl", "hyper.invariance", None),
    "frossl-paper": ("frossl", "", None),
    "simclr": ("simclr", "hyper.temperature", None),
    "moco": ("moco", "hyper.temperature", 0.2),
    "byol": ("byol", "method.momentum", 0.99),
    "vicreg": ("vicreg", "hyper.covariance", None),
    "barlow_twins": ("barlow_twins", "hyper.redundancy", None),
    "wmse": ("wmse", "", None),
    "corinfomax": ("corinfomax", "hyper.invariance", 250.0),
    "ivne": ("ivne", "hyper.alignment", None),
}
# Methods of other figures, drawn in the same way.
LATER: Mapping[str, tuple[str, str, float | None]] = {
    "simmer": ("simmer", "hyper.invariance", 1.0),
    "lejepa": ("lejepa", "hyper.trade_off", 0.05),
    "visreg": ("visreg", "hyper.trade_off", 0.9),
    "rdmreg": ("rdmreg", "hyper.distribution", 125.0),
    "moco_v3": ("moco_v3", "hyper.temperature", 0.2),
    "vibcreg": ("vibcreg", "hyper.covariance", 200.0),
    "mmcr": ("mmcr", "", None),
    "emp_ssl": ("emp_ssl", "hyper.invariance", 200.0),
}
# Methods of which the distance of the number from 1 is drawn.
NEAR_ONE = ("byol", "visreg")
LABELS = {name: contenders.LABELS[objective] for name, (objective, _, _) in {**METHODS, **LATER}.items()}
LABELS |= {"frossl": "FroSSL, drawn weight", "frossl-paper": "FroSSL, weight 1"}
# The best draws of size small.
DRAWS = {"frossl": 12, "frossl-paper": 12, "simclr": 13, "moco": 13, "byol": 6}
DRAWS |= {"vicreg": 6, "barlow_twins": 13, "wmse": 2, "corinfomax": 12, "ivne": 12}
RATES, FACTORS, BATCHES = (1e-3, 3e-1), (1 / 8, 8), (64, 128, 256)
SEARCH_SEED = 1000  # of the runs and of the images of the search; no compared run has it
MARKS, EARLY = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0), 10.0


@dataclass(frozen=True)
class Size:
    """What is trained: a recipe, how many draws and seeds, and the data sets after the one of the search."""

    recipe: Recipe
    draws: int
    seeds: int
    others: tuple[str, ...] = ()
    validation: float = 0.1
    methods: tuple[str, ...] = tuple(METHODS)


def draw(size: Size, name: str, k: int) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe of draw k of a method, and its settings; rate, factor and batch size are those of every method.

    Rate and factor of the weight are log-uniform, the batch size is uniform among `BATCHES`.
    """
    objective, field, centre = {**METHODS, **LATER}[name]
    g = np.random.default_rng([SEARCH_SEED, k])
    rate, factor = (math.exp(g.uniform(*np.log(bounds))) for bounds in (RATES, FACTORS))
    batch = int(g.choice(BATCHES)) if size.recipe.batch_size > min(BATCHES) else size.recipe.batch_size
    recipe = replace(size.recipe, batch_size=batch, optimizer=replace(size.recipe.optimizer, lr=rate))
    recipe = with_objective(replace(recipe, hyper={"invariance": 1.0}), objective)
    recipe = with_own_parts(recipe)
    recipe = resolve(recipe, {"batch_size": batch})  # W-MSE's dimension is below the batch size
    settings = {"method": name, "draw": k, "rate": rate, "batch": batch}
    part, _, key = field.partition(".")
    if centre and name in NEAR_ONE:
        settings[key] = 1 - (1 - centre) * factor
    elif part:
        settings[key] = factor * (centre or balanced_weights(recipe)[key])
    if part == "method":
        recipe = replace(recipe, method=recipe.method | {key: (settings[key], 1.0)})
    elif part:
        recipe = replace(recipe, hyper=recipe.hyper | {key: settings[key]})
    return recipe, settings


def with_own_parts(recipe: Recipe) -> Recipe:
    """Return a recipe whose objective's own parts follow images, projector and batch.

    MoCo's queue is the published one times the share of CIFAR-10's images, in whole batches; a predictor is as wide as
    the projector's hidden layer; W-MSE whitens slices of at most a batch; VIbCReg's projector ends in iterative
    normalisation; the sketches have as many directions as LeJEPA's.
    """
    match recipe.objective:
        case "moco":
            batches = 32768 * recipe.data.subset // 50_000 // recipe.batch_size
            return replace(recipe, method={"queue": batches * recipe.batch_size})
        case "byol" | "moco_v3":
            return replace(recipe, method={"predictor": recipe.projector.widths[0]})
        case "vibcreg":
            return replace(recipe, projector=replace(recipe.projector, output_iternorm=64))
        case "visreg" | "rdmreg":
            return replace(recipe, hyper={"slices": 1024})
        case "wmse":
            return replace(recipe, hyper={"slice_size": min(128, recipe.batch_size)})
    return recipe


def plan(size: Size, *, data: str | None = None, transfer: Sequence[str] = ()) -> Plan:
    """Return the plan of the runs: the draws, and then the best draw of each method with fresh seeds; `transfer` names
    the other data sets.
    """
    first = DataConfig(source=data) if data else replace(size.recipe.data, subset=0)
    sets = [first, *(DataConfig(source=source) for source in transfer or size.others)]

    def on(recipe: Recipe, data: DataConfig, seed: int, **options: Any) -> Recipe:
        data = replace(data, subset=size.recipe.data.subset, subset_seed=seed, channels=recipe.data.channels, **options)
        return replace(recipe, data=data, seed=seed)

    def cells(rows: Sequence[Row]) -> list[Cell]:
        found, best = [], best_draws(rows, size.draws)
        for name in size.methods:
            for k in range(size.draws):
                recipe, settings = draw(size, name, k)
                recipe = replace(on(recipe, first, SEARCH_SEED, validation=size.validation), probe=ProbeConfig())
                found.append(Cell(f"search-{name}-{k}", recipe, settings | {"stage": "search"}, EvaluationPlan()))
        for seed in range(size.seeds):
            for number, one in enumerate(sets):
                others = tuple(each.source for each in sets if each is not one)
                for name in [name for name in size.methods if name in best]:
                    recipe, settings = draw(size, name, best[name])
                    recipe = replace(on(recipe, one, seed), probe=online_probe(recipe))
                    settings |= {"stage": "compared", "images": number}
                    found.append(Cell(f"{name}-{number}-seed{seed}", recipe, settings, EvaluationPlan(transfer=others)))
        return found

    return cells


def online_probe(recipe: Recipe) -> ProbeConfig:
    """Return the epochs at which the online classifier of a compared run is scored."""
    return ProbeConfig(epochs=MARKS[: int(recipe.epochs)])


def late(row: Row) -> float | None:
    """Return the mean of linear probe and kNN after training."""
    scores = [row.score(probe) for probe in ("linear", "knn")]
    return None if None in scores else statistics.fmean(scores)  # pyright: ignore[reportArgumentType]


def searched(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Return method → draw → validation score; a run that diverged has 0."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.settings.get("stage") == "search" and row.is_final:
            found.setdefault(str(row.settings["method"]), {})[int(row.settings["draw"])] = late(row) or 0.0
    return found


def best_draws(rows: Sequence[Row], draws: int) -> dict[str, int]:
    """Return the best draw of each method whose search is complete."""
    return {name: max(s, key=lambda k: (s[k], -k)) for name, s in searched(rows).items() if len(s) == draws}


def expected_best(scores: Sequence[float], k: int) -> float:
    """Return the expected best of k of the scores, drawn without replacement.

    Source: Dodge et al. 2019, Show Your Work, with the hypergeometric distribution in place of the binomial.

    >>> expected_best([1.0, 2.0, 3.0], 1), expected_best([1.0, 2.0, 3.0], 3)
    (2.0, 3.0)
    """
    n = len(scores)
    return sum(x * math.comb(i, k - 1) for i, x in enumerate(sorted(scores))) / math.comb(n, k)


ENDPOINTS: Mapping[str, Callable[[Row], float | None]] = {"early": lambda row: early_area(row, EARLY), "late": late}


def early_steps(row: Row) -> float | None:
    """Return the early endpoint over steps 78 to 390 instead of epochs, of the marks that lie there.

    These are epochs 1 to 5 of 5,000 images in batches of 64, and epochs 2 to 10 in batches of 128; batches of 256 have
    none.
    """
    batch = int(row.settings["batch"])
    return early_area(row, EARLY * batch / 128, start=batch / 64) if batch <= 128 else None


# A number of a row, and its scale.
Column = tuple[Callable[[Row], float | None], float]
# Heading of the tables → column.
COLUMNS: Mapping[str, Column] = {
    "linear, %": (lambda row: row.score("linear"), 100.0),
    "kNN, %": (lambda row: row.score("knn"), 100.0),
    "effective rank": (lambda row: row.effective_rank.get("backbone"), 1.0),
    "CPU s": (lambda row: row.cpu_seconds or None, 1.0),
}


def samples(rows: Sequence[Row], images: int, value: Callable[[Row], float | None]) -> c.Values:
    """Return method → seed → a number of the compared runs on one of the data sets, without runs that diverged."""
    compared = [row for row in rows if row.settings.get("images") == images]
    return c.values_of(c.read_runs(compared, (*METHODS, *LATER)), value)


def leads(
    rows: Sequence[Row],
    images: int,
    value: Callable[[Row], float | None],
    *,
    control: str = CONTROL,
    variance: Variance = "pooled",
) -> dict[str, Lead]:
    """Return FroSSL's lead over each other method on a data set (`simultaneous_leads`); a method of which a run
    diverged has none.

    Args:
        rows: The runs.
        images: Number of the data set.
        value: Function of a run to the number that is compared.
        control: The method whose lead it is.
        variance: How it is estimated; pooled as in the plan.
    """
    diverged = {row.settings["method"] for row in rows if row.settings.get("images") == images and row.diverged}
    values = {name: x for name, x in samples(rows, images, value).items() if name not in diverged}
    return simultaneous_leads(values, control, variance)


def markdown(rows: Rows) -> str:
    """Return the tables: what the search found, and the compared runs on each data set."""
    every = read_rows(rows)
    sets = sorted({int(row.settings["images"]) for row in every if "images" in row.settings})
    done = len(every) >= rows["cells"]
    return "\n\n".join([search_table(every), *(compared_table(every, images, judged=done) for images in sets)])


def search_table(rows: Sequence[Row]) -> str:
    """Return the table of the search: the expected best of some of the draws, the best two, and the best draw."""
    drawn = {(row.settings["method"], row.settings["draw"]): row.settings for row in rows}
    lines = []
    for name, found in searched(rows).items():
        best, *others = sorted(found, key=lambda k, found=found: (-found[k], k))
        numbers = {key: x for key, x in drawn[name, best].items() if key not in ("method", "draw", "stage", "images")}
        budgets = (1, math.ceil(len(found) / 4))
        scores = [*(expected_best(list(found.values()), k) for k in budgets), *(found[k] for k in (best, *others[:1]))]
        chosen = ", ".join(f"{key} {x:.3g}" for key, x in numbers.items())
        lines.append([LABELS[name], str(len(found)), *(f"{100 * x:.1f}" for x in scores), f"{best}: {chosen}"])
    header = ["search", "draws", "best of 1, %", "best of a quarter, %", "best, %", "second, %", "best draw"]
    return markdown_table(header, lines)


def compared_table(rows: Sequence[Row], images: int, *, judged: bool = True) -> str:
    """Return the table of the compared runs on a data set, sorted by the late endpoint, with FroSSL's leads if they are
    to be judged.
    """
    runs = [row for row in rows if row.settings.get("images") == images]
    data = runs[0].data
    others = sorted({key for row in runs for key in row.scores if key != data})
    columns: dict[str, Column] = {f"{end}, %": (value, 100.0) for end, value in ENDPOINTS.items()}
    columns |= {**COLUMNS} | {
        f"linear on {other}, %": (lambda row, other=other: row.score("linear", other), 100.0) for other in others
    }
    gaps = [leads(runs, images, value) for value in ENDPOINTS.values() if judged]
    found = {title: (samples(runs, images, value), scale) for title, (value, scale) in columns.items()}
    last = {name: statistics.fmean(numbers.values()) for name, numbers in found["late, %"][0].items()}
    lost = Counter(str(row.settings["method"]) for row in runs if row.diverged)
    lines = [
        [
            LABELS[name] + (f" ({lost[name]} diverged)" if name in lost else ""),
            *(mean_and_deviation(values.get(name, {}), scale=scale) for values, scale in found.values()),
            *(describe_lead(gap.get(name)) for gap in gaps),
        ]
        for name in sorted({*last, *lost}, key=lambda name: -last.get(name, 0.0))
    ]
    return markdown_table([data, *columns, *(f"FroSSL's lead, {end}" for end in ENDPOINTS if judged)], lines)


def plot(rows: Rows) -> MplFigure:
    every = read_rows(rows)
    sets = {int(row.settings["images"]): row.data for row in every if "images" in row.settings} or {0: ""}
    figure, axes = subplots(len(sets), 3, width=11.0, height=3.4 * len(sets))
    found = {name: list(scores.values()) for name, scores in searched(every).items()}
    for i, (name, scores) in enumerate(found.items()):
        budget = range(1, len(scores) + 1)
        values = [100 * expected_best(scores, k) for k in budget]
        axes[0, 0].plot(budget, values, label=LABELS[name], linestyle="-" if i < len(COLORS) else "--")
    axes[0, 0].set(xlabel="draws", ylabel="expected best validation score, %")
    label_ends(axes[0, 0])
    for axis in axes[1:, 0]:
        plot_dots(axis, [(LABELS[name], [100 * x for x in scores]) for name, scores in found.items()])
        axis.set_xlabel("validation score, % (dots: draws, bars: means)")
    for (images, data), line in zip(sorted(sets.items()), axes[:, 1:], strict=True):
        for axis, (end, value) in zip(line, ENDPOINTS.items(), strict=True):
            values = samples(every, images, value)
            plot_dots(axis, [(LABELS[name], [100 * x for x in numbers.values()]) for name, numbers in values.items()])
            axis.set(xlabel=f"{end} accuracy, % (dots: seeds, bars: means)", title=data)
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    every, found = read_rows(rows), dict[str, Verdict]()
    compared = {str(row.settings["method"]) for row in every}
    methods = {**METHODS, **LATER}
    others = [name for name in compared if methods[name][0] != CONTROL]  # not FroSSL with the paper's weight
    sets = {int(row.settings["images"]): row.data for row in every if "images" in row.settings}
    for images, data in sorted(sets.items()):
        for end, value in ENDPOINTS.items():
            said = {name: decide(lead) for name, lead in leads(every, images, value).items() if name in others}
            counts = [
                f"{word} {list(said.values()).count(word)}" for word in ("ahead", "equivalent", "undecided", "behind")
            ]
            lost = any(word in ("behind", "equivalent") for word in said.values())
            ahead = bool(others) and list(said.values()) == ["ahead"] * len(others)  # one that diverged has no interval
            holds = None if len(every) < rows["cells"] else False if lost else True if ahead else None
            found[f"{end}: {images}"] = verdict(f"{', '.join(counts)} of {len(others)}", holds, data=data)
    return found


SMALL = RECIPES["cifar10-small"]
FAIR = replace(
    short_run(SMALL, epochs=20, warmup=1.0),
    name="cifar-benchmark",
    data=replace(SMALL.data, subset=5000),
    views=(
        # of SimCLR in lightly's CIFAR-10 benchmark: not chosen with FroSSL in mind
        replace(
            SMALL.views[0],
            size=16,
            crop=replace(SMALL.views[0].crop, scale=(0.08, 1.0)),
            jitter=JitterConfig(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, probability=0.8),
            grayscale=0.2,
        ),
    ),
    backbone=narrow([16, 32, 64, 128]),
    projector=ProjectorConfig(widths=(256, 256)),
    schedule=ScheduleConfig(name="steps", warmup=1.0, milestones=(15.0, 18.0)),
    machine=FLOAT32,  # the same arithmetic on every machine that takes part
)
SIZES = {
    "smoke": Size(
        replace(TINY, name="digits-benchmark"), draws=2, seeds=2, validation=0.2, methods=("frossl", "simclr")
    ),
    "small": Size(FAIR, draws=16, seeds=12, others=("hf:uoft-cs/cifar100",)),
}
