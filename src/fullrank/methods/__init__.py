"""What surrounds an objective: backbone, projector, and the forward pass to named embeddings."""

from fullrank.methods.backbones import Backbone, build_backbone, features_of
from fullrank.methods.joint import JointEmbedding
from fullrank.methods.method import Method
from fullrank.methods.projectors import Projector, build_projector

METHODS: dict[str, type[Method]] = {
    "frossl": JointEmbedding,
    "simclr": JointEmbedding,
    "barlow_twins": JointEmbedding,
    "vicreg": JointEmbedding,
}
"""Objective → the method that supplies its tensors."""

__all__ = ["METHODS", "Backbone", "JointEmbedding", "Method", "Projector", "build_backbone", "build_projector", "features_of"]
