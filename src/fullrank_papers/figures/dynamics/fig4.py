"""Fig. 4: the time of a step of gradient descent (11) and of the flow (12), and the accuracy of a linear SVM on the
embeddings of each.

Left: times of one process; compare the ratios. Right: two classes of images. The paper does not say which classes, nor
how it augments. Ours are an easy and a hard pair of digits, and noise of variance 0.1 as in its Example 1. A network of
its width 10 on 784 pixels has no orthonormal weights (h < d), so PCA comes first. With noise alone E[C] = −n Cov(x), so
networks can only learn the principal components again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from statistics import fmean, median, stdev
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.errors import UserError
from fullrank.evaluation.paired import PairedDifference, paired_difference
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.numerics import log_slope, normal, ratios, time_rounds
from fullrank_papers.figures.pixels import load_pixels
from fullrank_papers.plot_style import subplots
from fullrank_papers.theory.contrastive_pairs import eigenbasis, pair_matrix
from fullrank_papers.theory.trace import (
    embed,
    euler_outputs,
    orthonormal_weights,
    output_vector_field,
    projected_gradient_step,
    stability_limit,
    trace_loss_gradients,
)

VARIANCE = 0.1  # variance of the noise of positives
BATCH = 40  # anchors per step of SGD
STEPS = {"descent": "gradient step (11)", "gradient": "its gradient alone", "flow": "step of the flow (12)"}
NAMES = {"sgd": "SGD (11)", "flow": "flow (12)", "pca": "PCA", "start": "untrained"}


@dataclass(frozen=True)
class Size:
    """Sizes for timing and for training."""

    widths: tuple[int, ...] = (10, 32, 100, 316, 1000, 3162, 10000)  # hidden units h of the timed steps
    inputs: int = 10  # principal components d of the timed steps, at most the smallest width
    repeats: int = 300  # number of timings per step
    classes: tuple[tuple[int, int], ...] = ((0, 1), (4, 9))  # pairs of classes to classify
    train: int = 100  # training images per class
    test: int = 34  # held-out images per class
    components: int = 40  # principal components d of the images
    hidden: int = 100  # hidden units h of the trained networks
    outputs: tuple[int, ...] = (1, 2, 4, 8)  # embedding dimensions z
    steps: int = 1000  # steps of SGD and of (12), at a fifth of the stable step
    seeds: int = 5  # random choices of images, noise and weights


def make_steps(C: Float[Tensor, "d d"], hidden: int, generator: torch.Generator) -> dict[str, Callable[[], None]]:
    """Return functions that take one step of (11), of (11) without its projection, and of (12), for two outputs."""
    eigenvalues, V = eigenbasis(C)
    step = 0.2 * stability_limit(eigenvalues, outputs=2)
    W1, W2 = orthonormal_weights(len(C), hidden=hidden, outputs=2, generator=generator)
    weights, q = (W1, W2), V.mT @ W1.mT @ W2

    def descent() -> None:
        nonlocal weights
        weights = projected_gradient_step(*weights, C, learning_rate=step)

    def gradient() -> None:
        G1, G2 = trace_loss_gradients(W1, W2, C)
        _ = W1 - step * G1, W2 - step * G2

    def flow() -> None:
        nonlocal q
        q = q + step * output_vector_field(q, eigenvalues)

    return {"descent": descent, "gradient": gradient, "flow": flow}


def step_times(
    C: Float[Tensor, "d d"], widths: tuple[int, ...], *, repeats: int, generator: torch.Generator
) -> dict[str, list[float]]:
    """Return the microseconds of each step of `make_steps` at each width."""
    calls = {f"{name} {width}": call for width in widths for name, call in make_steps(C, width, generator).items()}
    seconds = {name: median(times) for name, times in time_rounds(calls, repeats).items()}
    return {name: [1e6 * seconds[f"{name} {width}"] for width in widths] for name in STEPS}


@dataclass(frozen=True)
class TwoClasses:
    """Training and held-out images of two classes, in the principal components of the training images."""

    X: Float[Tensor, "n d"]
    labels: Int64[Tensor, " n"]
    X_test: Float[Tensor, "m d"]
    labels_test: Int64[Tensor, " m"]

    def accuracy(self, embed: Callable[[Tensor], Tensor]) -> float:
        """Return the accuracy of a linear SVM on the embeddings of held-out images."""
        from sklearn.svm import SVC

        U, U_test = embed(self.X), embed(self.X_test)
        scale = U.std(0).max()  # one number for all dimensions
        svm = SVC(kernel="linear").fit(U / scale, self.labels)
        return float(svm.score(U_test / scale, self.labels_test))


def load_classes(data: str | None, size: Size, classes: tuple[int, int], seed: int) -> TwoClasses:
    X, labels = load_pixels(data, size.train, seed=seed, classes=classes)
    X_test, labels_test = load_pixels(data, size.test, seed=seed, classes=classes, test=True)
    mean = X.mean(0)
    V = torch.linalg.svd(X - mean, full_matrices=False).Vh[: size.components].mT
    return TwoClasses((X - mean) @ V, labels, (X_test - mean) @ V, labels_test)


def pair_matrix_with_noise(
    X: Float[Tensor, "n d"], anchors: Int64[Tensor, " b"], generator: torch.Generator
) -> Float[Tensor, "d d"]:
    """Return C, averaged, for these anchors with new noise and random negatives. Pixel noise is equally large along
    every component.
    """
    noise = VARIANCE**0.5 * normal(len(anchors), X.shape[1], rng=generator)
    negatives = X[torch.randint(len(X), (len(anchors),), generator=generator)]
    return pair_matrix(X[anchors], X[anchors] + noise, negatives, average=True)


def accuracies(images: TwoClasses, outputs: int, size: Size, generator: torch.Generator) -> dict[str, float]:
    """Return accuracies on embeddings by SGD and by (12) from the same start, by PCA, and by the start itself."""
    X = images.X
    anchors = torch.arange(len(X)).repeat(10)  # ten random noises and negatives per anchor
    eigenvalues, V = eigenbasis(pair_matrix_with_noise(X, anchors, generator))
    step = 0.2 * stability_limit(eigenvalues, outputs=outputs)
    W1, W2 = orthonormal_weights(X.shape[1], hidden=size.hidden, outputs=outputs, generator=generator)
    q0 = V.mT @ W1.mT @ W2
    q = euler_outputs(q0, eigenvalues, learning_rate=step, steps=size.steps)[-1]
    for _ in range(size.steps):
        batch = torch.randperm(len(X), generator=generator)[:BATCH]
        W1, W2 = projected_gradient_step(W1, W2, pair_matrix_with_noise(X, batch, generator), learning_rate=step)
    return {
        "sgd": images.accuracy(lambda X: X @ W1.mT @ W2),
        "flow": images.accuracy(lambda X: embed(X, q, V)),
        "pca": images.accuracy(lambda X: X[:, :outputs]),
        "start": images.accuracy(lambda X: embed(X, q0, V)),
    }


def compute(size: Size, *, data: str | None = None, seed: int = 0) -> Rows:
    generator, message = torch.Generator().manual_seed(seed), ""
    try:
        orthonormal_weights(784, hidden=10, outputs=1, generator=torch.Generator())
    except UserError as error:
        message = str(error)
    scores: list[dict[str, Any]] = []
    for k, classes in product(range(size.seeds), size.classes):
        images = load_classes(data, size, classes, seed=100 * seed + k)
        scores += [{"classes": list(classes), "z": z, **accuracies(images, z, size, generator)} for z in size.outputs]
    X = load_classes(data, size, size.classes[0], seed=seed).X[:, : size.inputs]
    C = pair_matrix_with_noise(X, torch.arange(len(X)), generator)
    return {
        "widths": list(size.widths),
        "microseconds": step_times(C, size.widths, repeats=size.repeats, generator=generator),
        "repeats": size.repeats,
        "inputs": size.inputs,
        "scores": scores,
        "seeds": size.seeds,
        "components": size.components,
        "error": message,
    }


def plot(rows: Rows) -> MplFigure:
    pairs = sorted({tuple(score["classes"]) for score in rows["scores"]})
    figure, axes = subplots(1, 1 + len(pairs), width=10.0, height=3.2)
    cost, *panels = axes[0]
    for k, (name, label) in enumerate(STEPS.items()):
        cost.loglog(rows["widths"], rows["microseconds"][name], "o-", color=f"C{k}", markersize=3, label=label)
    cost.set(xlabel="hidden units h", ylabel="microseconds", title=f"Time of a step, d = {rows['inputs']}, z = 2")
    cost.legend()
    for axis, pair in zip(panels, pairs, strict=True):
        scores = [score for score in rows["scores"] if tuple(score["classes"]) == pair]
        dimensions = sorted({score["z"] for score in scores})
        for k, (name, label) in enumerate(NAMES.items()):
            groups = [[100 * score[name] for score in scores if score["z"] == z] for z in dimensions]
            places = [z * 1.06 ** (k - 1.5) for z in dimensions]
            means, errors = [fmean(g) for g in groups], [deviation(g) for g in groups]
            axis.errorbar(places, means, errors, marker="o", markersize=3, label=label)
        axis.set_xscale("log", base=2)
        axis.set(xticks=dimensions, xticklabels=dimensions, xlabel="embedding dimensions z", ylabel="accuracy (%)")
        axis.set_title(f"SVM, classes {pair[0]} and {pair[1]}, d = {rows['components']}")
    panels[-1].legend()
    return figure


def deviation(values: list[float]) -> float:
    """Return the standard deviation, 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0


