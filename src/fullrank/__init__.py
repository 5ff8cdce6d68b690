"""Self-supervised learning of images by joint embedding, with the spectrum of the embeddings.

Each public name is imported when it is first used, so that `import fullrank` is fast.
"""

from typing import TYPE_CHECKING

from fullrank.lazy import lazy_attributes

if TYPE_CHECKING:
    from fullrank.errors import UserError
    from fullrank.evaluation.choosing import choose
    from fullrank.evaluation.finetuning import finetune
    from fullrank.evaluation.judging import evaluate, measure_spectrum
    from fullrank.evaluation.neighbourhood import neighbours
    from fullrank.images import open_images
    from fullrank.models import Model, load
    from fullrank.models.embedder import Embedder
    from fullrank.models.embeddings import embed
    from fullrank.models.exporting import export
    from fullrank.recipes import RECIPES, Recipe
    from fullrank.run import Run
    from fullrank.run.pretrain import pretrain
    from fullrank.spectrum import Spectrum

__all__ = [
    "RECIPES",
    "Embedder",
    "Model",
    "Recipe",
    "Run",
    "Spectrum",
    "UserError",
    "choose",
    "embed",
    "evaluate",
    "export",
    "finetune",
    "load",
    "measure_spectrum",
    "neighbours",
    "open_images",
    "pretrain",
]

_HOME = {
    "Embedder": "models.embedder",
    "RECIPES": "recipes",
    "Model": "models",
    "Recipe": "recipes",
    "Run": "run",
    "Spectrum": "spectrum",
    "UserError": "errors",
    "choose": "evaluation.choosing",
    "embed": "models.embeddings",
    "evaluate": "evaluation.judging",
    "export": "models.exporting",
    "finetune": "evaluation.finetuning",
    "load": "models",
    "measure_spectrum": "evaluation.judging",
    "neighbours": "evaluation.neighbourhood",
    "open_images": "images",
    "pretrain": "run.pretrain",
}


__getattr__ = lazy_attributes(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
