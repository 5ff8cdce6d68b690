"""The runs behind the projector study: one recipe behind one projector or another, a run a seed, all judged in the same way.

The paper trains each once on ImageNet; size paper takes three seeds, as one alone resolves nothing (`paired`). Size small trains the
recipe `cifar10-projectors` for an epoch, three seeds each, with D_b = 128 and d0 = 22 for the paper's 2048 and 360. Figures share runs:
with `Size.runs` a run is kept in that folder under its fingerprint, and found again.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor

from fullrank.evaluation import Features, extract_features, linear_probe, standardize
from fullrank.evaluation.features import select_dimensions
from fullrank.images import Images, load, train_and_test
from fullrank.loading import load_run
from fullrank.methods import ProjectorConfig, gradient_ranks
from fullrank.pretraining import pretrain
from fullrank.recipes import RECIPES, Recipe, assemble, with_objective
from fullrank.reproduce.figure import Rows
from fullrank.run import Run, read_json, write_json
from fullrank.spectrum import Spectrum
from fullrank.training import ScheduleConfig

RANKED = 192  # images of the batch whose gradient's rank is taken: two views of them are more than the paper's d0 = 360
SHOWN = 256  # eigenvalues of a spectrum that are kept, at most
IMAGES = "CIFAR-10 at size small, ImageNet as in the paper"

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
"""The projectors that the paper compares, and DirectCLR."""


@dataclass(frozen=True)
class Size:
    """What is trained, how often, and how it is judged."""

    recipe: Recipe
    """With the projector of two layers; its d0 is the rank of those of low rank, and the dimensions that DirectCLR sees."""
    seeds: int
    sweep: tuple[int, ...]
    """Values of d0 in Fig. 12, beside the recipe's own and D_b."""
    images: int
    """Labelled training images of the linear probe, drawn at random; 0: all."""
    runs: str = ""
    """Folder in which runs are kept and found again, by other figures too; empty: they are not kept."""


def shortened(recipe: Recipe, *, epochs: int, warmup: float) -> Recipe:
    """The recipe without what only a longer run has a use for."""
    spectrum = replace(recipe.spectrum, every=10**9)  # the spectrum of the end is taken here, from all held-out images
    return replace(recipe, epochs=epochs, schedule=ScheduleConfig(warmup=warmup), checkpoints=1, spectrum=spectrum)


SIZES = {
    "smoke": Size(
        replace(
            shortened(RECIPES["digits"], epochs=1, warmup=0.25),
            objective="simclr",
            hyper={"temperature": 0.1},
            backbone=replace(RECIPES["digits"].backbone, arguments={"channels": [8, 8, 8, 16], "layers": [1, 1, 1, 2], "output_stride": 8}),
            projector=ProjectorConfig(widths=(16, 8), d0=4),
        ),
        seeds=1,
        sweep=(2,),
        images=400,
    ),
    "small": Size(
        shortened(RECIPES["cifar10-projectors"], epochs=1, warmup=0.25), seeds=3, sweep=(4, 11, 64), images=10_000, runs="runs/directclr"
    ),
    "paper": Size(RECIPES["imagenet-simclr"], seeds=3, sweep=(16, 64, 128, 720, 1440), images=0, runs="runs/directclr"),
}


def with_projector(recipe: Recipe, name: str) -> Recipe:
    """Return a recipe of two layers with another projector, one of `LABELS`; 'DirectCLR' has its own objective, as released.

    >>> with_projector(SIZES["paper"].recipe, "linear").projector.widths
    (128,)
    """
    P = recipe.projector
    match name:
        case "two layers":
            return recipe
        case "linear":
            projector = replace(P, widths=P.widths[-1:], bias=False, output_batchnorm=False)
        case "none":
            projector = replace(P, widths=())
        case "DirectCLR":
            return replace(with_objective(recipe, "directclr"), hyper={"d0": P.d0, "temperature": recipe.hyper["temperature"]})
        case kind:
            projector = replace(P, kind=kind)
    return replace(recipe, projector=projector)


def with_d0(recipe: Recipe, d0: int) -> Recipe:
    """Return a recipe whose objective sees the first d0 dimensions of r.

    To SimCLR this is the sub-vector to the last digit, and shares its run with the fixed low-rank diagonal projector.
    """
    return with_projector(replace(recipe, projector=replace(recipe.projector, d0=d0)), "low-rank-diagonal")


