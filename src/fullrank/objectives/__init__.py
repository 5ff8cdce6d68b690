"""Objectives of joint-embedding learning: pure functions of the embeddings of the whole batch, one file each.

Each returns its already weighted terms by name; their sum is the loss to minimise. Tensors are positional and named as in the papers,
numbers are keyword-only and have their default in the signature.
"""

from collections.abc import Callable

from fullrank.objectives.barlow_twins import barlow_twins
from fullrank.objectives.byol import byol
from fullrank.objectives.corinfomax import corinfomax
from fullrank.objectives.corinfomax_batch import corinfomax_batch
from fullrank.objectives.dino import dino
from fullrank.objectives.directclr import directclr
from fullrank.objectives.directclr_paper import directclr_paper
from fullrank.objectives.frossl import frossl
from fullrank.objectives.ivne import ivne
from fullrank.objectives.moco import moco
from fullrank.objectives.simclr import simclr
from fullrank.objectives.simmer import simmer
from fullrank.objectives.simsiam import simsiam
from fullrank.objectives.spectral_contrastive import spectral_contrastive
from fullrank.objectives.ssl_hsic import ssl_hsic
from fullrank.objectives.swav import swav
from fullrank.objectives.terms import Terms, total
from fullrank.objectives.theory import THEORY, alignment_linear, barlow_linear, contrastive_linear, frossl_linear, infonce_squared
from fullrank.objectives.tico import tico
from fullrank.objectives.vicreg import vicreg
from fullrank.objectives.wmse import wmse

__all__ = [
    "OBJECTIVES",
    "THEORY",
    "Objective",
    "Terms",
    "alignment_linear",
    "barlow_linear",
    "barlow_twins",
    "byol",
    "contrastive_linear",
    "corinfomax",
    "corinfomax_batch",
    "dino",
    "directclr",
    "directclr_paper",
    "frossl",
    "frossl_linear",
    "infonce_squared",
    "ivne",
    "moco",
    "simclr",
    "simmer",
    "simsiam",
    "spectral_contrastive",
    "ssl_hsic",
    "swav",
    "tico",
    "total",
    "vicreg",
    "wmse",
]

Objective = Callable[..., Terms]
"""Embeddings in, named weighted terms out."""

OBJECTIVES: dict[str, Objective] = {
    f.__name__: f
    for f in (
        *(simclr, moco, swav, spectral_contrastive),  # compare samples
        *(simsiam, byol, dino),  # predict
        *(vicreg, barlow_twins, wmse, corinfomax, corinfomax_batch, frossl, tico),  # compare dimensions
        *(ssl_hsic, ivne, simmer),  # kernels and entropies
        *(directclr, directclr_paper),  # without a projector
    )
}
"""Every objective by its name."""
