"""Fig. 3: the top 14 eigenvalues of the first view's embeddings in the first epochs, for four objectives.

Each objective is trained by SGD without momentum, at a constant learning rate. As in the paper, a sweep with one seed
selects the learning rate with the best linear probe after a longer run (100 epochs at size paper); the spectra are
those of its first steps, and further seeds train only these with the chosen rate. Embeddings are those of one view of
images that are not trained on, in eval mode. Spectra are computed twice: from embeddings with the normalisation that
the objective applies ("normalized"), and from the projector's output ("raw"). Entropies are of the 14 eigenvalues, in
nats. Barlow Twins is trained with the paper's λ = 0.05, and with the 5e-3 that its authors recommend.

The paper does not define when an eigenvalue saturates. We take the first step at which it is within 5 % of the mean of
its last fifth: a later fluctuation does not change this step, while that from which a curve *stays* near its last value
is the end of its last fluctuation.

The paper's 2000 steps are five epochs of STL-10's 5,000 labelled and 100,000 unlabelled images. Size paper needs a
folder with a `train` that has the unlabelled images next to the folders of the classes; the probe does not use them.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.evaluation import Scoring, Task
from fullrank.evaluation.evaluate import score_networks
from fullrank.evaluation.features import Network
from fullrank.evaluation.paired import paired_difference
from fullrank.images import Device, MemoryImages, Steps, channel_statistics, dataloader, load_images, train_and_test
from fullrank.methods import Method, ProjectorConfig
from fullrank.models.features import eval_mode
from fullrank.models.model_images import LabelledSplits
from fullrank.objectives.algebra import centered, unit
from fullrank.recipes import RECIPES, Recipe, assemble, with_objective
from fullrank.run.processes import launch_fabric
from fullrank.spectrum import Spectrum, saturation
from fullrank.training import OptimizerConfig, build_optimizer, fit
from fullrank_papers.figures.figure import MplFigure, Rows, Verdict, Verdicts, verdict
from fullrank_papers.figures.frossl.sizes import narrow
from fullrank_papers.figures.numerics import holds_for_all
from fullrank_papers.plot_style import color_scale, label_ends, subplots

TOP = 14
SWEEP_EPOCHS = 100  # after which the paper's sweep is judged


@dataclass(frozen=True)
class ObjectiveSettings:
    """An objective and its hyperparameters in the paper."""

    label: str
    objective: str
    normalize: Callable[[Tensor], Tensor]  # the normalisation that the objective applies to embeddings
    hyper: dict[str, float] = field(default_factory=dict)
    share: float = 1.0  # output width of the projector, as a share of the recipe's (the paper's d = 1024)


def standardize_columns(Z: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
    """Return embeddings with columns of mean 0 and variance 1."""
    return unit(centered(Z), dim=-2) * math.sqrt(len(Z))


VICREG = {"invariance": 25.0, "variance": 25.0, "covariance": 1.0}
BARLOW = ObjectiveSettings("Barlow Twins (λ = 0.05)", "barlow_twins", standardize_columns, {"redundancy": 0.05})
SETTINGS = {
    "frossl": ObjectiveSettings("FroSSL", "frossl", standardize_columns),
    "barlow": BARLOW,
    "barlow_5e-3": replace(BARLOW, label="Barlow Twins (λ = 0.005)", hyper={"redundancy": 5e-3}),
    "vicreg": ObjectiveSettings("VICReg", "vicreg", lambda Z: Z, VICREG),
    "simclr": ObjectiveSettings("SimCLR", "simclr", lambda Z: unit(Z, dim=-1), {"temperature": 0.2}, 0.25),
}
PAPERS = ("frossl", "barlow", "vicreg", "simclr")
RECOMMENDED = ("frossl", "barlow_5e-3", "vicreg", "simclr")
KINDS = ("normalized", "raw")
NUMBERS = ("condition", "entropy", "entropy_of_all")
METRICS = {
    "condition": "the lowest condition number λ₁/λ₁₄",
    "entropy": "the highest entropy of the 14 eigenvalues",
    "saturation": "the earliest step at which λ₁₄ is within 5 % of the mean of its last fifth",
}
# Metric → the number that the verdicts compare: higher is better.
SCORES: dict[str, Callable[[float], float]] = {
    "condition": lambda condition: 1 / condition,  # λ₁₄/λ₁, which is finite for every condition number
    "entropy": lambda entropy: entropy,
    "saturation": lambda step: -step,
}


@dataclass(frozen=True)
class Size:
    """Data and training."""

    # images, views, backbone, batch and the widths of the projector; the last width is d, for SimCLR d/4 is used
    recipe: Recipe
    images: int  # number of training images; the linear probe is trained on those with labels
    held_out: int  # number of test images of the probe; 0: all
    samples: int  # number of test images for a spectrum
    steps: int  # of the figure
    sweep_steps: int  # of the runs that choose the learning rate; the probe comes after them
    spectra: int  # number of spectra during the figure's steps, plus one before them
    learning_rates: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1)
    seeds: int = 3


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    train, test, recipe = load_splits(size, data, seed)
    sweep_epochs = size.sweep_steps / (len(train) // recipe.batch_size)
    rows: Rows = {"seeds": size.seeds, "samples": min(size.samples, len(test)), "sweep_epochs": sweep_epochs}
    for name, settings in SETTINGS.items():

        def once(lr: float, k: int, probe: bool, settings: ObjectiveSettings = settings) -> dict[str, Any]:
            return train_once(size, settings, make_recipe(settings, recipe, lr=lr, seed=seed + k), train, test, probe)

        sweep = {lr: once(lr, 0, True) for lr in size.learning_rates}
        finished = [lr for lr, run in sweep.items() if run["accuracy"] is not None]
        for best in sorted(finished, key=lambda lr: sweep[lr]["accuracy"], reverse=True):
            runs = [sweep[best], *(once(best, k, False) for k in range(1, size.seeds))]
            if all("steps" in run for run in runs):
                break
        else:
            raise UserError(f"{settings.label} diverged at every learning rate of {size.learning_rates}; give others")
        rows[name] = {
            "sweep": {f"{lr:g}": run["accuracy"] for lr, run in sweep.items()},
            "learning_rate": best,
            "steps": runs[0]["steps"],
            "eigenvalues": {kind: [run[kind]["eigenvalues"] for run in runs] for kind in KINDS},
        }
        rows[name] |= {kind: [{key: run[kind][key] for key in NUMBERS} for run in runs] for kind in KINDS}
    return rows


def load_splits(size: Size, data: str | None, seed: int) -> tuple[MemoryImages, MemoryImages, Recipe]:
    """Return training and held-out images in memory, and the recipe with their channel statistics.

    Raises:
        UserError: fewer training images than the size requires.
    """
    recipe = replace(size.recipe, seed=seed, data=replace(size.recipe.data, source=data or size.recipe.data.source))
    splits = train_and_test(recipe.data.source, recipe.data.reading, seed=seed)
    if len(splits.train) < size.images:
        remedy = "give --data a folder with as many in train; unlabelled images go next to the folders of the classes"
        raise UserError(f"{splits.train.source} has {len(splits.train)} images, expected {size.images}; {remedy}")
    loaded = []
    for images, count in ((splits.train, size.images), (splits.test, size.held_out)):
        chosen = np.random.default_rng(seed).permutation(len(images))[: count or None]
        loaded.append(load_images(images.subset(chosen), channels=recipe.data.channels))
    train, test = loaded
    mean, std = channel_statistics(train, channels=recipe.data.channels)
    return train, test, replace(recipe, data=replace(recipe.data, mean=mean, std=std))


def make_recipe(settings: ObjectiveSettings, recipe: Recipe, *, lr: float, seed: int) -> Recipe:
    """Return the recipe of one run."""
    *hidden, d = recipe.projector.widths
    D = round(settings.share * d)
    recipe = with_objective(recipe, settings.objective)
    # Columns of unit norm make FroSSL's invariance term proportional to D/N; the paper's weight is 1 at N = 256, D =
    # 1024.
    hyper = {"invariance": 4 * recipe.batch_size / D} if settings.objective == "frossl" else settings.hyper
    return replace(
        recipe,
        hyper=recipe.hyper | hyper,
        projector=replace(recipe.projector, widths=(*hidden, D)),
        optimizer=OptimizerConfig(name="sgd", lr=lr, momentum=0.0, weight_decay=0.0),
        seed=seed,
    )


def train_once(
    size: Size, settings: ObjectiveSettings, recipe: Recipe, train: MemoryImages, test: MemoryImages, probe: bool
) -> dict[str, Any]:
    """Train once; return the spectra over the figure's steps and their metrics at its end.

    With `probe`, training goes on to `size.sweep_steps`, and the accuracy of a linear probe is returned too: None if
    the run diverged.
    """
    parts, fabric, seed = assemble(recipe), launch_fabric(recipe), recipe.seed
    unwrapped = parts.method.to(fabric.device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    method, optimizer = fabric.setup(unwrapped, build_optimizer(recipe.optimizer, unwrapped))
    order: dict[str, Any] = {"seed": seed, "batch_size": recipe.batch_size, "start": 0}
    stop = size.sweep_steps if probe else size.steps
    batches = dataloader(train.to(fabric.device), parts.views, Steps(**order, stop=stop))
    pixels = test.pixels[: size.samples].to(fabric.device)
    view = parts.views(pixels, parts.views.make_params(seed, size.steps, len(pixels)))[0][0]
    spectrum_steps = {round(k * size.steps / size.spectra) for k in range(size.spectra + 1)}
    steps, Zs = [0], [embed(unwrapped, view)]
    for step in fit(fabric, method, optimizer, batches, lambda step: recipe.optimizer.lr):
        if step.step in spectrum_steps:
            steps.append(step.step)
            Zs.append(embed(unwrapped, view))
            if not Zs[-1].isfinite().all():
                return {"accuracy": None}
    accuracy = None
    if probe:
        if not embed(unwrapped, view).isfinite().all():
            return {"accuracy": None}
        backbone = Network("backbone", unwrapped.backbone, parts.preprocess)
        task = Task(LabelledSplits(train, test, "", ""), Device(accelerator=fabric.device.type))
        _, scores = score_networks([backbone], task, Scoring(probes=("linear-sgd",)))
        accuracy = scores[0].score.value
    return {
        "steps": steps,
        "accuracy": accuracy,
        "normalized": summarize_spectra([settings.normalize(Z) for Z in Zs]),
        "raw": summarize_spectra(Zs),
    }


@torch.no_grad()
def embed(method: Method, view: Float[Tensor, "n C S S"]) -> Float[Tensor, "n D"]:
    """Return embeddings of images in eval mode."""
    with eval_mode(method):
        return torch.cat([method.projector(method.backbone(part)) for part in view.split(512)]).double().cpu()


def summarize_spectra(Zs: list[Float[Tensor, "n D"]]) -> dict[str, Any]:
    """Return the leading eigenvalues over training, and the paper's three metrics at its end."""
    spectra = [Spectrum.from_embeddings(Z) for Z in Zs]
    curves, last = torch.stack([spectrum.eigenvalues[:TOP] for spectrum in spectra]), spectra[-1]
    condition = last.condition_number(TOP)
    return {
        "eigenvalues": curves.tolist(),
        "condition": condition if math.isfinite(condition) else None,
        "entropy": last.entropy(TOP),
        "entropy_of_all": last.entropy(),
    }


