"""The probes, in one table: a row is a protocol and the function that predicts the labels of test images from
features.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import embedding_bag

from fullrank.errors import UserError
from fullrank.evaluation.features import FeatureSet
from fullrank.evaluation.linear import Groups, check_classes, few_shot, gradient_probe, held_out_tenths, linear_probe
from fullrank.evaluation.nearest import nearest
from fullrank.evaluation.outcomes import Outcome, Prediction, score_predictions
from fullrank.evaluation.protocol import AdamProtocol, KnnProtocol, SgdProtocol, SvmProtocol, settings_of


def knn(
    X: Float[Tensor, "n D"],
    y: Tensor,
    X_test: Float[Tensor, "m D"],
    *,
    k: int = KnnProtocol.k,
    temperature: float = KnnProtocol.temperature,
    cells: int = 2**24,
) -> Prediction:
    """Classify each test image by its k nearest training images, which vote for their classes with weights exp(cos /
    temperature).

    Features are L2-normalised, but not standardised.

    Args:
        X: training features.
        y: their labels (n,), or 1 for the classes that an image has and 0 for the others (n, K).
        X_test: test features.
        k: number of neighbours, at most the number of training images.
        temperature: temperature of the weights; a smaller value gives more weight to the nearest neighbours.
        cells: maximum number of similarities in memory at the same time (2²⁴ similarities take 64 MB).

    Source: Wu et al. 2018, Unsupervised Feature Learning via Non-Parametric Instance Discrimination, Section 3.4.

    >>> X, y = torch.tensor([[1.0, 0], [2, 0], [0, 1]]), torch.tensor([0, 0, 1])
    >>> knn(X, y, torch.tensor([[5.0, 1], [0, 7]])).logits.argmax(1).tolist()
    [0, 1]
    """
    similarities, indices = nearest(X, min(k, len(y)), X_test, cells=cells)
    weights = (similarities / temperature).softmax(1)
    if y.ndim == 1:
        votes = weights.new_zeros(len(X_test), int(y.max()) + 1).scatter_add(1, y[indices], weights)
        return Prediction(votes.log())
    return Prediction(embedding_bag(indices, y.to(weights), per_sample_weights=weights, mode="sum"))


def linear_svm(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    *,
    C: tuple[float, ...] = SvmProtocol.C,
    iterations: int = SvmProtocol.iterations,
    groups: Groups = None,
    seed: int = 0,
) -> Prediction:
    """Fit a linear SVM for each class against the others (scikit-learn's LinearSVC). A held-out tenth selects C.

        min_w  ½‖w‖² + C Σᵢ max(0, 1 − sᵢ wᵀ(xᵢ, 1))²,    sᵢ = 1 for the class, −1 for the others

    Args:
        X: standardised training features.
        y: their labels.
        X_test: test features, standardised in the same way.
        C: candidates in ascending order; for ties the smallest, without held-out rows the middle one.
        iterations: maximum number of iterations per fit.
        groups: the group of each training image, -1 for none; none is divided by the held-out tenth.
        seed: seed of the choice of the held-out tenth.

    Raises:
        UserError: fewer than two classes have labels, or a feature is not finite.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> linear_svm(X, y, X).logits.argmax(1).tolist()
    [0, 1]
    """
    from sklearn.exceptions import ConvergenceWarning  # here, because training imports this file and needs no SVM
    from sklearn.model_selection import GridSearchCV, PredefinedSplit
    from sklearn.svm import LinearSVC

    check_classes(y)
    if not X.isfinite().all():
        raise UserError("the features are NaN or infinite, expected finite numbers; use an earlier checkpoint")
    rows, labels, queries = (values.cpu().numpy() for values in (X.double(), y, X_test.double()))
    held_out = (held_out_tenths(y, groups=groups, seed=seed) == 0).cpu().numpy()
    best = {"C": C[len(C) // 2]}
    model: Any = LinearSVC(**best, dual="auto", max_iter=iterations, random_state=0)  # pyright: ignore
    if held_out.any() and len(C) > 1 and len(np.unique(labels[~held_out])) > 1:
        model = GridSearchCV(model, {"C": C}, cv=PredefinedSplit(np.where(held_out, 0, -1)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(rows, labels)
    best, decision = getattr(model, "best_params_", best), model.decision_function(queries)
    logits = torch.full((len(queries), int(y.max()) + 1), -torch.inf, dtype=torch.float64)
    logits[:, model.classes_] = torch.from_numpy(decision if decision.ndim == 2 else np.stack([-decision, decision], 1))
    return Prediction(logits, best, "a fit ended after its last iteration" if caught else "")


class Probe(NamedTuple):
    """A row of the table.

    Attributes:
        predict: A function of a feature set, the protocol and a seed, which returns a prediction, or one a draw.
        each: The number of the protocol of which each value is a score; it is given to `predict`.
        multilabel: Whether images may have several labels each.
        by_class: Whether there are scores by class; not for means over many draws.
    """

    predict: Callable[..., Prediction | Iterable[Prediction]]
    each: str = ""
    multilabel: bool = False
    by_class: bool = True


def _plain(probe: Callable[..., Any]) -> Callable[..., Any]:
    """Return a probe of arrays, whose keywords are the numbers of its protocol, as a function of a feature set."""

    def predict(features: FeatureSet, protocol: Any, seed: int, **changes: Any) -> Any:
        numbers = vars(protocol) | changes
        data = features.arrays(standardized=numbers.pop("standardize", False))
        return probe(*data, groups=features.groups, seed=seed, **numbers)

    return predict


def _gradient(features: FeatureSet, protocol: SgdProtocol | AdamProtocol, seed: int) -> Prediction:
    data = features.arrays(standardized=protocol.standardize)
    passes = features.passes(protocol) if protocol.views else None
    return gradient_probe(*data, protocol, passes=passes, groups=features.groups, seed=seed)


# Name on the command line → probe. Its numbers are in `Protocols`.
PROBES: dict[str, Probe] = {
    "linear": Probe(_plain(linear_probe), multilabel=True),
    "linear-sgd": Probe(_gradient),
    "linear-imagenet": Probe(_gradient),
    "knn": Probe(_plain(lambda *data, groups, seed, **numbers: knn(*data, **numbers)), multilabel=True),
    "svm": Probe(_plain(linear_svm)),
    "few-shot": Probe(_plain(few_shot), each="labels", by_class=False),
    "fractions": Probe(_plain(few_shot), each="fractions", by_class=False),
}


def run_probe(name: str, features: FeatureSet, protocol: Any, *, seed: int, **added: Any) -> list[Outcome]:
    """Return the scores of a probe on a feature set; `added` are further settings of the scores."""
    outcomes, row = [], PROBES[name]
    for value in getattr(protocol, row.each) if row.each else [None]:
        changes = {row.each: value} if row.each else {}
        found = row.predict(features, protocol, seed, **changes)
        predictions = [found] if isinstance(found, Prediction) else found
        settings = settings_of(protocol, **changes, **added)
        outcomes += score_predictions(
            features.name, name, settings, predictions, features.target, by_class=row.by_class
        )
    return outcomes
