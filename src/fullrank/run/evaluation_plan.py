"""Plan the spectrum evaluations of a run: choose the number of images and the interval from the costs of evaluations
and steps.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from fullrank.distributed import world_size
from fullrank.models.features import restore_modes
from fullrank.methods import Method, feature_dim
from fullrank.recipes import Recipe, build_preprocess
from fullrank.recipes.recipe import view_sizes

# Maximum cost of all spectrum evaluations, as a share of the cost of training. Measured times exceed counted costs by
# up to a quarter (benchmarks/results/spectrum_evaluation.json), so 1.5 % of the cost stays below 2 % of the time.
COST_SHARE = 0.015
SAMPLES_PER_DIMENSION = (10, 5, 2)  # ten images per dimension estimate a spectrum well; two are the minimum
PREFERRED_EVALUATIONS = 50  # if fewer evaluations are affordable, each uses fewer images
MIN_EVALUATIONS = 20  # a short run uses fewer than 2 D images for so many evaluations
# An eigenvalue that is estimated from n images has a relative standard error of √(2/n), 18 % for 64 images, and n
# images show at most n − 1 directions. A run that cannot afford 20 evaluations of so many images has fewer evaluations,
# not evaluations of fewer images.
MIN_SAMPLES = 64
LOSS_SHARE = 0.6  # share of the cost that a short run spends on the held-out loss, which needs a whole batch of views
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

    def spectra(self, n: int) -> float:
        """Return the cost of the spectra of n images: forward passes, the smaller of Gram and covariance matrix, and
        eigenvalues.
        """
        smaller = ((D, min(n, D)) for D in self.dimensions)
        return n * self.image + sum(MATMUL_COST * n * D * m + EIGVALS_COST * m**3 for D, m in smaller)

    def evaluation(self, n: int) -> float:
        """Return the cost of a spectrum evaluation on n images with the held-out loss."""
        return self.views + self.spectra(n)

    def budget(self, steps: int) -> float:
        """Return the cost of all spectrum evaluations of a run: 1.5 % of the cost of its steps."""
        return COST_SHARE * steps * self.step

    def affordable(self, steps: int, n: int) -> float:
        """Return the number of spectrum evaluations on n images, with the held-out loss, that the budget pays for."""
        return self.budget(steps) / self.evaluation(n)


@dataclass(frozen=True)
class EvaluationPlan:
    """The plan of a run's spectrum evaluations."""

    samples: int
    """Held-out images per evaluation."""
    every: int
    """Steps between two evaluations."""
    loss_every: int = 1
    """Evaluations between two evaluations with the held-out loss; the last evaluation of a run has one."""

    def has_loss(self, step: int, total: int) -> bool:
        """Return whether the evaluation after `step` of `total` steps includes the held-out loss; that before the first
        step never does.

        >>> [step for step in range(0, 50, 10) if EvaluationPlan(samples=64, every=10, loss_every=2).has_loss(step, 40)]
        [20, 40]
        """
        return step > 0 and math.ceil((total - step) / self.every) % self.loss_every == 0


def plan_evaluations(cost: RunCost, *, steps: int, available: int, samples: int = 0, every: int = 0) -> EvaluationPlan:
    """Return the plan of a run's spectrum evaluations. All evaluations together cost at most 1.5 % of the run, its
    budget.

    The budget pays for budget / evaluation(n) evaluations on n images. n is the first of 10 D, 5 D and 2 D with at
    least 50 evaluations, or else 2 D with at least 20; D is the largest of the dimensions. There is an evaluation
    before the first step and after the last step, so an interval of i steps gives 1 + ⌈steps / i⌉ evaluations.

    A shorter run has 20 evaluations on as many images as the budget pays for, at least 64, and the held-out loss in a
    part of them, for at most 60 % of the budget. If the budget does not pay for 20 evaluations on 64 images, there are
    fewer: at least one before the first step and one, with the loss, after the last. Only these can cost more than the
    budget.

    Args:
        cost: the costs of a step and of an evaluation.
        steps: number of training steps.
        available: number of held-out images, limited by memory.
        samples: images per evaluation; 0: computed as above. A run with a given number has at least 20 evaluations,
            whatever they cost.
        every: interval in steps; 0: the smallest with at most 100 and only affordable evaluations.

    >>> plan_evaluations(RunCost(step=6e9, image=1e6, dimensions=(128,)), steps=20_000, available=10_000)
    EvaluationPlan(samples=1280, every=..., loss_every=1)
    >>> plan_evaluations(RunCost(step=768.0, image=1.0, dimensions=(), views=256.0), steps=400, available=10_000)
    EvaluationPlan(samples=102, every=22, loss_every=2)
    """
    if samples:
        every = every or min(
            evaluation_interval(steps, cost.affordable(steps, samples)), max(steps // (MIN_EVALUATIONS - 1), 1)
        )
        return EvaluationPlan(samples=samples, every=every)
    D = max(cost.dimensions, default=available)
    counts = [min(k * D, available) for k in SAMPLES_PER_DIMENSION]
    n = next((n for n in counts if cost.affordable(steps, n) >= PREFERRED_EVALUATIONS), counts[-1])
    if (affordable := cost.affordable(steps, n)) >= MIN_EVALUATIONS:
        return EvaluationPlan(samples=n, every=every or evaluation_interval(steps, affordable))
    losses = MIN_EVALUATIONS - 1  # the first evaluation has no loss
    if cost.views:
        affordable = max(int(min(LOSS_SHARE * cost.budget(steps) / cost.views, losses)), 1)
        losses = math.ceil(losses / math.ceil(losses / affordable))  # a loss in every evaluation, in every second …
    left = cost.budget(steps) - losses * cost.views
    n = max(min(n, MIN_SAMPLES), bisect_right(range(1, n + 1), left / MIN_EVALUATIONS, key=cost.spectra))
    if every:  # the user decides what the evaluations cost
        return EvaluationPlan(samples=n, every=every)
    every = evaluation_interval(steps, left / cost.spectra(n))
    return EvaluationPlan(samples=n, every=every, loss_every=math.ceil(math.ceil(steps / every) / losses))


def evaluation_interval(steps: int, affordable: float) -> int:
    """Return the smallest interval of at most `affordable` evaluations of a run, and at most 100; at least the first
    and the last.

    >>> [evaluation_interval(390, affordable) for affordable in (0.5, 20.9, 1000.0)]
    [390, 21, 4]
    """
    return math.ceil(steps / max(min(int(affordable + 1e-9), MAX_EVALUATIONS) - 1, 1))


def count_cost(method: Method, recipe: Recipe) -> RunCost:
    """Count the cost of a run's steps and evaluations with fake tensors.

    A step is a forward and a backward pass (which costs two forward passes) over the views of one process. EMA
    networks, predictors and the objective are not counted. Only the first process evaluates spectra; the others wait.
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
    """Return the operations per image of a forward pass through backbone and projector; work per batch is divided by
    the batch size.
    """
    images = (batch_size, channels, side, side)
    with (
        restore_modes(method),
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.no_grad(),
        FlopCounterMode(display=False) as counter,
    ):
        method.eval()  # in training mode BatchNorm would count batches
        method.projector(method.backbone(torch.empty(images)))
    return counter.get_total_flops() / batch_size
