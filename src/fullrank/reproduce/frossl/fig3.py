"""Skean et al. 2024 (FroSSL), Fig. 3: the top 14 eigenvalues of the first view's embeddings in the first epochs, for four objectives.

Each objective is trained by SGD without momentum at the learning rate of a sweep after which a linear probe does best (in the paper: after
100 epochs); the sweep is run once, and the chosen rate with further seeds. Embeddings are those of one view of images that are not trained
on, in eval mode, measured twice: as the objective sees them, after its own normalisation, and as they leave the projector. Entropies are of
the 14 eigenvalues that are shown, in nats. Barlow Twins is trained with the paper's λ = 0.05, and with the 5e-3 that its own authors
recommend.

The paper does not define when an eigenvalue saturates. The claim takes our `saturation`, at 95 % of the last value, which is within the
noise of a level curve, and what falls has saturated from the start. So the order is told for half of the last value too.

The paper's 2000 steps are five epochs of STL-10's 5,000 labelled and 100,000 unlabelled images. Size paper wants a folder whose `train` has
the unlabelled ones beside the folders of the classes, and leaves them out of the probe.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.evaluation import evaluate
from fullrank.evaluation.frozen import restore_modes
from fullrank.images import MemoryImages, channel_statistics, load, train_and_test
from fullrank.launch.devices import launch_fabric
from fullrank.methods import BackboneConfig, Method, ProjectorConfig
from fullrank.objectives.algebra import centered, unit
from fullrank.recipes import RECIPES, Recipe, assemble, with_objective
from fullrank.reproduce.draw import subplots
from fullrank.reproduce.figure import Claim, Figure, Rows
from fullrank.spectrum import Spectrum, saturation
from fullrank.training import OptimizerConfig, build_optimizer, fit, memory_batches

if TYPE_CHECKING:
    import matplotlib.figure

TOP = 14


@dataclass(frozen=True)
class Contender:
    """An objective as the paper trains it."""

    label: str
    objective: str
    hyper: dict[str, float]
    share: float
    """Of the dimensions that the paper's d = 1024 is."""
    normalize: Callable[[Float[Tensor, "n D"]], Float[Tensor, "n D"]]
    """What the objective itself does to embeddings first."""


