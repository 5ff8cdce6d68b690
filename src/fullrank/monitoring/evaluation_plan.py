"""The plan of a run's spectrum evaluations: their number of images and their interval, from the costs of evaluations and training steps."""

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

# Share of a run's cost that its spectrum evaluations may add. Measured times exceed counted costs by up to a quarter
# (benchmarks/results/spectrum_evaluation.json), so that 1.5 % stays under 2 % of the time.
COST_SHARE = 0.015
SAMPLES_PER_DIMENSION = (10, 5, 2)  # ten images per dimension estimate a spectrum well, two resolve it
PREFERRED_EVALUATIONS = 50  # if fewer are affordable, fewer images are used
MIN_EVALUATIONS = 20  # at any cost
MAX_EVALUATIONS = 100  # a slider cannot show more
MATMUL_COST = 4.0  # a multiplication and an addition, in float64, which takes twice as long
EIGVALS_COST = 1.5 * MATMUL_COST  # eigenvalues of a matrix, in units of its product with another


@dataclass(frozen=True)
class RunCost:
    """The costs of a run, in floating-point operations at the speed of 32 bits."""

    step: float
    """Cost of a training step on the process that evaluates."""
    image: float
    """Cost of a forward pass of one image."""
    dimensions: tuple[int, ...]
    """Dimensions of the embeddings whose spectra are evaluated."""

    def evaluation(self, n: int) -> float:
        """Return the cost of a spectrum evaluation on n images: forward passes, Gram or covariance matrix (the smaller), eigenvalues."""
        smaller = ((D, min(n, D)) for D in self.dimensions)
        return n * self.image + sum(MATMUL_COST * n * D * m + EIGVALS_COST * m**3 for D, m in smaller)

    def affordable(self, steps: int, n: int) -> float:
        """Return how many spectrum evaluations on n images cost 1.5 % of a run of `steps` steps."""
        return COST_SHARE * steps * self.step / self.evaluation(n)


@dataclass(frozen=True)
class EvaluationPlan:
    """The plan of a run's spectrum evaluations."""

    samples: int
    """Held-out images per evaluation."""
    every: int
    """Steps between two evaluations."""


def plan_evaluations(cost: RunCost, *, steps: int, available: int, samples: int = 0, every: int = 0) -> EvaluationPlan:
    """Return the plan of a run's spectrum evaluations.

    For 1.5 % of the run, ⌊0.015 · steps · step / evaluation(n)⌋ evaluations on n images are affordable. n is the first of 10 D, 5 D and
    2 D for which this is at least 50, or else 2 D; D is the largest of the dimensions. One evaluation precedes the first step and one
    follows the last, so that an interval of i steps makes 1 + ⌈steps / i⌉ evaluations.

    Args:
        cost: of a step and an evaluation.
        steps: training steps of the run.
        available: held-out images that exist, or that fit into memory.
        samples: images per evaluation; 0: chosen here.
        every: interval; 0: chosen here.

    Returns:
        The smallest interval whose evaluations are affordable and at most 100. If these are fewer than 20, the interval is
        ⌊steps / 19⌋ or 1, which makes 20 or a few more.

    >>> plan_evaluations(RunCost(step=6e9, image=1e6, dimensions=(128,)), steps=20_000, available=10_000)
    EvaluationPlan(samples=1280, every=...)
    """
    D = max(cost.dimensions)
    counts = [samples] if samples else [min(k * D, available) for k in SAMPLES_PER_DIMENSION]
    n = next((n for n in counts if cost.affordable(steps, n) >= PREFERRED_EVALUATIONS), counts[-1])
    return EvaluationPlan(samples=n, every=every or evaluation_interval(steps, cost.affordable(steps, n)))


def evaluation_interval(steps: int, affordable: float) -> int:
    """Return the steps between two evaluations, given how many evaluations are affordable."""
    every = math.ceil(steps / max(min(int(affordable), MAX_EVALUATIONS) - 1, 1))
    return every if 1 + math.ceil(steps / every) >= MIN_EVALUATIONS else max(steps // (MIN_EVALUATIONS - 1), 1)


def count_cost(method: Method, recipe: Recipe) -> RunCost:
    """Count the cost of a run's steps and evaluations with fake tensors.

    A step is a forward and a backward pass (twice a forward) over one process's views. EMA networks, predictors and the objective are
    not counted. The first process evaluates for all while the others wait.
    """
    sizes, D_b = view_sizes(recipe), feature_dim(method.backbone)
    images = {size: forward_flops(method, recipe.data.channels, size, recipe.batch_size) for size in sizes}
    return RunCost(
        step=3 * sum(V * images[size] for size, V in sizes.items()) * recipe.batch_size / world_size(),
        image=images[build_preprocess(recipe).size],
        dimensions=(D_b, recipe.projector.dimensions(D_b)),
    )


def forward_flops(method: Method, channels: int, side: int, batch_size: int) -> float:
    """Return the operations that pass one image of a batch through backbone and projector; work that is done once per batch is shared."""
    images = (batch_size, channels, side, side)
    with restore_modes(method), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), FlopCounterMode(display=False) as counter:
        method.eval()  # in training mode BatchNorm would count batches
        method.projector(method.backbone(torch.empty(images)))
    return counter.get_total_flops() / batch_size
