"""The published accuracies of the recipes, as the papers and solo-learn's README print them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PROBE, ONLINE = "linear probe", "online classifier"


@dataclass(frozen=True)
class PublishedScore:
    """A published top-1 accuracy on the test images.

    Attributes:
        accuracy: Share of the test images whose class was predicted.
        epochs: Epochs of pretraining after which it was measured.
        protocol: "linear probe": a classifier trained on the frozen backbone; "online classifier": trained along with
            the backbone.
        source: Paper and table, or file.
        top5: Share of the test images with the class among the five best predictions, if it was published.
        same_recipe: Whether it was measured with the settings that this recipe follows, up to `KEPT_DIFFERENCES` and
            the differences that docs/recipes.md lists, and not with other settings of the same method.
    """

    accuracy: float
    epochs: int
    protocol: str
    source: str
    top5: float | None = None
    same_recipe: bool = True


# Skean et al. 2024, FroSSL, Table 2.
TABLE2 = {  # method: CIFAR-10, CIFAR-100, STL-10, in percent
    "simclr": (91.8, 65.8, 85.9),
    "swav": (89.2, 64.9, 82.6),
    "moco": (92.9, 69.9, 83.2),
    "simsiam": (90.5, 66.0, 88.5),
    "byol": (92.6, 70.5, 88.7),
    "dino": (89.5, 66.8, 78.9),
    "vicreg": (92.1, 68.5, 85.9),
    "barlow_twins": (92.1, 70.9, 85.0),
    "wmse": (91.6, 66.1, 72.4),
    "corinfomax": (92.6, 69.7, None),
    "nologs": (88.9, 62.3, 82.4),
    "frossl": (92.8, 70.6, 87.3),
}

# The methods that the authors of Table 2 trained on CIFAR. The accuracies of the others on CIFAR are from the README of
# solo-learn, which are those of its online classifier, and from Ermolov et al. 2021 (`FROM_ERMOLOV`).
MEASURED_THERE = ("corinfomax", "nologs", "frossl")
# (data set, method) whose accuracy in Table 2 is not that of solo-learn's README. Ermolov et al. used recipes of their
# own.
FROM_ERMOLOV = {("cifar10", "simclr"), ("cifar10", "wmse"), ("cifar100", "wmse")}

MARKS = (3, 10, 30, 50, 100)
# Skean et al. 2024, FroSSL, Table 3.
TABLE3 = {  # method: STL-10 after the epochs of `MARKS`, in percent
    "simclr": (40.7, 44.8, 61.5, 66.2, 70.1),
    "swav": (30.9, 38.7, 64.6, 69.3, 74.3),
    "moco": (24.6, 45.0, 63.8, 69.4, 75.2),
    "simsiam": (31.8, 41.2, 54.7, 65.6, 77.1),
    "byol": (28.8, 32.7, 59.6, 64.7, 70.6),
    "dino": (26.6, 26.7, 38.2, 43.2, 46.1),
    "vicreg": (43.6, 51.1, 61.2, 67.5, 71.1),
    "barlow_twins": (32.1, 46.6, 62.0, 62.6, 69.0),
    "wmse": (17.2, 30.4, 45.6, 53.4, 61.9),
    "nologs": (40.5, 51.9, 60.6, 64.1, 67.3),
    "frossl": (44.8, 56.9, 64.8, 67.1, 72.0),
}

# README of solo-learn (da Costa et al. 2022): ResNet-18, 1000 epochs on CIFAR, 400 on ImageNet-100.
SOLO_LEARN = {  # method: CIFAR-10 online, CIFAR-100 online, ImageNet-100 online, ImageNet-100 linear probe, in percent
    "simclr": (90.74, 65.78, 77.64, None),
    "swav": (89.17, 64.88, 74.04, 74.28),
    "moco": (92.94, 69.89, 78.20, 79.28),
    "simsiam": (90.51, 66.04, 74.54, 78.72),
    "byol": (92.58, 70.46, 80.16, 80.32),
    "dino": (89.52, 66.76, 74.84, 74.92),
    "vicreg": (92.07, 68.54, 79.22, 79.40),
    "barlow_twins": (92.10, 70.90, 80.38, 80.16),
    "wmse": (88.67, 61.33, 67.60, 69.06),
}

# README of solo-learn: ResNet-50, 100 epochs.
SOLO_LEARN_IMAGENET = {  # method: online, linear probe, in percent
    "moco": (62.61, 66.84),
    "byol": (68.63, 68.37),
    "barlow_twins": (67.18, 67.23),
}


README, SKEAN, JING = "solo-learn's README", "Skean et al. 2024", "Jing et al. 2022, Table 1"
# A column of a table: its number, data set, epochs, protocol and source.
COLUMNS = (
    (TABLE2, 0, "cifar10", 1000, PROBE, f"{SKEAN}, Table 2"),
    (TABLE2, 1, "cifar100", 1000, PROBE, f"{SKEAN}, Table 2"),
    (TABLE2, 2, "stl10", 500, PROBE, f"{SKEAN}, Table 2"),
    *((TABLE3, k, "stl10", epochs, ONLINE, f"{SKEAN}, Table 3") for k, epochs in enumerate(MARKS)),
    (SOLO_LEARN, 0, "cifar10", 1000, ONLINE, README),
    (SOLO_LEARN, 1, "cifar100", 1000, ONLINE, README),
    (SOLO_LEARN, 2, "imagenet100", 400, ONLINE, README),
    (SOLO_LEARN, 3, "imagenet100", 400, PROBE, README),
    (SOLO_LEARN_IMAGENET, 0, "imagenet", 100, ONLINE, README),
    (SOLO_LEARN_IMAGENET, 1, "imagenet", 100, PROBE, README),
)


def _scores() -> Iterator[tuple[str, PublishedScore]]:
    """Yield the name of a recipe and a published score."""
    for table, k, data_set, epochs, protocol, source in COLUMNS:
        for method, row in table.items():
            other = table is TABLE2 and (data_set, method) in FROM_ERMOLOV
            borrowed = table is TABLE2 and data_set != "stl10" and method not in MEASURED_THERE and not other
            note = ", from Ermolov et al. 2021, another recipe" if other else f", from {README}" if borrowed else ""
            how, from_where = ONLINE if borrowed else protocol, source + note
            if row[k] is not None:
                name = data_set if method == "frossl" else f"{data_set}-{method}"
                score = PublishedScore(round(row[k] / 100, 4), epochs, how, from_where, same_recipe=not other)
                yield name, score
    yield "imagenet", PublishedScore(0.534, 100, PROBE, f"{SKEAN}, Sec. 6.2", top5=0.777)
    yield "imagenet-barlow_twins-frossl", PublishedScore(0.525, 100, PROBE, f"{SKEAN}, Sec. 6.2", top5=0.775)
    yield "imagenet-simclr", PublishedScore(0.665, 100, PROBE, JING)
    yield "imagenet-dino-vit", PublishedScore(0.738, 100, PROBE, "README of the code of Caron et al. 2021")
    yield "imagenet-directclr", PublishedScore(0.627, 100, PROBE, JING)


_SCORES = list(_scores())
# Name of a recipe → its published accuracies, those of FroSSL's paper first. A recipe without one is not a key.
PUBLISHED: Mapping[str, tuple[PublishedScore, ...]] = {
    name: tuple(score for other, score in _SCORES if other == name) for name, _ in _SCORES
}


def final_score(name: str) -> PublishedScore | None:
    """Return the accuracy of a recipe after the largest published number of epochs: of the linear probe, else of the
    online classifier, else None.

    >>> final_score("stl10").accuracy, final_score("cifar10-wmse").accuracy, final_score("cifar10-ivne")
    (0.873, 0.8867, None)
    """
    scores = [score for score in PUBLISHED.get(name, ()) if score.same_recipe]
    probes = [score for score in scores if score.protocol == PROBE]
    return max(probes or scores, key=lambda score: score.epochs, default=None)