def columns(Z: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
    """Columns centred, of variance 1."""
    return unit(centered(Z), dim=-2) * math.sqrt(len(Z))


CONTENDERS = {
    "frossl": Contender("FroSSL", "frossl", {}, 1.0, columns),
    "barlow": Contender("Barlow Twins (λ = 0.05)", "barlow_twins", {"redundancy": 0.05}, 1.0, columns),
    "barlow_5e-3": Contender("Barlow Twins (λ = 0.005)", "barlow_twins", {"redundancy": 5e-3}, 1.0, columns),
    "vicreg": Contender("VICReg", "vicreg", {"invariance": 25.0, "variance": 25.0, "covariance": 1.0}, 1.0, lambda Z: Z),
    "simclr": Contender("SimCLR", "simclr", {"temperature": 0.2}, 0.25, lambda Z: unit(Z, dim=-1)),
}
PAPERS = ("frossl", "barlow", "vicreg", "simclr")
RECOMMENDED = ("frossl", "barlow_5e-3", "vicreg", "simclr")
KINDS = ("seen", "raw")
MEASURES = {
    "condition": ("the lowest condition number λ₁/λ₁₄", -1),
    "entropy": ("the highest entropy of the 14 eigenvalues", 1),
    "saturation": ("the earliest step from which λ₁₄ is at 95 % of its last value or above", -1),
}
"""Each with its sign: 1 where more is better."""


@dataclass(frozen=True)
class Size:
    recipe: Recipe
    """Images, views, backbone, batch and the widths of the projector; its last is d, a quarter of it for SimCLR."""
    images: int
    """How many are trained on and, as far as they are labelled, probed with."""
    held_out: int
    """How many the probe is scored on; 0: all."""
    samples: int
    """How many of these a spectrum takes."""
    steps: int
    looks: int
    """Spectra over the run, beside the one before it."""
    learning_rates: tuple[float, ...]
    seeds: int


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    train, test, recipe = read(size, data, seed)
    rows: Rows = {"seeds": size.seeds, "samples": min(size.samples, len(test))}
    for name, contender in CONTENDERS.items():
        sweep = {lr: run(size, contender, recipe, lr, train, test, seed=seed) for lr in size.learning_rates}
        finished = [lr for lr, found in sweep.items() if found["accuracy"] is not None]
        if not finished:
            raise UserError(f"{contender.label} diverged at every learning rate of {size.learning_rates}, expected one that it bears")
        best = max(finished, key=lambda lr: sweep[lr]["accuracy"])
        runs = [sweep[best], *(run(size, contender, recipe, best, train, test, seed=seed + k) for k in range(1, size.seeds))]
        rows[name] = {
            "sweep": {f"{lr:g}": found["accuracy"] for lr, found in sweep.items()},
            "learning_rate": best,
            "steps": runs[0]["steps"],
            "eigenvalues": {kind: [now[:TOP] for now in runs[0][kind]["eigenvalues"]] for kind in KINDS},
            "accuracies": [found["accuracy"] for found in runs],
            **{kind: [{key: value for key, value in found[kind].items() if key != "eigenvalues"} for found in runs] for kind in KINDS},
        }
    return rows


def read(size: Size, data: str | None, seed: int) -> tuple[MemoryImages, MemoryImages, Recipe]:
    """Training and held-out images in memory, and the recipe with their statistics.

    Raises:
        UserError: there are not as many to train on as the size has.
    """
    recipe = replace(size.recipe, seed=seed, data=replace(size.recipe.data, source=data or size.recipe.data.source))
    splits = train_and_test(recipe.data.source, train=recipe.data.train, test=recipe.data.test, seed=seed)
    if len(splits.train) < size.images:
        remedy = "give --data a folder with as many in train, unlabelled ones beside the folders of the classes"
        raise UserError(f"{splits.train.source} has {len(splits.train)} images to train on, expected {size.images}; {remedy}")
    train, test = (
        load(images.subset(np.random.default_rng(seed).permutation(len(images))[: count or None]), channels=recipe.data.channels)
        for images, count in ((splits.train, size.images), (splits.test, size.held_out))
    )
    mean, std = channel_statistics(train, channels=recipe.data.channels)
    return train, test, replace(recipe, data=replace(recipe.data, mean=mean, std=std))


def turned(contender: Contender, recipe: Recipe, *, lr: float, seed: int) -> Recipe:
    """The recipe of one run."""
    *hidden, d = recipe.projector.widths
    D = round(contender.share * d)
    recipe = with_objective(recipe, contender.objective)
    # Columns of unit norm make FroSSL's invariance term proportional to D/N; the paper's weight is 1 at N = 256, D = 1024.
    hyper = {"invariance": 4 * recipe.batch / D} if contender.objective == "frossl" else contender.hyper
    return replace(
        recipe,
        hyper=recipe.hyper | hyper,
        projector=replace(recipe.projector, widths=(*hidden, D)),
        optimizer=OptimizerConfig(name="sgd", lr=lr, momentum=0.0, weight_decay=0.0),
        seed=seed,
    )


def run(
    size: Size, contender: Contender, recipe: Recipe, lr: float, train: MemoryImages, test: MemoryImages, *, seed: int
) -> dict[str, Any]:
    """Train once: the spectra over training, what they say at the end, and the accuracy of a linear probe; None where it diverged."""
    recipe = turned(contender, recipe, lr=lr, seed=seed)
    parts, fabric = assemble(recipe), launch_fabric(recipe)
    bare = parts.method.to(fabric.device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    method, optimizer = fabric.setup(bare, build_optimizer(recipe.optimizer, bare))
    images = train.to(fabric.device)
    batches = memory_batches(images, parts.views, seed=seed, batch=recipe.batch, start=0, stop=size.steps)
    pixels = test.pixels[: size.samples].to(fabric.device)
    view = parts.views(pixels, parts.views.draw(seed, size.steps, len(pixels)))[0][0]
    at = {round(k * size.steps / size.looks) for k in range(size.looks + 1)}
    steps, Zs = [0], [embed(bare, view)]
    for step in fit(fabric, method, optimizer, batches, lambda step: lr):
        if step.step in at:
            steps.append(step.step)
            Zs.append(embed(bare, view))
            if not Zs[-1].isfinite().all():
                return {"accuracy": None}
    found = evaluate(bare.backbone, None, parts.preprocess, train, test, probes=("linear-sgd",), baselines=False, device=fabric.device)
    return {
        "steps": steps,
        "accuracy": found.scores[0].accuracy,
        "seen": summary(steps, [contender.normalize(Z) for Z in Zs]),
        "raw": summary(steps, Zs),
    }


@torch.no_grad()
def embed(method: Method, view: Float[Tensor, "n C S S"]) -> Float[Tensor, "n D"]:
    """Embeddings of images in eval mode."""
    with restore_modes(method):
        method.eval()
        return torch.cat([method.projector(method.backbone(part)) for part in view.split(512)]).double().cpu()


def summary(steps: list[int], Zs: list[Float[Tensor, "n D"]]) -> dict[str, Any]:
    """The leading eigenvalues over training, and the paper's three numbers at its end."""
    spectra = [Spectrum.from_embeddings(Z) for Z in Zs]
    curves, last = torch.stack([spectrum.eigenvalues[:TOP] for spectrum in spectra]), spectra[-1]
    condition = last.condition_number(TOP)
    return {
        "eigenvalues": curves.tolist(),
        "condition": condition if math.isfinite(condition) else None,
        "entropy": last.entropy(TOP),
        "entropy_of_all": last.entropy(),
        "saturation": steps[int(saturation(curves)[-1])],
    }


def plot(rows: Rows) -> "matplotlib.figure.Figure":
    figure, axes = subplots(2, 3, width=10.0, height=6.8)
    *panels, sweep = axes.flat
    for axis, marker, (name, contender) in zip(panels, "os^Dv", CONTENDERS.items(), strict=True):
        row, final = rows[name], rows[name]["seen"][0]
        for j in reversed(range(TOP)):
            axis.plot(row["steps"], [now[j] for now in row["eigenvalues"]["seen"]], color=shade(j), linewidth=0.9)
        axis.axvline(final["saturation"], color="black", linestyle=":", linewidth=0.9)
        end = f"λ₁/λ₁₄ = {number(final['condition'])}, entropy {final['entropy']:.2f},\nλ₁₄ saturates at {final['saturation']} (dotted)"
        axis.set(title=f"{contender.label}, learning rate {row['learning_rate']:g}", xlabel=f"step\n{end}", yscale="log")
        percentages = [math.nan if accuracy is None else 100 * accuracy for accuracy in row["sweep"].values()]
        sweep.plot([float(lr) for lr in row["sweep"]], percentages, f"{marker}-", markersize=4, label=contender.label)
    for axis in axes[:, 0]:
        axis.set_ylabel("λ₁ (dark) to λ₁₄ (light), first seed")
    sweep.set(title="Sweep, first seed", xscale="log", xlabel="learning rate", ylabel="accuracy of a linear probe, %")
    sweep.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    return figure


def shade(j: int) -> tuple[float, float, float, float]:
    """From dark for λ₁ to light for λ₁₄, which white paper still shows."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * j / (TOP - 1))


def claims(rows: Rows) -> list[Claim]:
    rates = {name: rows[name]["learning_rate"] for name in PAPERS}
    half = {name: half_way(rows[name]) for name in PAPERS}
    return [
        *(
            Claim(
                f"FroSSL has {words}, in the mean over {rows['seeds']} seeds",
                expected=f"the {'highest' if sign > 0 else 'lowest'} of the four",
                measured=f"{listed(rows, 'seen', key, PAPERS)}; FroSSL in {wins(rows, 'seen', key, PAPERS)} of {rows['seeds']} seeds",
                holds=is_best(rows, "seen", key, PAPERS),
            )
            for key, (words, sign) in MEASURES.items()
        ),
        Claim(
            "a learning rate of 0.1 is best for all objectives, by linear probe after the run",
            expected="0.1 for each of the four",
            measured=", ".join(f"{CONTENDERS[name].label} {rate:g}" for name, rate in rates.items()),
            holds=set(rates.values()) == {0.1},
        ),
        Claim(
            "FroSSL's λ₁₄ is the first that reaches half of its last value for good",
            expected="the lowest of the four, with the first seed",
            measured=", ".join(f"{CONTENDERS[name].label} {step}" for name, step in half.items()),
            holds=half["frossl"] < min(half[name] for name in PAPERS[1:]),
            corrected=True,
        ),
        best_in_all(rows, "where Barlow Twins takes the λ = 0.005 that its authors recommend", "seen", RECOMMENDED),
        best_in_all(rows, "by embeddings as they leave the projector, before any normalisation", "raw", PAPERS),
    ]


def best_in_all(rows: Rows, where: str, kind: str, names: Sequence[str]) -> Claim:
    """The claim of the three measures at once, under another reading of the experiment than the paper's."""
    found = {key: is_best(rows, kind, key, names) for key in MEASURES}
    return Claim(
        f"FroSSL is the best in all three {where}",
        expected="all three, among these four",
        measured="; ".join(f"{key} {'yes' if best else 'no'}: {listed(rows, kind, key, names)}" for key, best in found.items()),
        holds=all(found.values()),
        corrected=True,
    )


def half_way(row: Rows) -> int:
    """The step from which λ₁₄ is at half of its last value or above, with the first seed."""
    return row["steps"][int(saturation(torch.tensor(row["eigenvalues"]["seen"]), share=0.5)[-1])]


def values(rows: Rows, kind: str, key: str, name: str) -> list[float]:
    """One measure of a contender's runs; a condition number that is not finite is infinite."""
    return [math.inf if run[key] is None else float(run[key]) for run in rows[name][kind]]


def is_best(rows: Rows, kind: str, key: str, names: Sequence[str]) -> bool:
    """Whether FroSSL, the first of the names, is better than each other in the mean over the seeds."""
    first, *others = (MEASURES[key][1] * statistics.fmean(values(rows, kind, key, name)) for name in names)
    return first > max(others)


def wins(rows: Rows, kind: str, key: str, names: Sequence[str]) -> int:
    """With how many of the seeds FroSSL is better than each other."""
    by_seed = zip(*([MEASURES[key][1] * value for value in values(rows, kind, key, name)] for name in names), strict=True)
    return sum(first > max(others) for first, *others in by_seed)


def listed(rows: Rows, kind: str, key: str, names: Sequence[str]) -> str:
    """Mean ± standard deviation of each contender."""
    found = {CONTENDERS[name].label: values(rows, kind, key, name) for name in names}
    return ", ".join(f"{label} {number(statistics.fmean(v))}{spread(v)}" for label, v in found.items())


def spread(found: list[float]) -> str:
    return f" ± {number(statistics.stdev(found))}" if len(found) > 1 and all(map(math.isfinite, found)) else ""


def number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


# The last block keeps its map at 2 × 2 or more, and a projector of the paper's depth.
NARROW = replace(
    RECIPES["cifar10-projectors"],
    backbone=BackboneConfig(name="resnet18", arguments={"channels": [16, 32, 64, 64], "layers": [1, 1, 1, 1]}, stem="small"),
    projector=ProjectorConfig(widths=(256, 256)),
    batch=128,
)
TINY = replace(
    RECIPES["digits"],
    backbone=BackboneConfig(name="resnet18", arguments={"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}, stem="small"),
    projector=ProjectorConfig(widths=(64, 64)),
    batch=64,
)
RATES = (1e-4, 1e-3, 1e-2, 1e-1)

FIGURE = Figure(
    title="Fig. 3 of Skean et al. 2024, FroSSL",
    claim="At the end of the fifth epoch FroSSL outperforms the others in condition number, entropy and saturation.",
    sizes={
        "smoke": Size(recipe=TINY, images=512, held_out=256, samples=128, steps=6, looks=3, learning_rates=(1e-1,), seeds=2),
        "small": Size(recipe=NARROW, images=5000, held_out=2000, samples=512, steps=300, looks=50, learning_rates=RATES, seeds=3),
        "paper": Size(
            recipe=RECIPES["stl10"], images=105_000, held_out=0, samples=2048, steps=2050, looks=200, learning_rates=RATES, seeds=3
        ),
    },
    compute=compute,
    plot=plot,
    claims=claims,
    images="CIFAR-10 at size small, STL-10 with its unlabelled images as in the paper",
)
