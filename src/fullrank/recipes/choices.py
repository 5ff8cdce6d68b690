"""Rules by which the fields of a recipe follow from a choice of epochs, batch size, view size, backbone or optimizer.

They hold for the recipes of the library, for a recipe.json and for the general recipe for photos. A published recipe
equals its publication as long as none of these choices is made.
"""

from collections.abc import Mapping
from dataclasses import replace

from fullrank.errors import pick
from fullrank.methods.config import BackboneConfig
from fullrank.recipes.recipe import Recipe, flatten, to_dict
from fullrank.training.config import OptimizerConfig

LARGEST_SMALL_STEM = 64
"""Views of at most this size get the small stem: the standard stem reduces 64 px to a feature map of 2×2."""

WARMUPS = 5
"""A run is at least this many times as long as its warm-up."""

OPTIMIZERS = {
    "adam": OptimizerConfig(name="adam", lr=2e-3, weight_decay=1e-6),
    "adamw": OptimizerConfig(name="adamw", lr=2e-3, weight_decay=1e-4),
    "lars": OptimizerConfig(name="lars", lr=0.3, weight_decay=1e-6),
    "sgd": OptimizerConfig(name="sgd", lr=0.05, weight_decay=1e-4),
}
"""Optimizer → its values at a batch of 256. LARS as in SimCLR (Chen et al. 2020, App. B), SGD as in SimSiam (Chen and
He 2021), Adam as for W-MSE (Ermolov et al. 2021)."""

VISION_TRANSFORMER = OptimizerConfig(name="adamw", lr=5e-4, weight_decay=0.04, clip_norm=3.0)
"""AdamW for a vision transformer at a batch of 256, as in DINO (Caron et al. 2021, Sec. 3.2, whose weight decay grows
from 0.04 to 0.4; the clip is from the public code)."""

BATCH_EXPONENTS = {"adam": 0.5, "adamw": 0.5, "lars": 1.0, "sgd": 1.0}
"""Optimizer → exponent with which the learning rate follows the batch size: linear for LARS and SGD (Goyal et al.
2017), the square root for Adam and AdamW (Malladi et al. 2022)."""

WAITS = ("freeze", "queue_start", "temperature_warmup")
"""Hyperparameters of methods, in epochs, with which something begins or ends early in the run: of SwAV and DINO."""

FOLLOWING = (
    *("optimizer.lr", "optimizer.weight_decay", "optimizer.decay_all", "schedule.warmup", "backbone.stem"),
    *(f"method.{name}" for name in WAITS),
)
"""The fields that follow from a choice and are explained."""

SAME_RATE_FOR_ANY_BATCH = ("imagenet-simclr", "imagenet-directclr")
"""Recipes whose authors use one learning rate for any batch size (the public code of DirectCLR)."""


def with_choices(
    recipe: Recipe,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    size: int | None = None,
    backbone: str | None = None,
    optimizer: str | None = None,
) -> Recipe:
    """Return the recipe with what follows from the choices. None leaves the recipe's own value.

    | choice | what follows |
    |---|---|
    | epochs | the warm-up takes at most a fifth of them, and so do the waits of SwAV and DINO (`WAITS`) |
    | batch size | the learning rate: linear for LARS and SGD, the square root for Adam and AdamW; unchanged for
    DirectCLR's recipes |
    | view size | the stem of a ResNet: small for views of at most 64 px, else standard |
    | backbone | timm's own arguments instead of the recipe's, and the stem |
    | optimizer | its learning rate for this batch, and its weight decay, without biases and norms (`OPTIMIZERS`) |

    Args:
        recipe: the recipe to change.
        epochs: number of passes over the images.
        batch_size: images per step.
        size: side in pixels of the largest view; the views themselves are not changed.
        backbone: a timm model.
        optimizer: a name in `OPTIMIZERS`.

    Raises:
        UserError: the optimizer or the backbone is unknown, or a value does not fit a recipe.

    >>> short = with_choices(Recipe(), epochs=20, batch_size=128)
    >>> short.epochs, short.schedule.warmup, short.optimizer.lr
    (20, 4.0, 0.15)
    """
    if optimizer is not None and optimizer != recipe.optimizer.name:
        rule = pick(optimizer, OPTIMIZERS, "optimizer")
        lr = learning_rate(optimizer, batch_size or recipe.batch_size)
        decay = {
            "weight_decay": rule.weight_decay,
            "last_weight_decay": rule.last_weight_decay,
            "decay_all": rule.decay_all,
        }
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, name=rule.name, lr=lr, **decay))
    elif batch_size is not None and recipe.name not in SAME_RATE_FOR_ANY_BATCH:
        exponent = BATCH_EXPONENTS[recipe.optimizer.name]
        lr = recipe.optimizer.lr * (batch_size / recipe.batch_size) ** exponent
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, lr=lr))
    if epochs is not None:
        schedule = replace(recipe.schedule, warmup=min(recipe.schedule.warmup, epochs / WARMUPS))
        waiting = () if recipe.method_builder else WAITS
        waits = {name: min(recipe.method[name], epochs / WARMUPS) for name in waiting if name in recipe.method}
        recipe = replace(recipe, epochs=epochs, schedule=schedule, method={**recipe.method, **waits})
    previous = max(view.size for view in recipe.views)
    if backbone is not None:
        recipe = replace(recipe, backbone=backbone_config(backbone, size or previous))
    elif size is not None and (size <= LARGEST_SMALL_STEM) != (previous <= LARGEST_SMALL_STEM):
        stem = backbone_config(recipe.backbone.name, size).stem
        recipe = replace(recipe, backbone=replace(recipe.backbone, stem=stem))
    return replace(recipe, batch_size=batch_size or recipe.batch_size)


