"""The training runs of the projector study: one recipe with different projectors, several seeds, and the same
evaluation for all.

The paper trains each network once on ImageNet, at one learning rate; size paper takes three seeds, because one seed
decides nothing (`comparison`). Size small trains the recipe `cifar10-projectors` for one epoch with three seeds, with
D_b = 128 and d0 = 22 in place of the paper's 2048 and 360; the rate of each network is the best of `Size.rates` on
validation images, with a seed of its own. Figures share runs: with `Size.runs` a run is stored in that folder under its
fingerprint and is used again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.evaluation import accuracy, extract_features, linear_probe, standardize
from fullrank.images import Device, Images, load_images
from fullrank.methods import ProjectorConfig
from fullrank.models import load_run
from fullrank.recipes import RECIPES, Recipe, assemble, with_objective
from fullrank.run import Run
from fullrank.spectrum import Spectrum
from fullrank.sweep.cell import split
from fullrank_papers.figures.directclr.gradient_ranks import gradient_ranks
from fullrank_papers.figures.figure import Rows
from fullrank_papers.figures.trained import Training, at_rates, short_run, train

GRADIENT_IMAGES = 192  # of the batch whose gradient rank is measured: their two views exceed the paper's d0 = 360
MAX_EIGENVALUES = 256  # stored eigenvalues of a spectrum

# The projectors that the paper compares, and DirectCLR.
LABELS = {
    "two layers": "two layers, nonlinear",
    "linear": "trainable linear",
    "diagonal": "trainable diagonal",
    "none": "none",
    "orthogonal": "orthogonal",
    "low-rank": "fixed low-rank",
    "low-rank-diagonal": "fixed low-rank diagonal",
    "dropout": "random dropout",
    "DirectCLR": "DirectCLR",
}


@dataclass(frozen=True)
class Size:
    """What is trained, with how many seeds, and how it is evaluated.

    Attributes:
        recipe: Has the projector of two layers. Its d0 is the rank of the low-rank projectors and the number of
            dimensions that DirectCLR sees.
        sweep: Values of d0 in Fig. 12, in addition to the recipe's d0 and D_b.
        probe_images: Labelled training images of the linear probe, a random choice; 0: all.
        rates: Learning rates of which each network takes the best; empty: that of the recipe.
        runs: Folder in which runs are stored and shared between figures; empty: runs are not stored.
    """

    recipe: Recipe
    seeds: int
    sweep: tuple[int, ...]
    probe_images: int
    rates: tuple[float, ...] = ()
    runs: str = ""


SIZES = {
    "smoke": Size(
        replace(
            short_run(RECIPES["digits"], epochs=1, warmup=0.25),
            objective="simclr",
            hyper={"temperature": 0.1},
            data=replace(RECIPES["digits"].data, subset=512),
            backbone=replace(
                RECIPES["digits"].backbone,
                arguments={"channels": [8, 8, 8, 16], "layers": [1, 1, 1, 2], "output_stride": 8},
            ),
            projector=ProjectorConfig(widths=(16, 8), d0=4),
        ),
        seeds=1,
        sweep=(2,),
        probe_images=400,
    ),
    "small": Size(
        short_run(RECIPES["cifar10-projectors"], epochs=1, warmup=0.25),
        seeds=3,
        sweep=(4, 11, 64),
        probe_images=10_000,
        rates=(1e-3, 3e-3, 1e-2, 3e-2),
        runs="runs/directclr",
    ),
    "paper": Size(
        RECIPES["imagenet-simclr"], seeds=3, sweep=(16, 64, 128, 720, 1440), probe_images=0, runs="runs/directclr"
    ),
}


def with_projector(recipe: Recipe, name: str) -> Recipe:
    """Return a two-layer recipe with another projector, one of `LABELS`; 'DirectCLR' changes the objective instead, as
    in the authors' code.

    >>> with_projector(SIZES["paper"].recipe, "linear").projector.widths
    (128,)
    """
    P = recipe.projector
    if name == "DirectCLR":
        hyper = {"d0": P.d0, "temperature": recipe.hyper["temperature"]}
        return replace(with_objective(recipe, "directclr"), hyper=hyper)
    linear = {"widths": P.widths[-1:], "bias": False, "output_batchnorm": False}
    changes: dict[str, dict[str, Any]] = {"two layers": {}, "none": {"widths": ()}, "linear": linear}
    return replace(recipe, projector=replace(P, **changes.get(name, {"kind": name})))


def with_d0(recipe: Recipe, d0: int) -> Recipe:
    """Return a recipe with an objective that sees only the first d0 dimensions of r.

    For SimCLR this equals the sub-vector exactly, so the run is shared with the fixed low-rank diagonal projector.
    """
    return with_projector(replace(recipe, projector=replace(recipe.projector, d0=d0)), "low-rank-diagonal")


def run_study(size: Size, recipes: Mapping[str, Recipe], *, data: str | None, seed: int) -> dict[str, list[Rows]]:
    """Train and evaluate each recipe, at the best of the size's rates, with `size.seeds` seeds from `seed` on; return
    name → one result of `evaluate_run` per seed. A recipe of rate zero keeps it.
    """
    evaluate = partial(evaluate_run, probe_images=size.probe_images)
    training = Training(
        evaluate, str(size.probe_images), lambda run: evaluate(run)["accuracy"]["whole"], size.seeds, size.runs
    )
    candidates = {name: at_rates(x, size.rates if x.optimizer.lr else ()) for name, x in recipes.items()}
    return train(candidates, training, data=data, seed=seed)


def run_projectors(size: Size, names: Iterable[str], *, data: str | None, seed: int) -> dict[str, list[Rows]]:
    """Return `run_study` of the size's recipe with each of these projectors."""
    return run_study(size, {name: with_projector(size.recipe, name) for name in names}, data=data, seed=seed)


