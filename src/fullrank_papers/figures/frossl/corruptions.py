"""Robustness: the accuracy on corrupted test images, of probes that are trained on the features of clean images.

The FroSSL paper expects that its entropy gives more robust representations than the nearest-neighbour entropy of
SimMER, and does not measure it. The objectives have the best draws of `benchmark`, and SimMER, which is not in it, the
best of as many draws. An accuracy is the mean of linear probe and kNN. What a corruption leaves of it is measured from
chance, so that a weak network has no advantage. Images are corrupted at the size that the network sees.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from fullrank.evaluation import accuracy, extract_features, knn, linear_probe, standardize
from fullrank.images import MemoryImages, as_images, load_images
from fullrank.models import load_run
from fullrank.run import Run
from fullrank.sweep.cell import split
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts
from fullrank_papers.figures.frossl import benchmark
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.numerics import check_higher
from fullrank_papers.figures.trained import Training, train
from fullrank_papers.plot_style import plot_dots, subplots

METHODS = (
    *("frossl", "simmer", "ivne", "corinfomax", "vicreg"),
    *("barlow_twins", "simclr", "moco", "byol", "wmse"),
)


def add_noise(pixels: Tensor) -> Tensor:
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0))
    return (pixels + 20 * noise).round().clamp(0, 255).byte()


def pixelate(pixels: Tensor) -> Tensor:
    height, width = pixels.shape[2:]
    return F.resize(F.resize(pixels, [height // 2, width // 2]), [height, width], F.InterpolationMode.NEAREST)


# Name → function of uint8 pixels (n, C, H, W). Each has one strength, a choice of ours.
CORRUPTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "noise": add_noise,
    "blur": lambda pixels: F.gaussian_blur(pixels, [5, 5], [1.0, 1.0]),
    "contrast": lambda pixels: F.adjust_contrast(pixels, 0.4),
    "brightness": lambda pixels: F.adjust_brightness(pixels, 0.5),
    "pixelation": pixelate,
}


@dataclass(frozen=True)
class Size:
    """The size of the comparison, the methods, the number of seeds, and the folder of the runs."""

    comparison: benchmark.Size
    methods: tuple[str, ...]
    seeds: int
    runs: str = ""


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    known, draws = benchmark.DRAWS, range(size.comparison.draws)
    candidates = {
        name: [benchmark.draw(size.comparison, name, k)[0] for k in ([known[name]] if name in known else draws)]
        for name in size.methods
    }
    training = Training(score_corrupted, "corruptions", lambda run: accuracies(run, {})["clean"], size.seeds, size.runs)
    return train(candidates, training, data=data, seed=seed)


def score_corrupted(run: Run) -> Rows:
    """Return the accuracies of a run, what the corruptions leave of them, and the learning rate."""
    found = accuracies(run, CORRUPTIONS)
    return {"accuracy": found, "left": share_left(found), "rate": run.recipe.optimizer.lr}


def share_left(found: Mapping[str, float]) -> float:
    """Return the share of the accuracy above chance that the corruptions leave in the mean.

    >>> share_left({"chance": 0.25, "clean": 0.75} | dict.fromkeys(CORRUPTIONS, 0.5))
    0.5
    """
    chance = found["chance"]
    return fmean((found[name] - chance) / (found["clean"] - chance) for name in CORRUPTIONS)


def accuracies(run: Run, corruptions: Mapping[str, Callable[[Tensor], Tensor]]) -> dict[str, float]:
    """Return the accuracy of chance, and of the mean of linear probe and kNN on clean and corrupted test images."""
    model, splits = load_run(run.path), split(run.recipe.data, run.recipe.split_seed)
    clean = load_images(as_images(splits.test), channels=run.recipe.data.channels, size=model.preprocess.size)
    variants = [clean.pixels, *(corrupt(clean.pixels) for corrupt in corruptions.values())]
    tests = [MemoryImages(pixels, clean.labels, clean.names) for pixels in variants]
    X, *others = (extract_features(model.backbone, each, model.preprocess) for each in (splits.train, *tests))
    X_test = torch.cat([each.X for each in others])
    scaled, scaled_test = standardize(X.X, X_test)
    probes = linear_probe(scaled, X.labels, scaled_test).logits, knn(X.X, X.labels, X_test).logits
    found = {"chance": 1 / probes[0].shape[1]}
    for name, *logits in zip(("clean", *corruptions), *(each.chunk(len(tests)) for each in probes), strict=True):
        found[name] = fmean(accuracy(each, clean.labels) for each in logits)
    return found


def plot(rows: Rows) -> MplFigure:
    figure, (axes,) = subplots(1, 2, width=11.0, height=3.2)
    labels = {name: CONTENDERS[name].label for name in rows}
    plot_dots(axes[0], [(labels[name], [100 * run["left"] for run in runs]) for name, runs in rows.items()])
    axes[0].set_xlabel("accuracy above chance that corruptions leave, % (dots: seeds, bars: means)")
    for k, (name, runs) in enumerate(rows.items()):
        means = {each: 100 * fmean(run["accuracy"][each] for run in runs) for each in runs[0]["accuracy"]}
        axes[1].plot(list(means.values()), list(means), "os^D<>vpX*"[k], color=f"C{k}", label=labels[name])
    axes[1].set(xlabel="accuracy, %")
    axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    left = {name: [run["left"] for run in runs] for name, runs in rows.items()}
    keys = {name: "nearest" if name == "simmer" else f"others: {name}" for name in left if name != "frossl"}
    return {key: check_higher(left["frossl"], left[name], label=CONTENDERS[name].label) for name, key in keys.items()}


SIZES = {
    "smoke": Size(benchmark.SIZES["smoke"], ("frossl", "simmer", "ivne"), seeds=1),
    "small": Size(benchmark.SIZES["small"], METHODS, seeds=3, runs="runs/frossl/corruptions"),
}