def largest_size(recipe: Recipe, sizes: Mapping[str, int]) -> int | None:
    """Return the side of the largest view after some views get other sizes, or None if none does: the `size` of
    `with_choices`.

    Args:
        recipe: the recipe whose other views keep their sizes.
        sizes: name of a field, such as views.0.size, → its new value; other fields are ignored.

    >>> from fullrank.views import ViewConfig
    >>> largest_size(Recipe(views=(ViewConfig(size=224), ViewConfig(size=96))), {"views.1.size": 48}), largest_size(Recipe(), {})
    (224, None)
    """
    changed = {f"views.{number}.size": view.size for number, view in enumerate(recipe.views)}
    chosen = {name: sizes[name] for name in changed if name in sizes}
    return max((changed | chosen).values()) if chosen else None


def explain_choices(original: Recipe, derived: Recipe, final: Recipe) -> list[str]:
    """Return one line with the fields that `with_choices` changed from `original` to `derived` and that are the same in
    `final`.

    >>> explain_choices(Recipe(), short := with_choices(Recipe(), epochs=20), short)
    ['follows from the flags: schedule.warmup 10.0 → 4.0; a flag sets another value']
    """
    before_and_after = [flatten(to_dict(recipe)) for recipe in (original, derived, final)]
    values = [(field, *(leaves.get(field) for leaves in before_and_after)) for field in FOLLOWING]
    another_network = original.backbone.name != derived.backbone.name  # its stem is no news
    changes = [
        f"{field} {before} → {after}"
        for field, before, after, at_last in values
        if before != after == at_last and not (another_network and field == "backbone.stem")
    ]
    return [f"follows from the flags: {', '.join(changes)}; a flag sets another value"] if changes else []


def balanced_invariance(recipe: Recipe) -> float | None:
    """Return FroSSL's invariance weight 4N/(D(V − 1)), which keeps the balance of the paper's N = 256, D = 1024 and V =
    2 at weight 1.

    None for another objective, and where D is not the last width of an MLP. Source: docs/objectives.md, "The invariance
    weight".

    >>> balanced_invariance(Recipe()), balanced_invariance(Recipe(batch_size=64)), balanced_invariance(Recipe(objective="vicreg"))
    (1.0, 0.25, None)
    """
    V = sum(view.count for view in recipe.views)
    if (
        recipe.objective != "frossl"
        or not recipe.hyper["log"]
        or recipe.projector.kind != "mlp"
        or recipe.projector.absent
        or V < 2
    ):
        return None
    return 4 * recipe.batch_size / (recipe.projector.widths[-1] * (V - 1))


def explain_balance(original: Recipe, final: Recipe) -> list[str]:
    """Return one line if batch size, projector or number of views changed FroSSL's balanced invariance weight, but the
    weight stayed.

    >>> explain_balance(Recipe(), replace(Recipe(), batch_size=64))
    ["FroSSL's balance follows batch size, projector and number of views: --hyper.invariance 0.25 keeps that of the recipe; it is 1 now"]
    >>> explain_balance(Recipe(), Recipe(batch_size=64, hyper={"invariance": 0.5}))
    []
    """
    before, after = balanced_invariance(original), balanced_invariance(final)
    if before is None or after is None or before == after or original.hyper["invariance"] != final.hyper["invariance"]:
        return []
    weight = final.hyper["invariance"]
    advice = f"--hyper.invariance {weight * after / before:.3g} keeps that of the recipe; it is {weight:.3g} now"
    return [f"FroSSL's balance follows batch size, projector and number of views: {advice}"]


def learning_rate(optimizer: str, batch_size: int) -> float:
    """Return the peak learning rate of an optimizer for a batch.

    >>> learning_rate("lars", 512), learning_rate("adamw", 64)
    (0.6, 0.001)
    """
    return OPTIMIZERS[optimizer].lr * (batch_size / 256) ** BATCH_EXPONENTS[optimizer]


def backbone_config(name: str, size: int) -> BackboneConfig:
    """Return timm's network of this name, with the stem for views of `size` pixels.

    Raises:
        UserError: timm has no such network.

    >>> [backbone_config("resnet50", size).stem for size in (64, 96)]
    ['small', 'standard']
    """
    from fullrank.methods.backbones import check_name, has_plain_stem  # not at the top, because a recipe needs no timm

    check_name(name)
    return BackboneConfig(
        name=name, stem="small" if size <= LARGEST_SMALL_STEM and has_plain_stem(name) else "standard"
    )
