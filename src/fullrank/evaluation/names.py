"""The names of a probe: in a score, such as 'linear (SGD)', and on the command line, such as 'linear-sgd'."""

from fullrank.evaluation.protocol import FewShotProtocol, FractionsProtocol

LINEAR = {"linear": "linear (full batch)", "linear-sgd": "linear (SGD)", "linear-imagenet": "linear (Adam)"}
"""Name of a linear probe on all labels → its name in a score."""
MAP = ", mean average precision"
"""End of the name of a score on images with several labels."""
TOP5 = ", top 5"
"""End of the name of a top-5 accuracy."""


def few_shot_name(labels: int) -> str:
    """Return the name of the score of a probe on a few labels per class.

    >>> few_shot_name(1)
    'linear, 1 label per class'
    """
    return f"linear, {labels} label{'s' if labels > 1 else ''} per class"


def fraction_name(fraction: float) -> str:
    """Return the name of the score of a probe on a fraction of the labels.

    >>> fraction_name(0.01)
    'linear, 1 % of the labels'
    """
    return f"linear, {100 * fraction:g} % of the labels"


SCORE_NAMES = {
    **LINEAR,
    "knn": "kNN",
    "svm": "SVM",
    "few-shot": few_shot_name(FewShotProtocol.labels[0]),
    **{f"fractions {100 * fraction:g} %": fraction_name(fraction) for fraction in FractionsProtocol.fractions},
}
"""Name of a probe on the command line → its name in a score, without the numbers that are not the defaults. `fractions`
has two scores."""


def flag_name(probe: str) -> str:
    """Return the name on the command line of the probe of a score; what follows the name in the score stays.

    >>> flag_name("kNN"), flag_name("linear (SGD), top 5"), flag_name("kNN, k 200"), flag_name("linear, 1 % of the labels")
    ('knn', 'linear-sgd, top 5', 'knn, k 200', 'fractions 1 %')
    """
    for flag, name in SCORE_NAMES.items():
        if probe == name or probe.startswith(f"{name}, "):
            return flag + probe[len(name) :]
    return probe


def is_linear(probe: str) -> bool:
    """Return whether a score is the top-1 accuracy of a linear probe on all labels.

    >>> [is_linear(probe) for probe in ("linear (SGD), lr 0.1", "linear (SGD), top 5", "linear, 2 labels per class")]
    [True, False, False]
    """
    return any(f"{probe}, ".startswith(f"{name}, ") for name in LINEAR.values()) and TOP5 not in probe
