"""Self-supervised learning of images by joint embedding, with the spectrum of the embeddings.

Each public name is imported when it is first used, so that `fullrank --help` is instant.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fullrank.errors import UserError as UserError
    from fullrank.evaluation.choosing import choose as choose
    from fullrank.evaluation.finetuning import finetune as finetune
    from fullrank.evaluation.judging import evaluate as evaluate
    from fullrank.evaluation.judging import measure_spectrum as measure_spectrum
    from fullrank.evaluation.neighbourhood import neighbours as neighbours
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
    **dict.fromkeys(("evaluate", "measure_spectrum"), "evaluation.judging"),
    **{"Embedder": "models.embed", "embed": "models.embed", "export": "models.export"},
    **{"choose": "evaluation.choosing", "finetune": "evaluation.finetuning", "neighbours": "evaluation.neighbourhood"},
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