def evaluate_run(run: Run, *, probe_images: int) -> Rows:
    """Return the evaluation of a finished run, with a probe on `probe_images` labelled training images (0: all).

    Returns:
        "accuracy": of a linear probe on all of r ("whole"), on r[:d0] ("first"), r[d0:] ("rest") and r[d0:2·d0]
        ("next"), which has the size of the first; "representation" and "embedding": their spectra on the held-out
        images; "ranks": ranks of the gradient, from `gradient_ranks`; "rate": the learning rate.
    """
    model, recipe = load_run(run.path), run.recipe
    splits = split(recipe.data, recipe.split_seed)
    permutation = torch.randperm(len(splits.train), generator=torch.Generator().manual_seed(0))
    train_images = splits.train.subset(permutation[: probe_images or None].sort().values.numpy())
    device = Device(batch_size=512)
    features = [extract_features(model.backbone, x, model.preprocess, device) for x in (train_images, splits.test)]
    d0, (R, R_test) = recipe.hyper.get("d0", recipe.projector.d0), (each.X for each in features)
    parts = {"whole": slice(None), "first": slice(d0), "rest": slice(d0, None), "next": slice(d0, 2 * d0)}
    scores = {}
    for name, part in parts.items():
        X, X_test = standardize(R[:, part], R_test[:, part])
        scores[name] = accuracy(linear_probe(X, features[0].labels, X_test).logits, features[1].labels)
    assert model.projector is not None  # a run always has one, maybe an empty one
    with torch.inference_mode():
        Z = model.projector.cpu()(R_test)
    return {
        "accuracy": scores,
        "representation": summarize_spectrum(R_test),
        "embedding": summarize_spectrum(Z),
        "ranks": measure_gradient_ranks(run, recipe, splits.train),
        "rate": recipe.optimizer.lr,
    }


def summarize_spectrum(Z: Float[Tensor, "n D"]) -> Rows:
    """Return at most `MAX_EIGENVALUES` eigenvalues of the centred covariance, and metrics of all of them."""
    spectrum = Spectrum.from_embeddings(Z)
    index = torch.linspace(1, spectrum.D, min(spectrum.D, MAX_EIGENVALUES)).round().long()
    return {
        "index": index.tolist(),
        "eigenvalues": spectrum.eigenvalues[index - 1].tolist(),
        "effective_rank": spectrum.effective_rank(),
        "collapsed_dimensions": spectrum.collapsed_dimensions(),
        "D": spectrum.D,
    }


def measure_gradient_ranks(run: Run, recipe: Recipe, images: Images) -> dict[str, tuple[int, int]]:
    """Return (rank, channels) of the loss gradient at r and at the last block's input, after training, on one batch of
    new views.
    """
    parts = assemble(recipe)
    parts.method.load_state_dict(run.checkpoint().weights())
    n = min(GRADIENT_IMAGES, len(images))
    pixels = load_images(
        images.subset(torch.arange(n).numpy()), channels=recipe.data.channels, size=parts.preprocess.size
    ).pixels
    views = parts.views(pixels, parts.views.make_params(recipe.seed, 0, n))
    return gradient_ranks(parts.method.double(), [view.double() for view in views])
