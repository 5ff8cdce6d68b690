"""Plan the spectrum evaluations of a run: choose the number of images and the interval from the costs of evaluations and steps."""

import math
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from fullrank.distributed import world_size
from fullrank.evaluation.frozen import restore_modes
from fullrank.methods import Method, feature_dim
from fullrank.recipes import Recipe, build_preprocess
from fullrank.recipes.recipe import view_sizes

# Maximum cost of all spectrum evaluations, as a share of the cost of training. Measured times exceed counted costs by up to a quarter
# (benchmarks/results/spectrum_evaluation.json), so 1.5 % of the cost stays below 2 % of the time.
COST_SHARE = 0.015
SAMPLES_PER_DIMENSION = (10, 5, 2)  # ten images per dimension estimate a spectrum well; two are the minimum
PREFERRED_EVALUATIONS = 50  # if fewer evaluations are affordable, each uses fewer images
MIN_EVALUATIONS = 20  # a run has at least so many evaluations, also if they cost more than COST_SHARE
MAX_EVALUATIONS = 100  # the slider of the report shows at most so many
MATMUL_COST = 4.0  # operations per multiply-add: 2, doubled because float64 takes twice as long
EIGVALS_COST = 1.5 * MATMUL_COST  # the eigenvalues of an (m, m) matrix cost as much as 1.5 matrix products


@dataclass(frozen=True)
class RunCost:
    """The costs of a run, in float32 operations."""

    step: float
    """Cost of a training step on the process that evaluates."""
    image: float
    """Cost of a forward pass of one image."""
    dimensions: tuple[int, ...]
    """Dimensions of the evaluated spectra: representation and embedding."""
    views: float = 0.0
    """Cost of a forward pass of the views of a batch of held-out images, for the held-out loss."""

    def evaluation(self, n: int) -> float:
        """Return the cost of a spectrum evaluation on n images: forward passes, the smaller of Gram and covariance matrix, eigenvalues, and
        the held-out loss.
        """
        smaller = ((D, min(n, D)) for D in self.dimensions)
        return self.views + n * self.image + sum(MATMUL_COST * n * D * m + EIGVALS_COST * m**3 for D, m in smaller)

    def affordable(self, steps: int, n: int) -> float:
        """Return the number of spectrum evaluations on n images that together cost 1.5 % of `steps` training steps."""
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

    1.5 % of the run's cost pays for ⌊0.015 · steps · step / evaluation(n)⌋ evaluations on n images. n is the first of 10 D, 5 D and 2 D
    for which this number is at least 50, or else 2 D; D is the largest of the dimensions. There is an evaluation before the first step
    and after the last step, so an interval of i steps gives 1 + ⌈steps / i⌉ evaluations.

    Args:
        cost: the costs of a step and of an evaluation.
        steps: number of training steps.
        available: number of held-out images, limited by memory.
        samples: images per evaluation; 0: computed as above.
        every: interval in steps; 0: computed as below.

    Returns:
        The smallest interval with at most 100 and only affordable evaluations. If there are fewer than 20 evaluations, the interval is
        max(⌊steps / 19⌋, 1) instead, which gives 20 or a few more.

    >>> plan_evaluations(RunCost(step=6e9, image=1e6, dimensions=(128,)), steps=20_000, available=10_000)
    EvaluationPlan(samples=1280, every=...)
    """
    D = max(cost.dimensions)
    counts = [samples] if samples else [min(k * D, available) for k in SAMPLES_PER_DIMENSION]
    n = next((n for n in counts if cost.affordable(steps, n) >= PREFERRED_EVALUATIONS), counts[-1])
    return EvaluationPlan(samples=n, every=every or evaluation_interval(steps, cost.affordable(steps, n)))


def evaluation_interval(steps: int, affordable: float) -> int:
    """Return the steps between two evaluations, given the number of affordable evaluations."""
    every = math.ceil(steps / max(min(int(affordable), MAX_EVALUATIONS) - 1, 1))
    return every if 1 + math.ceil(steps / every) >= MIN_EVALUATIONS else max(steps // (MIN_EVALUATIONS - 1), 1)


def count_cost(method: Method, recipe: Recipe) -> RunCost:
    """Count the cost of a run's steps and evaluations with fake tensors.

    A step is a forward and a backward pass (which costs two forward passes) over the views of one process. EMA networks, predictors and
    the objective are not counted. Only the first process evaluates spectra; the others wait.
    """
    sizes, D_b = view_sizes(recipe), feature_dim(method.backbone)
    images = {size: forward_flops(method, recipe.data.channels, size, recipe.batch_size) for size in sizes}
    batch = sum(V * images[size] for size, V in sizes.items()) * recipe.batch_size
    return RunCost(
        step=3 * batch / world_size(),
        image=images[build_preprocess(recipe).size],
        dimensions=(D_b, recipe.projector.dimensions(D_b)),
        views=batch,
    )


def forward_flops(method: Method, channels: int, side: int, batch_size: int) -> float:
    """Return the operations per image of a forward pass through backbone and projector; work per batch is divided by the batch size."""
    images = (batch_size, channels, side, side)
    with restore_modes(method), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), FlopCounterMode(display=False) as counter:
        method.eval()  # in training mode BatchNorm would count batches
        method.projector(method.backbone(torch.empty(images)))
    return counter.get_total_flops() / batch_size
