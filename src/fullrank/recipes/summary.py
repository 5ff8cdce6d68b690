"""The recipes as a listing: one line a method, grouped by data set."""

from collections.abc import Iterator

from fullrank.recipes.catalog import ENTRIES, FAMILIES, ORIGINS, RECIPES
from fullrank.recipes.recipe import Recipe, view_sizes
from fullrank.recipes.scores import final_score

HEADER = ("", "network", "optimizer", "projector", "views", "batch", "epochs", "published", "source")


def summarize(recipe: Recipe) -> dict[str, str]:
    """Return the most important choices of a recipe in a few words each, by the names of the columns of the listing.

    >>> summarize(RECIPES["cifar10-swav-multicrop"])["views"]
    '2×32 + 6×18 px, crop 0.2-1, jitter 0.6, asymmetric'
    """
    optimizer, projector = recipe.optimizer, recipe.projector
    widths = "-".join(map(str, projector.widths)) if projector.kind == "mlp" else projector.kind
    sizes = " + ".join(f"{V}×{size}" for size, V in view_sizes(recipe).items())
    return {
        "network": recipe.backbone.name + (", narrow" if "channels" in recipe.backbone.arguments else ""),
        "optimizer": f"{optimizer.name} {optimizer.lr:.3g}, {optimizer.weight_decay:.2g}",
        "projector": widths or "none",
        "views": ", ".join((f"{sizes} px", *_augmentation(recipe))),
        "batch": str(recipe.batch_size),
        "epochs": str(recipe.epochs),
    }


def _augmentation(recipe: Recipe) -> Iterator[str]:
    """Yield the crop of the first view if that is not the usual one, its jitter, and whether the other views of its
    size differ from it.
    """
    first, *others = recipe.views
    low, high = first.crop.scale
    if first.crop.probability and (low, high) != (0.08, 1.0):
        yield f"crop {low:g}-{high:g}"
    if first.jitter.probability:
        yield f"jitter {first.jitter.brightness:g}"
    if any(other.size == first.size for other in others):
        yield "asymmetric"


def published_accuracy(name: str) -> str:
    """Return the published accuracy in percent; a star marks the online classifier.

    >>> published_accuracy("stl10"), published_accuracy("imagenet100-simclr"), published_accuracy("digits")
    ('87.3 %', '77.6 %*', '')
    """
    score = final_score(name)
    return "" if score is None else f"{100 * score.accuracy:.1f} %{'' if score.protocol == 'linear probe' else '*'}"


def list_recipes() -> Iterator[str]:
    """Yield the lines of the listing."""
    rows = {
        name: (name, *summarize(recipe).values(), published_accuracy(name), ORIGINS[name])
        for name, recipe in RECIPES.items()
    }
    widths = [max(map(len, column)) for column in zip(HEADER, *rows.values(), strict=True)]

    def line(row: tuple[str, ...]) -> str:
        return "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()

    for family, title in FAMILIES.items():
        members = [name for name, entry in ENTRIES.items() if entry.family == family]
        yield f"{title}, {RECIPES[family].data.source}" if family else title
        yield line(HEADER)
        yield from (line(rows[name]) for name in members)
        yield ""
    yield "optimizer: name, learning rate, weight decay. published: top-1 of the linear probe in percent (*: of the online classifier)."
    yield "fullrank recipes NAME prints a recipe as JSON. fullrank pretrain NAME trains it; so does pretrain DATASET --objective OBJECTIVE."
