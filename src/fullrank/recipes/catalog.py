"""All recipes of the library by name, and the listing of `fullrank recipes`: one line a method, grouped by data set."""

from collections.abc import Iterator, Mapping

from fullrank.recipes import cifar, imagenet, small
from fullrank.recipes.published import Entry
from fullrank.recipes.recipe import Recipe, view_sizes
from fullrank.recipes.scores import PROBE, final_score

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
    yield "optimizer: name, learning rate, weight decay. published: top-1, linear probe (*: online classifier)."
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
        f"{100 * score.accuracy:.1f} %{'' if score.protocol == PROBE else '*'}" if score else "",
        entry.origin,
    )
