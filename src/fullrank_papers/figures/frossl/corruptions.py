"""Robustness: the accuracy on corrupted test images, of probes that are trained on the features of clean images.

The FroSSL paper expects that its entropy gives more robust representations than the nearest-neighbour entropy of
SimMER (Section 4.3), and does not measure it. Each objective is trained in the base recipe of `benchmark`, with the
library's weights or the balanced ones, at its best learning rate. An accuracy is the mean of linear probe and kNN.
The corruptions are like those of CIFAR-10-C (Hendrycks and Dietterich 2019), with one strength each, of ours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from fullrank.evaluation.evaluate import score_networks
from fullrank.evaluation.features import Network
from fullrank.evaluation.protocol import Scoring
from fullrank.evaluation.task import Task
from fullrank.images import as_images, load_images
from fullrank.models import load_run
from fullrank.models.model_images import LabelledSplits
from fullrank.recipes import Recipe, balanced_weights, with_objective
from fullrank.run import Run
from fullrank.sweep.cell import split
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts
from fullrank_papers.figures.frossl.benchmark import SIZES as BENCHMARKS
from fullrank_papers.figures.numerics import check_higher
from fullrank_papers.figures.trained import Training, train
from fullrank_papers.plot_style import plot_dots, subplots

LABELS = {
    "frossl": "FroSSL",
    "simmer": "SimMER",
    "ivne": "I-VNE+",
    "corinfomax": "CorInfoMax",
    "vicreg": "VICReg",
    "barlow_twins": "Barlow Twins",
    "simclr": "SimCLR",
    "byol": "BYOL",
}


def add_noise(pixels: Tensor) -> Tensor:
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0))
    return (pixels + 25 * noise).round().clamp(0, 255).byte()


def pixelate(pixels: Tensor) -> Tensor:
    height, width = pixels.shape[2:]
    return F.resize(F.resize(pixels, [height // 3, width // 3]), [height, width], F.InterpolationMode.NEAREST)


# Name → function of uint8 pixels (n, C, H, W).
CORRUPTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "noise": add_noise,
    "blur": lambda pixels: F.gaussian_blur(pixels, [5, 5], [1.5, 1.5]),
    "contrast": lambda pixels: F.adjust_contrast(pixels, 0.3),
    "brightness": lambda pixels: F.adjust_brightness(pixels, 0.4),
    "pixelation": pixelate,
}


@dataclass(frozen=True)
class Size:
    """The base recipe, the number of seeds, the learning rates, the objectives, and the folder of the runs."""

    recipe: Recipe
    seeds: int
    rates: tuple[float, ...] = ()
    objectives: tuple[str, ...] = tuple(LABELS)
    runs: str = ""


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    training = Training(score_corrupted, "corruptions", lambda found: found["clean"], size.seeds, size.rates, size.runs)
    return train({name: recipe_of(size, name) for name in size.objectives}, training, data=data, seed=seed)


def recipe_of(size: Size, objective: str) -> Recipe:
    """Return the base recipe with an objective, and its balanced weights if it has any."""
    recipe = with_objective(replace(size.recipe, hyper={}), objective)
    return replace(recipe, hyper=recipe.hyper | balanced_weights(recipe))


def score_corrupted(run: Run) -> Rows:
    """Return the mean accuracy of linear probe and kNN on the test images, clean and with each corruption."""
    model, splits, found = load_run(run.path), split(run.recipe.data, run.recipe.split_seed), {}
    test = load_images(as_images(splits.test), channels=run.recipe.data.channels)
    network = Network(run.path.name, model.backbone, model.preprocess)
    for name, corrupt in {"clean": lambda pixels: pixels, **CORRUPTIONS}.items():
        task = Task(LabelledSplits(splits.train, replace(test, pixels=corrupt(test.pixels)), name, ""))
        _, outcomes = score_networks([network], task, Scoring(probes=("linear", "knn")))
        found[name] = fmean(each.score.value for each in outcomes if each.score.metric == "accuracy")
    return found


def kept(run: Rows) -> float:
    """Return the mean accuracy over the corruptions, as a share of that on clean images."""
    return fmean(run[name] for name in CORRUPTIONS) / run["clean"]


def plot(rows: Rows) -> MplFigure:
    figure, (axes,) = subplots(1, 2, width=11.0, height=3.2)
    plot_dots(axes[0], [(LABELS[name], [100 * kept(run) for run in runs]) for name, runs in rows.items()])
    axes[0].set_xlabel("accuracy kept under corruption, % (dots: seeds, bars: means)")
    for k, (name, runs) in enumerate(rows.items()):
        means = [100 * fmean(run[each] / run["clean"] for run in runs) for each in CORRUPTIONS]
        axes[1].plot(means, list(CORRUPTIONS), "os^D<>vp"[k], color=f"C{k}", label=LABELS[name])
    axes[1].set(xlabel="accuracy / accuracy on clean images, %")
    axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    shares = {name: [kept(run) for run in runs] for name, runs in rows.items()}
    return {
        "nearest" if name == "simmer" else f"others: {name}": check_higher(shares["frossl"], values, label=LABELS[name])
        for name, values in shares.items()
        if name != "frossl"
    }


SIZES = {
    "smoke": Size(
        replace(BENCHMARKS["smoke"].recipe, name="digits-corruptions", epochs=1),
        seeds=1,
        objectives=("frossl", "simmer", "ivne"),
    ),
    "small": Size(
        replace(BENCHMARKS["small"].recipe, name="cifar10-corruptions"),
        seeds=3,
        rates=(3e-3, 1e-2, 3e-2, 1e-1),
        runs="runs/frossl/corruptions",
    ),
}
