"""Self-supervised learning of images by joint embedding, with the spectrum of the embeddings.

Each public name is imported when it is first used, so that `import fullrank` is fast.
"""

from typing import TYPE_CHECKING

from fullrank.lazy import lazy_attributes

if TYPE_CHECKING:
    from fullrank.choosing import choose
    from fullrank.embedder import Embedder
    from fullrank.embeddings import embed
    from fullrank.errors import UserError
    from fullrank.exporting import export
    from fullrank.finetuning import finetune
    from fullrank.images import open_images
    from fullrank.judging import evaluate, measure_spectrum
    from fullrank.loading import Model, load
    from fullrank.neighbourhood import neighbours
    from fullrank.pretraining import pretrain
    from fullrank.recipes import RECIPES, Recipe
    from fullrank.run import Run
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
    "Embedder": "embedder",
    "RECIPES": "recipes",
    "Model": "loading",
    "Recipe": "recipes",
    "Run": "run",
    "Spectrum": "spectrum",
    "UserError": "errors",
    "choose": "choosing",
    "embed": "embeddings",
    "evaluate": "judging",
    "export": "exporting",
    "finetune": "finetuning",
    "load": "loading",
    "measure_spectrum": "judging",
    "neighbours": "neighbourhood",
    "open_images": "images",
    "pretrain": "pretraining",
}


__getattr__ = lazy_attributes(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
