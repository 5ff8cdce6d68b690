"""The numbers by which fields of a recipe follow from others: `resolve.following` and `photos` apply them."""

from typing import Literal

from fullrank.methods.backbones import has_plain_stem
from fullrank.recipes.recipe import Recipe
from fullrank.training.config import OptimizerConfig

# Views of at most this size get the small stem: the standard stem reduces 64 px to a feature map of 2×2.
LARGEST_SMALL_STEM = 64
# A run is at least this many times as long as its warm-up.
WARMUPS = 5
# The same for a run that starts with given weights. Our choice: the peak is lower, so that it is reached sooner.
WARMUPS_WITH_INIT = 40
# Optimizer → its values at a batch of 256. LARS as in SimCLR (Chen et al. 2020, App. B), SGD as in SimSiam (Chen and He
# 2021), Adam as for W-MSE (Ermolov et al. 2021).
OPTIMIZERS = {
    "adam": OptimizerConfig(name="adam", lr=2e-3, weight_decay=1e-6),
    "adamw": OptimizerConfig(name="adamw", lr=2e-3, weight_decay=1e-4),
    "lars": OptimizerConfig(name="lars", lr=0.3, weight_decay=1e-6),
    "sgd": OptimizerConfig(name="sgd", lr=0.05, weight_decay=1e-4),
}
# AdamW for a vision transformer at a batch of 256, as in DINO (Caron et al. 2021, Sec. 3.2, whose weight decay grows
# from 0.04 to 0.4; the clip is from the public code).
VISION_TRANSFORMER = OptimizerConfig(name="adamw", lr=5e-4, weight_decay=0.04, clip_norm=3.0)
# Optimizer → exponent with which the learning rate follows the batch size: linear for LARS and SGD (Goyal et al. 2017),
# the square root for Adam and AdamW (Malladi et al. 2022).
BATCH_EXPONENTS = {"adam": 0.5, "adamw": 0.5, "lars": 1.0, "sgd": 1.0}
# Hyperparameters of methods, in epochs, with which something begins or ends early in the run: of SwAV and DINO.
WAITS = ("freeze", "queue_start", "temperature_warmup")
# Recipes whose authors use one learning rate for any batch size (the public code of DirectCLR).
SAME_RATE_FOR_ANY_BATCH = ("imagenet-simclr", "imagenet-directclr")


def learning_rate(optimizer: str, batch_size: int) -> float:
    """Return the peak learning rate of an optimizer for a batch.

    >>> learning_rate("lars", 512), learning_rate("adamw", 64)
    (0.6, 0.001)
    """
    return OPTIMIZERS[optimizer].lr * (batch_size / 256) ** BATCH_EXPONENTS[optimizer]


def stem_for(network: str, size: int) -> Literal["small", "standard"]:
    """Return the stem of a network for views of `size` pixels.

    >>> [stem_for("resnet50", size) for size in (64, 96)]
    ['small', 'standard']
    """
    return "small" if size <= LARGEST_SMALL_STEM and has_plain_stem(network) else "standard"


def balanced_invariance(recipe: Recipe) -> float | None:
    """Return FroSSL's invariance weight 4N/(D(V − 1)), which keeps the balance of the paper's N = 256, D = 1024 and V =
    2 at weight 1.

    None for another objective, and where D is not the last width of an MLP. Source: docs/objectives.md, "The invariance
    weight".

    >>> [balanced_invariance(recipe) for recipe in (Recipe(), Recipe(batch_size=64), Recipe(objective="vicreg"))]
    [1.0, 0.25, None]
    """
    V, projector = sum(view.count for view in recipe.views), recipe.projector
    if recipe.objective != "frossl" or not recipe.hyper["log"] or V < 2 or projector.kind != "mlp" or projector.absent:
        return None
    return 4 * recipe.batch_size / (projector.widths[-1] * (V - 1))
