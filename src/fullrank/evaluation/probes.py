"""The probes, in one table: a row is a protocol and the function that predicts the labels of test images from
features.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import normalize

from fullrank.errors import UserError
from fullrank.evaluation.features import FeatureSet
from fullrank.evaluation.linear import (
    check_classes,
    few_shot,
    gradient_probe,
    held_out_tenths,
    label_fraction,
    linear_probe,
)
from fullrank.evaluation.outcomes import Outcome, Prediction, score_predictions
from fullrank.evaluation.protocol import (
    AdamProtocol,
    FewShotProtocol,
    FractionsProtocol,
    KnnProtocol,
    LinearProtocol,
    SgdProtocol,
    SvmProtocol,
    settings_of,
)


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
    K, k, votes = normalize(X).mT, min(k, len(y)), []  # (D, n)
    columns = y.shape[1] if y.ndim == 2 else int(y.max()) + 1
    for Q in X_test.split(max(cells // max(len(y), k * columns), 1)):
        nearest = (normalize(Q) @ K).topk(k, dim=1)
        weights = (nearest.values / temperature).softmax(1)
        if y.ndim == 2:
            votes.append(torch.einsum("mk,mkc->mc", weights, y[nearest.indices].to(weights)))
        else:
            votes.append(weights.new_zeros(len(Q), columns).scatter_add(1, y[nearest.indices], weights))
    shares = torch.cat(votes)
    return Prediction(shares if y.ndim == 2 else shares.log())


def linear_svm(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    *,
    C: tuple[float, ...] = SvmProtocol.C,
    iterations: int = SvmProtocol.iterations,
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
        seed: seed of the choice of the held-out tenth.

    Raises:
        UserError: fewer than two classes have labels, or a feature is not finite.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> linear_svm(X, y, X).logits.argmax(1).tolist()
    [0, 1]
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    check_classes(y)
    if not X.isfinite().all():
        raise UserError("the features are NaN or infinite, expected finite numbers; use an earlier checkpoint")
    rows, labels, queries = (tensor.cpu().double().numpy() for tensor in (X, y, X_test))
    held_out = (held_out_tenths(y, seed=seed) == 0).cpu().numpy()

    def fit(c: float, used: np.ndarray) -> Any:
        model = LinearSVC(C=c, dual="auto", max_iter=iterations, random_state=0)  # pyright: ignore[reportArgumentType]
        return model.fit(rows[used], labels[used].astype(int))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        best = C[len(C) // 2]
        if held_out.any() and len(C) > 1:
            values = {c: fit(c, ~held_out).score(rows[held_out], labels[held_out].astype(int)) for c in C}
            best = max(values, key=lambda c: (values[c], -c))
        model = fit(best, np.ones(len(labels), bool))
    decision = model.decision_function(queries)
    decision = np.stack([-decision, decision], 1) if decision.ndim == 1 else decision
    logits = torch.full((len(queries), int(y.max()) + 1), -torch.inf, dtype=torch.float64)
    logits[:, model.classes_] = torch.from_numpy(decision)
    return Prediction(logits, {"C": best}, "a fit ended after its last iteration" if caught else "")


Predictions = Iterator[tuple[dict[str, Any], Iterable[Prediction]]]
"""For each score of a probe, what its settings have in the place of a list, and the predictions: one, or one a draw."""


def _linear(features: FeatureSet, protocol: LinearProtocol, seed: int) -> Predictions:
    data = features.arrays(standardized=protocol.standardize)
    yield {}, [linear_probe(*data, penalties=protocol.penalties, iterations=protocol.iterations, seed=seed)]


def _gradient(features: FeatureSet, protocol: SgdProtocol | AdamProtocol, seed: int) -> Predictions:
    data = features.arrays(standardized=protocol.standardize)
    yield {}, [gradient_probe(*data, protocol, passes=features.passes(protocol), seed=seed)]


def _knn(features: FeatureSet, protocol: KnnProtocol, seed: int) -> Predictions:
    yield {}, [knn(*features.arrays(), k=protocol.k, temperature=protocol.temperature)]


def _svm(features: FeatureSet, protocol: SvmProtocol, seed: int) -> Predictions:
    data = features.arrays(standardized=protocol.standardize)
    yield {}, [linear_svm(*data, C=protocol.C, iterations=protocol.iterations, seed=seed)]


def _few_shot(features: FeatureSet, protocol: FewShotProtocol, seed: int) -> Predictions:
    data = features.arrays(standardized=protocol.standardize)
    for labels in protocol.labels:
        drawn = few_shot(*data, labels=labels, draws=protocol.draws, penalty=protocol.penalty, seed=seed)
        yield {"labels": labels}, drawn


def _fractions(features: FeatureSet, protocol: FractionsProtocol, seed: int) -> Predictions:
    data = features.arrays(standardized=protocol.standardize)
    options = {"draws": protocol.draws, "penalties": protocol.penalties, "iterations": protocol.iterations}
    for fraction in protocol.fractions:
        yield {"fractions": fraction}, label_fraction(*data, fraction=fraction, seed=seed, **options)


class Probe(NamedTuple):
    """A row of the table.

    Attributes:
        predict: A function of features, protocol and seed.
        several: Whether images may have several labels each.
        by_class: Whether there are scores by class; not for means over many draws.
    """

    protocol: type
    predict: Callable[[FeatureSet, Any, int], Predictions]
    several: bool = False
    by_class: bool = True


PROBES: dict[str, Probe] = {
    "linear": Probe(LinearProtocol, _linear, several=True),
    "linear-sgd": Probe(SgdProtocol, _gradient),
    "linear-imagenet": Probe(AdamProtocol, _gradient),
    "knn": Probe(KnnProtocol, _knn, several=True),
    "svm": Probe(SvmProtocol, _svm),
    "few-shot": Probe(FewShotProtocol, _few_shot, by_class=False),
    "fractions": Probe(FractionsProtocol, _fractions, by_class=False),
}
"""Name on the command line → probe."""


def run_probe(name: str, features: FeatureSet, protocol: Any, *, seed: int, **added: Any) -> list[Outcome]:
    """Return the scores of a probe on a feature set; `added` are further settings of the scores."""
    outcomes, row = [], PROBES[name]
    for changes, predictions in row.predict(features, protocol, seed):
        settings = settings_of(protocol, **changes, **added)
        outcomes += score_predictions(
            features.name, name, settings, predictions, features.target, by_class=row.by_class
        )
    return outcomes