def evaluate_claims(rows: Rows) -> Verdicts:
    def gap(other: str) -> PairedDifference:
        return paired_difference(*([100 * score[name] for score in rows["scores"]] for name in ("flow", other)))

    widths, times = rows["widths"], rows["microseconds"]
    wide = sum(width < 1000 for width in widths)  # widths are ascending
    slope_11, slope_12 = log_slope(widths[wide:], times["descent"][wide:]), log_slope(widths, times["flow"])
    speedups = ratios(times["descent"], times["flow"])
    to_sgd, to_pca, to_start = map(gap, ("sgd", "pca", "start"))
    speedup_text = ", ".join(f"{s:.1f} at {width}" for width, s in zip(widths, speedups, strict=True))
    return {
        "time_11": verdict(f"{slope_11:.2f} from h = 1000 on", 0.8 < slope_11 < 1.2),
        "time_12": verdict(f"{slope_12:+.3f}", abs(slope_12) < 0.05),
        "cheaper": verdict(speedup_text, min(speedups) > 1),
        "accuracy": verdict(to_sgd.format(" points"), to_sgd.is_within(1.0)),
        "pca_first": verdict("an error" if rows["error"] else "no error", bool(rows["error"])),
        "pca": verdict(f"{to_pca.format(' points')}; untrained weights {-to_start.mean:+.1f}", to_pca.is_within(2.0)),
    }


SIZES = {
    "smoke": Size(
        widths=(10, 1000, 2000), repeats=10, train=60, test=30, hidden=40, outputs=(1, 4), steps=120, seeds=3
    ),
    "small": Size(),
    "paper": Size(repeats=1000, train=200, test=800, outputs=(1, 2, 4, 8, 16), steps=2000, seeds=10),
}