def study(size: Size, recipes: Mapping[str, Recipe], *, data: str | None, seed: int) -> dict[str, list[Rows]]:
    """Train each recipe with the seeds from `seed` on, and judge the runs: name → a dict a seed, as `judge` returns them."""
    with TemporaryDirectory() as scratch:
        folder = Path(size.runs or scratch)
        return {
            name: [judged(replace(on(recipe, data), seed=seed + k), folder, images=size.images) for k in range(size.seeds)]
            for name, recipe in recipes.items()
        }


def on(recipe: Recipe, data: str | None) -> Recipe:
    """Return the recipe with another SOURCE of images; None: its own."""
    return recipe if data is None else replace(recipe, data=replace(recipe.data, source=data))


def judged(recipe: Recipe, folder: Path, *, images: int) -> Rows:
    """Return what the run of a recipe is worth; in `folder` the run is found, continued or begun."""
    path = folder / f"{recipe.name}-{recipe.fingerprint}"
    verdict = path / f"judged-{images}.json"
    if not verdict.exists():
        start = time.process_time()
        begun = (path / "recipe.json").exists()
        quiet = Console(quiet=True)
        run = pretrain(resume=path, console=quiet) if begun else pretrain(recipe, out=path, console=quiet)
        write_json(verdict, judge(run, images=images) | {"seconds": time.process_time() - start})
    return read_json(verdict)


def judge(run: Run, *, images: int) -> Rows:
    """Return what a run is worth.

    Args:
        run: at its end.
        images: labelled training images of the probe.

    Returns:
        "accuracy": of a linear probe on the whole of r, on r[:d0] ("first"), r[d0:] ("rest") and r[d0:2·d0] ("next"), which is of the size
        of the first; "representation" and "embedding": their spectra on the held-out images; "ranks": of the gradient, as
        `gradient_ranks` counts them; "losses": the first five that were logged; "seconds": of the processor, for training and judging.
    """
    model, recipe = load_run(run.path), run.recipe
    splits = train_and_test(recipe.data.source, train=recipe.data.train, test=recipe.data.test, seed=recipe.seed)
    drawn = torch.randperm(len(splits.train), generator=torch.Generator().manual_seed(0))[: images or None].sort().values.numpy()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, test = (
        extract_features(model.backbone, part, model.preprocess, device=device) for part in (splits.train.subset(drawn), splits.test)
    )
    d0 = recipe.hyper.get("d0", recipe.projector.d0)
    parts = {"whole": slice(None), "first": slice(d0), "rest": slice(d0, None), "next": slice(d0, min(2 * d0, train.X.shape[1]))}
    assert model.projector is not None  # a run has one, if an empty one
    with torch.inference_mode():
        Z = model.projector.cpu()(test.X)
    return {
        "accuracy": {name: accuracy(select_dimensions(train, part), select_dimensions(test, part)) for name, part in parts.items()},
        "representation": spectrum(test.X),
        "embedding": spectrum(Z),
        "ranks": ranks(run, recipe, splits.train),
        "losses": [row.loss for row in run.metrics.train[:5]],
    }


def accuracy(train: Features, test: Features) -> float:
    """Of a linear probe on standardised features."""
    X, X_test = standardize(train.X, test.X)
    return linear_probe(X, train.labels, X_test, test.labels).accuracy


def spectrum(Z: Float[Tensor, "n D"]) -> Rows:
    """Eigenvalues of the centred covariance, thinned out where there are many, and what sums all of them up."""
    found = Spectrum.from_embeddings(Z)
    index = torch.linspace(1, found.D, min(found.D, SHOWN)).round().long()
    return {
        "index": index.tolist(),
        "eigenvalues": found.eigenvalues[index - 1].tolist(),
        "effective_rank": found.effective_rank(),
        "dead": found.collapsed_dimensions(),
        "D": found.D,
    }


def ranks(run: Run, recipe: Recipe, images: Images) -> dict[str, tuple[int, int]]:
    """(rank, channels) of the loss's gradient at r and at the last block's input, after training, on one batch of new views."""
    parts = assemble(recipe)
    parts.method.load_state_dict(run.checkpoint().weights())
    n = min(RANKED, len(images))
    pixels = load(images.subset(torch.arange(n).numpy()), channels=recipe.data.channels, size=parts.preprocess.size).pixels
    views = parts.views(pixels, parts.views.draw(recipe.seed, 0, n))
    return gradient_ranks(parts.method.double(), [view.double() for view in views])


def per_seed(runs: list[Rows], what: str, part: str | int) -> list[float]:
    """Return one number of each run.

    >>> per_seed([{"accuracy": {"whole": 0.5}}], "accuracy", "whole")
    [0.5]
    """
    return [run[what][part] for run in runs]
