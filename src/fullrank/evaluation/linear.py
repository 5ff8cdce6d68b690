"""Linear probes: classifiers of frozen features, by a full-batch solver, or by SGD or Adam as in the papers.

The result is that of the last iteration, never the best result on the test set. Choices are made on held-out tenths of
the training features. `standardize` standardises features.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from fullrank.errors import UserError
from fullrank.evaluation.bootstrap import MeanOfClasses, average_precision, units
from fullrank.evaluation.logistic import Logistic, LogisticRegression
from fullrank.evaluation.outcomes import Prediction
from fullrank.evaluation.protocol import AdamProtocol, FewShotProtocol, LinearProtocol, SgdProtocol
from fullrank.images.train_test import group_images

# The group of each training image, such as its patient, -1 for none.
Groups = Int64[Tensor, " n"] | None
# With fewer labels, a single tenth of them is too few to choose a penalty: its choice would depend on the seed.
FEW_LABELS = 1000


def linear_probe(
    X: Float[Tensor, "n D"],
    y: Tensor,
    X_test: Float[Tensor, "m D"],
    *,
    penalties: Sequence[float] = LinearProtocol.penalties,
    iterations: int = LinearProtocol.iterations,
    groups: Groups = None,
    seed: int = 0,
) -> Prediction:
    """Fit a logistic regression by L-BFGS. Held-out training features select the L2 penalty.

        min_W,b  (1/n) Σᵢ −log softmax(W xᵢ + b)[yᵢ] + ½ penalty ‖W‖²

    For two classes, the solver fits and penalises only the difference of their weights. For multi-label images, it
    fits one class against the others for each class, with one penalty for all of them.

    Args:
        X: standardised training features.
        y: their labels (n,), or 1 for the classes that an image has and 0 for the others (n, K).
        X_test: test features, standardised in the same way.
        penalties: candidates in descending order; each fit starts from the previous solution. The chosen one has the
            highest accuracy (or mean average precision) on a held-out tenth; with fewer than 1000 labels or groups, on
            all tenths in turn. For ties, it is the largest.
        iterations: maximum number of iterations per fit; few fits need so many.
        groups: the group of each training image, such as its patient, -1 for none; no tenth divides a group.
        seed: seed of the choice of the held-out tenths.

    Raises:
        UserError: the labels do not divide the images, or a feature is not finite.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> linear_probe(X, y, X).logits.argmax(1).tolist()
    [0, 1]
    >>> linear_probe(torch.eye(3), torch.tensor([[0, 1], [1, 1], [1, 0]]), torch.eye(3)).logits.sign().tolist()
    [[-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]]
    """
    check_classes(y)
    problem = LogisticRegression(X, y)
    penalty, start = _choose_penalty(problem, y, penalties, iterations=iterations, groups=groups, seed=seed)
    model = problem.fit(penalty, start=start, iterations=iterations)
    missing = int((y.sum(0) == 0).sum()) if y.ndim == 2 else 0
    note = f"{missing} of {y.shape[-1]} classes have no training image, so their scores are equal for all test images"
    return Prediction(model.logits(X_test), {"penalty": penalty}, note if missing else "")


def check_classes(y: Tensor) -> None:
    """Check that the labels divide the images: two or more classes, or a class that some images have and others lack.

    Raises:
        UserError: they do not.
    """
    if y.ndim == 1 and (classes := len(y.unique())) < 2:
        raise UserError(f"a linear probe needs labels of two or more classes, got {classes}; label more images")
    if y.ndim == 2 and not ((y == 1).any(0) & (y == 0).any(0)).any():
        needed = "a class with images that have it and images that lack it"
        raise UserError(f"a linear probe needs {needed}; label more images")


def held_out_tenths(y: Tensor, *, groups: Groups = None, seed: int) -> Int64[Tensor, " n"]:
    """Return for each label the tenth in which it is held out, 0 to 9, or -1 for never.

    Each tenth has the same number of images of each class, so that every class has at least one label left; of a target
    matrix, each tenth is a random tenth of the rows. A group is held out as a whole, and counts as one image of its
    most frequent class; of fewer than ten groups, each has a tenth of its own.

    >>> (held_out_tenths(torch.arange(22) % 2, seed=0) + 1).bincount().tolist()
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    alone = np.full(len(y), -1)
    found = group_images(alone if groups is None else groups.cpu().numpy(), y.cpu().numpy() if y.ndim == 1 else alone)
    order, grouped = np.random.default_rng(seed).permutation(len(found.labels)), len(found.labels) < len(y)
    tenths = order * 10 // len(order)
    for label in np.unique(found.labels) if y.ndim == 1 else ():
        rows = order[found.labels[order] == label]
        size = max(len(rows) // 10, int(grouped and len(rows) > 1))
        tenths[rows] = np.where((part := np.arange(len(rows))) < 10 * size, part // max(size, 1), -1)
    return torch.from_numpy(tenths[found.unit]).to(y.device)


def _choose_penalty(
    problem: LogisticRegression, y: Tensor, penalties: Sequence[float], *, iterations: int, groups: Groups, seed: int
) -> tuple[float, Logistic | None]:
    """Return the best penalty on held-out tenths, and the solution without the first of them.

    Without held-out rows, it is the middle penalty. The choice needs no exact minimum, so these fits stop early. The
    penalties end when two in a row are worse than the best one.
    """
    tenths = held_out_tenths(y, groups=groups, seed=seed)
    few = (len(y) if groups is None else int(units(groups.cpu().numpy()).max()) + 1) < FEW_LABELS
    used = [held_out for k in range(10 if few else 1) if (held_out := tenths == k).any()]
    if not used or used[0].all() or len(penalties) == 1 or (y.ndim == 2 and len(y) < 10):
        return penalties[len(penalties) // 2], None
    truth = torch.cat([y[held_out] for held_out in used])
    models: list[Any] = [None] * len(used)
    firsts, values = [], []
    for penalty in penalties:
        models = [
            problem.fit(penalty, rows=~held_out, start=model, iterations=iterations, tolerance=1e-5)
            for held_out, model in zip(used, models, strict=True)
        ]
        pairs = zip(models, used, strict=True)
        firsts.append(models[0])
        values.append(_quality(torch.cat([model.logits(problem.X[held_out]) for model, held_out in pairs]), truth))
        if max(values[-2:]) < max(values):  # weaker penalties overfit more
            break
    best = int(np.argmax(values))
    return penalties[best], firsts[best]


def _quality(logits: Tensor, y: Tensor) -> float:
    """Return the accuracy, or for a target matrix the mean average precision of the classes that an image has."""
    if y.ndim == 1:
        return (logits.argmax(1) == y).double().mean().item()
    mean = MeanOfClasses(average_precision, (y == 1).cpu().numpy(), logits.double().cpu().numpy())
    return float(np.nan_to_num(mean(np.ones((1, len(y))))[0]))  # 0 if no image has a class


def few_shot(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    *,
    labels: int = FewShotProtocol.labels[0],
    fractions: float | None = None,
    draws: int = FewShotProtocol.draws,
    penalties: Sequence[float] = FewShotProtocol.penalties,
    iterations: int = LinearProtocol.iterations,
    groups: Groups = None,
    seed: int = 0,
) -> Iterator[Prediction]:
    """Yield the linear probe of a few random training images of each class, `draws` times.

    Features should be standardised by the statistics of all training images, labelled or not. With few labels, classes
    can usually be separated perfectly, so the penalty only selects a wide margin.

    Args:
        X: training features.
        y: their labels.
        X_test: test features.
        labels: images per class.
        fractions: instead, the share of the images of each class, rounded, at least one image.
        draws: number of draws.
        penalties: as of `linear_probe`.
        iterations: maximum number of iterations per fit.
        groups: as of `linear_probe`.
        seed: seed of the draws.

    >>> X, y = torch.tensor([[-1.0], [-2], [1], [2]]), torch.tensor([0, 0, 1, 1])
    >>> len([prediction for prediction in few_shot(X, y, X, labels=1)])
    20
    """
    generator = torch.Generator().manual_seed(seed)
    count = labels if fractions is None else (y.bincount() * fractions).round().long().clamp_min(1)
    for _ in range(draws):
        rows = draw_labels(y, labels=count, generator=generator)
        own = None if groups is None else groups[rows]
        yield linear_probe(X[rows], y[rows], X_test, penalties=penalties, iterations=iterations, groups=own, seed=seed)


def draw_labels(
    y: Int64[Tensor, " n"], *, labels: int | Int64[Tensor, " classes"], generator: torch.Generator
) -> Int64[Tensor, " m"]:
    """Draw up to `labels` rows of each class, or a number for each class, uniformly and without replacement.

    >>> rows = draw_labels(torch.tensor([0, 0, 0, 1]), labels=2, generator=torch.Generator().manual_seed(0))
    >>> len(rows), 3 in rows
    (3, True)
    """
    order = torch.randperm(len(y), generator=generator).to(y.device)
    order = order[y[order].argsort(stable=True)]  # sorted by class, in random order within a class
    counts = y.bincount()
    first = counts.cumsum(0) - counts  # position of the first row of each class in `order`
    rank = torch.arange(len(y), device=y.device) - first[y[order]]
    return order[rank < (labels if isinstance(labels, int) else labels[y[order]])]


class _Head:
    """A linear classifier in training on some rows. It starts at zero, because the problem is convex."""

    def __init__(self, X: Tensor, classes: int, protocol: SgdProtocol | AdamProtocol, lr: float, rows: Tensor) -> None:
        self.W = X.new_zeros(classes, X.shape[1], requires_grad=True)
        self.b = X.new_zeros(classes, requires_grad=True)
        self.rows, self.batch_size = rows, protocol.batch_size
        options: dict[str, Any] = {"lr": lr, "weight_decay": protocol.weight_decay}
        if isinstance(protocol, SgdProtocol):
            self.optimizer = torch.optim.SGD([self.W, self.b], momentum=protocol.momentum, **options)
        else:
            self.optimizer = torch.optim.Adam([self.W, self.b], betas=protocol.betas, **options)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, protocol.decay, protocol.decay_factor)

    def train_epoch(self, X: Tensor, y: Tensor, generator: torch.Generator) -> None:
        order = torch.randperm(len(self.rows), generator=generator).to(X.device)
        for rows in self.rows[order].split(self.batch_size):
            self.optimizer.zero_grad()
            cross_entropy(linear(X[rows], self.W, self.b), y[rows]).backward()
            self.optimizer.step()
        self.schedule.step()

    @torch.no_grad()
    def logits(self, X: Tensor) -> Tensor:
        return linear(X, self.W, self.b)


def gradient_probe(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    protocol: SgdProtocol | AdamProtocol,
    *,
    passes: Iterable[Tensor] | None = None,
    groups: Groups = None,
    seed: int = 0,
) -> Prediction:
    """Train a linear classifier by SGD or Adam, and return its result after the last epoch.

    With `SgdProtocol.limit_lr`, the learning rate is at most the largest stable one (`stable_lr`). If the covariance of
    the features has eigenvalues in the hundreds, as for raw pixels, SGD with a rate of 0.3 diverges and the score is
    meaningless (on the pixels of CIFAR-10, 31 % instead of 41 % at the optimum). A limited rate is in the note.

    Of several rates, a held-out tenth of the training features selects one, and the classifier of this rate on all
    features is scored. All classifiers are trained at the same time, because augmented features are expensive.

    Args:
        X: training features.
        y: their labels.
        X_test: test features.
        protocol: the numbers of the training.
        passes: the training features of each epoch (rows as in X), for augmented images; None: X in every epoch.
        groups: the group of each training image, -1 for none; none is divided by the held-out tenth.
        seed: seed of the order of the features.

    Raises:
        UserError: there are several learning rates, and no class has ten labels, or two groups, to hold one out.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> gradient_probe(X, y, X, SgdProtocol()).logits.argmax(1).tolist()
    [0, 1]
    """
    generator, rates, notes = torch.Generator().manual_seed(seed), protocol.lr, []
    if isinstance(protocol, SgdProtocol) and protocol.limits_lr:
        limit = stable_lr(X, momentum=protocol.momentum, generator=generator)
        if limit < max(rates):
            notes.append(f"the learning rate was limited to {limit:.2g}, the largest stable one")
        rates = tuple(dict.fromkeys(min(rate, limit) for rate in rates))
    classes, everything = int(y.max()) + 1, torch.arange(len(y), device=X.device)
    candidates: dict[float, _Head] = {}
    held_out = held_out_tenths(y, groups=groups, seed=seed) == 0
    if len(rates) > 1:
        if not held_out.any():
            needed = "ten labels of a class, or two groups of images, of which one is held out to choose the rate"
            raise UserError(f"{len(rates)} learning rates need {needed}; give one rate, or label more of them")
        candidates = {rate: _Head(X, classes, protocol, rate, everything[~held_out]) for rate in rates}
    finals = {rate: _Head(X, classes, protocol, rate, everything) for rate in rates}
    for features in islice(repeat(X) if passes is None else passes, protocol.epochs):
        for head in (*candidates.values(), *finals.values()):
            head.train_epoch(features, y, generator)
    best = next(iter(finals))
    if candidates:
        values = {rate: _quality(head.logits(X[held_out]), y[held_out]) for rate, head in candidates.items()}
        best = max(values, key=lambda rate: (values[rate], -rate))  # for ties, the smaller rate
        edge = ", at the end of them; a wider range may be better" if best in (min(rates), max(rates)) else ""
        listed = ", ".join(f"{rate:.3g}" for rate in rates)
        notes.append(f"the learning rate {best:.3g} was chosen from {listed} on held-out training images{edge}")
    if not finals[best].W.isfinite().all():
        remedy = "give a lower learning rate, or standardise the features"
        notes.append(f"the training diverged: the weights are not finite; {remedy}")
    return Prediction(finals[best].logits(X_test).nan_to_num(), {"lr": best}, "; ".join(notes))


def stable_lr(X: Float[Tensor, "n D"], *, momentum: float, generator: torch.Generator, iterations: int = 20) -> float:
    """Return the largest learning rate at which gradient descent with momentum is stable for softmax regression on X.

        2 (1 + momentum) / L,    L = ½ λ_max(XᵀX / n)

    Source: L bounds the Hessian of the mean cross-entropy (Böhning 1992, Multinomial logistic regression algorithm);
    heavy-ball descent is stable up to 2(1 + momentum) / L (Polyak 1964). λ_max is found by power iteration.

    >>> round(stable_lr(torch.eye(4) * 2, momentum=0.0, generator=torch.Generator()), 3)
    4.0
    """
    v = torch.randn(X.shape[1], generator=generator).to(X)
    for _ in range(iterations):
        v = X.mT @ (X @ v)
        v = v / v.norm().clamp_min(torch.finfo(v.dtype).tiny)
    curvature = (X @ v).square().mean().item() / 2
    return 2 * (1 + momentum) / curvature if curvature > 0 else float("inf")
