"""Self-supervised learning of images by joint embedding, with the spectrum of the embeddings.

Each public name is imported when it is first used, so that `fullrank --help` is instant.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fullrank.errors import UserError as UserError
    from fullrank.evaluation.choose import choose as choose
    from fullrank.evaluation.evaluate import evaluate as evaluate
    from fullrank.evaluation.finetune import finetune as finetune
    from fullrank.evaluation.neighbours import neighbours as neighbours
    from fullrank.evaluation.spectrum import measure_spectrum as measure_spectrum
    from fullrank.images import open_images as open_images
    from fullrank.models import Model as Model
    from fullrank.models import load as load
    from fullrank.models.embed import Embedder as Embedder
    from fullrank.models.embed import embed as embed
    from fullrank.models.export import export as export
    from fullrank.recipes import RECIPES as RECIPES
    from fullrank.recipes import Recipe as Recipe
    from fullrank.run import Run as Run
    from fullrank.run.pretrain import pretrain as pretrain
    from fullrank.spectrum import Spectrum as Spectrum

HOMES = {
    **dict.fromkeys(("RECIPES", "Recipe"), "recipes"),
    **dict.fromkeys(("Model", "load"), "models"),
    **{name: f"evaluation.{name}" for name in ("choose", "evaluate", "finetune", "neighbours")},
    **{"measure_spectrum": "evaluation.spectrum"},
    **{"Embedder": "models.embed", "embed": "models.embed", "export": "models.export"},
    **{"Run": "run", "pretrain": "run.pretrain", "Spectrum": "spectrum"},
    **{"UserError": "errors", "open_images": "images"},
}
"""Public name → the module that defines it."""

__all__ = sorted(HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'fullrank' has no attribute '{name}'")
    globals()[name] = value = getattr(importlib.import_module(f"fullrank.{HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
