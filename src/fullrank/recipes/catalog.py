"""All recipes of the library by name, with their published accuracies, and the listing of `fullrank recipes`.

scores.toml has the accuracies as the papers and solo-learn's README print them.
"""

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fullrank.recipes import cifar, imagenet, small
from fullrank.recipes.published import Entry
from fullrank.recipes.recipe import Recipe, view_sizes

# Name → recipe and origin.
ENTRIES: Mapping[str, Entry] = {entry.name: entry for module in (small, cifar, imagenet) for entry in module.ENTRIES}
# Name → recipe, for `fullrank pretrain NAME`: DATASET for FroSSL, DATASET-OBJECTIVE for another method,
# DATASET-OBJECTIVE-VARIANT where publications differ.
RECIPES: Mapping[str, Recipe] = {name: entry.recipe for name, entry in ENTRIES.items()}

# Family → its title.
FAMILIES = {
    "": "fullrank's own recipes, for small machines",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "stl10": "STL-10 (the source has 13,000 labelled images; the authors train on 105,000, most unlabelled)",
    "tiny-imagenet": "Tiny ImageNet",
    "imagenet100": "ImageNet-100",
    "imagenet": "ImageNet",
}
PROBE = "linear probe"
# Protocol → the mark of its accuracies in the listing.
MARKS = {PROBE: "", "online classifier": "*", "kNN": " kNN"}
HEADER = ("", "network", "optimizer", "projector", "views", "batch", "epochs", "published", "source")


def list_recipes() -> Iterator[str]:
    """Yield the lines of the listing."""
    rows = {name: summarize(entry) for name, entry in ENTRIES.items()}
    widths = [max(map(len, column)) for column in zip(HEADER, *rows.values(), strict=True)]
    for family, title in FAMILIES.items():
        yield f"{title}, {RECIPES[family].data.source}" if family else title
        for row in (HEADER, *(rows[name] for name, entry in ENTRIES.items() if entry.family == family)):
            yield "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        yield ""
    yield "optimizer: name, learning rate, weight decay. published: top-1, linear probe (*: online classifier; kNN)."
    yield "fullrank recipes NAME prints a recipe as JSON. fullrank pretrain NAME [--objective OBJECTIVE] trains it."


def summarize(entry: Entry) -> tuple[str, ...]:
    """Return the most important choices of a recipe in a few words each, in the order of `HEADER`.

    >>> summarize(ENTRIES["cifar10-swav-multicrop"])[4]
    '2×32 + 6×18 px, crop 0.2-1, jitter 0.6, asymmetric'
    """
    recipe, score = entry.recipe, final_score(entry.name)
    optimizer, projector, (view, *others) = recipe.optimizer, recipe.projector, recipe.views
    views = [" + ".join(f"{V}×{size}" for size, V in view_sizes(recipe).items()) + " px"]
    views += [f"crop {view.crop.scale[0]:g}-{view.crop.scale[1]:g}"] if view.crop.scale != (0.08, 1.0) else []
    views += [f"jitter {view.jitter.brightness:g}"] if view.jitter.probability else []
    views += ["asymmetric"] if any(other.size == view.size for other in others) else []
    return (
        entry.name,
        recipe.backbone.name + (", narrow" if "channels" in recipe.backbone.arguments else ""),
        f"{optimizer.name} {optimizer.lr:.3g}, {optimizer.weight_decay:.2g}",
        ("-".join(map(str, projector.widths)) if projector.kind == "mlp" else projector.kind) or "none",
        ", ".join(views),
        str(recipe.batch_size),
        str(recipe.epochs),
        f"{100 * score.accuracy:.1f} %{MARKS[score.protocol]}" if score else "",
        entry.origin,
    )


@dataclass(frozen=True)
class PublishedScore:
    """A published top-1 accuracy on the test images.

    Attributes:
        accuracy: Share of the test images whose class was predicted.
        epochs: Epochs of pretraining after which it was measured.
        protocol: "linear probe": a classifier trained on the frozen backbone; "online classifier": trained along with
            the backbone; "kNN": the 200 nearest training images, the best epoch.
        source: Paper and table, or file.
        top5: Share of the test images with the class among the five best predictions, if it was published.
        same_recipe: Whether it was measured with the settings that this recipe follows, up to the differences that
            docs/recipes.md lists, and not with other settings of the same method.
    """

    accuracy: float
    epochs: int
    protocol: str
    source: str
    top5: float | None = None
    same_recipe: bool = True


def _tables() -> Iterator[tuple[str, str, PublishedScore]]:
    """Yield the data set, the method, and a score, in the order of scores.toml."""
    tables = tomllib.loads(Path(__file__).with_name("scores.toml").read_text("utf-8"))["tables"]
    for table in tables:
        source, top5 = table["source"], table.get("top5", {})
        for method, row in table["percent"].items():
            fives = top5.get(method, [math.nan] * len(row))
            for (data_set, epochs, protocol), percent, five in zip(table["columns"], row, fives, strict=True):
                best = None if math.isnan(five) else round(five / 100, 4)
                values = (round(percent / 100, 4), epochs, protocol, source, best, "another recipe" not in source)
                if not math.isnan(percent):
                    yield data_set, method, PublishedScore(*values)


SCORES = list(_tables())
_NAMES = [data_set if method == "frossl" else f"{data_set}-{method}" for data_set, method, _ in SCORES]
# Name of a recipe → its published accuracies, those of FroSSL's paper first. A recipe without one is not a key.
PUBLISHED: Mapping[str, tuple[PublishedScore, ...]] = {
    name: tuple(score for other, (_, _, score) in zip(_NAMES, SCORES, strict=True) if other == name) for name in _NAMES
}


def final_score(name: str) -> PublishedScore | None:
    """Return the accuracy of a recipe after the largest published number of epochs: of the linear probe, else of
    another protocol, else None.

    >>> final_score("stl10").accuracy, final_score("cifar10-wmse").accuracy, final_score("cifar10-ivne")
    (0.873, 0.8867, None)
    """
    scores = [score for score in PUBLISHED.get(name, ()) if score.same_recipe]
    probes = [score for score in scores if score.protocol == PROBE]
    return max(probes or scores, key=lambda score: score.epochs, default=None)
