"""The plan of the spectrum watch: at how many images it looks, and how often, from what looks and steps cost, before the first step."""

import math
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from fullrank.distributed import world_size
from fullrank.evaluation.frozen import restore_modes
from fullrank.methods import Method, feature_dim
from fullrank.recipes import Recipe, build_preprocess
from fullrank.recipes.assemble import view_sizes

# Share of a run's work that the watch may cost. The clock finds up to a quarter more than the count does (benchmarks/results/watch.json),
# so that 1.5 % stays under 2 % of the time.
SHARE = 0.015
PER_DIMENSION = (10, 5, 2)  # images: ten estimate a spectrum well, two resolve it; the most that leave ENOUGH looks
ENOUGH = 50  # looks, for fewer of which images are spared
AT_LEAST = 20  # looks there are, whatever the cost
AT_MOST = 100  # more than a slider can use
PRODUCT = 4.0  # of a matrix product, a multiplication and its addition, in float64, which takes twice as long
EIGENVALUES = 1.5 * PRODUCT  # of a matrix, in units of its product with another


@dataclass(frozen=True)
class Work:
    """What a run does, in floating-point operations at the speed of 32 bits."""

    step: float
    """Of a training step, on the process that watches."""
    image: float
    """To pass one image forward."""
    dimensions: tuple[int, ...]
    """Of the embeddings whose spectra are taken."""

    def look(self, n: int) -> float:
        """Work of a look at n images: their forward pass, and of each embedding the smaller of Gram and covariance, with eigenvalues."""
        smaller = ((D, min(n, D)) for D in self.dimensions)
        return n * self.image + sum(PRODUCT * n * D * m + EIGENVALUES * m**3 for D, m in smaller)


@dataclass(frozen=True)
class Plan:
    """What the watch is going to do."""

    samples: int
    """Held-out images of a look."""
    every: int
    """Steps between two looks."""


def plan(work: Work, *, steps: int, most: int, samples: int = 0, every: int = 0) -> Plan:
    """Return the plan of a run's watch.

    1.5 % of the run buys ⌊0.015 · steps · step / look(n)⌋ looks at n images. Of n = 10 D, 5 D and 2 D, D the largest of the dimensions,
    the first is taken of which it buys 50, or else the last. With one look before the first step and one after the last, an interval
    of i steps makes 1 + ⌈steps / i⌉ of them.

    Args:
        work: of a step and a look.
        steps: of the run.
        most: held-out images that there are, or that memory allows.
        samples: images of a look, where they are given.
        every: interval, where it is given.

    Returns:
        The smallest interval whose looks fit into 1.5 % and are at most 100; where these are fewer than 20, ⌊steps / 19⌋ or 1, for
        20 or some more.

    >>> plan(Work(step=6e9, image=1e6, dimensions=(128,)), steps=20_000, most=10_000)
    Plan(samples=1280, every=...)
    """
    D = max(work.dimensions)
    counts = [samples] if samples else [min(k * D, most) for k in PER_DIMENSION]
    n = next((n for n in counts if affordable(work, steps, n) >= ENOUGH), counts[-1])
    return Plan(samples=n, every=every or interval(steps, affordable(work, steps, n)))


def affordable(work: Work, steps: int, n: int) -> float:
    """How many looks at n images 1.5 % of a run buys."""
    return SHARE * steps * work.step / work.look(n)


def interval(steps: int, looks: float) -> int:
    """Steps between two looks, of which so many are affordable."""
    every = math.ceil(steps / max(min(int(looks), AT_MOST) - 1, 1))
    return every if 1 + math.ceil(steps / every) >= AT_LEAST else max(steps // (AT_LEAST - 1), 1)


def work_of(method: Method, recipe: Recipe) -> Work:
    """Count the work of a run's steps and looks, on shapes alone.

    A step is a forward and a backward pass (twice a forward) over the views that fall to one process; what moves by momentum, predictors
    and the objective are left out. The first process watches for all, while the others wait.
    """
    sizes, D_b = view_sizes(recipe), feature_dim(method.backbone)
    images = {size: forward(method, recipe.data.channels, size, recipe.batch) for size in sizes}
    return Work(
        step=3 * sum(V * images[size] for size, V in sizes.items()) * recipe.batch / world_size(),
        image=images[build_preprocess(recipe).size],
        dimensions=(D_b, recipe.projector.dimensions(D_b)),
    )


def forward(method: Method, channels: int, side: int, batch: int) -> float:
    """Floating-point operations that pass an image through backbone and projector, with its share of what is done once a batch."""
    images = (batch, channels, side, side)
    with restore_modes(method), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), FlopCounterMode(display=False) as counter:
        method.eval()  # so that BatchNorm counts nothing
        method.projector(method.backbone(torch.empty(images)))
    return counter.get_total_flops() / batch
