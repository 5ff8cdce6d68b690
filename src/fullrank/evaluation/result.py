"""The scores of an evaluation, as typed records: `fullrank evaluate` writes them to evaluation.json, and reports read them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fullrank.structure import structure


@dataclass(frozen=True, kw_only=True)
class ProbeScore:
    """The accuracy of one probe on one feature set: the mean and the standard deviation over n repetitions."""

    features: str
    """Name of the feature set, such as 'backbone' or 'raw pixels'."""
    probe: str
    accuracy: float
    """In [0, 1]."""
    sd: float | None = None
    n: int = 1


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of a model on one split of labelled images."""

    model: str
    """The MODEL that was evaluated."""
    train_images: int
    test_images: int
    statement: str
    """One sentence that names the training and the test images."""
    scores: tuple[ProbeScore, ...] = ()
    left_out: tuple[str, ...] = ()
    """What was not scored, each with the reason."""

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as the object that evaluation.json holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, source: str = "evaluation") -> "Evaluation":
        """Build an evaluation from the object of evaluation.json.

        Raises:
            UserError: a field is missing, unknown or of the wrong type.

        >>> score = ProbeScore(features="backbone", probe="kNN", accuracy=0.5)
        >>> evaluation = Evaluation(model="run", train_images=8, test_images=2, statement="", scores=(score,))
        >>> Evaluation.from_json(evaluation.to_json()) == evaluation
        True
        """
        return structure(value, cls, source)