def plot(rows: Rows) -> MplFigure:
    """Draw the eigenvalues of the first seed, its step of saturation, and the range of this step over stored seeds."""
    figure, axes = subplots(2, 3, width=10.0, height=6.8)
    *panels, sweep = axes.flat
    for axis, marker, (name, settings) in zip(panels, "os^Dv", SETTINGS.items(), strict=True):
        row, steps = rows[name], metric_values(rows, "normalized", "saturation", name)
        final = row["normalized"][0]
        for j, color in reversed(list(enumerate(color_scale(TOP)))):
            axis.plot(row["steps"], [now[j] for now in row["eigenvalues"]["normalized"][0]], color=color, linewidth=0.9)
        axis.axvline(steps[0], color="black", linestyle=":", linewidth=0.9)
        axis.axvspan(min(steps), max(steps), color="black", alpha=0.1, linewidth=0)
        end = f"λ₁/λ₁₄ = {format_number(final['condition'])}, entropy {final['entropy']:.2f},"
        end += f"\nλ₁₄ saturates at {steps[0]:g} (dotted)"
        axis.set(title=f"{settings.label}, rate {row['learning_rate']:g}", xlabel=f"step\n{end}", yscale="log")
        percentages = [math.nan if accuracy is None else 100 * accuracy for accuracy in row["sweep"].values()]
        sweep.plot([float(lr) for lr in row["sweep"]], percentages, f"{marker}-", markersize=4, label=settings.label)
    for axis in axes[:, 0]:
        axis.set_ylabel("λ₁ (dark) to λ₁₄ (light),\nnormalised embeddings")
    sweep.set(xscale="log", xlabel="learning rate", ylabel="accuracy of a linear probe, %")
    sweep.set_title(f"Sweep, first seed, after {rows['sweep_epochs']:.3g} epochs")
    label_ends(sweep)
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    rates = {name: rows[name]["learning_rate"] for name in PAPERS}
    epochs, reached = rows["sweep_epochs"], set(rates.values()) == {0.1}
    rates_text = ", ".join(f"{SETTINGS[name].label} {rate:g}" for name, rate in rates.items())

    def all_metrics(kind: str, names: Sequence[str]) -> Verdict:
        best = {key: is_best(rows, kind, key, names) for key in METRICS}
        words = {True: "yes", False: "no", None: "inconclusive"}
        measured = "; ".join(f"{key} {words[best[key]]}: {format_means(rows, kind, key, names)}" for key in METRICS)
        return verdict(measured, holds_for_all(best.values()))

    def better(key: str) -> Verdict:
        wins = f"FroSSL in {count_wins(rows, 'normalized', key, PAPERS)}"
        wins += f" of {len(metric_values(rows, 'normalized', key, 'frossl'))} stored seeds"
        measured = f"{format_means(rows, 'normalized', key, PAPERS)}; {wins}"
        return verdict(measured, is_best(rows, "normalized", key, PAPERS), description=METRICS[key])

    return {f"better: {key}": better(key) for key in METRICS} | {
        "rates": verdict(f"{rates_text}, after {epochs:.3g} epochs", reached if epochs >= SWEEP_EPOCHS else None),
        "recommended": all_metrics("normalized", RECOMMENDED),
        "raw": all_metrics("raw", PAPERS),
    }


