"""Linear probes: classifiers trained on frozen features, by SGD or Adam as in the papers, or by a full-batch solver.

All probes report the result of the last iteration, never the best result on the test set. Choices are made on a
held-out tenth of the training features. `fullrank.evaluation.standardize` standardises features.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from fullrank.errors import UserError
from fullrank.evaluation.logistic import Logistic, LogisticRegression
from fullrank.evaluation.protocol import AdamProtocol, LinearProtocol, SgdProtocol
from fullrank.evaluation.result import ProbeResult, count_classes, drop_unlabelled, topk_accuracy

FEW_LABELS = 1000
"""With fewer labels, a single tenth of them is too few to choose a penalty: its choice would depend on the seed."""
Passes = Callable[[int], Tensor]
"""A function epoch → the training features of that epoch (n, D)."""
Optimizer = Callable[[list[Tensor]], torch.optim.Optimizer]
"""A function parameters → optimizer."""


@dataclass(frozen=True)
class Schedule:
    """When the learning rate falls, and the steps of an epoch."""

    epochs: int
    decay: tuple[int, ...]
    factor: float
    batch_size: int


class Head:
    """A linear classifier in training. It starts at zero, because the problem is convex."""

    def __init__(
        self,
        X: Float[Tensor, "n D"],
        y: Int64[Tensor, " n"],
        classes: int,
        optimizer: Optimizer,
        schedule: Schedule,
        generator: torch.Generator,
        *,
        rows: Bool[Tensor, " n"] | None = None,
    ) -> None:
        self.W = X.new_zeros(classes, X.shape[1], requires_grad=True)
        self.b = X.new_zeros(classes, requires_grad=True)
        self.optimizer = optimizer([self.W, self.b])
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, schedule.decay, gamma=schedule.factor)
        self.batch_size, self.generator = schedule.batch_size, generator
        self.rows = torch.arange(len(y), device=X.device) if rows is None else rows.nonzero().flatten()

    def train_epoch(self, X: Float[Tensor, "n D"], y: Int64[Tensor, " n"]) -> None:
        """Take one pass over the features in a random order."""
        order = torch.randperm(len(self.rows), generator=self.generator).to(X.device)
        for rows in self.rows[order].split(self.batch_size):
            self.optimizer.zero_grad()
            cross_entropy(linear(X[rows], self.W, self.b), y[rows]).backward()
            self.optimizer.step()
        self.scheduler.step()

    @torch.no_grad()
    def logits(self, X: Float[Tensor, "m D"]) -> Float[Tensor, "m classes"]:
        """Return W x + b."""
        return linear(X, self.W, self.b)


def linear_probe_sgd(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    y_test: Int64[Tensor, " m"],
    *,
    classes: int,
    lr: float | Sequence[float] = SgdProtocol.lr,
    epochs: int = SgdProtocol.epochs,
    decay: tuple[int, ...] = SgdProtocol.decay,
    decay_factor: float = SgdProtocol.decay_factor,
    batch_size: int = SgdProtocol.batch_size,
    momentum: float = SgdProtocol.momentum,
    weight_decay: float = SgdProtocol.weight_decay,
    limit_lr: bool = True,
    passes: Passes | None = None,
    generator: torch.Generator,
) -> ProbeResult:
    """Train a linear classifier by SGD with momentum and return its result after the last epoch.

    With `limit_lr`, the learning rate is the minimum of `lr` and the largest stable rate of heavy-ball descent
    (`stable_lr`). If the covariance of the features has eigenvalues in the hundreds, as for raw pixels, SGD with a rate
    of 0.3 diverges and the score is meaningless (on the pixels of CIFAR-10, 31 % instead of 41 % at the optimum). A
    limited rate is in `ProbeResult.chosen` and `.note`.

    Args:
        X: training features.
        y: labels of X, -1 for none.
        X_test: test features.
        y_test: labels of X_test, -1 for none.
        classes: number of classes.
        lr: initial learning rate, or several, of which a held-out tenth of the training features selects one.
        epochs: passes over the training features.
        decay: epochs after which the learning rate is multiplied by `decay_factor`.
        decay_factor: factor of the learning rate.
        batch_size: features per step.
        momentum: momentum of SGD.
        weight_decay: weight decay of SGD.
        limit_lr: limit the learning rate to the largest stable one.
        passes: epoch → the training features of that epoch (rows as in X), for augmented images; None: X in every
            epoch.
        generator: a CPU generator that draws the order of the features.

    Raises:
        UserError: there are several learning rates, and no class has ten labels to hold one out.

    Source: Skean et al. 2024 (FroSSL), Section 6.1: SGD, lr 0.3, no weight decay, × 0.1 at epochs 60 and 80 of 100,
    batch 256.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> linear_probe_sgd(X, y, X, y, classes=2, generator=torch.Generator()).accuracy
    1.0
    """
    rates, note = _rates(lr), ""
    if limit_lr:
        limit = stable_lr(drop_unlabelled(X, y)[0], momentum=momentum, generator=generator)
        if limit < max(rates):
            note = f"the learning rate was limited to {limit:.2g}, the largest stable one"
        rates = tuple(dict.fromkeys(min(rate, limit) for rate in rates))
    optimizers = {
        rate: partial(torch.optim.SGD, lr=rate, momentum=momentum, weight_decay=weight_decay) for rate in rates
    }
    schedule = Schedule(epochs=epochs, decay=decay, factor=decay_factor, batch_size=batch_size)
    result = _probe(X, y, X_test, y_test, optimizers, schedule, classes=classes, passes=passes, generator=generator)
    return replace(result, note="; ".join(filter(None, (note, result.note))))


def linear_probe_adam(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    y_test: Int64[Tensor, " m"],
    *,
    classes: int,
    lr: float | Sequence[float] = AdamProtocol.lr,
    epochs: int = AdamProtocol.epochs,
    decay: tuple[int, ...] = AdamProtocol.decay,
    decay_factor: float = AdamProtocol.decay_factor,
    batch_size: int = AdamProtocol.batch_size,
    betas: tuple[float, float] = AdamProtocol.betas,
    weight_decay: float = AdamProtocol.weight_decay,
    passes: Passes | None = None,
    generator: torch.Generator,
) -> ProbeResult:
    """Train a linear classifier by Adam and return its result after the last epoch; the other arguments are those of
    `linear_probe_sgd`.

    Args:
        X: training features.
        y: labels of X, -1 for none.
        X_test: test features.
        y_test: labels of X_test, -1 for none.
        classes: number of classes.
        lr: initial learning rate, or several.
        epochs: passes over the training features.
        decay: epochs after which the learning rate is multiplied by `decay_factor`.
        decay_factor: factor of the learning rate.
        batch_size: features per step.
        betas: decay rates of the averages of the gradient and of its square.
        weight_decay: weight decay, added to the gradient.
        passes: epoch → the training features of that epoch.
        generator: a CPU generator that draws the order of the features.

    Raises:
        UserError: there are several learning rates, and no class has ten labels to hold one out.

    Source: Skean et al. 2024 (FroSSL), Section 6.2, the probe on ImageNet: Adam, lr 5e-3, no weight decay, a step every
    10 of 100 epochs.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> linear_probe_adam(X, y, X, y, classes=2, generator=torch.Generator()).accuracy
    1.0
    """
    optimizers = {
        rate: partial(torch.optim.Adam, lr=rate, betas=betas, weight_decay=weight_decay) for rate in _rates(lr)
    }
    schedule = Schedule(epochs=epochs, decay=decay, factor=decay_factor, batch_size=batch_size)
    return _probe(X, y, X_test, y_test, optimizers, schedule, classes=classes, passes=passes, generator=generator)


def _rates(lr: float | Sequence[float]) -> tuple[float, ...]:
    return (float(lr),) if isinstance(lr, int | float) else tuple(lr)


def _probe(
    X: Tensor,
    y: Tensor,
    X_test: Tensor,
    y_test: Tensor,
    optimizers: Mapping[float, Optimizer],
    schedule: Schedule,
    *,
    classes: int,
    passes: Passes | None,
    generator: torch.Generator,
) -> ProbeResult:
    """Train one classifier for each learning rate on nine tenths of the features, and the classifier of the best rate
    on all.

    All are trained at the same time, because augmented features are expensive: each pass over the images serves every
    classifier.
    """
    labelled = y >= 0
    X, y = X[labelled], y[labelled]
    epoch_features = None if passes is None else lambda epoch: passes(epoch)[labelled]
    if len(optimizers) == 1:
        ((rate, optimizer),) = optimizers.items()
        (only,) = fit_heads(
            X, y, [Head(X, y, classes, optimizer, schedule, generator)], schedule.epochs, epoch_features
        )
        return _scored(only, X_test, y_test, {"lr": rate})
    seed = int(torch.randint(2**31, (), generator=generator))
    held_out = torch.from_numpy(hold_out(y.cpu().numpy(), seed=seed)).to(y.device)
    if not held_out.any():
        raise UserError(
            f"{len(optimizers)} learning rates need ten labels of a class, of which one is held out to choose the rate; "
            "give one rate, or label more images"
        )

    def head(optimizer: Optimizer, rows: Tensor | None) -> Head:
        return Head(X, y, classes, optimizer, schedule, torch.Generator().manual_seed(seed), rows=rows)

    candidates = {rate: head(optimizer, ~held_out) for rate, optimizer in optimizers.items()}
    finals = {rate: head(optimizer, None) for rate, optimizer in optimizers.items()}
    fit_heads(X, y, [*candidates.values(), *finals.values()], schedule.epochs, epoch_features)
    scores = {
        rate: topk_accuracy(candidate.logits(X[held_out]), y[held_out]).accuracy
        for rate, candidate in candidates.items()
    }
    best = max(scores, key=lambda rate: (scores[rate], -rate))  # for ties, the smaller rate
    result = _scored(finals[best], X_test, y_test, {"lr": best})
    edge = (
        ""
        if min(scores) < best < max(scores)
        else f", the {'largest' if best == max(scores) else 'smallest'}; a wider range may be better"
    )
    chosen = f"the learning rate {best:.3g} was chosen from {', '.join(f'{rate:.3g}' for rate in scores)} on held-out training images{edge}"
    return replace(result, note="; ".join(filter(None, (chosen, result.note))))


def _scored(head: Head, X_test: Tensor, y_test: Tensor, chosen: dict[str, float]) -> ProbeResult:
    finite = bool(head.W.isfinite().all())
    note = (
        ""
        if finite
        else "the training diverged: the weights are not finite; give a lower learning rate, or standardise the features"
    )
    return replace(topk_accuracy(head.logits(X_test).nan_to_num(), y_test), chosen=chosen, note=note)


def fit_heads(
    X: Float[Tensor, "n D"], y: Int64[Tensor, " n"], heads: Sequence[Head], epochs: int, passes: Passes | None = None
) -> Sequence[Head]:
    """Train classifiers on the same features, one epoch of each after the other, and return them."""
    for epoch in range(epochs):
        features = X if passes is None else passes(epoch)
        for head in heads:
            head.train_epoch(features, y)
    return heads


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


def linear_probe(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    y_test: Int64[Tensor, " m"],
    *,
    penalties: Sequence[float] = LinearProtocol.penalties,
    iterations: int = LinearProtocol.iterations,
    seed: int = 0,
) -> ProbeResult:
    """Fit a multinomial logistic regression by L-BFGS. Held-out tenths of the training features select the L2 penalty.

        min_W,b  (1/n) Σᵢ −log softmax(W xᵢ + b)[yᵢ] + ½ penalty ‖W‖²

    For two classes, the solver fits and penalises only the difference of their weights.

    Args:
        X: standardised training features.
        y: labels of X, -1 for none.
        X_test: test features, standardised in the same way.
        y_test: labels of X_test, -1 for none.
        penalties: candidates in descending order; each fit starts from the previous solution.
        iterations: maximum number of iterations per fit; few fits need so many.
        seed: seed of the choice of the held-out tenths.

    Raises:
        UserError: fewer than two classes have labels.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> linear_probe(X, y, X, y).accuracy
    1.0
    """
    X, y = drop_unlabelled(X, y)
    check_classes(y)
    problem = LogisticRegression(X, y)
    penalty, start = choose_penalty(problem, penalties=penalties, iterations=iterations, seed=seed)
    model = problem.fit(penalty, start=start, iterations=iterations)
    return replace(
        topk_accuracy(model.logits(X_test, classes=count_classes(y, y_test)), y_test), chosen={"penalty": penalty}
    )


def check_classes(y: Int64[Tensor, " n"]) -> None:
    """Check that two or more classes have labels.

    Raises:
        UserError: they do not.
    """
    if (classes := len(y.unique())) < 2:
        raise UserError(f"a linear probe needs labels of two or more classes, got {classes}; label more images")


def choose_penalty(
    problem: LogisticRegression, *, penalties: Sequence[float], iterations: int = 100, seed: int = 0
) -> tuple[float, Logistic | None]:
    """Return the penalty with the highest accuracy on a held-out tenth, for ties the largest, and the classifier of the
    other rows.

    With fewer than `FEW_LABELS` labels, each tenth is held out in turn, and the mean accuracy decides. Without held-out
    rows, it is the middle penalty. The accuracy needs no exact minimum, so these fits stop early. The penalties end
    when two in a row are less accurate than the best one.
    """
    X, y = problem.features, problem.labels
    tenths = range(10 if len(y) < FEW_LABELS else 1)
    held_out = [torch.from_numpy(hold_out(y.cpu().numpy(), seed=seed, number=tenth)).to(y.device) for tenth in tenths]
    if not held_out[0].any():
        return penalties[len(penalties) // 2], None
    classes = int(y.max()) + 1
    last: list[Logistic | None] = [None] * len(held_out)
    models: list[Logistic | None] = []
    accuracies: list[float] = []
    for penalty in penalties:
        hits = []
        for tenth, held in enumerate(held_out):
            model = problem.fit(penalty, rows=~held, start=last[tenth], iterations=iterations, tolerance=1e-5)
            hits.append((model.logits(X[held], classes=classes).argmax(1) == y[held]).double().mean().item())
            last[tenth] = model
        models.append(last[0])
        accuracies.append(float(np.mean(hits)))
        if max(accuracies[-2:]) < max(
            accuracies
        ):  # two in a row are worse than the best one: weaker penalties overfit more
            break
    best = int(np.argmax(accuracies))
    return penalties[best], models[best]


def hold_out(y: np.ndarray, *, seed: int, number: int = 0) -> np.ndarray:
    """Return a mask of a random tenth of each class, rounded down so that every class has at least one label left.

    Tenths with other numbers, from 0 to 9, have no row in common.
    """
    held_out = np.zeros(len(y), dtype=bool)
    order = np.random.default_rng(seed).permutation(len(y))
    for label in np.unique(y):
        rows = order[y[order] == label]
        size = len(rows) // 10
        held_out[rows[number * size : (number + 1) * size]] = True
    return held_out
