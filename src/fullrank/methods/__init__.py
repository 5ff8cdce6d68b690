"""What surrounds an objective: backbone, projector, head, target network, memory, and the forward pass to named embeddings."""

from fullrank.methods.asymmetric import Asymmetric
from fullrank.methods.backbones import Backbone, build_backbone, features_of
from fullrank.methods.builders import METHODS, Branch, Builder, builder_of
from fullrank.methods.clock import Clock
from fullrank.methods.gradients import gradient_ranks
from fullrank.methods.groups import Grouped
from fullrank.methods.joint import JointEmbedding
from fullrank.methods.method import Method
from fullrank.methods.projectors import Projector, build_projector

__all__ = [
    "METHODS",
    "Asymmetric",
    "Backbone",
    "Branch",
    "Builder",
    "Clock",
    "Grouped",
    "JointEmbedding",
    "Method",
    "Projector",
    "build_backbone",
    "build_projector",
    "builder_of",
    "features_of",
    "gradient_ranks",
]