def saturation_step(steps: Sequence[int], curve: Sequence[float]) -> float:
    """Return the step at which a curve saturates (`fullrank.spectrum.saturation`).

    >>> saturation_step(range(10), [0.0, 0.5, 0.97, 1.2, 0.8, 1.0, 1.0, 1.0, 1.1, 0.9])
    2.0
    """
    return float(steps[int(saturation(torch.tensor(curve, dtype=torch.float64)))])


def metric_values(rows: Rows, kind: str, key: str, name: str) -> list[float]:
    """Return one metric of each run of an objective; None, a condition number that is not finite, becomes infinity."""
    if key == "saturation":
        curves = ([now[-1] for now in of_seed] for of_seed in rows[name]["eigenvalues"][kind])
        return [saturation_step(rows[name]["steps"], curve) for curve in curves]
    return [math.inf if run[key] is None else float(run[key]) for run in rows[name][kind]]


def scores(rows: Rows, kind: str, key: str, names: Sequence[str]) -> list[list[float]]:
    """Return `SCORES[key]` of each run of each objective."""
    return [[SCORES[key](value) for value in metric_values(rows, kind, key, name)] for name in names]


def is_best(rows: Rows, kind: str, key: str, names: Sequence[str]) -> bool | None:
    """Return whether FroSSL, the first of the names, is better than each other objective; None if the seeds do not
    decide.
    """
    first, *others = scores(rows, kind, key, names)
    return holds_for_all(paired_difference(first, other).exceeds(0.0) for other in others)


def count_wins(rows: Rows, kind: str, key: str, names: Sequence[str]) -> int:
    """Return the number of seeds for which FroSSL is the best."""
    return sum(first > max(others) for first, *others in zip(*scores(rows, kind, key, names), strict=True))


def format_means(rows: Rows, kind: str, key: str, names: Sequence[str]) -> str:
    """Return the mean ± standard deviation of each objective as text."""
    texts = []
    for name in names:
        values = metric_values(rows, kind, key, name)
        known = len(values) > 1 and all(map(math.isfinite, values))
        deviation = f" ± {format_number(statistics.stdev(values))}" if known else ""
        texts.append(f"{SETTINGS[name].label} {format_number(statistics.fmean(values))}{deviation}")
    return ", ".join(texts)


def format_number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


# Small networks: the last block's feature map is at least 2 × 2, and the projector is as deep as the paper's.
TINY = replace(
    RECIPES["digits"], backbone=narrow([8, 8, 16, 16]), projector=ProjectorConfig(widths=(64, 64)), batch_size=64
)
NARROW = replace(
    RECIPES["cifar10-projectors"],
    backbone=narrow([16, 32, 64, 64]),
    projector=ProjectorConfig(widths=(256, 256)),
    batch_size=128,
)
# ResNet-18 and the paper's D = 1024 on CIFAR-10; five epochs are 975 steps, and the sweep takes 20 epochs.
WIDE = replace(RECIPES["cifar10"], projector=ProjectorConfig(widths=(2048, 1024)))

SIZES = {
    "smoke": Size(
        TINY, images=512, held_out=256, samples=128, steps=6, sweep_steps=8, spectra=3, learning_rates=(1e-1,), seeds=2
    ),
    "small": Size(NARROW, images=5000, held_out=2000, samples=512, steps=300, sweep_steps=600, spectra=50),
    "gpu": Size(WIDE, images=50_000, held_out=0, samples=2048, steps=975, sweep_steps=3900, spectra=100),
    "paper": Size(
        RECIPES["stl10"], images=105_000, held_out=0, samples=2048, steps=2050, sweep_steps=41_000, spectra=200
    ),
}
